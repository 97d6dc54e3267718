"""`cl2r methods` and `cl2r datasets`."""

from pathlib import Path

from cl2r.config.methods import ADAPTERS, METHODS
from tests.support.command_line import Command


def test_methods_are_listed_with_papers_and_options(cl2r: Command) -> None:
    code, out, err = cl2r("methods")
    assert (code, err) == (0, "")
    listed, _, adapters = out.partition("\n\n")
    assert [line.split()[0] for line in listed.splitlines() if not line.startswith(" ")] == list(METHODS)
    assert all(f"\n{name} " in adapters for name in ADAPTERS)
    for info in METHODS.values():
        assert info.paper in listed
        for option in info.options.model_fields if info.options else ():
            assert f"{info.section}.{option}=" in listed
    code, out, _ = cl2r("methods", "lucir+slerp")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == ["lucir", "+slerp", "symbols"]


def test_data_sets_are_listed(cl2r: Command) -> None:
    code, out, err = cl2r("datasets", "list")
    assert (code, err) == (0, "")
    assert out.startswith("icons ")
    assert "x_train, y_train, x_open, y_open" in out
    assert "train/<class>" in out
    assert cl2r("datasets") == (0, out, ""), "list is the default"


def test_a_check_names_what_is_missing_and_how_to_get_it(cl2r: Command, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, err = cl2r("datasets", "check", "casia_ijbc", empty)
    assert (code, err) == (2, "")
    assert any(line.startswith("wrong  ") for line in out.splitlines())
    assert "get it CASIA-WebFace" in out
    assert not list(empty.iterdir())
    code, out, _ = cl2r("datasets", "check", "icons")
    assert code == 0
    assert "complete" in out
