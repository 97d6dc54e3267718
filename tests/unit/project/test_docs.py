"""The docs: links resolve, commands and options exist, Python blocks compile, tables equal the kept results."""

import functools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cl2r.cli.main import cli

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "studies" / "results"
PAGES = sorted(
    ROOT / line
    for line in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_resolve(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(linked), f"{target}: no such heading"


def shell_lines() -> Iterator[tuple[str, str]]:
    """Yield every command line of a fenced block without a language, or marked as a shell's."""
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in ("", "bash", "sh", "console"):
                joined = re.sub(r"\\\n\s*", " ", block)
                for line in joined.splitlines():
                    yield page_id(page), line.removeprefix("$ ").strip()


@functools.cache
def help_text(*words: str) -> str:
    shown = CliRunner().invoke(cli, [*words, "--help"])
    assert shown.exit_code == 0, f"cl2r {' '.join(words)}: {shown.output}"
    return shown.output


def command_words(line: str) -> list[str]:
    """Return the words of a line that starts cl2r, a study or make; empty for other lines."""
    line = line.partition(" -- ")[2] if line.startswith("ray job submit") else line
    if not re.match(r"(cl2r|make|python) ", line):
        return []
    return shlex.split(line, comments=True)


@pytest.mark.parametrize(
    ("page", "line"), [entry for entry in sorted(set(shell_lines())) if command_words(entry[1])], ids=str
)
def test_commands_exist(page: str, line: str) -> None:
    program, *words = command_words(line)
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    if program == "python":
        if words[0].startswith("-"):
            return
        assert (ROOT / words[0]).exists()
        if not words[0].startswith("studies/"):
            return
        words = ["study", Path(words[0]).stem]
    for separator in (";", "|", "&&"):
        words = words[: words.index(separator)] if separator in words else words
    words[0] = words[0].rstrip(";")
    path = words[:2] if words[0] in ("datasets", "gallery", "study", "plan") else words[:1]
    if path[0] in ("study", "plan") and path[1].endswith(".yaml"):
        path[1] = "ablation"
    if len(path) == 2 and path[1].startswith("-"):
        path = path[:1]
    shown = help_text(*path)
    for option in options - {"--help"}:
        assert option in shown, f"`cl2r {' '.join(path)}` has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_python_blocks_compile(page: Path) -> None:
    for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compile(block, str(page), "exec")


def table_rows(path: Path, section: str = "") -> list[str]:
    """Return the rows of the tables of a page, or of one of its sections."""
    text = path.read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        assert text, f"{path.name} has no section {section!r}"
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_table_of_the_readme_is_the_kept_one() -> None:
    kept = [row.rpartition(" | ")[0] for row in table_rows(RESULTS / "ablation_icons.md") if "---" not in row]
    shown = [row for row in table_rows(ROOT / "README.md", "What it shows") if "---" not in row]
    assert len(shown) == 7
    assert [row.removesuffix(" |") for row in shown] == kept, "the README leaves out the last column"


def test_speeds_are_those_that_the_benchmark_wrote() -> None:
    shown = table_rows(RESULTS / "performance.md", "Compared with a plain pipeline")
    assert len(shown) > 10
    assert set(shown) <= set(table_rows(RESULTS / "throughput.md"))
