"""Headlines of sweeps and races: the best settings, how sure they are, and when none is called the best."""

import dataclasses
import math
import re

import pytest

from analysis import Study
from analysis.headline import headline, without
from analysis.stats import t_interval
from analysis.sweep_headline import more_trials, sweep_results
from analysis.sweeps import best_trials, settings_brief, settings_words, sweep_contexts, trial_runs
from analysis.tables.sweep import NOT_BETTER
from tests.support.made_study import confirmed_sweep, made_sweep
from tests.unit.analysis.test_recommendation import CLEAR, made

KNOBS = ("method.lambda_base", "memory.per_class")


def with_command(study: Study, *words: str) -> Study:
    return dataclasses.replace(study, about={**study.about, "command": list(words)})


def test_one_context_has_settings_value_costs_and_the_alternatives() -> None:
    study = confirmed_sweep((5,), gain=0.02)
    found = headline(study)
    own = trial_runs(study.runs, 0)
    assert own["seed"].tolist() == [0, 1, 2], "the seeds that confirm it count too"
    value = t_interval(own["service_accuracy"].astype(float))
    start = (
        f"{settings_words(own.iloc[0], KNOBS)} serve best: {value.mean:.3f} [{value.low:.3f}, {value.high:.3f}], BC "
    )
    assert found.finding.startswith(start)
    default = study.runs[study.runs["variant"] == "default"]["service_accuracy"].mean()
    er = study.runs[study.runs["method.name"] == "er"]
    last, first = er["reindexed_accuracy"].mean(), er["first_accuracy"].mean()
    ends = f"the default reaches {default:.3f}, re-indexing would reach {last:.3f}, never upgrading {first:.3f}."
    assert found.finding.endswith(ends)
    assert "50 s of training" in found.finding
    assert found.title == "Sweep on icons: λ_base and memory of CL²R, 12 trials, 5 tasks, 3 seeds"


def test_several_contexts_share_one_sentence() -> None:
    study = confirmed_sweep((2, 5, 10))
    found = headline(study)
    assert found.finding.count(". ") == 1
    for label, rows in sweep_contexts(study.runs):
        best = best_trials(rows, {"service_accuracy": "max"}, specification=study.specification).iloc[0]
        assert f"at {label} ({settings_brief(best, KNOBS)})" in found.finding
    assert re.search(r"The default reaches 0\.\d+, 0\.\d+ and 0\.\d+; re-indexing would reach 0\.", found.finding)
    assert "T = 2, 5 and 10, 36 trials" in found.title
    assert "Only trials with re-indexed accuracy >= er - 0.01 on the tuning pairs count: " in found.remark


def test_of_many_contexts_the_middle_one_has_a_sentence() -> None:
    found = headline(confirmed_sweep((2, 3, 4, 5, 6))).finding
    assert found.startswith("T=4: λ_base ")
    assert found.endswith("The other 4 contexts are in the tables.")


@pytest.mark.parametrize(
    ("gain", "words"), [(0.02, "clearly better"), (0.0, "not clearly better"), (-0.02, "clearly worse")]
)
def test_the_best_is_compared_with_the_default_by_seed(gain: float, words: str) -> None:
    certainty = headline(confirmed_sweep(gain=gain)).certainty
    assert certainty.startswith(
        "Chosen on tuning pairs among 12 finished trials of each T; the best one was trained again with 2 further "
    )
    assert f"Over 3 seeds, the best settings are {words} than the default (T=2 and T=5)." in certainty
    one = headline(confirmed_sweep((5,), gain=gain)).certainty
    half = 4.303 * 0.001 / math.sqrt(3)  # t(2) = 4.303
    assert f"from the default by {gain:+.3f} [{gain - half:+.3f}, " in one.replace("by 0.000", "by +0.000")


def test_one_seed_is_said_to_be_optimistic() -> None:
    study = made_sweep(12, (5,))
    found = headline(study)
    assert "One seed: the best of many trials looks better than it is." in found.certainty
    assert "trained again" not in found.certainty
    best = best_trials(study.runs, {"service_accuracy": "max"}, specification=study.specification).iloc[0]
    assert f"serve best: {best['service_accuracy']:.3f} [" in found.finding, "the interval is over pairs"


