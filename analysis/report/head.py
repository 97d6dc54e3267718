"""What stands at the top of the report: how far the study is, when it ran and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.pivot import finished
from analysis.report.words import counted, duration, moment
from analysis.study import Study


@dataclass(frozen=True)
class Head:
    """`kind` says which of the status colours to use."""

    status: str
    kind: Literal["good", "running", "bad"]
    times: str


def study_head(study: Study, live: Sequence[str]) -> Head:
    """The study's state, as far as frames and `about` tell it."""
    done, expected = len(study.runs), study.about.get("expected_runs")
    lost = int((~finished(study.runs)).sum())
    running = bool(live) or (expected is not None and done < expected and not study.about.get("ended"))
    if running:
        status = f"running: {done} of {expected} runs ended" if expected else f"running: {counted(done, 'run')} ended"
    elif expected is not None and done < expected:
        status = f"incomplete: {done} of {expected} runs"
    else:
        status = "finished" if done - lost else "no run finished"
    status += _lost_text(study)
    bad = bool(lost) or done == 0 or "incomplete" in status
    return Head(status, "running" if running else "bad" if bad else "good", _times(study, running))


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
