"""The text at the end of a race, and the config that it leaves."""

from pathlib import Path

from cl2r.cli.recommend import recommendation_text
from cl2r.config.schema import fields
from cl2r.storage.path import LocalPath
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import study_frames
from cl2r.study.race import Candidate
from tests.support.small_study import finish, small_session, small_study


def test_without_a_choice_the_text_says_that_the_copy_was_not_written(tiny: Path, tmp_path: LocalPath) -> None:
    spec = small_study(tiny, race={"methods": ["er_fdm"]}, set={"optim.epochs": 4})
    session = small_session(StudyFolder(tmp_path, "race"), spec)
    session.folder.claim_name(spec.identity([]))
    job = session.race.job("screening", Candidate(0, "er"), 0)
    finish(session.folder, job, {"tasks": 3, **fields(job.runs[0].config)})
    frames, out = study_frames(session.folder), Path(tmp_path / "chosen.yaml")
    text = recommendation_text(session, frames, out)
    assert text.startswith("Cannot tell yet: no final round has finished.")
    assert text.endswith(f"config: {out} was not written")
    assert not out.exists()
    out.write_text("seed: 3\n")
    assert recommendation_text(session, frames, out).endswith(f"{out} was not written; it is older than this result")
    assert out.read_text() == "seed: 3\n", "it may be another file of the user"
    assert "config:" not in recommendation_text(session, frames)