def without_confirmation(study: Study, tasks: int) -> Study:
    """Return the sweep without the further seeds of the best trial at T = `tasks`."""
    confirmed = (study.runs["variant"] == "confirmed").fillna(False) & (study.runs["tasks"] == tasks)
    return dataclasses.replace(study, runs=study.runs[~confirmed.astype(bool)])


def test_seeds_of_other_trials_do_not_make_the_best_one_surer() -> None:
    study = made_sweep(12, (3,), confirm=(1, 2))
    (context,) = sweep_results(study)
    assert (context.best, context.confirmed()) == (2, [0]), "another trial was confirmed"
    certainty = headline(study).certainty
    assert certainty.startswith("Chosen on tuning pairs among 12 finished trials. One seed: the best of many trials ")
    one = headline(without_confirmation(confirmed_sweep(), 5)).certainty
    assert "12 finished trials of each T; the best one at T=2 was trained again with 2 further seeds. " in one
    assert "One seed at T=5: the best of many trials looks better than it is." in one


def test_only_contexts_with_a_best_trial_are_counted() -> None:
    study = confirmed_sweep((2, 5))
    runs = study.runs.assign(status=study.runs["status"].mask(study.runs["tasks"] == 5, "failed"))
    found = headline(dataclasses.replace(study, runs=runs))
    assert "T=5: no trial finished with all its seeds." in found.finding
    assert found.certainty.startswith("Chosen on tuning pairs among 12 finished trials; the best one was trained ")


def test_equal_differences_for_every_seed_are_not_clear() -> None:
    study = confirmed_sweep((2, 5), gain=0.02)
    runs = study.runs.copy()
    at_two = (runs["tasks"] == 2).astype(bool)
    best = at_two & (runs["trial"] == 0).fillna(False).astype(bool)
    default = at_two & (runs["variant"] == "default").fillna(False).astype(bool)
    runs["service_accuracy"] = runs["service_accuracy"].mask(best, 0.8).mask(default, 0.7)
    certainty = headline(dataclasses.replace(study, runs=runs)).certainty
    assert "are clearly better than the default (T=5) and not clearly better (T=2)." in certainty


def test_costs_that_are_not_known_are_left_out() -> None:
    study = made_sweep(12, (2,))
    known = headline(study).finding
    assert "stored" in known
    assert "of training" in known
    runs = study.runs.assign(train_seconds=math.nan, stored_bytes=math.nan)
    unknown = headline(dataclasses.replace(study, runs=runs)).finding
    assert "stored" not in unknown
    assert "of training" not in unknown
    assert "nan" not in unknown


def test_few_trials_have_no_best_and_the_command_tells_how_many_are_needed() -> None:
    study = with_command(made_sweep(4, (2, 5)), "python", "studies/sweep.py", "--trials", "4", "--name", "mine")
    found = headline(study)
    assert found.finding == "4 trials of each T are too few to call one the best (10 needed)."
    assert found.command == "python studies/sweep.py --name mine --trials 10"
    assert re.match(
        r"6 more trials of each T, about .*, would reach the 10 trials that a best one needs\.", found.certainty
    )
    assert headline(made_sweep(1, (2, 5), constraints={})).finding.startswith("1 trial of each T is too few to call")
    assert headline(made_sweep(6, (2,))).finding == "6 trials: too few to call one the best (10 needed)."


def test_more_trials_reach_the_next_number_that_shows_more() -> None:
    words = ("cl2r", "sweep", "--trials", "12")
    # all runs took 5400 s; the run of ER took as long as a trial
    for trials, goal, time in ((12, 20, "55 min 23 s"), (24, 48, "1 h 26 min")):
        study = with_command(made_sweep(trials, (2,)), *words)
        found = more_trials(study, sweep_results(study))
        assert found == (f"cl2r sweep --trials {goal}", goal - trials, f", about {time},")
    other = with_command(made_sweep(12, (2,)), "python", "mine.py")
    assert more_trials(other, sweep_results(other)) == ("", 0, "")
    assert without(["a", "--seeds", "0", "1", "--set", "b=1"], "--seeds") == ["a", "--set", "b=1"]


