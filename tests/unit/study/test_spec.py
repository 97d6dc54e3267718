"""The specification of a study: what is refused, which runs it describes, and when two studies are the same."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from cl2r.config.layers import read_layer, resolve
from cl2r.config.schema import to_yaml
from cl2r.errors import InputError
from cl2r.study.folder import digest
from cl2r.study.space import corner_values
from cl2r.study.spec import Point, StudySpec
from tests.support.quick import QUICK
from tests.support.small_study import small_study

STUDIES = Path(__file__).parents[3] / "studies"
RANGE = {"low": 0.1, "high": 10.0, "log": True}


def build(*overrides: str, **entries: Any) -> StudySpec:
    return StudySpec.load(entries, overrides)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_study_loads_and_all_its_configs_resolve(path: Path) -> None:
    study = StudySpec.load(path)
    assert path.with_suffix(".py").exists()
    points = study.points()
    points += [Point(None, {name: value}) for name, entry in study.space.items() for value in corner_values(entry)]
    points += [Point(None, {"method.name": method}) for method in (study.race.entrants() if study.race else [])]
    configs = [study.config(point, study.seeds[0]) for point in points]
    assert len({config.model_dump_json() for config in configs}) >= len(points) - 1, "all but one differ from the base"
    assert len(points) > 1


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ({"seed": [0]}, "'seeds'"),
        ({"girds": {}}, "'grid'"),
        ({"search": {"trial": 3}}, "'search.trials'"),
        ({"set": {"optim.epoch": 3}}, "'optim.epochs'"),
        ({"grid": {"memory.perclass": [1]}}, "'memory.per_class'"),
        ({"space": {"method.lamda_base": RANGE}}, "'method.lambda_base'"),
        ({"variants": {"a": {"head.center": True}}}, "'head.centre'"),
        ({"grid": {"seed": [0, 1]}}, "seed: use seeds"),
        ({"set": {"seed": 1}}, "seed: use seeds"),
        ({"space": {"seed": [0, 1]}}, "seed: use seeds"),
        ({"grid": {"memory.per_class": [1]}, "space": {"optim.lr": RANGE}}, "not both"),
        ({"variants": {"a": {}}, "space": {"optim.lr": RANGE}}, "not both"),
        ({"grid": {"memory.per_class": []}}, "grid.memory.per_class"),
        ({"space": {"memory.per_class": []}}, "space.memory.per_class"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [0, 1, 0]}, "[0, 1, 0]"),
        ({"seeds": [-1]}, "seeds.0"),
        ({"seeds": 3}, "seeds"),
        ({"search": {"objectives": ["BD"]}}, "'BC'"),
        ({"search": {"objectives": []}}, "search.objectives"),
        ({"search": {"trials": 0}}, "search.trials"),
        ({"search": {"sampler": "grid"}}, "search.sampler"),
        ({"search": {"pruner": "median", "objectives": ["BC", "AC"]}}, "pruner needs one objective"),
        ({"search": {"pruner": "median", "objectives": ["seconds"]}}, "seconds"),
        ({"search": {"pruner": "always"}}, "search.pruner"),
        ({"search": {"constraints": {"AC": "0.5"}}}, "has none of the forms"),
        ({"search": {"constraints": {"accuracy": ">= 0.5"}}}, "no metric 'accuracy'"),
        ({"search": {"constraints": {"AC": ">= err - 0.1"}}}, "did you mean 'er'"),
        ({"search": {"confirm": {"top": 0}}}, "search.confirm"),
        ({"search": {"confirm": {"seeds": [3, 3]}}}, "seeds must differ"),
        ({"space": {"optim.lr": [0.1, 0.1]}}, "optim.lr lists a value twice"),
        ({"space": {"scenario.n_tasks": [2, 3]}}, "use a grid"),
        ({"space": {"scenario.n_tasks": {"low": 2, "high": 5}, "optim.lr": [0.1, 0.2]}}, "as a list"),
        ({"space": {"optim.lr": {"low": 2, "high": 1}}}, "low"),
        ({"space": {"optim.lr": {"low": 1, "high": 1}}}, "low"),
        ({"space": {"optim.lr": {"low": 0, "high": 1, "log": True}}}, "log"),
        ({"space": {"optim.lr": {"low": 0}}}, "space.optim.lr"),
        ({"space": {"optim.lr": 3}}, "space.optim.lr"),
        ({"space": {"optim.lr": {"low": 0, "high": float("inf")}}}, "space.optim.lr"),
        ({"space": {"optim.lr": {"low": -1.0, "high": 1.0}}}, "optim.lr"),
        ({"space": {"optim.momentum": {"low": 0.5, "high": 1.0}}}, "optim.momentum"),
        ({"space": {"method.name": ["er", "erfd"]}}, "'er_fd'"),
        ({"space": {"memory.per_class": {"low": 0.5, "high": 3.5}}}, "memory.per_class"),
        ({"space": {"memory.per_class": {"low": 1.0, "high": 3.0}}}, "memory.per_class"),
        ({"preset": "iconz"}, "'icons'"),
    ],
)
def test_a_bad_specification(entries: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError) as refused:
        build(**entries)
    assert fault in str(refused.value)
    assert "\n" not in str(refused.value)


METHODS = {"grid": {"method.name": ["er", "lwf"]}}


@pytest.mark.parametrize(
    ("override", "entries"),
    [
        ("memory.per_class=3", {"grid": {"memory.per_class": [1, 2]}}),
        ("memory.per_class = 3", {"space": {"memory.per_class": [1, 2]}}),
        ("seed=3", {}),
        *((setting, METHODS) for setting in ("method.fd=all", "method.classifier=fixed", "adapter.name=slerp")),
    ],
)
def test_a_field_that_the_study_sets_cannot_be_set_for_all_runs(override: str, entries: dict[str, Any]) -> None:
    """Nor can a field that tells the methods of a grid apart."""
    with pytest.raises(InputError, match=f"--set {override}"):
        build(override, **entries)


@pytest.mark.parametrize("override", ["memory.per_class", "memory.perclass=3", "memory={perclass: 3}"])
def test_a_bad_override_is_named(override: str) -> None:
    with pytest.raises(InputError, match=f"--set .*{override}"):
        build(override)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "grid: [", "\tx: 1", "3"])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    for file in (path, tmp_path / "nowhere.yaml"):
        with pytest.raises(InputError) as refused:
            StudySpec.load(file)
        assert str(file) in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["grid", "search"])
@pytest.mark.parametrize("value", ["null", "tpe", "[1, 2]"])
def test_options_do_not_hide_a_bad_entry_of_the_file(tmp_path: Path, key: str, value: str) -> None:
    """Recipes always merge their options, given or not, into `grid` or `search`."""
    path = tmp_path / "bad.yaml"
    path.write_text(f"{key}: {value}\n")
    with pytest.raises(InputError, match=key):
        StudySpec.load(path, **{key: {}})


def test_points_are_variants_times_grid_and_the_last_key_varies_fastest() -> None:
    study = build(
        variants={"plain": {}, "large": {"memory.per_class": 50, "optim.epochs": 3}},
        grid={"method.name": ["er", "cl2r"], "memory.selection": ["random", "herding"]},
    )
    rows = [(p.variant, p.values["method.name"], p.values["memory.selection"]) for p in study.points()]
    names, selections = ("er", "cl2r"), ("random", "herding")
    assert rows == [(v, name, s) for v in ("plain", "large") for name in names for s in selections]
    config = study.config(study.points()[-1], 7)
    assert (config.seed, config.memory.per_class, config.optim.epochs) == (7, 50, 3)
    assert (config.method.name, config.method.classifier, config.memory.selection) == ("cl2r", "fixed", "herding")
    assert not study.is_sweep


def test_the_layers_of_a_config() -> None:
    """Preset, then `set`, then --set, then the point."""
    study = build(
        "optim={lr: 0.4, epochs: 7}",
        "optim.lr=0.3",
        "backbone.name=resnet20",
        set={"optim.lr": 0.2, "memory.per_class": 9, "method.lambda_base": 2},
        grid={"memory.per_class": [1]},
    )
    config = study.config(study.points()[0], 0)
    assert (config.optim.lr, config.backbone.name, config.memory.per_class) == (0.3, "resnet20", 1)
    assert (config.method.lambda_base, config.optim.epochs) == (2, 7)
    assert build().points() == [Point(None, {})]
    assert build().config(Point(None, {}), 3) == resolve([read_layer("icons"), {"seed": 3}])


def test_changes_replace_entries_and_merge_into_grid_and_search(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("seeds: [0, 1]\ngrid: {method.name: [er, cl2r], memory.per_class: [1, 2]}\n")
    study = StudySpec.load(
        path, seeds=[5], preset=None, grid={"method.name": ["fixed"]}, search={"trials": 3, "seed": None}
    )
    assert study.seeds == (5,)
    assert study.grid == {"method.name": ["fixed"], "memory.per_class": [1, 2]}
    assert study.search.trials == 3


def test_a_relative_path_to_data_becomes_absolute(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    study = build(f"data.name={tiny.name}")
    assert study.config(Point(None, {}), 0).data.name == str(tiny)
    assert study.config(Point(None, {"data.name": "nowhere.npz"}), 0).data.name == "nowhere.npz"
    assert build("data.name=nowhere.npz").config(Point(None, {"data.name": tiny.name}), 0).data.name == str(tiny)
    (tmp_path / "icons").mkdir()  # does not hide the icons
    monkeypatch.chdir(tmp_path)
    assert build().config(Point(None, {}), 0).data.name == "icons"


def test_the_name_of_a_preset_is_not_part_of_a_study_but_its_content_is(tmp_path: Path) -> None:
    one, two, three = tmp_path / "one.yaml", tmp_path / "two.yaml", tmp_path / "three.yaml"
    other = copy.deepcopy(QUICK) | {"augment": {"padding": 2, "flip": False}}
    for path, layer in ((one, QUICK), (two, QUICK), (three, other)):
        path.write_text(yaml.safe_dump(layer))
    first, second, third = (build(preset=str(path)).identity("pixels") for path in (one, two, three))
    assert first == second
    assert first != third
    assert digest(first) == digest(second) != digest(third)


def test_where_a_setting_came_from_is_not_part_of_a_study() -> None:
    assert build(set={"optim.lr": 0.2}).identity("d") == build("optim.lr=0.2").identity("d")
    assert build(set={"optim.lr": 0.2}).identity("d") != build(set={"optim.lr": 0.3}).identity("d")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"search": {"trials": 99}}, True),
        ({"search": {"seed": 1}}, False),
        ({"search": {"sampler": "random"}}, False),
        ({"search": {"objectives": ["AC"]}}, False),
        ({"search": {"pruner": "halving"}}, False),
        ({"search": {"constraints": {}}}, False),
        ({"search": {"warm_start": "earlier"}}, False),
        ({"search": {"confirm": {"top": 1, "seeds": [7]}}}, True),
        ({"space": {"optim.lr": RANGE | {"high": 11.0}}}, False),
        ({"space": {"optim.lr": [0.1, 0.2]}}, False),
        ({"seeds": [0, 1]}, False),
        ({"set": {"memory.per_class": 1}}, False),
    ],
)
def test_the_identity_of_a_sweep(change: dict[str, Any], same: bool) -> None:
    base: dict[str, Any] = {"space": {"optim.lr": RANGE}}
    assert (build(**base).identity("d") == build(**(base | change)).identity("d")) == same


def test_the_identity_of_a_grid(tiny: Path) -> None:
    grid = {"memory.per_class": [1, 2]}
    one = small_study(tiny, grid=grid)
    assert one.identity("d") == small_study(tiny, grid=grid, search={"trials": 7, "seed": 3}).identity("d")
    assert one.identity("d") != one.identity("other pixels")
    assert one.identity("d") != small_study(tiny, grid={"memory.per_class": [1, 3]}).identity("d")
    assert one.identity("d") != small_study(tiny, variants={"a": {}}, grid=grid).identity("d")


def test_settings_win_over_what_methods_bring() -> None:
    study = StudySpec.load({"grid": {"method.name": ["lwf", "er"]}}, ["head.projection=mlp", "lwf.weight=3"])
    lwf, er = (study.config(point, 0) for point in study.points())
    assert lwf.head.projection == er.head.projection == "mlp"
    assert lwf.batches.batching == "natural"
    assert er.batches.batching == "balanced"
    assert (lwf.model_dump()["lwf"]["weight"], "lwf" in er.model_dump()) == (3.0, False)


def test_a_number_of_tasks_replaces_the_choices_of_the_file_and_of_the_changes() -> None:
    content = {"preset": "icons", "grid": {"method.name": ["er"], "scenario.n_tasks": [2, 5]}}
    for changes in ({}, {"grid": {"scenario.n_tasks": [3, 5]}}):
        spec = StudySpec.load(content, tasks=4, **changes)
        assert [point.values for point in spec.points()] == [{"method.name": "er"}]
        assert spec.config(spec.points()[0], seed=0).scenario.n_tasks == 4


def test_constraints_of_a_command_add_to_those_of_the_file() -> None:
    space = {"space": {"optim.lr": [0.1, 0.2]}}
    default = {"reindexed_accuracy": ">= er - 0.01"}
    assert StudySpec.load(space).search.constraints == default
    more = {"search": {"constraints": {"AC": ">= 0.5"}}}
    assert StudySpec.load(space, **more).search.constraints == {**default, "AC": ">= 0.5"}
    own = {**space, "search": {"constraints": {"BC": ">= 0", "AC": ">= 0.1"}}}
    assert StudySpec.load(own, **more).search.constraints == {"BC": ">= 0", "AC": ">= 0.5"}
    assert StudySpec.load(own, search={"constraints": {}}).search.constraints == {}
    assert StudySpec.load(own, search={"constraints": None}).search.constraints == {"BC": ">= 0", "AC": ">= 0.1"}


def test_seeds_of_the_search_do_not_confirm_it() -> None:
    space = {"space": {"optim.lr": [0.1, 0.2]}, "search": {"confirm": {"seeds": [1, 2]}}}
    assert StudySpec.load(space).confirm_seeds == (1, 2)
    assert StudySpec.load({**space, "seeds": [0, 1, 2]}).confirm_seeds == (3, 4)
    assert StudySpec.load({**space, "seeds": [1, 5]}).confirm_seeds == (0, 2)


def test_the_file_of_a_study_is_that_of_a_run_and_what_varies(tmp_path: Path) -> None:
    """Sections are overrides of every run, as `set` is; `set` wins."""
    path = tmp_path / "mine.yaml"
    path.write_text("preset: lfw\nthreads: 2\noptim: {epochs: 3, lr: 0.2}\nset: {optim.lr: 0.3}\nseeds: [1]\n")
    study = StudySpec.load(path, ["optim.momentum=0.5"])
    changes = {"threads": 2, "optim": {"epochs": 3, "lr": 0.3, "momentum": 0.5}, "seed": 1}
    # The folder of the benchmarks is made absolute.
    assert study.config(Point(None, {}), 1).optim == resolve([read_layer("lfw"), changes]).optim
    assert study.config(Point(None, {}), 1).threads == 2
    settings = {"threads": 2, "optim.epochs": 3, "optim.lr": 0.3, "optim.momentum": 0.5}
    dotted = build(set=settings, preset="lfw", seeds=[1])
    assert study.identity("d") == dotted.identity("d")


def test_the_base_of_a_study_is_found_beside_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    (tmp_path / "base.yaml").write_text("optim: {epochs: 7}")
    (tmp_path / "mine.yaml").write_text("preset: base.yaml\nseeds: [0, 1]")
    config = StudySpec.load(tmp_path / "mine.yaml").config(Point(None, {}), 0)
    assert config == resolve([read_layer("icons"), {"optim": {"epochs": 7}}])


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("optim: {epochs: 3}", ["cl2r run", "grid"]),
        ("preset: lfw\nthreads: 3", ["cl2r run", "seeds"]),
        (to_yaml(resolve([])) + "grid: {optim.lr: [0.1, 0.2]}", ["cl2r run"]),
        ("optim: 3\ngrid: {optim.lr: [0.1, 0.2]}", ["optim", "mapping"]),
        ("optim: {epoch: 3}\nseeds: [0, 1]", ["'optim.epochs'"]),
        ("preset: mine.yaml\nseeds: [0, 1]", ["mine.yaml", "cl2r study"]),
    ],
)
def test_the_file_of_a_run_is_no_study(tmp_path: Path, text: str, faults: list[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        StudySpec.load(path)
    assert all(fault in str(refused.value) for fault in [str(path), *faults]), refused.value


def test_the_file_of_a_run_is_a_study_once_something_varies(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("optim: {epochs: 3}")
    assert StudySpec.load(path, seeds=(0, 1)).seeds == (0, 1)
    assert StudySpec.load(path, seeds=(0, 1)).config(Point(None, {}), 0).optim.epochs == 3


def test_a_preset_of_ones_own_yields_to_what_methods_bring_and_sections_do_not(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("memory: {per_class: 7}")
    (tmp_path / "mine.yaml").write_text("preset: base.yaml\nhead: {projection: linear}\ngrid: {method.name: [lwf, er]}")
    study = StudySpec.load(tmp_path / "mine.yaml")
    lwf, er = (study.config(point, 0) for point in study.points())
    assert (lwf.memory.per_class, er.memory.per_class) == (0, 7)
    assert lwf.head.projection == "linear"
