"""The specification of a study: a base config and how the runs differ from it.

Without `space` a study is a grid: variants × grid × seeds, and every run is known beforehand. With `space` it is a
sweep: Optuna chooses points of the space, and a trial trains its point with every seed. Each number of tasks in the
space is a search of its own. With `race` it is a race of methods (`cl2r.study.race`), and nothing else is varied.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from cl2r.config.keys import LINK_FORMAT
from cl2r.config.layers import (
    DEFAULT_PRESET,
    STUDY_KEYS,
    error_line,
    from_dotted,
    is_whole,
    merge_layers,
    override,
    preset_layers,
    read_yaml,
    resolve,
    unknown_key,
)
from cl2r.config.methods import OWN_FIELDS
from cl2r.config.schema import Config, field_keys
from cl2r.config.section import Section
from cl2r.data import DATASETS, data_root
from cl2r.errors import InputError, nearest
from cl2r.metrics import METRICS
from cl2r.study.constraints import Constraint
from cl2r.study.race import RaceSpec
from cl2r.study.space import Range, Space, contexts, corner_values, is_context, knobs

OBJECTIVES = {name: (metric.column("tuning"), metric.direction) for name, metric in METRICS.objectives().items()}
"""What a sweep can optimise: column of the `runs` frame, and direction. Accuracies are measured on tuning pairs."""


class ConfirmSpec(Section):
    """The best trials are trained again with further seeds, beside the reference runs and the preset's default."""

    top: Annotated[int, Field(ge=1)] = 3
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], Field(min_length=1)] = (1, 2)

    @model_validator(mode="after")
    def _different(self) -> Self:
        if len({*self.seeds}) != len(self.seeds):
            raise ValueError(f"seeds must differ: name each once (got {list(self.seeds)})")
        return self


class SearchSpec(Section):
    """How a sweep chooses its points."""

    trials: Annotated[int, Field(ge=1)] = 20
    """Trials of each context, e.g. of each number of tasks in the space."""
    objectives: Annotated[tuple[str, ...], Field(min_length=1)] = ("service_accuracy",)
    constraints: dict[str, str] = Field(default_factory=lambda: {"reindexed_accuracy": ">= er - 0.01"})
    """By metric, e.g. `>= 0.7`, or relative to a reference run, which is trained once; {}: none."""
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    startup: Annotated[int, Field(ge=1)] = 8
    """Random points before the sampler learns from results."""
    seed: Annotated[int, Field(ge=0)] = 0
    pruner: Literal["none", "median", "halving", "hyperband"] = "none"
    """Optuna's pruner that stops poor trials early, by the objective over the first t tasks."""
    confirm: ConfirmSpec | None = None
    warm_start: str | None = None
    """An earlier study, by name or folder, whose trials the sampler learns from."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.objectives:
            if name not in OBJECTIVES:
                raise ValueError(f"no objective {name!r}{nearest(name, OBJECTIVES)}; there are {', '.join(OBJECTIVES)}")
        if self.pruner != "none":
            if len(self.objectives) > 1:
                raise ValueError("pruner needs one objective: name one in search.objectives, or set pruner: none")
            if METRICS.objectives()[self.objectives[0]].compute is None:
                unknown = f"{self.objectives[0]} is not known after each task"
                raise ValueError(f"pruner: {unknown}; choose another objective, or set pruner: none")
        try:
            self.parsed_constraints()
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    def parsed_constraints(self) -> list[Constraint]:
        """Return the constraints."""
        return [Constraint.parse(metric, text) for metric, text in self.constraints.items()]


@dataclass(frozen=True)
class Point:
    """How a run of a study differs from its base: a variant, and overrides by dotted name, which win over it."""

    variant: str | None
    values: dict[str, Any]
    variant_values: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What distinguishes it from the other points, apart from the method."""
        shown = ((key, f"{value:.3g}" if isinstance(value, float) else value) for key, value in self.values.items())
        words = [f"{key.split('.')[-1]}={value}" for key, value in shown if key != "method.name"]
        return " ".join([self.variant, *words] if self.variant else words)


