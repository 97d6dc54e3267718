"""One title, one place and one style per method, whatever else a table or a plot shows."""

from analysis.names import ADAPTERS, METHODS, method_style, nth_style, ordered, title
from cl2r.config.methods import ADAPTERS as REGISTERED_ADAPTERS
from cl2r.config.methods import METHODS as REGISTERED


def test_every_method_of_the_project_has_a_title_of_its_own() -> None:
    assert set(METHODS) == set(REGISTERED)
    assert list(ADAPTERS) == list(REGISTERED_ADAPTERS)
    assert len(set(METHODS.values())) == len(METHODS)


def test_titles_keep_adapters_and_unknown_names() -> None:
    assert [title(name) for name in ("cl2r", "er_fd", "er+aligner", "mine")] == [
        "CL²R",
        "Trainable, FD",
        "ER+aligner",
        "mine",
    ]


def test_the_order_is_stored_and_adapters_follow_their_method() -> None:
    names = ["upper_bound", "mine", "cl2r+slerp", "cl2r", "er", "cl2r+aligner", "lucir", "er"]
    assert ordered(names) == ["er", "lucir", "cl2r", "cl2r+aligner", "cl2r+slerp", "mine", "upper_bound"]
    assert ordered(METHODS) == list(METHODS)


def test_no_two_methods_look_alike() -> None:
    adapted = [f"{base}+{adapter}" for base in ("er", "cl2r") for adapter in ADAPTERS]
    styles = [method_style(name) for name in [*METHODS, *adapted]]
    assert len(set(styles)) == len(styles)
    assert len({nth_style(place) for place in range(32)}) == 32


def test_only_cl2r_is_highlighted_and_an_adapter_keeps_its_method_s_colour() -> None:
    assert [name for name in METHODS if method_style(name).highlighted] == ["cl2r"]
    for base in ("er", "cl2r", "lucir"):
        assert method_style(f"{base}+aligner").colour == method_style(base).colour


def test_an_unknown_method_has_a_style_that_no_known_method_has() -> None:
    known = {method_style(name) for name in METHODS}
    assert not known & {method_style(f"mine{number}") for number in range(20)}
    assert method_style("mine") == method_style("mine")
