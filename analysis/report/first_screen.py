"""What the page shows first: the headline of the study, a picture that fits its kind, and what the words mean."""

from dataclasses import dataclass

import pandas as pd

from analysis.comparisons import comparable_sets
from analysis.groups import varied_fields
from analysis.headline import Headline, headline, study_kind
from analysis.report.pictures import Picture, lines_picture, matrices_picture, plane_picture, ranking_picture
from analysis.study import Study
from cl2r.metrics import SERVICE_ACCURACY

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
        "the last model's queries, mean over the galleries of all models: what users get unless re-indexed.",
    ),
    (
        "BC",
        "what the last model gains on the galleries of older models over these models themselves; below 0 it loses.",
    ),
    (
        "AC",
        "share of pairs of a new model and an older one's gallery that are compatible: the new one does better there.",
    ),
)
OVER_SEEDS = ("Brackets and bars", "95 % intervals over seeds: where the mean over many more seeds may lie.")
OVER_PAIRS = (
    "Brackets and bars",
    "95 % intervals over the pairs of one seed: they do not show how other seeds differ.",
)
OVER_BOTH = (
    "Brackets and bars",
    "95 % intervals over seeds; where there is one seed, over its pairs, which says less.",
)


def first_screen(study: Study, runs: pd.DataFrame) -> FirstScreen:
    """Return the first screen; `runs` are finished and have their `group`."""
    kind = study_kind(study)
    if kind == "search" and len(runs):
        from analysis.report import search

        return FirstScreen(headline(study), tuple(search.search_pictures(study)), search.DEFINITIONS)
    if kind == "paper" and len(runs):
        from analysis.report import paper

        return FirstScreen(headline(study), tuple(paper.paper_pictures(study, runs)), paper.DEFINITIONS)
    pictures: list[Picture] = []
    if kind in ("ablation", "methods") and len(runs):
        if runs["group"].nunique() <= FEW:
            pictures = [matrices_picture(study, runs), plane_picture(runs)]
        else:
            pictures = [ranking_picture(runs)]
    elif kind == "field" and len(runs):
        (field,) = varied_fields(study.runs)
        pictures = [lines_picture(study, runs, field)]
    elif kind == "points" and runs["group"].nunique() > 1 and len(comparable_sets(runs)) == 1:
        pictures = [ranking_picture(runs)]
    elif kind in ("sweep", "race") and len(runs):
        from analysis.report.race import race_figures  # imports Optuna, which takes a second
        from analysis.report.sweep_figures import sweep_figures

        figures = sweep_figures(study) if kind == "sweep" else race_figures(study)
        pictures = [Picture(f"{own.id}-picture", own.title, own.caption, figure=own) for own in figures]
    pictures = [picture for picture in pictures if picture.svg or picture.figure]
    return FirstScreen(headline(study), tuple(pictures), (*DEFINITIONS, *_intervals(runs)))


def _intervals(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Return what intervals are over; nothing if no run has a service accuracy."""
    known = runs[runs[SERVICE_ACCURACY.name].notna()] if SERVICE_ACCURACY.name in runs else runs
    if known.empty:
        return []
    counts = set(known.groupby("group")["seed"].nunique())
    return [OVER_PAIRS if counts == {1} else OVER_SEEDS if 1 not in counts else OVER_BOTH]
