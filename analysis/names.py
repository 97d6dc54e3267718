"""What methods, metrics and config fields are called in tables and figures, and the order in which methods come."""

from collections.abc import Sequence

TITLES = {
    "er": "ER",
    "lwf": "LwF",
    "lucir": "LUCIR",
    "bic": "BiC",
    "podnet": "PODNet",
    "foster": "FOSTER",
    "fan": "FAN",
    "lifelong_bct": "ℓ-BCT",
    "cl2r": "CL²R",
    "bct": "BCT",
    "upper_bound": "UB",
    "er_fd": "Trainable, FD",
    "er_fdm": "Trainable, FD^M",
    "fixed": "Fixed",
    "fixed_fd": "Fixed, FD",
    "lwf_er": "LwF, memory",
    "icarl": "iCaRL",
    "bic_inclearn": "BiC, sigmoid",
    "wa": "WA",
    "hoc": "HOC",
    "cores": "CoReS",
    "der_trunc": "DER, cut",
}
FORGETTING = ("er", "lwf", "lucir", "bic", "podnet", "foster", "fan", "lifelong_bct", "cl2r")
ALL_DATA = ("bct", "upper_bound")
"""Trained anew on all data at every task; the paper has them below a line."""
HELD_AGAINST = ("er", "cl2r")
"""What all others are compared with: drawn even where there is no room for all."""
METRIC_TITLES = {
    "AC": "AC, share of compatible cells",
    "BC": "BC, backward compatibility",
    "FC": "FC, forward compatibility",
    "mean_accuracy": "mean accuracy",
}
STATIONARITY = {
    "drift_cosine": "mean cosine with the model before",
    "rotated_cosine": "the same after the best rotation",
    "cka": "linear CKA with the model before",
    "vertex_cosine": "cosine of class mean and its vertex",
}
"""What says how still a representation stands from task to task: columns of `tasks`, and their axes in words."""
FIELD_TITLES = {
    "scenario.n_tasks": "T",
    "memory.per_class": "memory",
    "method.lambda_base": "λ_base",
}


def title(method: str) -> str:
    """What the paper, or its authors, call a method."""
    base, plus, adapter = method.partition("+")
    return TITLES.get(base, base) + plus + adapter


def ordered(methods: Sequence[str]) -> list[str]:
    """The methods in the paper's order; others after CL²R, those that keep all data last."""
    place = {name: number for number, name in enumerate(FORGETTING)}
    place |= {name: 100 + number for number, name in enumerate(ALL_DATA)}
    return sorted(dict.fromkeys(methods), key=lambda name: place.get(name, 50))


def field_title(field: str) -> str:
    """A config field in a word: its last part, or the paper's symbol."""
    return FIELD_TITLES.get(field, field.rpartition(".")[2])
