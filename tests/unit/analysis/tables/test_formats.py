"""Tables in every format: a small one as a whole, then text that a format could take for markup."""

import dataclasses
import html
import io
import re
from csv import reader

import pandas as pd
import pytest
from rich.cells import cell_len

from analysis.tables.formats import Form, latex_text, render
from analysis.tables.table import Cell, Table, text_cells
from cl2r.errors import InputError

DATA = pd.DataFrame({"method": ["er", "cl2r", "bct"], "BC": [-1 / 3, 0.1 + 0.2, None]})
SMALL = Table(
    columns=("method", "BC"),
    rows=(
        (Cell("ER"), Cell("-0.333 ± 0.010", -1 / 3, "worse")),
        (Cell("CL²R"), Cell("+0.300", 0.1 + 0.2, "best")),
        (Cell("all data:", mark="heading"), Cell("")),
        (Cell("BCT"), Cell("failed")),
    ),
    data=DATA,
    title="BC & more",
    notes=("± is one standard deviation.",),
)
NASTY = (
    *("a|b \\| c", "50 % & #1 $x_y", "{a} ~b^c", "<b>bold</b> *so* `code`", 'said "so"', "φ_t → φ, λ_base=3, ℓ, Δ"),
    *("[a](b.md) ![c][d] [^1]", "~~old~~ ~x~", "$a_b$ &lt; &#42;", "_so_ a_ _b loss_*, __init__"),
    *("FD^M ± 0.1", "−5 – -3.5e-2 x-1", "größe, é, 中", "[first]", "* star", "two\nlines", "`", "\\", "CL²R × ψ ≥ ∞"),
)
WILD = Table(
    ("a|b_c", "<i>&"),
    tuple((Cell(text), Cell(text, float(place), "best")) for place, text in enumerate(NASTY)),
    pd.DataFrame({"a|b_c": NASTY, "<i>&": range(len(NASTY))}),
    "Wild | <title> & 100 % λ_base",
    ("a note: 5 % of a_b & <c>",),
)


GOLDEN: dict[Form, str] = {
    "markdown": """**BC & more**

| method | BC |
|---|---:|
| ER | -0.333 ± 0.010 ▾ |
| CL²R | **+0.300** |
| *all data:* |  |
| BCT | failed |

± is one standard deviation.
""",
    "latex": r"""\caption{BC \& more}
\label{tab:bc-more}
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
\begin{tabular}{lr}
\toprule
method & BC \\
\midrule
ER & \textcolor{gray}{$-$0.333~$\pm$~0.010} \\
CL$^{2}$R & \textbf{+0.300} \\
\midrule
\emph{all data:} &  \\
BCT & failed \\
\bottomrule
""",
    "csv": "method,BC\ner,-0.3333333333333333\ncl2r,0.30000000000000004\nbct,",
    "html": """<caption>BC &amp; more</caption>
<thead><tr><th scope="col">method</th><th scope="col" class="num">BC</th></tr></thead>
<tbody>
<tr><td>ER</td><td class="num worse" data-value="-0.3333333333333333">-0.333 ± 0.010</td></tr>
<tr><td>CL²R</td><td class="num best" data-value="0.30000000000000004">+0.300</td></tr>
<tr><td class="heading">all data:</td><td class="num"></td></tr>
<tr><td>BCT</td><td class="num">failed</td></tr>
""",
    "terminal": """BC & more
method                  BC
--------------------------
ER         -0.333 ± 0.010▾
CL²R               +0.300*
all data:
BCT                failed

± is one standard deviation.
""",
}


@pytest.mark.parametrize("form", GOLDEN)
def test_a_small_table_in_every_form(form: Form) -> None:
    assert GOLDEN[form] in render(SMALL, form)


def markdown_cells(line: str) -> list[str]:
    """Return the cells of a line as GitHub reads it: a backslash takes the next sign literally."""
    assert (line[0], line[-1]) == ("|", "|")
    cells, here = [], ""
    for escaped, plain in re.findall(r"\\(.)|([^\\])", line[1:]):
        if plain == "|":
            cells.append(here.strip())
            here = ""
        else:
            here += escaped or plain
    return cells


