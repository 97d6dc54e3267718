"""What the study of speed tricks takes away is really gone, comes back, and is judged by the numbers alone."""

import contextlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from quick import QUICK, quick_config
from torch import Tensor, nn

from cl2r.augment import Normalise, crop_and_flip, draw
from cl2r.config import Config
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError, TrainingError
from cl2r.methods.base import Batch
from cl2r.methods.incremental import Incremental
from cl2r.simplex import SimplexClassifier
from cl2r.study.dry_run import DryChain
from studies import tricks
from studies.tricks import (
    ENGINE,
    KNOWN,
    PAIRED,
    VARIANTS,
    Outcome,
    Paired,
    Variant,
    compare,
    run_chain,
    table,
    taken_away,
    verdict,
)

CPU = torch.device("cpu")
REPLACING = [variant for variant in VARIANTS if variant.replaced]


@pytest.fixture
def config(tiny: Path) -> Config:
    return quick_config(tiny, {"optim": {"epochs": 1, "milestones": []}, "augment": {"flip": True}})


def at_task_two(config: Config) -> DryChain:
    """Inside of `taken_away`, for models are built here."""
    chain = DryChain(plan_run(config), CPU)
    chain.begin()
    chain.method.end_task()
    chain.begin()
    return chain


def batch_of(chain: DryChain) -> Batch:
    return next(chain.loop.batches(2, chain.data.new, chain.data.memory, 0, 0))


def convolved(module: nn.Module, x: Tensor) -> list[Tensor]:
    """What comes out of the convolutions of a module."""
    seen: list[Tensor] = []
    hooks = [
        part.register_forward_hook(lambda _, __, out: seen.append(out))
        for part in module.modules()
        if isinstance(part, nn.Conv2d)
    ]
    module(x)
    for hook in hooks:
        hook.remove()
    return seen


# Every patch takes effect


@pytest.mark.parametrize(("name", "plain"), [(ENGINE, False), ("channels_last", True)])
def test_all_maps_are_in_the_layout(config: Config, name: str, plain: bool) -> None:
    with taken_away(KNOWN[name]):
        chain = at_task_two(config)
        network, x = chain.method.network, batch_of(chain).x
        maps = [*convolved(network, x), *convolved(chain.method.extractor(), x)]
    assert len(maps) == 2 * 7
    assert all(out.is_contiguous() == plain for out in maps)
    assert all(out.is_contiguous(memory_format=torch.channels_last) != plain for out in maps)


@pytest.mark.parametrize(("name", "norms"), [(ENGINE, 0), ("folding", 7)])
def test_batch_norms_of_teacher_and_extractor_stay(config: Config, name: str, norms: int) -> None:
    with taken_away(KNOWN[name]):
        method = at_task_two(config).method
        assert isinstance(method, Incremental)
        assert method.teacher is not None
        for module in (method.teacher, method.extractor()):
            assert sum(isinstance(part, nn.BatchNorm2d) for part in module.modules()) == norms
            assert not module.training
            assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize(("name", "rows"), [(ENGINE, 8), ("teacher_rows", 16)])
def test_rows_that_the_teacher_sees(config: Config, name: str, rows: int) -> None:
    with taken_away(KNOWN[name]):
        chain, seen = at_task_two(config), []
        method, batch = chain.method, batch_of(chain)
        assert isinstance(method, Incremental)
        assert method.teacher is not None
        method.teacher.register_forward_hook(lambda _, words, __: seen.append(len(words[0])))
        method.loss(batch, method.network)
    assert seen == [rows]


@pytest.mark.parametrize("fd", ["memory", "all"])
def test_a_teacher_on_all_rows_gives_the_same_distillation(tiny: Path, fd: str) -> None:
    chain = at_task_two(quick_config(tiny, {"method": {"fd": fd}}))
    method, batch = chain.method, batch_of(chain)
    assert isinstance(method, Incremental)
    features = method.network(batch.x).features
    with taken_away(KNOWN["teacher_rows"]) as calls:
        plain = method.distillation(batch, features)["fd"]
    assert calls == {"Incremental.distillation": 1}
    expected = method.distillation(batch, features)["fd"]
    assert plain.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(("name", "fused"), [(ENGINE, True), ("fused_sgd", False)])
def test_steps_of_the_optimiser(config: Config, name: str, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = itertools.count()
    original = torch._fused_sgd_
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *words, **named: (next(counted), original(*words, **named)))
    with taken_away(KNOWN[name]):
        chain = at_task_two(config)
        method, stage = chain.method, chain.stages()[0]
        optimiser = chain.loop.optimiser(method, stage)
        before = [parameter.detach().clone() for parameter in method.network.parameters()]
        chain.loop.epoch(method, method.network, stage, optimiser, 0, iter([batch_of(chain)]))
    assert (next(counted) > 0) == fused
    assert not all(map(torch.equal, before, method.network.parameters()))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("padding", [0, 2])
