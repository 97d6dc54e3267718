"""What is known of a method before any torch is loaded: its name, its paper, the config fields it brings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cl2r.section import Section


@dataclass(frozen=True)
class MethodInfo:
    """One row of `cl2r methods`."""

    name: str
    title: str
    paper: str
    build: str
    """`module:Class` of its Method."""
    carries: str
    feature: str
    family: str = ""
    """Methods of one family are one class and differ in config fields; by default the name itself."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Config fields by dotted name that the method brings; explicit settings win over them."""
    native: Mapping[str, Any] | None = None
    """What `method.budget=native` brings besides: the schedule of its own publication. None: none is known."""
    options: type[Section] | None = None
    """The config section of fields that only this family has."""
    section: str = ""
    """The name of that section; by default the family's."""
    first_task: str | None = None
    """The family whose first task is the same, bit for bit: the two share their first links."""
    memory: Literal["quota", "all"] = "quota"
    """M_t: some images a class, or all images seen."""
    grows: bool = False
    """Whether φ_t has more dimensions than φ_{t-1}; its queries are then cut to the gallery's dimensions."""
    gallery: bool = False
    """Whether the stored gallery is mapped to the new model's space at every update."""
    version: str = ""
    """Part of the key of every link; to be changed with what the method computes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", self.family or self.name)
        object.__setattr__(self, "section", self.section or self.family)


@dataclass(frozen=True)
class AdapterInfo:
    """A map of new queries into an old model's space, fitted to stored features only."""

    name: str
    title: str
    paper: str
