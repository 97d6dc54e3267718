"""The README's table of speeds is the one that the benchmark wrote."""

from pathlib import Path

from studies.speed.shown import markdown, read_json

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "studies" / "results" / "throughput"


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_every_row_of_the_readme_was_measured() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("\n## Speed\n")[2].partition("\n## ")[0]
    shown, kept = table_lines(section), table_lines(KEPT.with_suffix(".md").read_text(encoding="utf-8"))
    assert len(shown) > 10
    assert set(shown) <= set(kept)


def test_the_table_is_that_of_the_samples() -> None:
    rows, facts = read_json(KEPT.with_suffix(".json").read_text(encoding="utf-8"))
    assert markdown(rows, facts) + "\n" == KEPT.with_suffix(".md").read_text(encoding="utf-8")
