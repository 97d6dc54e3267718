"""The example notebook runs on any study, and shows what it says."""

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from made_study import made_study, write_made
from nbclient import NotebookClient

import analysis

NOTEBOOK = Path(analysis.__file__).with_name("example.ipynb")


class OwnKernel(AsyncKernelManager):
    """The interpreter that runs the tests, whatever kernels the machine knows."""

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        """Its command."""
        return [sys.executable, "-m", "ipykernel_launcher", "-f", self.connection_file, *(extra_arguments or [])]


def outputs(notebook: Any, kind: str) -> list[str]:
    """All results of a kind."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output["data"][kind] for output in shown if kind in output.get("data", {})]


def test_the_notebook_is_valid_and_carries_no_results() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


def test_it_runs_on_the_only_study_of_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_made(made_study(seeds=(0, 1, 2)), tmp_path / "results" / "studies" / "made")
    monkeypatch.delenv("CL2R_STUDY", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, km=OwnKernel(), timeout=60, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert len(outputs(notebook, "image/png")) == 3
    assert all(output.output_type != "error" for cell in notebook.cells for output in cell.get("outputs", []))
    assert "Trainable" in outputs(notebook, "text/markdown")[0]
    assert "mean_accuracy" in outputs(notebook, "text/html")[0]
    assert all(name in outputs(notebook, "text/html")[1] for name in ("low", "high", "cl2r"))
