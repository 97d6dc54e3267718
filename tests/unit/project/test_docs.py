"""The docs: links resolve, commands and options exist, Python blocks compile, tables equal the kept results."""

import functools
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cl2r.cli.fsck import DAMAGED, LEFT_BEHIND
from cl2r.cli.main import cli
from cl2r.errors import NOT_KNOWN, NOT_SAFE, REQUEUE

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


COMMANDS = sorted(
    (page, line)
    for page, line in set(shell_lines())
    if re.match(r"(ray job submit .* -- )?(cl2r|make|python(?! -)) ", line)
)


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=str)
def test_commands_exist(page: str, line: str) -> None:
    program, *words = shlex.split(re.sub("^ray job submit .* -- ", "", line), comments=True)
    words = list(itertools.takewhile(lambda word: word not in (";", "|", "&&"), words))
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    if program == "make":
        assert re.search(rf"^{words[0].rstrip(';')}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    if program == "python":
        assert (ROOT / words[0]).exists()
        if not words[0].startswith("studies/"):
            return
        words = ["study", Path(words[0]).stem]
    path = words[: 2 if words[0] in ("datasets", "gallery", "study", "plan") else 1]
    path = ["ablation" if word.endswith(".yaml") else word.rstrip(";") for word in path if not word.startswith("-")]
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
    kept = [
        row.rpartition(" | ")[0] for row in table_rows(RESULTS / "ablation_icons.md", "make study") if "---" not in row
    ]
    shown = [row for row in table_rows(ROOT / "README.md", "What it shows") if "---" not in row]
    assert len(shown) == 9, "six methods, two references"
    assert [row.removesuffix(" |") for row in shown] == kept, "the README leaves out the last column"


def test_the_page_of_exit_codes_has_all_of_them() -> None:
    rows = table_rows(ROOT / "cl2r" / "cli" / "README.md", "Exit codes")[2:]
    assert [int(row.split("|")[1]) for row in rows] == [
        0,
        1,
        2,
        NOT_SAFE,
        NOT_KNOWN,
        DAMAGED,
        LEFT_BEHIND,
        REQUEUE,
        130,
    ]


def test_speeds_are_those_that_the_benchmark_wrote() -> None:
    shown = table_rows(RESULTS / "performance.md", "Compared with a plain pipeline")
    assert len(shown) > 10
    assert set(shown) <= set(table_rows(RESULTS / "throughput.md"))
