"""What a run may use of the cluster."""

from typing import Any

import pytest
import torch

from cl2r.errors import InputError
from cl2r.study.resources import Resources


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"workers": 0}, "--workers 0"),
        ({"cpus_per_worker": 0}, "--cpus-per-worker 0"),
        ({"max_concurrent": -1}, "--max-concurrent -1"),
        ({"gpus_per_worker": -1}, "--gpus-per-worker"),
        ({"retries": -1}, "--retries"),
        ({"accelerator": "A100"}, "--gpus-per-worker"),
        ({"workers": 2, "gpus_per_worker": 0.5}, "--gpus-per-worker 0.5"),
        ({"workers": 2, "sync_batchnorm": True}, "--sync-batchnorm"),
    ],
)
def test_impossible_values_are_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError) as refused:
        Resources(**options)
    assert fault in str(refused.value)


def test_a_single_worker_is_the_trial_itself_and_the_driver_of_several_takes_no_cpu() -> None:
    assert Resources(cpus_per_worker=3).per_trial() == {"CPU": 3}
    gpu = Resources(gpus_per_worker=0.5, accelerator="A100")
    assert gpu.per_trial() == gpu.per_worker() == {"CPU": 1, "GPU": 0.5, "accelerator_type:A100": 0.001}
    assert Resources(workers=2, cpus_per_worker=4).per_trial().keys() == {"node:__internal_head__"}
    assert Resources(workers=2, cpus_per_worker=4).per_worker() == {"CPU": 4}


@pytest.mark.parametrize(
    ("options", "cluster", "trials"),
    [
        ({}, {"CPU": 2.0}, 2),
        ({"cpus_per_worker": 2}, {"CPU": 7.0}, 3),
        ({"workers": 2}, {"CPU": 5.0, "GPU": 8.0}, 2),
        ({"workers": 3}, {"CPU": 2.0}, 0),
        ({"gpus_per_worker": 1}, {"CPU": 64.0, "GPU": 8.0}, 8),
        ({"gpus_per_worker": 1}, {"CPU": 4.0, "GPU": 8.0}, 4),
        ({"gpus_per_worker": 0.5}, {"CPU": 64.0, "GPU": 1.0}, 2),
        ({"gpus_per_worker": 1}, {"CPU": 64.0}, 0),
        ({"workers": 2, "gpus_per_worker": 1, "accelerator": "A100"}, {"CPU": 64.0, "GPU": 8.0}, 4),
        ({}, {}, 0),
    ],
)
def test_how_many_trials_fit(options: dict[str, Any], cluster: dict[str, float], trials: int) -> None:
    assert Resources(**options).fit_into(cluster) == trials


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({}, "cpu1"),
        ({"workers": 2}, "cpu2"),
        ({"gpus_per_worker": 0.5}, "cuda1"),
        ({"workers": 4, "gpus_per_worker": 1}, "cuda4"),
        ({"workers": 4, "gpus_per_worker": 1, "sync_batchnorm": True}, "cuda4s"),
        ({"workers": 2, "gpus_per_worker": 1, "backend": "gloo"}, "cpu2"),
    ],
)
def test_what_makes_links_with_these_resources(options: dict[str, Any], made: str) -> None:
    resources = Resources(**options)
    assert resources.made_by == made
    assert made.startswith(resources.device_kind)


def test_a_gpu_is_used_only_if_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Resources().device() == torch.device("cpu")
    assert Resources(gpus_per_worker=1).device() == torch.device("cuda")
    assert Resources(workers=2, gpus_per_worker=1, backend="gloo").device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no GPU"):
        Resources(gpus_per_worker=1).device()


def test_the_environment_is_below_arguments_and_above_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `run_study` and `plan_study`; the options of commands read it themselves."""
    for name, value in {"WORKERS": "2", "CPUS_PER_WORKER": "3", "GPUS_PER_WORKER": "1", "ACCELERATOR": ""}.items():
        monkeypatch.setenv(f"CL2R_{name}", value)
    monkeypatch.delenv("CL2R_MAX_CONCURRENT", raising=False)
    assert Resources.from_options({"workers": 4, "retries": None}) == Resources(4, 3, 1)
    monkeypatch.setenv("CL2R_MAX_CONCURRENT", "many")
    with pytest.raises(InputError, match=r"^CL2R_MAX_CONCURRENT: .*'many'"):
        Resources.from_options({})
    with pytest.raises(InputError, match=r"^--max-concurrent: .*'few'"):
        Resources.from_options({"max_concurrent": "few"})