def test_one_image_at_a_time_gives_the_same_pixels(channels: int, padding: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (9, 8, 6, channels), dtype=torch.uint8, generator=generator)
    drawn = draw(9, padding, True, generator)
    assert 0 < drawn.flips.sum() < 9
    assert torch.equal(tricks.one_by_one(images, drawn, padding), crop_and_flip(images, drawn, padding))


@pytest.mark.parametrize("scale", [1.0, "legacy"])
def test_dense_logits_are_those_of_the_closed_form(scale: Any) -> None:
    classifier, features = SimplexClassifier(12, scale), torch.randn(5, 11)
    expected = classifier(features)
    with taken_away(KNOWN["simplex"]) as calls:
        assert torch.allclose(classifier(features), expected, atol=1e-6)
    assert calls == {"SimplexClassifier.forward": 1}


def test_plain_normalisation_has_the_same_values() -> None:
    images = torch.randint(0, 256, (3, 5, 4, 3), dtype=torch.uint8)
    normalise = Normalise((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), CPU)
    expected = normalise(images)
    with taken_away(KNOWN["channels_last"]):
        plain = normalise(images)
    assert torch.equal(plain, expected)
    assert plain.is_contiguous()
    assert not expected.is_contiguous()


# And is undone


@pytest.mark.parametrize("variant", REPLACING, ids=lambda variant: variant.name)
@pytest.mark.parametrize("fails", [False, True])
def test_the_engine_is_itself_again(variant: Variant, fails: bool) -> None:
    def now() -> list[Any]:
        return [getattr(owner, name) for owner, name, _ in variant.replaced]

    before, meanwhile = now(), []
    with contextlib.suppress(KeyboardInterrupt), taken_away(variant):
        meanwhile = now()
        if fails:
            raise KeyboardInterrupt
    assert all(one is two for one, two in zip(before, now(), strict=True))
    assert not any(one is two for one, two in zip(before, meanwhile, strict=True))


# Chains


