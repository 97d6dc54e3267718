"""Options that several commands share."""

from pathlib import Path

import pytest

from cl2r.cli.options import build_config, find_storage
from cl2r.errors import InputError


def test_the_storage_is_given_or_from_the_environment_or_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CL2R_STORAGE", raising=False)
    assert str(find_storage()) == "results"
    monkeypatch.setenv("CL2R_STORAGE", "elsewhere")
    assert str(find_storage()) == "elsewhere"
    assert str(find_storage("given")) == "given"
    assert str(find_storage("s3://bucket/folder")) == "s3://bucket/folder"


def test_the_storage_of_a_ray_job_is_not_in_its_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CL2R_STORAGE", raising=False)
    (tmp_path / "_ray_pkg_0123").mkdir()
    monkeypatch.chdir(tmp_path / "_ray_pkg_0123")
    assert find_storage() == Path.home() / "cl2r-results"
    with pytest.raises(InputError, match="--storage out"):
        find_storage("out")


def test_options_win_over_the_preset_and_overrides_over_options() -> None:
    config = build_config("icons", ["seed=5", "optim.lr=0.2"], tasks=3, method=None, seed=2)
    assert (config.seed, config.scenario.n_tasks, config.optim.lr) == (5, 3, 0.2)
    assert config.method.name == build_config("icons", []).method.name