def test_markdown_can_be_read_back() -> None:
    lines = [line for line in render(WILD, "markdown").splitlines() if line.startswith("|")]
    cells = [markdown_cells(line) for line in lines]
    assert {len(row) for row in cells} == {2}
    assert [row[0] for row in cells[2:]] == [" ".join(text.split()) for text in NASTY]
    assert [row[1] for row in cells[2:]] == [f"**{' '.join(text.split())}**" for text in NASTY]
    assert r"\<b>bold\</b> \*so\* \`code\`" in lines[5], "no tag, no emphasis, no code"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](b.md) ![c][d]", r"\[a\](b.md) !\[c\]\[d\]"),
        ("C[2](x) C[2][3] C[a]: b", r"C\[2\](x) C\[2\][3] C\[a\]: b"),
        ('["a", 1] [b] [^1]', r'\["a", 1\] \[b\] \[^1\]'),
        ("~~old~~ ~x", r"\~\~old\~\~ \~x"),
        ("$a$ 5 $", r"\$a\$ 5 \$"),
        ("&lt; &#42; R&D; a & b", r"\&lt; \&#42; R\&D; a & b"),
        ("_so_ a_ _b loss_*", r"\_so\_ a\_ \_b loss\_\*"),
        ("(_x) φ_{t} __init__", r"(\_x) φ\_{t} \_\_init\_\_"),
        ("0.1 [-0.2, +0.3]", "0.1 [-0.2, +0.3]"),
        *((text, text) for text in ("FD^M", "λ_base=3", "mean_accuracy", "p < 0.001", "self-test C[t,k]", "a & b", "")),
    ],
)
def test_text_in_markdown(text: str, expected: str) -> None:
    assert render(Table((text,), (), DATA), "markdown").splitlines()[0] == f"| {expected} |"


def test_notes_that_tables_share_come_once() -> None:
    other = Table(("a",), (text_cells(["1"]),), DATA, "Other", ("± is one standard deviation.", "Own."))
    for form in ("markdown", "terminal"):
        text = render([SMALL, other], form)
        assert text.count("± is one standard deviation.") == 1
        assert text.index("Other") < text.index("± is one standard deviation.") < text.index("Own.")
        assert text.index("clearly worse") < text.index("Other"), "the other table has no marks"
        between = render([other, SMALL, other], form)
        assert between.count("± is one standard deviation.") == between.count("Own.") == 1, "below the last that has it"
    assert render([SMALL, other], "html").count("± is one standard deviation.") == 2, "each stands for itself"


@pytest.mark.parametrize("form", ["markdown", "latex", "html", "terminal"])
def test_the_legend_explains_the_marks_that_there_are(form: Form) -> None:
    rows = ((Cell("1", 1.0, "best"),), (Cell("0", 0.0),))
    tested, untested, unmarked = (
        render(Table(("AC",), own, DATA, tested=test), form)
        for own, test in ((rows, True), (rows, False), (rows[1:], True))
    )
    assert ("paired t" in tested, "clearly worse" in tested, "no test" in tested) == (True, True, False)
    assert ("paired t" in untested, "no test" in untested) == (False, True)
    assert "best mean" not in unmarked
    samples = {"markdown": "▾:", "latex": r"\textcolor{gray}{grey}:", "html": '<span class="worse">grey</span>:'}
    assert f"{samples.get(form, '▾')} clearly worse" in " ".join(tested.split())


def test_hints_are_for_people_who_type_commands() -> None:
    hint = "On the command line: CL²R is cl2r."
    table = dataclasses.replace(SMALL, hints=(hint,))
    for form in ("markdown", "html", "terminal"):
        assert hint in render(table, form)
    for form in ("latex", "csv"):
        assert "command line" not in render(table, form)