@pytest.fixture(scope="module")
def engine(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_chain(KNOWN[ENGINE], short(tiny), tmp_path_factory.mktemp("engine"))


def short(tiny: Path) -> Config:
    return quick_config(tiny, {"optim": {"epochs": 1, "milestones": []}, "augment": {"flip": True}})


def test_an_outcome_has_what_is_compared(engine: Outcome) -> None:
    assert [len(task) for task in engine.losses] == [1, 1, 1]
    assert all(loss > 0 for loss in engine.epoch(-1))
    assert len(engine.cells) == 6
    assert engine.figure("mean accuracy") == pytest.approx(sum(engine.cells) / 6)
    assert engine.figure("last loss") == pytest.approx(sum(task[-1] for task in engine.losses) / 3)


@pytest.mark.parametrize("name", ["again", "augmentation"])
def test_chains_that_must_be_equal(engine: Outcome, tiny: Path, tmp_path: Path, name: str) -> None:
    own = run_chain(KNOWN[name], short(tiny), tmp_path)
    assert (own.losses, own.cells, own.digest) == (engine.losses, engine.cells, engine.digest)


@pytest.mark.parametrize("name", ["channels_last", "folding", "teacher_rows", "fused_sgd", "simplex"])
def test_chains_that_may_differ_by_rounding(engine: Outcome, tiny: Path, tmp_path: Path, name: str) -> None:
    own = run_chain(KNOWN[name], short(tiny), tmp_path)
    assert own.losses[0][0] == pytest.approx(engine.losses[0][0], rel=1e-3)
    assert (own.variant, own.seed) == (name, engine.seed)


def test_another_setting_changes_what_is_stored(engine: Outcome, tiny: Path, tmp_path: Path) -> None:
    config = quick_config(tiny, {"optim": {"epochs": 1, "milestones": [], "precision": "bf16"}})
    assert run_chain(KNOWN["bf16"], config, tmp_path).digest != engine.digest


def test_a_plain_way_that_is_never_gone_is_refused(tiny: Path, tmp_path: Path) -> None:
    config = quick_config(tiny, {"optim": {"epochs": 1, "milestones": []}, "method": {"name": "er"}})
    with pytest.raises(TrainingError, match=r"simplex: the engine never called SimplexClassifier\.forward"):
        run_chain(KNOWN["simplex"], config, tmp_path)


@pytest.mark.parametrize(("epochs", "milestones"), [(20, (14, 18)), (5, (3, 4)), (2, (1,)), (1, ())])
def test_milestones_are_scaled(epochs: int, milestones: tuple[int, ...]) -> None:
    config = tricks.chain_config(KNOWN["bf16"], 4, epochs)
    assert (config.optim.epochs, config.optim.milestones) == (epochs, milestones)
    assert (config.seed, config.threads, config.scenario.stop_after) == (4, 1, 3)
    assert config.optim.precision == "bf16"
    assert tricks.chain_config(KNOWN[ENGINE], 4, epochs).optim.precision == "fp32"


# Verdicts, on made-up numbers


def made(variant: str, seed: int, losses: Sequence[Sequence[float]], cells: Sequence[float], bc: float) -> Outcome:
    return Outcome(variant, seed, [list(task) for task in losses], list(cells), sum(cells) / len(cells), bc, "same")


ENGINES = [
    made(ENGINE, 0, [[3.0, 1.0], [4.0, 2.0]], [0.7, 0.6, 0.8], -0.1),
    made(ENGINE, 1, [[3.0, 2.0], [4.0, 3.0]], [0.8, 0.7, 0.9], 0.1),
]


def test_equal_outcomes() -> None:
    again = [made("again", row.seed, row.losses, row.cells, row.bc) for row in ENGINES]
    row = compare([*ENGINES, *again], "again")
    assert (row.first_loss, row.last_loss, row.cells) == ((0, 0), (0, 0), (0, 0))
    assert row.verdict == "equal"
    assert row.paired["last loss"].seeds_deviation == pytest.approx(2**-0.5)
    assert row.paired["mean accuracy"].seeds_deviation == pytest.approx(0.1 * 2**-0.5)


def test_other_weights_are_not_equal_even_at_equal_losses() -> None:
    again = [made("again", row.seed, row.losses, row.cells, row.bc) for row in ENGINES]
    changed = Outcome(**{**vars(again[1]), "digest": "other"})
    assert compare([*ENGINES, again[0], changed], "again").verdict == "within"


def test_differences_are_paired_by_seed() -> None:
    own = [  # in another order than the engine's
        made("bf16", 1, [[3.5, 2.0], [4.0, 3.5]], [0.8, 0.7, 0.6], 0.2),
        made("bf16", 0, [[3.0, 1.0], [4.0, 2.1]], [0.7, 0.6, 0.8], -0.1),
    ]
    row = compare([*ENGINES, *own], "bf16")
    assert row.first_loss == pytest.approx((0.125, 0.5))
    assert row.last_loss == pytest.approx((0.15, 0.5))
    assert row.cells == pytest.approx((0.05, 0.3))
    assert row.paired["last loss"].mean == pytest.approx((0.25 + 0.05) / 2)
    assert row.paired["BC"].mean == pytest.approx(0.05)
    assert row.paired["BC"].deviation == pytest.approx(0.1 * 2**-0.5)
    assert row.paired["mean accuracy"].mean == pytest.approx(-0.05)
    assert row.verdict == "within"


def test_the_verdict_is_the_worst_of_all_figures() -> None:
    inside, edge, beyond = Paired(0.1, 9.0, 0.2), Paired(-0.2, 9.0, 0.2), Paired(-0.21, 0.0, 0.2)
    assert verdict(False, [inside, edge]) == "within"
    assert verdict(False, [inside, beyond]) == "outside"
    assert verdict(True, [inside, edge]) == "equal"
    assert verdict(False, [Paired(float("nan"), 0.0, 0.2)]) == "outside"


def test_the_table_shows_differences_beside_the_spread() -> None:
    own = [made("bf16", row.seed, row.losses, row.cells, row.bc + 0.5) for row in ENGINES]
    shown = table([compare([*ENGINES, *own], "bf16")])
    row = dict(zip(shown.columns, (cell.text for cell in shown.rows[0]), strict=True))
    assert row["Δ BC"] == "+0.5000 ± 0.0000"
    assert row["verdict"] == "outside"
    texts = [cell.text for cell in shown.rows[0]]
    place = shown.columns.index("Δ BC")
    assert texts[place + 1] == "0.1414"
    assert [f"Δ {name}" in shown.columns for name in PAIRED] == [True] * 3


# Command line


@pytest.fixture
def preset(tiny: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**QUICK, "data": {"name": str(tiny)}}))
    return path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--variants", "fused"], "--variants fused"),
        (["--seeds", "3"], "at least two"),
        (["--seeds", "3", "3"], "no seed"),
        (["--variants", "bf16", "bf16"], "no variant twice"),
        (["--epochs", "0"], "at least 1"),
        (["--processes", "0"], "at least 1"),
        (["--preset", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_refused_before_any_training(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tricks, "measure", lambda *_: pytest.fail("it trained"))
    with pytest.raises(InputError, match=complaint):
        tricks.main(words)


def test_a_preset_of_another_method_is_refused(preset: Path, tmp_path: Path) -> None:
    other = tmp_path / "er.yaml"
    other.write_text(yaml.safe_dump(yaml.safe_load(preset.read_text()) | {"method": {"name": "er"}}))
    with pytest.raises(InputError, match="trains er"):
        tricks.main(["--preset", str(other), "--variants", "again"])


def test_from_the_command_line_to_files(preset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "tricks"
    words = ["--preset", str(preset), "--variants", "augmentation", "--epochs", "1", "--seeds", "0", "1"]
    assert tricks.main([*words, "--processes", "1", "--out", str(out)]) == 0
    text, progress = capsys.readouterr()
    assert Path(f"{out}.md").read_text() == text
    assert "| whole-batch crop and flip: image by image |" in text
    assert "4 of 4: " in progress
    content = json.loads(Path(f"{out}.json").read_text())
    assert [row["verdict"] for row in content["rows"]] == ["equal"]
    assert {(row["variant"], row["seed"]) for row in content["outcomes"]} == {
        (name, seed) for name in (ENGINE, "augmentation") for seed in (0, 1)
    }
