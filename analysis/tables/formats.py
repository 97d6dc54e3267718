"""Writes tables as Markdown, LaTeX, CSV, HTML, or text for a terminal, with an explanation of their marks."""

import html
import io
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar, get_args

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from analysis.groups import check_name
from analysis.tables.table import Mark, Table

Form = Literal["markdown", "latex", "csv", "html", "terminal"]
CLEARLY_WORSE = (
    "clearly worse (paired t over common seeds, 5 %, each by itself); the others are not told apart from the best"
)
UNTESTED = "no test was made: one seed allows none, nor do seeds that do not differ"
BEST, WORSE = "*", "▾"  # marks of a terminal
Note = TypeVar("Note", bound=str)
LONG_TEXT = 44  # longer text is wrapped, in terminals and in LaTeX
FORMULA = "=+@＝＋＠－\\t\\r\\n-"  # spreadsheets take a cell that begins so for a formula, also in full width
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def render(tables: Table | Sequence[Table], form: Form) -> str:
    """Return tables as text, e.g. render(study_tables(study), "markdown"); without a line break at the end."""
    check_name(form, get_args(Form), "form")
    given = [tables] if isinstance(tables, Table) else list(tables)
    return {"markdown": markdown, "latex": latex, "csv": csv, "html": web, "terminal": terminal}[form](given)


def _legend(table: Table, best: str, worse: str, escape: Callable[[str], str] = str) -> list[str]:
    """Return what the marks mean, if there are any; `best` and `worse` are samples of them."""
    if "best" not in table.marks:
        return []
    rest = f"{worse} {escape(f'{CLEARLY_WORSE}.')}" if table.tested else escape(f"{UNTESTED}.")
    return [f"{best} best mean of its column; {rest}"]


def unrepeated(notes: Sequence[list[Note]]) -> list[list[Note]]:
    """Return the notes of every table, without those that a later table repeats."""
    last = {line: place for place, own in enumerate(notes) for line in own}
    return [[line for line in own if last[line] == place] for place, own in enumerate(notes)]


MARKDOWN_SIGNS = re.compile(
    r"(?P<kept>((?<=\w)\[[\w,]+|\[[-+\d., ]+)\](?![\[(:]))"  # C[t,k] and [-0.1, +0.2] are no links
    r"|[\\|*`\[\]~$]|<(?=[A-Za-z/!?])|&(?=#?\w+;)"
    r"|(?<![^\W_])_|_(?![^\W_])"  # inside a word, as in λ_base, it begins no emphasis
)
"""Borders, emphasis, code, links, crossed-out text, math, tags, entities; a lone < or & is none."""


def markdown(tables: Sequence[Table]) -> str:
    """Write GitHub tables: the best is bold, `▾` follows what is worse, numbers are right-aligned."""
    notes = [
        [*map(markdown_text, table.notes), *_legend(table, "**bold**:", f"{WORSE}:"), *map(markdown_text, table.hints)]
        for table in tables
    ]
    around: dict[Mark, tuple[str, str]] = {"": ("", ""), "best": ("**", "**"), "worse": ("", f" {WORSE}")}
    around["heading"] = ("*", "*")
    parts = []
    for table, below in zip(tables, unrepeated(notes), strict=True):
        parts += [f"**{markdown_text(table.title)}**"] if table.title else []
        lines = [list(map(markdown_text, table.columns))]
        lines += [[markdown_text(cell.text).join(around[cell.mark]) for cell in row] for row in table.rows]
        body = [f"| {' | '.join(line)} |" for line in lines]
        body.insert(1, "|" + "|".join("---:" if numeric else "---" for numeric in table.numeric) + "|")
        parts += ["\n".join(body), *below]
    return "\n\n".join(parts)


def markdown_text(text: str) -> str:
    """Return one line in which everything that GitHub would take for markup is escaped."""
    return MARKDOWN_SIGNS.sub(lambda found: found["kept"] or f"\\{found[0]}", " ".join(text.split()))


# LaTeX: ASCII that pdflatex sets without further packages for text; specials escaped, the paper's symbols as math

LATEX_NEEDS = (
    r"% needs \usepackage{booktabs}, \usepackage{xcolor} for grey values and, to shrink tables wider than the page, "
    r"\usepackage{graphicx}"
)
GREEK = {"φ": r"\varphi", "λ": r"\lambda", "ψ": r"\psi", "Δ": r"\Delta", "η": r"\eta", "α": r"\alpha", "β": r"\beta"}
MATH = {
    **GREEK,
    **{"ℓ": r"\ell", "²": "^{2}", "³": "^{3}", "±": r"\pm", "−": "-", "×": r"\times", "·": r"\cdot", "√": r"\surd"},
    **{"→": r"\rightarrow", "≤": r"\leq", "≥": r"\geq", "≠": r"\neq", "∞": r"\infty", "<": "<", ">": ">", "|": "|"},
}
TEXT = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", '"': "''"},
    **{"–": "--", "—": "---", "…": r"\ldots{}", "’": "'", "‘": "`", "“": "``", "”": "''", "ß": r"\ss{}"},
}
ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r", "\u0327": "c"}
WHOLE = {"FD^M": r"$\mathrm{FD}^{M}$", " ± ": r"~$\pm$~"}
PARTS = re.compile(
    rf"(?P<whole>{'|'.join(map(re.escape, WHOLE))})|(?P<greek>[{''.join(GREEK)}])_(?P<index>[A-Za-z0-9]+)"
    r"|(?P<sign>(?<![\w.])-(?=\d))|(?P<quote>(?<![^\s(])\")|(?P<other>.)"
)
"""A word with a form of its own, a Greek letter with an index, a number's sign, an opening quote, or a character."""