def test_the_legend_of_a_terminal() -> None:
    assert " ".join(render(SMALL, "terminal").split()).endswith(
        "* best mean of its column; ▾ clearly worse (paired t over common seeds, 5 %, each by itself); the others are "
        "not told apart from the best."
    )


def test_latex_names_the_packages_it_needs() -> None:
    needs = render(SMALL, "latex").splitlines()[0]
    for package in ("booktabs", "xcolor", "graphicx"):
        assert rf"\usepackage{{{package}}}" in needs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("λ_base=3", r"$\lambda_{\mathrm{base}}$=3"),
        ("φ_t → φ_1", r"$\varphi_{t}$ $\rightarrow$ $\varphi_{1}$"),
        ("Fixed, FD^M", r"Fixed, $\mathrm{FD}^{M}$"),
        ("a^b_c", r"a\textasciicircum{}b\_c"),
        ("0.1 [-0.2, +0.3]", r"0.1 [$-$0.2, +0.3]"),
        ("x-1 1e-3 er-2", "x-1 1e-3 er-2"),
        ("ℓ-BCT – − Δ ²", r"$\ell$-BCT -- $-$ $\Delta$ $^{2}$"),
        ('("so")', "(``so'')"),
        ("größe é ç 中", r"gr\"{o}\ss{}e \'{e} \c{c} [U+4E2D]"),
        (r"\{a} $1 50 %", r"\textbackslash{}\{a\} \$1 50 \%"),
    ],
)
def test_text_in_latex(text: str, expected: str) -> None:
    assert latex_text(text) == expected


def unescaped(pattern: str, text: str) -> list[str]:
    """Return the matches of the pattern that no backslash precedes."""
    return re.findall(rf"(?<!\\){pattern}", text.replace("\\\\", "  "))


def test_latex_is_balanced_and_plain() -> None:
    lines = render([WILD, SMALL], "latex").splitlines()
    assert lines[0].startswith("% needs ")
    text = "\n".join(lines[1:])
    assert text.isascii()
    assert not unescaped("#", text)
    assert not [line for line in lines[1:] if unescaped("%", line) and not line.endswith("{!}{%")]
    assert len(unescaped("{", text)) == len(unescaped("}", text))
    begun = re.findall(r"\\(begin|end)\{(\w+)\}", text)
    assert begun == 2 * [("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")]
    outside_math = re.sub(r"(?<!\\)\$[^$]*\$", "", text)
    assert len(unescaped(r"\$", text)) % 2 == 0
    assert not unescaped("[_^]", outside_math.replace(r"\^{", "{"))
    rows = [line for line in lines if line.endswith(r" \\")]
    assert len(rows) == len(NASTY) + 1 + 5
    assert {len(unescaped("&", line)) for line in rows} == {1}, "two columns in every line"
    assert not [line for line in rows if line.startswith(("[", "*"))], "taken for options of the line above"


def test_long_text_is_broken_in_latex() -> None:
    text = render(Table(("a", "b"), ((Cell("word " * 20), Cell("1", 1.0)),), DATA), "latex")
    assert r"\begin{tabular}{p{0.90\linewidth}r}" in text
    assert ("caption" in text, "label" in text) == (False, False), "there is no title"


