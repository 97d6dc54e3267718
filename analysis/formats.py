"""A table in words that some reader takes: Markdown, LaTeX, CSV, HTML, or lines for a terminal.

Marks of the best mean, and of means that no test tells from it, are explained below the table by whoever writes them.
"""

import html
import itertools
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

from analysis.latex_text import latex_text
from analysis.pivot import check_name
from analysis.table import Cell, Mark, Table

Form = Literal["markdown", "latex", "csv", "html", "terminal"]
BEST = "best mean of its column"
CLOSE = (
    "not shown to be worse than the best (paired t over common seeds, 5 %, each by itself), "
    "which with few seeds is weak evidence of being equal; others are worse or could not be tested"
)
UNTESTED = "no test was made, for want of seeds or of spread over them"
LONG_TEXT = 44
"""Characters after which text is wrapped, in terminals and in LaTeX."""
LATEX_NEEDS = r"% needs \usepackage{booktabs} and, to shrink tables wider than the page, \usepackage{graphicx}"
MARKDOWN_SIGNS = re.compile(
    r"(?P<kept>((?<=\w)\[[\w,]+|\[[-+\d., ]+)\](?![\[(:]))"  # C[t,k] and [-0.1, +0.2] are no links
    r"|[\\|*`\[\]~$]|<(?=[A-Za-z/!?])|&(?=#?\w+;)"
    r"|(?<![^\W_])_|_(?![^\W_])"  # inside a word, as in λ_base, it begins no emphasis
)
"""Borders, emphasis, code, links, crossed-out text, math, tags, entities; a lone < or & is none."""
NUMBER = ' class="num"'
LINE = 100
"""Characters of a line of notes in a terminal."""


def render(tables: Table | Sequence[Table], form: Form) -> str:
    """Tables as text, e.g. render(study_tables(study), "markdown"); without a line break at the end."""
    check_name(form, get_args(Form), "form")
    given = [tables] if isinstance(tables, Table) else list(tables)
    return {"markdown": markdown, "latex": latex, "csv": csv, "html": web, "terminal": terminal}[form](given)


def _legend(table: Table, best: str, close: str, escape: Callable[[str], str] = str) -> list[str]:
    """What the marks mean, if there are any; `best` and `close` are samples of them."""
    if not table.marks & {"best", "close"}:
        return []
    rest = f"{close}{escape(f': {CLOSE}.')}" if table.tested else escape(f"{UNTESTED}.")
    return [f"{best}{escape(f': {BEST}')}; {rest}"]


def _unrepeated(notes: Sequence[list[str]]) -> list[list[str]]:
    """Notes that the next table has too are left to it."""
    later = [*notes[1:], []]
    return [[line for line in own if line not in later[place]] for place, own in enumerate(notes)]


# Markdown


def markdown(tables: Sequence[Table]) -> str:
    """GitHub's tables: bold and italic marks, figures to the right."""
    notes = [[*map(_markdown_text, table.notes), *_legend(table, "**bold**", "*italic*")] for table in tables]
    parts = []
    for table, below in zip(tables, _unrepeated(notes), strict=True):
        parts += [f"**{_markdown_text(table.title)}**"] if table.title else []
        parts += ["\n".join(_markdown_lines(table)), *below]
    return "\n\n".join(parts)


def _markdown_lines(table: Table) -> Iterator[str]:
    yield _markdown_line([_markdown_text(name) for name in table.columns])
    yield "|" + "|".join("---:" if numeric else "---" for numeric in table.numeric) + "|"
    around: dict[Mark, str] = {"": "", "best": "**", "close": "*", "heading": "*"}
    for row in table.rows:
        yield _markdown_line([around[cell.mark] + _markdown_text(cell.text) + around[cell.mark] for cell in row])


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_text(text: str) -> str:
    """One line, with what GitHub would take for a sign of its own escaped."""
    return MARKDOWN_SIGNS.sub(lambda found: found["kept"] or f"\\{found[0]}", " ".join(text.split()))


# LaTeX


def latex(tables: Sequence[Table]) -> str:
    """Floats with booktabs' rules; bold and underlined marks."""
    return "\n\n".join([LATEX_NEEDS, *("\n".join(_latex_lines(table)) for table in tables)])


def _latex_lines(table: Table) -> Iterator[str]:
    yield from (r"\begin{table}", r"\centering", r"\footnotesize")
    if table.title:
        yield rf"\caption{{{latex_text(table.title)}}}"
        yield rf"\label{{tab:{_slug(table.title)}}}"
    yield r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    yield rf"\begin{{tabular}}{{{_latex_columns(table)}}}"
    yield r"\toprule"
    yield _latex_line([latex_text(name) for name in table.columns])
    yield r"\midrule"
    for place, row in enumerate(table.rows):
        if place and row[0].mark == "heading":
            yield r"\midrule"
        yield _latex_line([_latex_cell(cell) for cell in row])
    yield from (r"\bottomrule", r"\end{tabular}}")
    for note in [
        *map(latex_text, table.notes),
        *_legend(table, r"\textbf{bold}", r"\underline{underlined}", latex_text),
    ]:
        yield rf"\par\smallskip {{\footnotesize {note}}}"
    yield r"\end{table}"


def _latex_line(cells: Sequence[str]) -> str:
    line = " & ".join(cells)
    return ("{}" if line[:1] in ("[", "*") else "") + line + r" \\"  # the line above would take these for its options


