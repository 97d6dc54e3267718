"""Memory of a process that trains: reported, and bounded, however many runs it trains."""

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from quick import quick_config, train

from cl2r.config import Config
from cl2r.engine.process_memory import megabytes, peak_bytes

RUNS, WARM = 14, 4
SLACK = 40 * 2**20
"""What an allocator may keep; a run that kept its data, models or features would take as much several times."""


def test_the_peak_never_falls() -> None:
    before = peak_bytes()
    held = bytearray(100 * 2**20)
    with_it = peak_bytes()
    del held
    assert before > 10 * 2**20
    assert peak_bytes() >= with_it >= before


def test_megabytes() -> None:
    assert megabytes(1_234_567_890) == "1,235 MB"


def _trained(config: Config) -> tuple[int, int | None]:
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, Path(folder))
    return peak_bytes(), result.links[-1].record["peak_bytes"]


def test_runs_one_after_the_other_do_not_add_up(tiny: Path) -> None:
    configs = [quick_config(tiny, {"seed": seed, "optim": {"epochs": 1}}) for seed in range(RUNS)]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        peaks = list(pool.map(_trained, configs))
    assert peaks[-1][0] - peaks[WARM][0] < SLACK
    for process, recorded in peaks:
        assert recorded is not None
        assert 0 < recorded <= process
