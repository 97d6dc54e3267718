"""What `cl2r methods NAME` prints of one method or adapter: formula, source, deviations, options with their ranges."""

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, get_args

from cl2r.config.layers import resolve
from cl2r.config.method_texts import ADAPTER_TEXTS, METHOD_TEXTS, MethodText
from cl2r.config.methods import AdapterInfo, MethodInfo
from cl2r.config.schema import AdapterConfig, HeadConfig, MemoryConfig, MethodConfig, fields
from cl2r.config.section import Section, docstrings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

WIDTH = 100  # of a line of text, without its margin
SYMBOLS = (
    "D_t images of task t, M_t those in memory, T_t = D_t ∪ M_t; k_n new classes, k_0 old ones, N_t = k_0 + k_n",
    "b(x) backbone; φ_t feature after task t; z logits; z° logits of the model before, which does not change",
    "FD(S) = mean over S of 1 − cos(φ_t(x), φ_{t-1}(x));  CE cross-entropy",
    "KD_T(z, z°) = cross-entropy of softmax(z/T) to softmax(z°/T) over the old classes",
    "a, A: features of an adapter's images by the new model; b, B: by the old one; q a new query",
)
"""Symbols that several formulas use."""
PRESETS = "Defaults of options are those without a preset; a preset may set others, e.g. memory.per_class=4 on icons."
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def method_page(info: MethodInfo) -> Iterator[str]:
    """Yield the lines about a method; one that another package adds has no text of ours."""
    yield info.title
    yield from _text(METHOD_TEXTS.get(info.name), info.paper)
    yield f"carries     {info.carries}"
    yield f"feature φ   {info.feature}"
    yield from _labelled("sets", [settings(info)])
    chosen: list[tuple[type[Section], str, Iterable[str]]] = []
    if info.options is not None:
        chosen.append((info.options, info.section, info.options.model_fields))
    if info.defaults["method.fd"] != "none":
        chosen.append((MethodConfig, "method", ("lambda_base", "lambda_rule", "fd_when_no_memory")))
    chosen.append((HeadConfig, "head", info.switches))
    if info.memory == "quota":
        chosen.append((MemoryConfig, "memory", MemoryConfig.model_fields))
    defaults = fields(resolve([{"method": {"name": info.name}}]))
    yield from _options((kind, section, keys, defaults) for kind, section, keys in chosen)


def settings(info: MethodInfo) -> str:
    """Return the fields that a method sets, as `--set` takes them."""
    return ", ".join(f"{key}={_written(value)}" for key, value in info.defaults.items())


def symbols() -> Iterator[str]:
    """Yield the lines that explain the formulas, and where the defaults of options come from."""
    yield from (line for text in SYMBOLS for line in textwrap.wrap(text, WIDTH, subsequent_indent="  "))
    yield from textwrap.wrap(PRESETS, WIDTH, subsequent_indent="  ")


def adapter_page(info: AdapterInfo) -> Iterator[str]:
    """Yield the lines about an adapter."""
    text = ADAPTER_TEXTS.get(info.name)
    yield info.title
    yield from _text(text, info.paper)
    if text is not None:
        defaults = {f"adapter.{key}": value for key, value in AdapterConfig().model_dump().items()}
        yield from _options([(AdapterConfig, "adapter", text.options, defaults)])


def _text(text: MethodText | None, paper: str) -> Iterator[str]:
    if text is not None:
        yield from textwrap.wrap(text.does, WIDTH)
        yield from _labelled("formula", text.formula)
    yield from _labelled("source", [paper])
    if text is not None:
        yield from _labelled("deviations", text.deviations or ["none that we know of"], "- ")


def _options(chosen: Iterable[tuple[type[Section], str, Iterable[str], dict[str, Any]]]) -> Iterator[str]:
    """Yield one entry per field: its name, default, range and docstring."""
    lines = []
    for kind, section, keys, defaults in chosen:
        texts = docstrings(kind)
        for key in keys:
            default = _written(defaults[f"{section}.{key}"])
            values = allowed(kind.model_fields[key])
            lines.append(f"{section}.{key}={default}{f' ({values})' if values else ''}: {texts.get(key, '')}")
    yield from _labelled("options", [line.removesuffix(": ") for line in lines], "- ")


def _written(value: Any) -> str:
    return json.dumps(value).strip('"')


def allowed(field: "FieldInfo") -> str:
    """Return what values a field can have: `code or paper`, `true or false`, `≥ 0, < 1`; nothing if it can have any."""
    kinds = get_args(field.annotation) or (field.annotation,)
    words = [kind for kind in kinds if isinstance(kind, str)]
    if words:
        return " or ".join(words)
    if bool in kinds:
        return "true or false"
    limits = {name: getattr(entry, name) for entry in field.metadata for name in SIGNS if hasattr(entry, name)}
    told = [f"{SIGNS[name]} {value}" for name, value in limits.items() if value < 2**31]
    if type(None) in kinds:
        return f"{', '.join(told) or ('text' if str in kinds else 'a number')} or null"
    return ", ".join(told)


def _labelled(label: str, entries: Iterable[str], mark: str = "") -> Iterator[str]:
    """Yield wrapped entries beside a label."""
    for number, entry in enumerate(entries):
        first = f"{'' if number else label:<12}{mark}"
        yield from textwrap.wrap(
            entry, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False
        )
