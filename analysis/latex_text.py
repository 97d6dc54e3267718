"""Any text as LaTeX that pdflatex sets without further packages: specials escaped, the paper's symbols as math."""

import re
import unicodedata

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
"""Words with a form of their own, a Greek letter with an index, a number's sign, an opening quote, or a character."""


def latex_text(text: str) -> str:
    """E.g. `CL²R, λ_t=3` as `CL$^{2}$R, $\\lambda_{t}$=3`; ASCII only."""
    return PARTS.sub(_part, " ".join(unicodedata.normalize("NFC", text).split()))


def _part(found: re.Match[str]) -> str:
    if found["whole"]:
        return WHOLE[found["whole"]]
    if found["sign"] or found["quote"]:
        return "$-$" if found["sign"] else "``"
    if found["greek"]:
        index = found["index"] if len(found["index"]) == 1 else rf"\mathrm{{{found['index']}}}"
        return f"${GREEK[found['greek']]}_{{{index}}}$"
    return _character(found["other"])


def _character(character: str) -> str:
    if character in MATH:
        return f"${MATH[character]}$"
    if character in TEXT:
        return TEXT[character]
    if character.isascii() and character.isprintable():
        return character
    parts = unicodedata.normalize("NFD", character)
    base, accent = parts[:1], parts[1:]
    if base.isascii() and accent in ACCENTS:
        return rf"\{ACCENTS[accent]}{{{base}}}"
    return f"[U+{ord(character):04X}]"  # said rather than dropped; pdflatex would stop at it
