"""The example notebook runs in a kernel; for a study with nothing to draw it says why."""

import ast
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from jupyter_client.manager import AsyncKernelManager
from matplotlib.figure import Figure
from nbclient import NotebookClient

import analysis
from tests.support.made_study import made_study, write_made

NOTEBOOK = Path(analysis.__file__).with_name("example.ipynb")


class OwnKernel(AsyncKernelManager):
    """A kernel in the interpreter that runs the tests, whatever kernels are installed."""

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        return [sys.executable, "-m", "ipykernel_launcher", "-f", self.connection_file, *(extra_arguments or [])]


def outputs(notebook: Any, kind: str) -> list[str]:
    """Return all outputs of a kind."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output["data"][kind] for output in shown if kind in output.get("data", {})]


def results(notebook: Any) -> list[Any]:
    """Return the value of the last line of every cell, without a kernel; magics are left out."""
    names: dict[str, Any] = {}
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            body = ast.parse("\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))).body
            last = body.pop()
            assert isinstance(last, ast.Expr)
            exec(compile(ast.Module(body, []), cell.id, "exec"), names)
            found.append(eval(compile(ast.Expression(last.value), cell.id, "eval"), names))
    return found


def test_the_notebook_is_valid_and_carries_no_results() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


@pytest.mark.parametrize("folder", [".", "analysis"])
def test_it_runs_in_the_checkout_and_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Jupyter runs a notebook in the folder that it lies in."""
    shutil.copytree(NOTEBOOK.parent, tmp_path / "analysis", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "cl2r").symlink_to(NOTEBOOK.parents[1] / "cl2r")
    for age, name in enumerate(["newest", "older"]):
        study = write_made(made_study(seeds=(0, 1, 2)), tmp_path / "results" / "studies" / name)
        os.utime(study / "runs.parquet", (1e9 - age, 1e9 - age))
    for name in ("CL2R_STUDY", "CL2R_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    rest = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), rest])))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    here = {"metadata": {"path": str(tmp_path / folder)}}
    NotebookClient(notebook, km=OwnKernel(), timeout=60, resources=here).execute()
    assert "'newest'" in outputs(notebook, "text/plain")[0]
    assert len(outputs(notebook, "image/png")) == 3
    assert all(output.output_type != "error" for cell in notebook.cells for output in cell.get("outputs", []))
    assert "service accuracy" in outputs(notebook, "text/markdown")[0]
    assert "mean_accuracy" in outputs(notebook, "text/html")[0]
    assert all(name in outputs(notebook, "text/html")[1] for name in ("low", "high", "cl2r"))


def test_without_a_study_it_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CL2R_STUDY", raising=False)
    monkeypatch.setenv("CL2R_STORAGE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"no study below {tmp_path}: run `cl2r study ablation`"):
        results(nbformat.read(NOTEBOOK, as_version=4))


def failed_study() -> analysis.Study:
    """No run finished; all columns are there."""
    study = made_study()
    runs = study.runs.assign(status="failed", **dict.fromkeys(["AC", "BC", "FC", "mean_accuracy"], np.nan))
    return replace(study, runs=runs, tasks=study.tasks[:0], matrix=study.matrix[:0], curves=study.curves[:0])


@pytest.mark.parametrize(
    ("study", "missing", "reason"),
    [(lambda: made_study(tasks=1), 2, "one task"), (failed_study, 3, "no run has finished")],
)
def test_studies_with_nothing_to_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: Callable[[], analysis.Study], missing: int, reason: str
) -> None:
    monkeypatch.setenv("CL2R_STUDY", str(write_made(study(), tmp_path / "made")))
    shown = [getattr(part, "data", part) for part in results(nbformat.read(NOTEBOOK, as_version=4))[-3:]]
    assert all(reason in text for text in shown[:missing])
    assert all(isinstance(plot, Figure) for plot in shown[missing:]), "one task has a matrix of one cell"
