"""What a run may use of the cluster."""

from typing import Any

import pytest

from cl2r.errors import InputError
from cl2r.rayrun.resources import Resources


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"workers": 0}, "--workers 0: must be at least 1"),
        ({"cpus_per_worker": 0}, "--cpus-per-worker 0: must be at least 1"),
        ({"max_concurrent": -1}, "--max-concurrent -1: must be at least 1"),
        ({"gpus_per_worker": -1}, "must not be negative"),
        ({"retries": -1}, "must not be negative"),
        ({"accelerator": "A100"}, "--accelerator A100 needs --gpus-per-worker"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError) as refused:
        Resources(**options)
    assert fault in str(refused.value)


def test_one_worker_is_the_trial_itself() -> None:
    assert Resources(cpus_per_worker=3).per_trial() == {"CPU": 3}
    gpu = Resources(gpus_per_worker=0.5, accelerator="A100")
    assert gpu.per_trial() == gpu.per_worker() == {"CPU": 1, "GPU": 0.5, "accelerator_type:A100": 0.001}


def test_the_driver_of_several_workers_takes_no_cpu() -> None:
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


def test_decoding_processes_want_cpus_of_their_own() -> None:
    assert Resources(cpus_per_worker=5).loader_note(4) is None
    assert Resources(cpus_per_worker=4).loader_note(4) == (
        "note: data.loaders=4 are processes beside the one that trains, and --cpus-per-worker is 4: "
        "5 would give each a CPU"
    )
    assert Resources().loader_note(0) is None