def test_no_cell_of_csv_is_a_formula() -> None:
    """Names of studies and data sets are free text, and a spreadsheet computes text that begins like a formula."""
    hostile = ["=1+2", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\n=1", "＝1+2", "-"]
    harmless = ["er", "a=1", "-0.02", "+3", "-1e-05", "-.5", "", "'quoted"]
    names = [*hostile, "\r=1", *harmless, "a\r=1"]
    data = pd.DataFrame({"=name": names, "gain": [-0.02] * len(names), "runs": -3})
    text = render([Table(("a",), (), data, title="mine,=1+2; -3, -x"), SMALL], "csv").partition("\n\n")[0]
    title, _, body = text.partition("\n")
    assert title == "# mine,'=1+2; '-3, '-x"
    head, *rows = list(reader(io.StringIO(body, newline="")))
    assert head == ["'=name", "gain", "runs"]
    assert [row[0] for row in rows] == [*(f"'{name}" for name in hostile), "'\n=1", *harmless, "a\n=1"]
    assert {tuple(row[1:]) for row in rows} == {("-0.02", "-3")}


def test_csv_of_an_index_of_any_text_and_of_several_tables() -> None:
    assert render(Table(("a",), (), DATA.set_index("method")), "csv") == render(SMALL, "csv")
    wild = render(WILD, "csv")
    assert pd.read_csv(io.StringIO(wild))["a|b_c"].tolist() == list(NASTY)
    assert render([SMALL, WILD], "csv") == f"# {SMALL.title}\n{render(SMALL, 'csv')}\n\n# {WILD.title}\n{wild}"


def test_html_can_be_read_back() -> None:
    text = render(WILD, "html")
    cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", text)]
    assert cells == [own for own in NASTY for _ in (1, 2)]
    heads = [html.unescape(head) for head in re.findall(r"<(?:th|caption)[^>]*>([^<]*)</", text)]
    assert heads == [WILD.title, "a|b_c", "<i>&"]


def test_widths_are_those_of_a_terminal() -> None:
    rows = tuple((Cell(text), Cell("1", 1.0)) for text in ("CL²R", "中文字", "e\u0301"))
    lines = render(Table(("name", "n"), rows, DATA), "terminal").splitlines()
    assert {cell_len(line) for line in lines} == {9}


def test_long_text_is_broken_into_lines() -> None:
    said = "the fixed classifier alone is above it 0.25 ± 0.01 in AC"
    table = Table(("statement", "images of a class in memory"), ((Cell(said), Cell("1", 1.0)),), DATA)
    assert render(table, "terminal").splitlines() == [
        "                                         images of",
        "                                        a class in",
        "statement                                   memory",
        "--------------------------------------------------",
        "the fixed classifier alone is above it           1",
        "0.25 ± 0.01 in AC",
    ]


def test_intervals_go_below_the_means_if_the_table_would_be_too_wide() -> None:
    cell = Cell("0.500 [0.400, 0.600]", 0.5)

    def lines(columns: int) -> list[str]:
        return render(
            Table(("method",) + ("AC",) * columns, ((Cell("ER"), *[cell] * columns),), DATA), "terminal"
        ).splitlines()

    assert lines(5)[2:] == ["ER" + "      0.500 [0.400, 0.600]" + "  0.500 [0.400, 0.600]" * 4]
    assert [line.split() for line in lines(6)[2:]] == [["ER"] + ["0.500"] * 6, ["[0.400,", "0.600]"] * 6]
    assert [len(line.split()) for line in lines(12)[2:]] == [13, 12, 12]
    assert len(lines(15)) == 5, "wider than 120 in any way, but not than 140"


def test_a_column_without_a_head() -> None:
    rows = ((Cell("ER"), Cell("1", 1.0)), (Cell("CL²R"), Cell("22", 22.0)))
    assert render(Table(("", "n"), rows, DATA), "terminal") == "       n\n--------\nER     1\nCL²R  22"
    assert render(Table(("", ""), rows, DATA), "terminal") == "--------\nER     1\nCL²R  22"


@pytest.mark.parametrize("form", ["markdown", "latex", "csv", "html", "terminal"])
def test_an_empty_table_can_be_written(form: Form) -> None:
    text = render(Table(("method", "BC"), (), DATA.iloc[:0]), form)
    assert ("method" in text, "BC" in text, text[-1:] == "\n") == (True, True, False)
    render([], form)


def test_an_unknown_form_is_named_and_a_table_is_a_rectangle() -> None:
    with pytest.raises(InputError, match=r"'latx'.*'latex'"):
        render(SMALL, "latx")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 cells under 2 columns"):
        Table(("a", "b"), (text_cells(["1"]),), DATA)
    assert [cell.text for cell in SMALL.column("method")] == ["ER", "CL²R", "all data:", "BCT"]
    assert SMALL.numeric == [False, True]
