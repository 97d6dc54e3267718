"""The tables of a page of studies/results as JSON, for programs; tests compare the two.

    python -m tests.support.kept_tables studies/results/lfw.md ...    # write lfw.json, ... beside the pages

A page says in a list what made its tables: `- command: …`, `- commit: …`, `- seeds: 0, 1, 2` and `- data: …`. Inside a
section such a line holds for its tables. The title of a table is the heading or the bold line above it.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OTHER_FORM = {
    "README.md": "an index of the pages, without values",
    "verified.md": "says in words what was run",
    "methods_icons.md": "methods_icons.json has the runs, from which the table follows",
    "which-method-when.md": "its tables are made from which-method-when.json",
    "loss_shares.md": "written with loss_shares.json, its measurements, by `make bench-losses`",
    "peak.md": "written with peak.json, its measurements, by `make bench-peak`",
    "scaling.md": "written with scaling.json, its measurements, by `make bench-scaling`",
    "throughput.md": "written with throughput.json, its measurements, by `make bench-speed`",
    "tricks.md": "written with tricks.json, its chains, by `make bench-tricks`",
}
"""Pages whose tables are not kept in the form of this module, and why."""

FACT = re.compile(r"- (command|commit|seeds|data): (.+)")
SEEDS = re.compile(r"(\d+(?:, \d+)*)(?:;.*)?")
NUMBER = r"[+−-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
VALUE = re.compile(
    rf"(?P<centre>{NUMBER})"
    rf"(?: \[(?P<low>{NUMBER}), (?P<high>{NUMBER})\])?"
    rf"(?: ± (?P<sd>{NUMBER}))?"
    rf"(?: \((?P<seeds>{NUMBER}(?:, {NUMBER})+)\))?"
)
BOLD = re.compile(r"\*\*([^*]+)\*\*")


def read_page(page: Path) -> dict[str, Any]:
    """Return what a page says of its tables, and the tables. Raise ValueError if two have the same title."""
    found: dict[str, Any] = {"page": page.name}
    tables: list[dict[str, Any]] = []
    own: dict[str, Any] = {}  # of the section
    heading = title = ""
    in_section = in_block = False
    lines = page.read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        if line.startswith("```"):
            in_block = not in_block
        if in_block:
            continue
        if line.startswith("#"):
            heading, title = line.lstrip("# "), ""
            if line.startswith("## "):
                in_section, own = True, {}
        elif bold := BOLD.fullmatch(line):
            title = bold[1]
        elif fact := FACT.fullmatch(line):
            (own if in_section else found)[fact[1]] = _fact(fact[1], fact[2])
        elif line.startswith("|") and not lines[at - 1].startswith("|"):
            section = {"section": heading} if in_section and title else {}
            tables.append({"title": title or heading, **section, **own, **_table(lines[at:])})
    if len({(table["title"], table.get("section")) for table in tables}) < len(tables):
        raise ValueError(f"{page}: two tables have the same title; put a heading or a bold line above each")
    return {**found, "tables": tables}


def _fact(name: str, text: str) -> Any:
    if name == "seeds" and (listed := SEEDS.fullmatch(text)):
        return [int(seed) for seed in listed[1].split(", ")]
    return text.partition(";")[0] if name == "commit" else text.replace("`", "")


def _table(lines: list[str]) -> dict[str, Any]:
    columns, _, *rows = _cells(lines)
    if len(set(columns)) < len(columns):
        raise ValueError(f"two columns have the same name: {', '.join(columns)}")
    named = [{name: read_cell(text, name) for name, text in zip(columns, row, strict=True)} for row in rows]
    return {"columns": columns, "rows": named}


def _cells(lines: list[str]) -> Iterator[list[str]]:
    for line in lines:
        if not line.startswith("|"):
            return
        cells = re.split(r"(?<!\\)\|", line.strip())[1:-1]
        yield [re.sub(r"\\([|\[\]])", r"\1", cell).strip() for cell in cells]


def read_cell(text: str, column: str = "") -> Any:
    """Return a cell as JSON: a number, a mean with its interval or deviation, None for “–”, or the text itself."""
    marks: dict[str, Any] = {}
    plain = text.removesuffix("▾").strip()
    if bold := BOLD.fullmatch(plain):
        plain, marks["best"] = bold[1], True
    if text.endswith("▾"):
        marks["clearly_worse"] = True
    if plain == "–":
        return None
    if not (parts := VALUE.fullmatch(plain)):
        return text.replace("**", "")
    centre, *others = (parts[name] for name in ("centre", "low", "high", "sd"))
    if parts["seeds"]:
        marks["by_seed"] = [_number(seed) for seed in parts["seeds"].split(", ")]
    spread = {name: _number(part) for name, part in zip(("low", "high", "sd"), others, strict=True) if part}
    if not spread and not marks:
        return _number(centre)
    name = "median" if "best fifth" in column else "mean" if spread or "by_seed" in marks else "value"
    return {name: _number(centre), **spread, **marks}


def _number(text: str) -> int | float:
    plain = text.replace("−", "-").replace(",", "")
    return float(plain) if "." in plain else int(plain)


def to_json(content: dict[str, Any]) -> str:
    """Return the content with one row of a table per line."""
    lines = [f" {_dumped(name)}: {_dumped(value)}," for name, value in content.items() if name != "tables"]
    tables = []
    for table in content["tables"]:
        head = ", ".join(f"{_dumped(name)}: {_dumped(value)}" for name, value in table.items() if name != "rows")
        rows = ",\n".join(f"   {_dumped(row)}" for row in table["rows"])
        tables.append(f'  {{{head}, "rows": [\n{rows}\n  ]}}')
    return "\n".join(["{", *lines, ' "tables": [', ",\n".join(tables), " ]", "}"]) + "\n"


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def main(words: list[str]) -> int:
    """Write the JSON of the pages."""
    pages = [Path(word) for word in words]
    if not pages:
        sys.exit("usage: python -m tests.support.kept_tables PAGE.md ...")
    for page in pages:
        if page.name in OTHER_FORM:
            sys.exit(f"{page} has another form: {OTHER_FORM[page.name]}")
        page.with_suffix(".json").write_text(to_json(read_page(page)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
