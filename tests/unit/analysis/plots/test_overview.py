"""The plane and the ranking: points, intervals and reference lines against values computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from analysis.names import METHODS, method_style
from analysis.plots import plot_plane, plot_ranking
from cl2r.errors import InputError
from tests.support.made_study import made_study

SHOWN = ("er", "fixed", "cl2r")


def points(axes: Axes) -> list[tuple[str, float, float]]:
    """Return the colours and places of all points, in the order in which they are drawn."""
    found = [
        line for line in axes.get_lines() if len(line.get_xdata()) == 1 and line.get_marker() not in ("|", "_", "None")
    ]
    return [(str(line.get_color()), *line.get_xydata()[0]) for line in found]


def bars(axes: Axes) -> list[tuple[float, float]]:
    """Return the ends of the bars that lie across."""
    found = [part.get_segments()[0] for part in axes.collections if isinstance(part, LineCollection)]
    return [(bar[0][0], bar[1][0]) for bar in found if bar[0][1] == bar[1][1]]


def references(axes: Axes) -> list[float]:
    return sorted(float(line.get_xdata()[0]) for line in axes.get_lines() if line.get_linestyle() == ":")


def test_a_point_of_the_plane_is_a_method_with_its_intervals() -> None:
    study = made_study(SHOWN, (0, 1, 2))
    axes = plot_plane(study).axes[0]
    means = study.runs.groupby("method.name")[["service_accuracy", "BC"]].mean()
    for method, (colour, *place) in zip(SHOWN, points(axes), strict=True):
        assert colour == method_style(method).colour
        assert place == pytest.approx(means.loc[method].tolist())
    own = study.runs.loc[study.runs["method.name"] == "er", "service_accuracy"]
    half = 4.302653 * own.std() / np.sqrt(3)
    assert bars(axes)[0] == pytest.approx((own.mean() - half, own.mean() + half))


def test_never_upgrading_and_re_indexing_are_lines_with_their_values() -> None:
    study = made_study(SHOWN, (0, 1))
    base = study.runs[study.runs["method.name"] == "er"]
    wanted = sorted(base[["first_accuracy", "reindexed_accuracy"]].mean())
    for axes in (plot_plane(study).axes[0], plot_ranking(study).axes[0]):
        assert references(axes) == pytest.approx(wanted)
        words = [text.get_text().strip() for text in axes.texts]
        assert words[:2] == [f"never upgrade (ER) {wanted[0]:.3f}", f"re-index (ER) {wanted[1]:.3f}"]
    older = replace(study, runs=study.runs.drop(columns="first_accuracy"))
    assert references(plot_plane(older).axes[0]) == []


def test_every_label_of_the_plane_is_inside_it_and_hides_no_other() -> None:
    study = made_study([*METHODS][:9], (0, 1, 2))
    along = study.runs["method.name"].map({name: 0.01 * place for place, name in enumerate(METHODS)})
    spread = {"service_accuracy": study.runs["service_accuracy"] + along, "BC": study.runs["BC"] - along}
    figure = plot_plane(replace(study, runs=study.runs.assign(**spread)))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    labels = [text.get_window_extent() for text in axes.texts if text.get_bbox_patch()]
    assert len(labels) == 9
    panel = axes.get_window_extent().padded(2)
    for place, box in enumerate(labels):
        assert panel.x0 <= box.x0 < box.x1 <= panel.x1
        assert panel.y0 <= box.y0 < box.y1 <= panel.y1
        assert not any(box.overlaps(other) for other in labels[:place])


def test_a_ranking_is_sorted_by_service_accuracy() -> None:
    methods = [*METHODS][:10]
    study = made_study(methods, (0, 1, 2))
    served, gained = plot_ranking(study).axes
    means = study.runs.groupby("method.name")["service_accuracy"].mean().sort_values()
    assert [label.get_text() for label in served.get_yticklabels()] == [METHODS[name] for name in means.index]
    assert [x for _, x, _ in points(served)] == pytest.approx(means.tolist())
    compatible = study.runs.groupby("method.name")["BC"].mean().reindex(means.index)
    assert [x for _, x, _ in points(gained)] == pytest.approx(compatible.tolist())


def test_methods_that_train_on_all_data_are_marked() -> None:
    study = made_study(("er", "cl2r", "upper_bound"), (0, 1))
    for figure in (plot_plane(study), plot_ranking(study)):
        assert "† trains on all data" in figure.get_suptitle()
        words = [text.get_text() for text in (*figure.axes[0].texts, *figure.axes[0].get_yticklabels())]
        assert [word for word in words if "†" in word] == ["UB †"]
    assert "†" not in plot_plane(made_study(SHOWN)).get_suptitle()


def test_one_seed_has_the_intervals_over_its_pairs() -> None:
    study = made_study(SHOWN, (0,))
    figure = plot_plane(study)
    assert "one seed, bars: 95 % intervals over its pairs" in figure.get_suptitle()
    first = study.runs.iloc[0]
    wanted = (first["service_accuracy_low"], first["service_accuracy_high"])
    assert bars(figure.axes[0])[0] == pytest.approx(wanted)


def test_too_many_groups_are_refused() -> None:
    many = made_study(("er",), (0,), 2, {"optim.lr": range(50)})
    with pytest.raises(InputError, match="use plot_ranking"):
        plot_plane(many)
    with pytest.raises(InputError, match="not 50"):
        plot_ranking(many)
