"""The comparison of all methods that is kept: writes its JSON and the first table of its page from a finished study.

    make methods
    python -m tests.support.kept_methods results/studies/NAME

The sentences of the page are written by hand; tests/unit/studies/test_kept_methods.py checks them against the JSON.
"""

import json
import re
import sys
from dataclasses import replace
from typing import Any

from analysis import load_study
from analysis.matrices import square
from analysis.study import Study
from analysis.tables import study_tables
from analysis.tables.formats import render
from analysis.tables.table import Table
from cl2r.runtime.environment import ROOT
from cl2r.storage.path import at

PAGE = ROOT / "studies" / "results" / "methods_icons.md"
DATA = "icons, 30 classes first, then 14 at a time (six tasks), report pairs"
METRICS = (
    *("service_accuracy", "BC", "AC", "FC", "mean_accuracy", "reindexed_accuracy", "service_recall"),
    *("first_accuracy", "first_recall", "stored_bytes", "adapter_flops", "gallery_items_touched"),
)
LEFT_OUT = ("seeds", "s/run")
"""Columns of the table that the page does not have: the same in every row; seconds beside other work."""


def kept_runs(study: Study) -> list[dict[str, Any]]:
    """Return the values and the matrix of every run, and the mean drift of its tasks."""
    runs = []
    drift = study.tasks.groupby("run")["drift_cosine"].mean()
    report = study.matrix[study.matrix["pairs"] == "report"]
    for row in study.finished.sort_values("seed", kind="stable").to_dict("records"):
        run: dict[str, Any] = {"method": row["method.name"], "seed": int(row["seed"])}
        run |= {name: round(float(row[name]), 5) for name in METRICS}
        run["drift"] = round(float(drift[row["run"]]), 5)
        cells = square(report[report["run"] == row["run"]], "accuracy")
        run["C"] = [[round(float(value), 5) for value in cells[t, : t + 1]] for t in range(len(cells))]
        runs.append(run)
    return runs


def shown(table: Table) -> str:
    """Return the table of the page as Markdown."""
    places = [place for place, column in enumerate(table.columns) if column not in LEFT_OUT]
    rows = tuple(tuple(row[place] for place in places) for row in table.rows)
    columns = tuple(table.columns[place] for place in places)
    text = render(replace(table, columns=columns, rows=rows, title="", notes=()), "markdown")
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


def main() -> None:
    """Write the JSON and replace the first table of the page."""
    study = load_study(sys.argv[1])
    lines = ",\n  ".join(json.dumps(run) for run in kept_runs(study))
    head = {"data": DATA, "commit": study.about["commit"][:7], "command": "make methods"}
    text = json.dumps(head, indent=1).removesuffix("\n}") + f',\n "runs": [\n  {lines}\n ]\n}}\n'
    at(PAGE.with_suffix(".json")).write_file(text.encode())
    first = re.compile(r"^\|.*?(?=^$)", re.DOTALL | re.MULTILINE)
    table = shown(study_tables(study)[0])
    page = first.sub(lambda _: f"{table}\n", PAGE.read_text(encoding="utf-8"), count=1)
    at(PAGE).write_file(page.encode())


if __name__ == "__main__":
    main()
