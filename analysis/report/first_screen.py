"""What the page shows first: the headline of the study, a picture that fits its kind, and what the words mean."""

from dataclasses import dataclass

import pandas as pd

from analysis.groups import varied_fields
from analysis.headline import Headline, headline, study_kind
from analysis.report.pictures import Picture, lines_picture, matrices_picture, plane_picture, ranking_picture
from analysis.study import Study
from cl2r.metrics import BC

FEW = 9  # methods whose matrices fit the first screen; more are ranked in one plot


@dataclass(frozen=True)
class FirstScreen:
    """The headline, at most two pictures side by side, and one line per word that they use."""

    headline: Headline
    pictures: tuple[Picture, ...]
    definitions: tuple[tuple[str, str], ...]


DEFINITIONS = (
    (
        "Service accuracy",
        "mean over old galleries of the last model's accuracy on them: what users get without re-indexing.",
    ),
    (
        "BC",
        "backward compatibility: how much the last model gains on old galleries over the models that made them; below 0 it loses.",
    ),
    (
        "AC",
        "share of the pairs of a new model and an older gallery in which the new model beats the old one (framed cells).",
    ),
)
OVER_SEEDS = ("Brackets and bars", "95 % intervals over seeds: where the mean over many more seeds may lie.")
OVER_PAIRS = (
    "Brackets and bars",
    "95 % intervals over the pairs of the one seed: they do not show how other seeds would differ.",
)
OVER_BOTH = (
    "Brackets and bars",
    "95 % intervals over seeds, or over pairs where there is one seed: those do not show how other seeds would differ.",
)


def first_screen(study: Study, runs: pd.DataFrame) -> FirstScreen:
    """Return the first screen; `runs` are finished and have their `group`."""
    kind = study_kind(study)
    pictures: list[Picture] = []
    if kind in ("ablation", "methods", "search") and len(runs):
        if runs["group"].nunique() <= FEW:
            pictures = [matrices_picture(study, runs), plane_picture(runs)]
        else:
            pictures = [ranking_picture(runs)]
    elif kind == "field" and len(runs):
        (field,) = varied_fields(study.runs)
        pictures = [lines_picture(study, runs, field)]
    pictures = [picture for picture in pictures if picture.svg or picture.figure]
    return FirstScreen(headline(study), tuple(pictures), (*DEFINITIONS, _intervals(runs)))


def _intervals(runs: pd.DataFrame) -> tuple[str, str]:
    known = runs[runs[BC.name].notna()] if BC.name in runs else runs
    counts = set(known.groupby("group")["seed"].nunique()) if len(known) else {1}
    return OVER_PAIRS if counts == {1} else OVER_SEEDS if 1 not in counts else OVER_BOTH
