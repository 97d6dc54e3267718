"""Plain text for the terminal: a compatibility matrix and its metrics."""

from cl2r.engine.evaluation import Evaluation


def matrix_table(evaluation: Evaluation) -> str:
    """C with a star on every compatible cell: the new model's queries beat the old model's own."""
    matrix = evaluation.matrix
    compatible = evaluation.compatible
    tasks = range(len(matrix))
    lines = ["query\\gallery " + "".join(f"{f'φ{k + 1}':>8}" for k in tasks)]
    for t in tasks:
        cells = [f"{matrix[t, k]:.3f}" + ("*" if compatible[t, k] else " ") for k in range(t + 1)]
        lines.append(f"{f'φ{t + 1}':<14}" + "".join(f"{cell:>8}" for cell in cells))
    return "\n".join(lines)


def metrics_table(evaluation: Evaluation) -> str:
    """AC, BC, FC, mean accuracy; with intervals where they were computed."""
    bounds = evaluation.intervals
    rows = {
        "AC": (evaluation.ac, bounds.ac if bounds else None),
        "BC": (evaluation.bc, bounds.bc if bounds else None),
        "FC": (evaluation.fc, bounds.fc if bounds else None),
        "mean": (evaluation.mean, None),
    }
    lines = []
    for name, (value, interval) in rows.items():
        sign = "+" if name in ("BC", "FC") else ""
        text = f"{name:<5} {value:{sign}.3f}"
        lines.append(text + (f"  [{interval[0]:{sign}.3f}, {interval[1]:{sign}.3f}]" if interval else ""))
    return "\n".join(lines)