def test_no_trial_is_best_if_none_is_feasible() -> None:
    found = headline(made_sweep(12, (2,), constraints={"reindexed_accuracy": ">= er + 0.5"}))
    assert found.finding.startswith("No trial met the constraint; the nearest, trial ")
    assert re.search(r"misses it by 4\d % of the bound\.$", found.finding)
    assert found.certainty.startswith("12 trials finished."), "no command is known"
    assert "re-indexed accuracy >= er + 0.5 = 1.2" in found.remark
    both = {"reindexed_accuracy": ">= er + 0.5", "AC": ">= 0"}
    finding = headline(made_sweep(12, (2,), constraints=both)).finding
    assert re.match(r"No trial met all constraints; the nearest, trial \d+, misses one by 4\d % of its bound", finding)


def test_the_remark_says_where_nothing_beats_never_upgrading() -> None:
    study = made_sweep(12, (2, 5))
    assert NOT_BETTER not in headline(study).remark
    for tasks, start in (((2, 5), "No trial serves better"), ((2,), "T=2: no trial serves better")):
        first = study.runs["first_accuracy"].mask(study.runs["tasks"].isin(tasks), 0.95)
        worse = dataclasses.replace(study, runs=study.runs.assign(first_accuracy=first))
        assert f"count: 22 of 24. {start}" in re.sub(r"\d+ of 24", "22 of 24", headline(worse).remark)


def test_two_objectives_have_a_front_instead_of_a_best_trial() -> None:
    study = made_sweep(12, (5,), objectives=("service_accuracy", "stored_bytes"))
    front = best_trials(
        study.runs, {"service_accuracy": "max", "stored_bytes": "min"}, specification=study.specification
    )
    found = headline(study).finding
    assert found.startswith(f"{len(front)} of 12 trials are on the Pareto front of service accuracy and storage: from ")
    for _, end in front.iloc[[0, -1]].iterrows():
        assert f"{end['stored_bytes'] / 1e3:.0f} kB ({settings_brief(end, KNOBS)})" in found


def test_another_objective_is_named() -> None:
    assert " have the best storage: " in headline(made_sweep(12, (2,), objectives=("stored_bytes",))).finding
    assert headline(made_sweep(12, objectives=("BC",))).finding.startswith("The best settings have BC +0.0")


def test_trials_without_tuning_pairs_are_not_ranked() -> None:
    study = made_sweep(12, (2,))
    runs = study.runs.drop(columns=[name for name in study.runs if name.startswith("tuning_")])
    found = headline(dataclasses.replace(study, runs=runs)).finding
    assert found.startswith("No trial can be called the best: no column 'tuning_service_accuracy'")


def test_settings_are_read_in_one_order() -> None:
    row = {"memory.per_class": 1, "method.lambda_base": 3.1416, "method.name": "cl2r", "optim.nesterov": True}
    fields = list(row)
    assert settings_words(row, fields) == "CL²R, λ_base 3.14, nesterov True and 1 image per class"
    assert settings_brief(row, fields[:2]) == "memory 1, λ_base 3.14"


def test_a_race_begins_with_its_recommendation() -> None:
    study = with_command(made(CLEAR), "cl2r", "recommend", "--hours", "2", "--name", "mine")
    found = headline(study)
    assert re.match(r"Use .* with λ_base 5.*: service accuracy 0\.78", found.finding)
    assert found.finding.endswith("Never upgrading would give 0.700 (-0.081), re-indexing at every upgrade 0.800.")
    assert found.certainty.startswith("It is better than every other finalist over 3 seeds. Candidates: 3 in the ")
    assert (found.command, "Twice the time, 4 h," in found.certainty) == ("cl2r recommend --hours 4", True)
    assert found.remark.startswith("Re-indexing computes 1,600 vectors at every upgrade")
    assert headline(with_command(study, "cl2r", "run", "x.yaml")).command == ""


def test_rivals_of_a_recommendation_are_listed_without_their_settings() -> None:
    close = {"er": (0.72, 0.72), "cl2r": (0.73, 0.73), "er_fdm": (0.78, 0.77), "lucir": (0.779, 0.76)}
    first, second, _ = headline(made(close, spread=0.02, gallery_items_touched=1600)).certainty.split(". ", 2)
    assert first.startswith("3 seeds cannot tell it from ")
    assert "images per class" not in first
    assert second == "Every upgrade rewrites the vectors of the gallery"
    comma = {"er": (0.6, 0.6), "cl2r": (0.78, 0.73), "er_fdm": (0.78, 0.76), "lucir": (0.779, 0.77)}
    first = headline(made(comma, spread=0.02)).certainty.partition(". ")[0]
    assert first == "3 seeds cannot tell it from CL²R; and Trainable, FD^M"
