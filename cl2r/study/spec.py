"""The specification of a study: one base config and how runs differ from it. Strict, like any config.

A study without `space` is a grid: variants × grid × seeds, every run known beforehand. With `space` it is a sweep:
Optuna chooses points of the space, and a trial trains the point with every seed.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from cl2r.config import Config, field_keys
from cl2r.data import DATASETS, data_root
from cl2r.errors import InputError, nearest
from cl2r.layers import error_line, from_dotted, merge_layers, override, read_layer, resolve
from cl2r.link_keys import LINK_FORMAT
from cl2r.methods.catalog import METHODS, telling_fields
from cl2r.section import Section
from cl2r.study.space import Space, check_space

OBJECTIVES: dict[str, tuple[str, Literal["maximize", "minimize"]]] = {
    "AC": ("tuning_AC", "maximize"),
    "BC": ("tuning_BC", "maximize"),
    "FC": ("tuning_FC", "maximize"),
    "mean_accuracy": ("tuning_mean_accuracy", "maximize"),
    "stored_bytes": ("stored_bytes", "minimize"),
    "seconds": ("train_seconds", "minimize"),
}
"""What a sweep can optimise: the column of the `runs` frame, and the direction. Accuracies are on tuning pairs."""


class SearchSpec(Section):
    """How a sweep chooses its points."""

    trials: Annotated[int, Field(ge=1)] = 20
    objectives: Annotated[tuple[str, ...], Field(min_length=1)] = ("BC",)
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    startup: Annotated[int, Field(ge=1)] = 8
    """Random points before the sampler learns from what it saw."""
    seed: Annotated[int, Field(ge=0)] = 0
    early_stopping: bool = False
    """Stop a trial whose BC(t) is among the worse half of those that came as far (successive halving)."""

    @model_validator(mode="after")
    def _known(self) -> "SearchSpec":
        for name in self.objectives:
            if name not in OBJECTIVES:
                raise ValueError(f"no objective {name!r}{nearest(name, OBJECTIVES)}; there are {', '.join(OBJECTIVES)}")
        if self.early_stopping and len(self.objectives) > 1:
            raise ValueError("early_stopping needs one objective")
        if self.early_stopping and OBJECTIVES[self.objectives[0]][1] != "maximize":
            raise ValueError(f"early_stopping keeps high BC(t), which is not what {self.objectives[0]} asks for")
        return self


class StudySpec(Section):
    """A study as its YAML file gives it."""

    preset: str = "icons"
    set: dict[str, Any] = Field(default_factory=dict)
    """Overrides by dotted name, for every run."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], Field(min_length=1)] = (0,)
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Named groups of overrides; each runs the whole grid."""
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    space: Space = Field(default_factory=dict)
    search: SearchSpec = SearchSpec()

    @model_validator(mode="after")
    def _consistent(self) -> "StudySpec":
        if self.space and (self.grid or self.variants):
            raise ValueError("give a grid (and variants), or a space, not both")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must differ, got {list(self.seeds)}")
        varied = [key for key in self.space if key in ("scenario.n_tasks", "scenario.initial", "scenario.increment")]
        if self.search.early_stopping and varied:
            raise ValueError(f"search.early_stopping compares equal tasks: leave {varied[0]} out of the space")
        named = [*self.set, *self.grid, *self.space, *(key for variant in self.variants.values() for key in variant)]
        _check_fields(named)
        return self


def _check_fields(named: list[str]) -> None:
    known = field_keys()
    for key in named:
        if key == "seed":
            raise ValueError("seed: use seeds")
        if key not in known:
            raise ValueError(f"unknown key {key!r}{nearest(key, known)}")


@dataclass(frozen=True)
class Point:
    """What makes a run of a study differ from its base: a variant's name and overrides by dotted name."""

    variant: str | None
    values: dict[str, Any]
    title: str = ""
    """What tells it from the others, the method apart."""


