"""Studies on Ray whose links, ledger and frames are in an object store."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import load_study
from cl2r.storage.path import ObjectPath
from studies import ablation, sweep
from tests.support.study_frames import VOLATILE

CELLS = ["er", "cl2r"]


def test_the_ablation_is_that_of_a_disk(
    undisturbed: Path, remote: ObjectPath, preset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--preset", str(preset), "--storage", str(remote), "--name", "far", "--cells", *CELLS]
    words += ["--seeds", "0"]
    assert ablation.main(words) == 0
    assert "2 runs finished, 0 failed, 0 stopped early; 6 links trained" in capsys.readouterr().out
    far, near = load_study(str(remote)), load_study(undisturbed / "studies" / "calm")
    for name in ("matrix", "curves", "runs"):
        one, two = (getattr(study, name) for study in (far, near))
        shared = [column for column in one if column not in (*VOLATILE, "trial", "links_trained")]
        two = two[two["run"].isin(one["run"])][shared].reset_index(drop=True)
        pd.testing.assert_frame_equal(one[shared].reset_index(drop=True), two, check_exact=True)
    left = {name.split("/")[0] for name, *_ in remote.walk_files()}
    assert left == {"links", "studies"}, "no claim and no unfinished epoch is left"
    assert (remote / "studies" / "far" / "report.html").exists()
    assert not (remote / "studies" / "far" / "ray").exists()
    assert ablation.main(words) == 0
    assert "0 links trained" in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep(small_ray: None, remote: ObjectPath, preset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--preset", str(preset), "--storage", str(remote), "--name", "far", "--set", "optim.epochs=2"]
    assert sweep.main([*words, "--trials", "2"]) == 0
    assert "2 runs finished" in capsys.readouterr().out
    assert len(load_study(str(remote)).finished) == 2
