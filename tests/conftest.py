"""Shared by all tests: a tiny data set, and one finished run on it."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from quick import blobs, quick_config, train

from cl2r.engine.run import RunResult

_CACHE = tempfile.TemporaryDirectory(prefix="cl2r-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name  # for this process and those it starts
torch.set_num_threads(1)  # small tensors: a second thread costs more than it brings


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 classes to learn and 6 others to verify on."""
    rng = np.random.default_rng(7)
    x_train, y_train = blobs(12, rng)
    x_open, y_open = blobs(6, rng)
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, x_train=x_train, y_train=y_train, x_open=x_open, y_open=y_open + 100)
    return path


@pytest.fixture(scope="session")
def finished_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the links of `finished` are; for reading only."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture(scope="session")
def finished(tiny: Path, finished_root: Path) -> RunResult:
    """An undisturbed quick run of CL²R."""
    return train(quick_config(tiny), finished_root)
