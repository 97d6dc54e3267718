"""Text is UTF-8 on every machine: the default of `open` and its kind follows the locale, and a cluster has several."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("cl2r", "analysis", "studies", "tests/benchmarks")


def without_encoding(source: str) -> Iterator[int]:
    """Yield the lines of calls that read or write text in the encoding of the locale."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        given = {word.arg: word.value for word in call.keywords}
        if "encoding" in given or None in given:
            continue
        own = isinstance(call.func, ast.Name)  # the built-in; other objects have a method `open` too
        modes = [*call.args[own : own + 1], *filter(None, [given.get("mode")])]
        texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
        as_text = given.get("text") or given.get("universal_newlines")
        if (
            (name == "read_text" and not call.args)
            or (name == "write_text" and len(call.args) < 2)
            or (
                name in ("open", "fdopen")
                and (any(set(text) <= set("rwxat+") for text in texts) or (own and not modes))
            )
            or (isinstance(as_text, ast.Constant) and as_text.value is True)
        ):
            yield call.lineno


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_file_has_an_encoding(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {str(file.relative_to(ROOT)): list(without_encoding(file.read_text(encoding="utf-8"))) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "call",
    [
        "p.read_text()",
        "p.write_text(x)",
        "open(p)",
        "open(p, 'w')",
        "p.open('a')",
        "p.open(mode='r')",
        "run(x, text=True)",
    ],
)
def test_calls_in_the_encoding_of_the_locale_are_found(call: str) -> None:
    assert list(without_encoding(call)) == [1]


@pytest.mark.parametrize(
    "call",
    [
        "p.read_text('utf-8')",
        "p.write_text(x, encoding='utf-8')",
        "open(p, 'rb')",
        "p.open('wb')",
        "image.open(3)",
        "tarfile.open(mode='r:')",
    ],
)
def test_other_calls_are_not(call: str) -> None:
    assert list(without_encoding(call)) == []