def latex_text(text: str) -> str:
    """Return any text as LaTeX, e.g. `CL²R, λ_t=3` as `CL$^{2}$R, $\\lambda_{t}$=3`."""
    return PARTS.sub(_latex_part, " ".join(unicodedata.normalize("NFC", text).split()))


def _latex_part(found: re.Match[str]) -> str:
    if found["whole"]:
        return WHOLE[found["whole"]]
    if found["sign"] or found["quote"]:
        return "$-$" if found["sign"] else "``"
    if found["greek"]:
        index = found["index"] if len(found["index"]) == 1 else rf"\mathrm{{{found['index']}}}"
        return f"${GREEK[found['greek']]}_{{{index}}}$"
    character = found["other"]
    if character in MATH:
        return f"${MATH[character]}$"
    if character in TEXT:
        return TEXT[character]
    if character.isascii() and character.isprintable():
        return character
    base, accent = (parts := unicodedata.normalize("NFD", character))[:1], parts[1:]
    if base.isascii() and accent in ACCENTS:
        return rf"\{ACCENTS[accent]}{{{base}}}"
    return f"[U+{ord(character):04X}]"  # pdflatex would stop at the character itself


def latex(tables: Sequence[Table]) -> str:
    """Write floats with booktabs' rules; the best is bold, what is worse is grey."""
    return "\n\n".join([LATEX_NEEDS, *("\n".join(_latex_lines(table)) for table in tables)])


def _latex_lines(table: Table) -> Iterator[str]:
    yield from (r"\begin{table}", r"\centering", r"\footnotesize")
    if table.title:
        plain = unicodedata.normalize("NFKD", table.title).encode("ascii", "ignore").decode().lower()
        yield rf"\caption{{{latex_text(table.title)}}}"
        yield rf"\label{{tab:{re.sub(r'[^a-z0-9]+', '-', plain).strip('-')}}}"
    yield r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    longest = [max((len(row[place].text) for row in table.rows), default=0) for place in range(len(table.columns))]
    wide = [not numeric and size > LONG_TEXT for numeric, size in zip(table.numeric, longest, strict=True)]
    paragraph = f"p{{{0.9 / max(sum(wide), 1):.2f}\\linewidth}}"
    kinds = (paragraph if long else "r" if number else "l" for long, number in zip(wide, table.numeric, strict=True))
    yield rf"\begin{{tabular}}{{{''.join(kinds)}}}"
    yield from (r"\toprule", _latex_line([latex_text(name) for name in table.columns]), r"\midrule")
    around = {"best": r"\textbf", "worse": r"\textcolor{gray}", "heading": r"\emph"}
    for place, row in enumerate(table.rows):
        if place and (row[0].mark == "heading" or place == len(table.rows) - table.references):
            yield r"\midrule"
        texts = ((cell.mark, latex_text(cell.text)) for cell in row)
        yield _latex_line([f"{around[mark]}{{{text}}}" if mark else text for mark, text in texts])
    yield from (r"\bottomrule", r"\end{tabular}}")
    legend = _legend(table, r"\textbf{bold}:", r"\textcolor{gray}{grey}:", latex_text)
    for note in [*map(latex_text, table.notes), *legend]:
        yield rf"\par\smallskip {{\footnotesize {note}}}"
    yield r"\end{table}"


def _latex_line(cells: Sequence[str]) -> str:
    line = " & ".join(cells)
    return ("{}" if line[:1] in ("[", "*") else "") + line + r" \\"  # the line above would take these for its options


def csv(tables: Sequence[Table]) -> str:
    """Write the values behind the tables in full precision; if there are several, each has its title above it.

    A spreadsheet that opens the text computes nothing in it (`as_text`).
    """
    parts = []
    for table in tables:
        named = any(name is not None for name in table.data.index.names)
        frame = table.data.reset_index() if named else table.data
        words = re.sub(rf"([,;]\s*)(?=[{FORMULA}])", r"\1'", " ".join(table.title.split()))  # a comma begins a cell
        title = f"# {words}\n" if len(tables) > 1 else ""
        safe = frame.rename(columns=as_text).map(as_text)
        parts.append(title + safe.to_csv(index=False, lineterminator="\n").rstrip("\n"))
    return "\n\n".join(parts)