@dataclass(frozen=True)
class Study:
    """A checked specification, its preset, and what it sets for every run."""

    spec: StudySpec
    preset: dict[str, Any]
    settings: dict[str, Any]

    @property
    def is_sweep(self) -> bool:
        """Whether Optuna chooses the points."""
        return bool(self.spec.space)

    def points(self) -> list[Point]:
        """Variants × grid, in the order of the file; the last key varies fastest."""
        variants: list[tuple[str | None, dict[str, Any]]] = [*self.spec.variants.items()] or [(None, {})]
        grid = [dict(zip(self.spec.grid, row, strict=True)) for row in itertools.product(*self.spec.grid.values())]
        return [Point(name, {**values, **row}, _title(name, row)) for name, values in variants for row in grid]

    def config(self, point: Point, seed: int) -> Config:
        """The config of one run."""
        layers = [self.preset, self.settings, *map(_layer, point.values.items()), {"seed": seed}]
        return resolve([*layers, _absolute_data(merge_layers(layers))])

    def identity(self, fingerprints: list[str]) -> dict[str, Any]:
        """What a study's name stands for. With more trials, or with its data elsewhere, it is the same study."""
        spec = self.spec.model_dump(mode="json", exclude={"preset", "set"})
        merged = merge_layers([self.preset, self.settings])
        base = {key: value for key, value in merged.items() if key not in ("threads", "data", "seed")}
        places = ("name", "root", "loaders")
        base["data"] = {key: value for key, value in merged.get("data", {}).items() if key not in places}
        spec["search"].pop("trials")
        if not self.is_sweep:
            del spec["search"]
        return {"format": LINK_FORMAT, "data": fingerprints, "base": base, **spec}


def _title(variant: str | None, values: Mapping[str, Any]) -> str:
    words = [variant] if variant else []
    for key, value in values.items():
        if key != "method.name":
            words.append(
                f"{key.split('.')[-1]}={value:.3g}" if isinstance(value, float) else f"{key.split('.')[-1]}={value}"
            )
    return " ".join(words)


def sweep_point(values: dict[str, Any]) -> Point:
    """A point of a space."""
    return Point(None, values, _title(None, values))


def _layer(entry: tuple[str, Any]) -> dict[str, Any]:
    return from_dotted(*entry)


def read_content(path: Path) -> dict[str, Any]:
    """The mapping that a study's YAML file holds, unchecked."""
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"no study {path}") from error
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path}: not a readable YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping with preset, grid, space, ...")
    return content


def read_study(path: Path, changes: Mapping[str, Any], overrides: list[str], tasks: int | None = None) -> Study:
    """The study of a YAML file; `changes` replace entries, those of grid and search key by key.

    `tasks` is the number of tasks of every run, also where the file gives several to choose from.
    """
    content = read_content(path)
    for key, value in changes.items():
        if key not in ("grid", "search"):
            content[key] = value
        elif isinstance(entry := content.get(key, {}), Mapping):  # anything else is refused below
            content[key] = {**entry, **value}
    if tasks is not None:
        for part in ("grid", "space"):
            if isinstance(entry := content.get(part), Mapping):
                content[part] = {key: value for key, value in entry.items() if key != "scenario.n_tasks"}
        overrides = [*overrides, f"scenario.n_tasks={tasks}"]
    return build_study(content, overrides, str(path))


def build_study(content: Mapping[str, Any], overrides: list[str], where: str) -> Study:
    """Check the specification, and its base config as far as that goes without data."""
    try:
        spec = StudySpec.model_validate(content)
    except ValidationError as error:
        keys = [*StudySpec.model_fields, *(f"search.{name}" for name in SearchSpec.model_fields)]
        raise InputError(f"{where}: {error_line(error, keys)}") from error
    settings = merge_layers([*map(_layer, spec.set.items()), *map(override, overrides)])
    own = _own_fields(spec)
    for text in overrides:
        if text.partition("=")[0].strip() in own:
            raise InputError(f"--set {text}: the study sets this field itself")
    study = Study(spec, read_layer(spec.preset), settings)
    check_space(spec.space, lambda values: study.config(Point(None, dict(values)), spec.seeds[0]))
    return study


def _own_fields(spec: StudySpec) -> set[str]:
    """Fields that an override of every run would not reach, or by which it would rename the methods of a grid."""
    in_every_variant = set.intersection(*map(set, spec.variants.values())) if spec.variants else set()
    own = {"seed", *spec.grid, *spec.space, *in_every_variant}
    if "method.name" not in own:
        return own
    return own | {"adapter.name"}.union(*map(telling_fields, METHODS.values()))


def _absolute_data(merged: dict[str, Any]) -> dict[str, Any]:
    """Training processes have other working directories."""
    data = merged.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(name, str):
        return {}
    if name in DATASETS:
        return {"data": {"root": str(data_root(data.get("root")).absolute())}} if DATASETS[name].layout else {}
    path = Path(name).expanduser()
    return {"data": {"name": str(path.absolute())}} if path.exists() else {}