def _latex_cell(cell: Cell) -> str:
    around = {"best": r"\textbf", "close": r"\underline", "heading": r"\emph"}
    return f"{around[cell.mark]}{{{latex_text(cell.text)}}}" if cell.mark else latex_text(cell.text)


def _latex_columns(table: Table) -> str:
    """Right for figures, left for text; long text is broken into lines."""
    longest = [max((len(row[place].text) for row in table.rows), default=0) for place in range(len(table.columns))]
    wide = [not numeric and size > LONG_TEXT for numeric, size in zip(table.numeric, longest, strict=True)]
    share = f"p{{{0.9 / max(sum(wide), 1):.2f}\\linewidth}}"
    return "".join(
        share if long else "r" if numeric else "l" for long, numeric in zip(wide, table.numeric, strict=True)
    )


def _slug(title: str) -> str:
    """A title as a label: letters, digits and hyphens."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


# CSV


def csv(tables: Sequence[Table]) -> str:
    """The frames behind the tables in full precision; a line with its title above each, if there are several."""
    parts = []
    for table in tables:
        named = any(name is not None for name in table.data.index.names)
        frame = table.data.reset_index() if named else table.data
        title = f"# {' '.join(table.title.split())}\n" if len(tables) > 1 else ""
        parts.append(title + frame.to_csv(index=False, lineterminator="\n").rstrip("\n"))
    return "\n\n".join(parts)


# HTML


def web(tables: Sequence[Table]) -> str:
    """Elements without a look of their own; `data-value` is what a column can be sorted by."""
    return "\n".join(line for table in tables for line in _web_lines(table))


def _web_lines(table: Table) -> Iterator[str]:
    yield "<table>"
    if table.title:
        yield f"<caption>{html.escape(table.title)}</caption>"
    yield f"<thead><tr>{''.join(map(_web_head, table.columns, table.numeric))}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield f"<tr>{''.join(map(_web_cell, row, table.numeric))}</tr>"
    yield from ("</tbody>", "</table>")
    samples = ('<span class="best">marked so</span>', '<span class="close">so</span>')
    for note in [*map(html.escape, table.notes), *_legend(table, *samples, html.escape)]:
        yield f'<p class="note">{note}</p>'


def _web_head(name: str, numeric: bool) -> str:
    return f'<th scope="col"{NUMBER if numeric else ""}>{html.escape(name)}</th>'


def _web_cell(cell: Cell, numeric: bool) -> str:
    classes = " ".join(name for name in ("num" if numeric else "", cell.mark) if name)
    attributes = f' class="{classes}"' if classes else ""
    attributes += "" if cell.value is None else f' data-value="{cell.value!r}"'
    return f"<td{attributes}>{html.escape(cell.text)}</td>"


# Terminal


def terminal(tables: Sequence[Table]) -> str:
    """Aligned columns under a rule; `*` and `~` behind marked figures."""
    notes = [[*table.notes, *_legend(table, "*", "~")] for table in tables]
    parts = []
    for table, below in zip(tables, _unrepeated(notes), strict=True):
        parts.append("\n".join([*([table.title] if table.title else []), *_terminal_lines(table)]))
        parts += ["\n".join(textwrap.fill(note, LINE) for note in below)] if below else []
    return "\n\n".join(parts)


def _terminal_lines(table: Table) -> Iterator[str]:
    """Every cell as a block of lines, then the blocks of a row side by side; long heads are broken like long text."""
    body = [list(map(_marked_lines, row, _marked_columns(table), table.numeric)) for row in table.rows]
    below = [
        max((width(line) for row in body for line in row[place]), default=0) for place in range(len(table.columns))
    ]
    head = [
        textwrap.wrap(name, max(10, size), break_long_words=False)
        for name, size in zip(table.columns, below, strict=True)
    ]
    widths = [max([size, *map(width, lines)]) for size, lines in zip(below, head, strict=True)]
    deepest = max(map(len, head), default=0)
    yield from _side_by_side([[""] * (deepest - len(lines)) + lines for lines in head], widths, table.numeric)
    yield "-" * (sum(widths) + 2 * (len(widths) - 1))
    for row in body:
        yield from _side_by_side(row, widths, table.numeric)


def _side_by_side(blocks: Sequence[list[str]], widths: Sequence[int], numeric: Sequence[bool]) -> Iterator[str]:
    for cells in itertools.zip_longest(*blocks, fillvalue=""):
        yield "  ".join(map(_padded, cells, widths, numeric)).rstrip()


def _marked_columns(table: Table) -> list[bool]:
    places = range(len(table.columns))
    return [any(row[place].mark in ("best", "close") for row in table.rows) for place in places]


def _marked_lines(cell: Cell, marked_column: bool, numeric: bool) -> list[str]:
    """The cell's text; beside marked figures, others keep a place for the mark, so that digits stay aligned."""
    sign = {"best": "*", "close": "~"}.get(cell.mark, " ") if marked_column else ""
    return _broken(cell.text + sign, numeric)


def _broken(text: str, numeric: bool) -> list[str]:
    """Long text in lines; a figure and its deviation stay together."""
    if numeric or len(text) <= LONG_TEXT:
        return [text]
    kept = text.replace(" ± ", "\u00a0±\u00a0")
    return [line.replace("\u00a0", " ") for line in textwrap.wrap(kept, LONG_TEXT)]


def _padded(text: str, size: int, numeric: bool) -> str:
    space = " " * (size - width(text))
    return space + text if numeric else text + space


def width(text: str) -> int:
    """Places that a text takes in a terminal: two for wide characters, none for combining ones."""
    return sum(_places(character) for character in text)


def _places(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