class StudySpec(Section):
    """What to run, as a YAML file or a mapping gives it. `load` makes one; `points` and `config` say what it means."""

    preset: str = DEFAULT_PRESET
    set: dict[str, Any] = Field(default_factory=dict)
    """Overrides of every run, by dotted name."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], Field(min_length=1)] = (0,)
    """Each seed runs everything."""
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Named overrides; each variant runs the whole grid."""
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Values by dotted name; every combination of them is run."""
    space: Space = Field(default_factory=dict)
    """What a search chooses from: a list of choices, or a range from low to high."""
    search: SearchSpec = SearchSpec()
    race: RaceSpec | None = None
    _stem: str = PrivateAttr("study")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.space and (self.grid or self.variants):
            raise ValueError("give a grid (and variants), or a space, not both")
        if self.race is not None:
            if self.space or self.grid or self.variants:
                raise ValueError("race: a race chooses methods and settings itself; leave out grid, variants and space")
            if len(self.search.objectives) > 1 or METRICS.objectives()[self.search.objectives[0]].compute is None:
                raise ValueError("race: search.objectives: name one objective, computed from the matrix, e.g. BC")
            if chosen := [name for name in ("method.name", "adapter.name") if name in self.set]:
                raise ValueError(f"{chosen[0]}: the race chooses it; use race.methods and race.adapters")
            for one in self.search.parsed_constraints():
                if "+" in (one.reference or ""):
                    raise ValueError(f"race: constraint {one}: give a method without an adapter")
        if len({*self.seeds}) != len(self.seeds):
            raise ValueError(f"seeds must differ: name each once (got {list(self.seeds)})")
        for key, entry in self.space.items():
            if is_context(key) and isinstance(entry, Range):
                raise ValueError(f"space: give {key} as a list: each value is searched by itself")
        if self.space and not knobs(self.space):
            raise ValueError(f"space: there is nothing to choose; use a grid of {', '.join(self.space)}")
        for key, entry in self.space.items():
            if isinstance(entry, list) and len({*map(repr, entry)}) != len(entry):
                raise ValueError(f"space: {key} lists a value twice; name each once")
        known = field_keys()
        for key in itertools.chain(self.set, self.grid, self.space, *self.variants.values()):
            if key == "seed":
                raise ValueError("seed: use seeds, e.g. seeds: [0, 1, 2]")
            if key not in known:
                raise ValueError(unknown_key(key, known))
        return self

    @classmethod
    def load(cls, source: Path | Mapping[str, Any], overrides: Sequence[str] = (), /, **changes: Any) -> Self:
        """Return the checked specification of a YAML file or of a mapping; InputError names the file and the key.

        Sections of fields, as the file of a run has them, count as entries of `set`. `overrides` are `KEY=VALUE` texts
        for every run. `changes` replace entries, key by key in `grid`, `search` and `race`; constraints add to those of
        the file, unless they are {}; None changes nothing. `tasks=T` gives every run T tasks, also if the file lists
        several numbers to choose from.
        """
        where = str(source) if isinstance(source, Path) else "study"
        if isinstance(source, Path) and not source.is_file():
            raise InputError(f"no study {source}; give the path of its YAML file, or a name that `cl2r study` lists")
        content = read_yaml(source) if isinstance(source, Path) else dict(source)
        tasks = changes.pop("tasks", None)
        for key, value in changes.items():
            if key not in ("grid", "search", "race") or not isinstance(value, Mapping):
                content |= {key: value} if value is not None else {}
            elif isinstance(entry := content.get(key, {}), Mapping):  # anything else is refused below
                content[key] = {**entry, **{name: choice for name, choice in value.items() if choice is not None}}
                if key == "search" and value.get("constraints"):  # they add to those of the file
                    known = entry.get("constraints", SearchSpec().constraints)
                    content[key]["constraints"] = {**known, **value["constraints"]}
        if tasks is not None:
            for part in ("grid", "space"):
                if isinstance(entry := content.get(part), Mapping):
                    content[part] = {key: value for key, value in entry.items() if key != "scenario.n_tasks"}
            overrides = [*overrides, f"scenario.n_tasks={tasks}"]
        content = _with_settings(content, where)
        try:
            spec = cls.model_validate(content)
        except ValidationError as error:
            keys = [*cls.model_fields, *(f"search.{name}" for name in SearchSpec.model_fields)]
            keys += [f"race.{name}" for name in RaceSpec.model_fields]
            raise InputError(f"{where}: {error_line(error, keys)}") from error
        spec = spec.model_copy(update={"set": _overridden(spec, overrides)})
        spec._stem = source.stem if isinstance(source, Path) else "study"
        merge_layers(spec.base)  # refuses a preset that does not exist
        for name, entry in spec.space.items():
            values = corner_values(entry)
            if isinstance(entry, Range) and not all(isinstance(value, int) for value in values):
                # An integer field accepts 1.0 and 4.0, but not the fractions between them.
                values.append(entry.low + (entry.high - entry.low) / math.e)
            for value in values:
                spec.config(Point(None, {name: value}), spec.seeds[0])
        return spec

    @property
    def stem(self) -> str:
        """Name of the file that it was read from, without its suffix; `study` if it was given from Python."""
        return self._stem

    @property
    def is_sweep(self) -> bool:
        """Whether Optuna chooses the points."""
        return bool(self.space)

    @property
    def grows(self) -> bool:
        """Whether the runs depend on the results of earlier ones: a sweep or a race."""
        return self.is_sweep or self.race is not None

    @cached_property
    def base(self) -> tuple[dict[str, Any], ...]:
        """The layers below every run's own: those of the preset, and, as the last one, the overrides of every run."""
        return *preset_layers(self.preset), merge_layers(itertools.starmap(from_dotted, self.set.items()))

    @property
    def knobs(self) -> Space:
        """The part of the space that is searched."""
        return knobs(self.space)

    @property
    def confirm_seeds(self) -> tuple[int, ...]:
        """The seeds that confirm the best trials; those that the search uses itself are replaced by unused ones."""
        asked = self.search.confirm.seeds if self.search.confirm else ()
        free = (seed for seed in itertools.count() if seed not in (*self.seeds, *asked))
        return tuple(next(free) if seed in self.seeds else seed for seed in asked)

    def contexts(self) -> list[dict[str, Any]]:
        """Return what is searched by itself, e.g. one entry per number of tasks."""
        return contexts(self.space)

    def points(self) -> list[Point]:
        """Return variants × grid in the order of the file; the last key varies fastest."""
        variants: list[tuple[str | None, dict[str, Any]]] = [*self.variants.items()] or [(None, {})]
        grid = [dict(zip(self.grid, row, strict=True)) for row in itertools.product(*self.grid.values())]
        return [Point(name, row, values) for name, values in variants for row in grid]

    def config(self, point: Point, seed: int) -> Config:
        """Return the config of one run; its paths are absolute: training processes have other working directories."""
        values = point.variant_values | point.values
        layers = [*self.base, *itertools.starmap(from_dotted, values.items()), {"seed": seed}]
        data: Any = merge_layers(layers).get("data")
        name = data.get("name") if isinstance(data, dict) else None
        if isinstance(name, str) and name in DATASETS:
            if DATASETS[name].layout:
                layers.append({"data": {"root": str(data_root(data.get("root")).absolute())}})
        elif isinstance(name, str) and (path := Path(name).expanduser()).exists():
            layers.append({"data": {"name": str(path.absolute())}})
        return resolve(layers, base=len(self.base) - 1)

    def identity(self, fingerprints: Sequence[str]) -> dict[str, Any]:
        """Return what a study's name stands for.

        More trials, a confirmation, or the same data elsewhere make no other study.
        """
        spec = self.model_dump(mode="json", exclude={"preset", "set"})
        merged = merge_layers(self.base)
        base = {key: value for key, value in merged.items() if key not in ("threads", "data", "seed")}
        places = ("name", "root", "loaders")
        base["data"] = {key: value for key, value in merged.get("data", {}).items() if key not in places}
        for name in ("trials", "confirm"):
            spec["search"].pop(name)
        if not self.grows:
            del spec["search"]
        if self.race is None:
            del spec["race"]
        return {"format": LINK_FORMAT, "data": fingerprints, "base": base, **spec}


