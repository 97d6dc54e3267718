"""The methods by name: what each is, where it comes from, which config fields it fixes. Needs no torch."""

from dataclasses import dataclass

PAPER = "Biondi et al., CL2R: Compatible Lifelong Learning Representations, ACM TOMM 2022"


@dataclass(frozen=True)
class MethodInfo:
    """One row of `cl2r methods`."""

    name: str
    title: str
    paper: str
    family: str
    defaults: dict[str, str]
    carries: str
    feature: str


def _cell(name: str, title: str, classifier: str, fd: str) -> MethodInfo:
    """One cell of the ablation grid {Trainable, Fixed} x {none, FD, FD^M}: all six are one family."""
    carries = "weights, memory" if fd == "none" else "weights, memory, φ_{t-1}"
    feature = "projection, K-1 dimensions"
    return MethodInfo(name, title, PAPER, "rehearsal", {"classifier": classifier, "fd": fd}, carries, feature)


METHODS: dict[str, MethodInfo] = {
    info.name: info
    for info in (
        _cell("er", "Experience Replay: trainable classifier, no distillation", "trainable", "none"),
        _cell("er_fd", "trainable classifier, FD on every row", "trainable", "all"),
        _cell("er_fdm", "trainable classifier, FD on memory rows", "trainable", "memory"),
        _cell("fixed", "fixed d-Simplex classifier, no distillation", "fixed", "none"),
        _cell("fixed_fd", "fixed d-Simplex classifier, FD on every row", "fixed", "all"),
        _cell("cl2r", "CL²R: fixed d-Simplex classifier, FD on memory rows", "fixed", "memory"),
    )
}
ABLATION_CELLS: tuple[str, ...] = tuple(METHODS)
