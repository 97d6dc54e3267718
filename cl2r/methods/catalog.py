"""The methods there are: those of this package and of installed ones, by name. Needs no torch.

Other packages join through the entry point group `cl2r.methods` (see methods/README.md). A name may carry an adapter of
stored features after a plus sign: `er+procrustes`.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points

from cl2r.errors import InputError, nearest
from cl2r.methods.built_in import ABLATION_CELLS, ADAPTERS, BUILT_IN
from cl2r.methods.info import MethodInfo
from cl2r.section import Section, first_task

__all__ = [
    "ABLATION_CELLS",
    "ADAPTERS",
    "METHODS",
    "MethodInfo",
    "complaints",
    "family_of",
    "method_info",
    "sections",
    "split_name",
    "telling_fields",
]

GROUP = "cl2r.methods"
NEEDED = ("method.classifier", "method.fd")
RESERVED = {
    *("seed", "threads", "data", "scenario", "backbone", "head", "simplex", "method"),
    *("memory", "batches", "optim", "augment", "adapter", "eval", "options"),
}
"""Names that sections of every config have."""


class _Registry(Mapping[str, MethodInfo]):
    """The methods, found when first asked for."""

    @cached_property
    def found(self) -> tuple[dict[str, MethodInfo], list[str]]:
        """Methods by name, and a line for every entry point that gives none."""
        methods, complaints = {info.name: info for info in BUILT_IN}, []
        for point in entry_points(group=GROUP):
            try:
                info = point.load()
                complaint = _complaint(info, methods)
            except Exception as error:  # whatever another package does must not stop this one
                complaint = f"{type(error).__name__}: {error}"
            if complaint:
                complaints.append(f"{point.name} ({point.value}): {complaint}")
            else:
                methods[info.name] = info
        return methods, complaints

    def __getitem__(self, name: str) -> MethodInfo:
        return self.found[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found[0])

    def __len__(self) -> int:
        return len(self.found[0])


def _complaint(info: object, known: Mapping[str, MethodInfo]) -> str | None:
    """Why a method cannot join those that are known."""
    if not isinstance(info, MethodInfo):
        return "it is no MethodInfo"
    if info.name in known or "+" in info.name:
        return f"there is a method {info.name!r} already" if info.name in known else "a name has no plus sign"
    missing = [name for name in NEEDED if name not in info.defaults]
    if missing:
        return f"its defaults lack {missing[0]}"
    for other in known.values():
        if other.family == info.family and other.build != info.build:
            return f"the family {info.family!r} is {other.build}"
        if info.options and other.section == info.section and other.options is not info.options:
            return f"the section {info.section!r} is that of {other.name}"
    if info.options and info.section in RESERVED:
        return f"the section {info.section!r} is one of every config"
    for field in info.options.model_fields.values() if info.options else ():
        first_task(field)  # raises if a field does not say from which task on it matters
    return None


_REGISTRY = _Registry()
METHODS: Mapping[str, MethodInfo] = _REGISTRY


def complaints() -> list[str]:
    """Entry points of other packages that give no method, each with its reason."""
    return _REGISTRY.found[1]


def split_name(name: str) -> tuple[str, str]:
    """Method and adapter of `method` or `method+adapter`; refuses names that are not known."""
    base, plus, adapter = name.partition("+")
    if base not in METHODS:
        broken = "".join(f"; not loaded: {line}" for line in complaints())
        known = ", ".join(METHODS)
        raise InputError(f"method.name: no method {base!r}{nearest(base, METHODS)}; methods: {known}{broken}")
    if plus and adapter not in ADAPTERS:
        raise InputError(f"method.name: no adapter {adapter!r}{nearest(adapter, ADAPTERS)}; {', '.join(ADAPTERS)}")
    return base, adapter or "none"


def method_info(name: str) -> MethodInfo:
    """The method of a name that may carry an adapter."""
    return METHODS[split_name(name)[0]]


def sections() -> dict[str, type[Section]]:
    """The config sections of all methods, by name."""
    return {info.section: info.options for info in METHODS.values() if info.options is not None}


def family_of(info: MethodInfo) -> list[MethodInfo]:
    """The methods that differ from it in config fields only; itself first."""
    return [info, *(other for other in METHODS.values() if other.family == info.family and other is not info)]


def telling_fields(info: MethodInfo) -> set[str]:
    """The fields that tell the methods of a family from each other: all of them bring these, with different values."""
    family = family_of(info)
    shared = set.intersection(*(set(other.defaults) for other in family))
    return {key for key in shared if len({str(other.defaults[key]) for other in family}) > 1}
