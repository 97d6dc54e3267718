"""What stands at the top of the report: how far the study is, when it ran and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.pivot import finished
from analysis.report.words import counted, duration, moment
from analysis.study import Study

Kind = Literal["good", "running", "incomplete", "bad"]


@dataclass(frozen=True)
class Head:
    """`kind` says which of the status colours to use."""

    status: str
    kind: Kind
    times: str


def study_head(study: Study, live: Sequence[str], refresh: float | None = None) -> Head:
    """The study's state. Frames do not tell whether anybody is at work on it: whoever asks for the page does."""
    done, expected = len(study.runs), study.about.get("expected_runs")
    lost = int((~finished(study.runs)).sum())
    running, missing = bool(live) or refresh is not None, expected is not None and done < expected
    if running:
        status = f"running: {done} of {expected} runs ended" if expected else f"running: {counted(done, 'run')} ended"
    elif missing:
        status = f"incomplete: {done} of {expected} runs"
    else:
        status = "finished" if done - lost else "no run finished"
    kind: Kind = "running" if running else "incomplete" if missing else "bad" if lost or not done else "good"
    return Head(status + _lost_text(study), kind, _times(study, running))


def _lost_text(study: Study) -> str:
    states = study.runs["status"].tolist() if "status" in study.runs else []
    counts = {word: states.count(kind) for kind, word in (("failed", "failed"), ("pruned", "stopped"))}
    words = [f"{count} {word}" for word, count in counts.items() if count]
    return "".join(f", {word}" for word in words)


def _times(study: Study, running: bool) -> str:
    about = study.about
    began, ended = moment(about.get("began")), moment(about.get("ended"))
    words = [f"began {began}"] if began else []
    words += [f"ended {ended}"] if ended and not running else []
    words += [f"took {duration(about['seconds'])}"] if about.get("seconds") and not running else []
    return ", ".join(words)