def as_text(value: Any) -> Any:
    """Return a cell of CSV: an apostrophe precedes text that a spreadsheet would take for a formula; numbers stay."""
    if not isinstance(value, str):
        return value
    value = re.sub("\r\n?", "\n", value)  # Python's writer of CSV does not quote \r, which would begin a row
    return f"'{value}" if re.match(f"[{FORMULA}]", value) and not NUMBER.fullmatch(value) else value


def web(tables: Sequence[Table]) -> str:
    """Write HTML elements without styles; a column can be sorted by `data-value`."""

    def css(*names: str) -> str:
        return f' class="{" ".join(filter(None, names))}"' if any(names) else ""

    lines = []
    for table in tables:
        heads = zip(table.columns, table.numeric, strict=True)
        cells = [f'<th scope="col"{css("num" * numeric)}>{html.escape(name)}</th>' for name, numeric in heads]
        title = [f"<caption>{html.escape(table.title)}</caption>"] if table.title else []
        lines += ["<table>", *title, f"<thead><tr>{''.join(cells)}</tr></thead>", "<tbody>"]
        for place, row in enumerate(table.rows):
            cells = []
            for cell, numeric in zip(row, table.numeric, strict=True):
                value = "" if cell.value is None else f' data-value="{cell.value!r}"'
                cells.append(f"<td{css('num' * numeric, cell.mark)}{value}>{html.escape(cell.text)}</td>")
            reference = place >= len(table.rows) - table.references
            lines.append(f"<tr{css('reference' * reference)}>{''.join(cells)}</tr>")
        samples = ('<span class="best">bold</span>:', '<span class="worse">grey</span>:')
        notes = [*map(html.escape, table.notes), *_legend(table, *samples, html.escape)]
        notes += map(html.escape, table.hints)
        lines += ["</tbody>", "</table>", *(f'<p class="note">{note}</p>' for note in notes)]
    return "\n".join(lines)


LINE = 100  # characters per line of a note
WIDTHS = (120, 140)  # characters per line of a table, in the order of trying
RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)  # nothing but a rule below the heads
BLANK = "\u2800"  # keeps the place of a mark: rich strips spaces at the end of a cell
FOLDS = (r"(?!)", r" (?=± |\[)", r" (?=± |\[)|(?<=,) ")
"""Where cells of numbers are broken, in the order of trying: nowhere, before the spread, also inside an interval."""


def terminal(tables: Sequence[Table]) -> str:
    """Write aligned columns under a rule; `*` and `▾` follow marked numbers."""
    notes = [[*table.notes, *_legend(table, BEST, WORSE), *table.hints] for table in tables]
    parts = []
    for table, below in zip(tables, unrepeated(notes), strict=True):
        laid: list[tuple[int, str]] = []
        for fold in FOLDS:
            text = _terminal_table(table, fold)
            laid.append((max(map(cell_len, text.splitlines()), default=0), text))
            if laid[-1][0] <= WIDTHS[0]:
                break
        body = next((text for width in WIDTHS for size, text in laid if size <= width), laid[-1][1])
        parts.append("\n".join([*([table.title] if table.title else []), body]))
        parts += ["\n".join(textwrap.fill(note, LINE) for note in below)] if below else []
    return "\n\n".join(parts)


def _terminal_table(table: Table, fold: str) -> str:
    """Lay out the table with rich, which knows how wide characters are; long heads and text are wrapped before."""
    columns = []
    for place, numeric in enumerate(table.numeric):
        cells = [row[place] for row in table.rows]
        marked = any(cell.mark in ("best", "worse") for cell in cells)  # the others keep a place for the mark
        texts = []
        for cell in cells:
            sign = {"best": BEST, "worse": WORSE}.get(cell.mark, BLANK) if marked else ""
            first, *rest = re.split(fold, cell.text) if numeric else [_broken(cell.text)]
            texts.append("\n".join([first + sign, *(line + BLANK * marked for line in rest)]))
        columns.append(texts)
    heads = []
    for name, texts in zip(table.columns, columns, strict=True):
        size = max((cell_len(line) for text in texts for line in text.split("\n")), default=0)
        heads.append(textwrap.wrap(name, max(10, size), break_long_words=False))
    deepest = max(map(len, heads), default=0)
    grid = Grid(box=RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for lines, numeric in zip(heads, table.numeric, strict=True):
        head = "\n".join([*[""] * (deepest - len(lines)), *lines])
        grid.add_column(Text(head), justify="right" if numeric else "left", no_wrap=True)
    for place, row in enumerate(zip(*columns, strict=True)):
        if table.references and place == len(table.rows) - table.references:
            grid.add_section()
        grid.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=100_000, color_system=None)
    with console.capture() as written:
        console.print(grid)
    lines = written.get().replace(BLANK, " ").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _broken(text: str) -> str:
    """Return long text in lines; a number and its deviation stay together."""
    if len(text) <= LONG_TEXT:
        return text
    return textwrap.fill(text.replace(" ± ", "\u00a0±\u00a0"), LONG_TEXT).replace("\u00a0", " ")