def _with_settings(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the content of a study with its sections of fields as entries of `set`; refuse the file of one run."""
    names = {key.partition(".")[0] for key in field_keys() if "." in key}
    found = [name for name in content if name in names or name == "threads"]
    if is_whole(content) or (found and not any(content.get(key) for key in STUDY_KEYS)):
        more = f"start it with `cl2r run {where}`, or add what varies: {', '.join(STUDY_KEYS[:4])} or race"
        raise InputError(f"{where}: the settings of one run; {more}")
    settings: dict[str, Any] = {}
    for name in found:
        section = content[name]
        if name != "threads" and not isinstance(section, Mapping):
            raise InputError(f"{where}: {name}: give a mapping of its fields, not {section!r}")
        settings |= {f"{name}.{key}": value for key, value in section.items()} if name in names else {name: section}
    given = content.get("set", {})
    if isinstance(given, Mapping) and settings:  # anything else is refused by the model
        content = {key: value for key, value in content.items() if key not in found} | {"set": {**settings, **given}}
    return content


def _overridden(spec: StudySpec, overrides: Sequence[str]) -> dict[str, Any]:
    """Return `spec.set` with the overrides of the command line, which win.

    Fields that an override could not reach, or that tell the methods of a grid apart, are refused.
    """
    in_every_variant = set.intersection(*map(set, spec.variants.values())) if spec.variants else set()
    own = {"seed", *spec.grid, *spec.space, *in_every_variant}
    if spec.race is not None:
        own |= {"method.name", "adapter.name"}
    if "method.name" in own:
        own |= {"adapter.name", *OWN_FIELDS}
    settings, known = dict(spec.set), field_keys()
    for text in overrides:
        for section, values in override(text).items():
            flat = {f"{section}.{key}": value for key, value in values.items()} if isinstance(values, dict) else None
            for key, value in ({section: values} if flat is None else flat).items():
                if key in own:
                    raise InputError(f"--set {text}: the study sets this field itself; leave it out, or edit its file")
                if key not in known:
                    raise InputError(f"--set {text}: {unknown_key(key, known)}")
                settings.pop(key, None)  # now the last: of n_tasks and initial, the later one counts
                settings[key] = value
    return settings
