"""Every method and adapter says what it does, its formula and its deviations; PAPER.md lists the same deviations."""

import re
from dataclasses import replace
from typing import Annotated

import pytest

from cl2r.cli.method_page import allowed, method_page
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.config.layers import read_layer, resolve
from cl2r.config.method_texts import ADAPTER_TEXTS, METHOD_TEXTS, with_deviations
from cl2r.config.methods import ADAPTERS, METHODS
from cl2r.config.schema import AdapterConfig, field_keys, fields
from cl2r.config.section import Section, docstrings, keyed_from
from cl2r.runtime.environment import ROOT
from tests.support.command_line import Command

TEXTS = {**METHOD_TEXTS, **{f"+{name}": text for name, text in ADAPTER_TEXTS.items()}}
PAPER = ROOT / "cl2r" / "PAPER.md"


def test_every_built_in_method_and_adapter_has_a_text() -> None:
    built_in = {name for name, info in METHODS.items() if info.build.startswith("cl2r.")}
    assert set(METHOD_TEXTS) == built_in
    assert set(ADAPTER_TEXTS) == {name for name, info in ADAPTERS.items() if not info.build}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_has_a_formula_and_sentences(name: str) -> None:
    text = TEXTS[name]
    assert any("=" in line for line in text.formula)
    assert text.deviations
    for sentence in (text.does, *text.deviations):
        assert sentence.endswith(".")
        assert "|" not in sentence, "it would end a cell of the table in PAPER.md"


def test_methods_that_share_a_part_share_its_deviations() -> None:
    """Fixed classifier, batches that are half memory, FD without memory, against the config of the method."""
    configs = {name: resolve([{"method": {"name": name}}]) for name in METHOD_TEXTS}
    for deviation, having in {
        "The fixed classifier is centred": {n for n, c in configs.items() if c.method.classifier == "fixed"},
        "Half of every batch is memory": {n for n, c in configs.items() if c.batches.batching == "balanced"},
        "Without memory FD is left out": set(ABLATION_CELLS) & {n for n, c in configs.items() if c.method.fd != "none"},
    }.items():
        assert {n for n, text in METHOD_TEXTS.items() if deviation in " ".join(text.deviations)} == having, deviation


@pytest.mark.parametrize(
    ("deviation", "having"),
    [
        ("classifier are drawn", "lwf lwf_er icarl bic bic_inclearn wa foster der_trunc"),
        ("PyCIL trains the first task for 200 epochs", "lwf lwf_er wa der_trunc"),
        ("On ImageNet inclearn has", "bic bic_inclearn podnet"),
        ("batch norm keeps its statistics", "podnet"),
        ("stretched over the 200 epochs of stage 2", "bic bic_inclearn"),
        ("the corrected logits are those of the next task's teacher", "bic_inclearn"),
    ],
)
def test_exactly_the_methods_that_have_a_deviation_list_it(deviation: str, having: str) -> None:
    assert {n for n, text in METHOD_TEXTS.items() if deviation in " ".join(text.deviations)} == set(having.split())


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_names_fields_that_exist(name: str) -> None:
    sections = {key.partition(".")[0] for key in field_keys()}
    words = re.findall(r"\b([a-z_]+\.[a-z_]+)\b", " ".join([*TEXTS[name].formula, *TEXTS[name].deviations]))
    assert [word for word in words if word.partition(".")[0] in sections and word not in field_keys()] == []


def test_the_list_in_the_paper_page_is_the_generated_one() -> None:
    document = PAPER.read_text(encoding="utf-8")
    assert document == with_deviations(document), "update it: python -m cl2r.config.method_texts"
    for text in TEXTS.values():
        assert all(deviation in document for deviation in text.deviations)


@pytest.mark.parametrize("name", METHODS)
def test_the_command_says_all_about_a_method(name: str, cl2r: Command) -> None:
    code, out, err = cl2r("methods", name)
    assert (code, err) == (0, "")
    shown, text, info = " ".join(out.split()), METHOD_TEXTS[name], METHODS[name]
    for part in (info.title, text.does, info.paper, *text.formula, *text.deviations):
        assert " ".join(part.split()) in shown
    config = resolve([{"method": {"name": name}}]).model_dump(mode="json")
    for option in info.options.model_fields if info.options else ():
        assert f"{info.section}.{option}=" in shown
        default = config[info.section][option]
        if isinstance(default, str | int | float) and not isinstance(default, bool):
            assert f"{info.section}.{option}={default} (" in shown


def test_the_command_says_all_about_an_adapter(cl2r: Command) -> None:
    owned = set()
    for name, text in ADAPTER_TEXTS.items():
        _, out, _ = cl2r("methods", f"er+{name}")
        shown = " ".join(out.split())
        assert all(" ".join(part.split()) in shown for part in (text.does, *text.formula, *text.deviations))
        assert all(f"adapter.{option}=" in shown for option in text.options)
        owned |= set(text.options)
    assert owned == set(AdapterConfig.model_fields) - {"name"}, "every option belongs to an adapter"


def test_options_are_shown_with_their_defaults_and_ranges(cl2r: Command) -> None:
    _, out, _ = cl2r("methods", "podnet", "lwf", "foster", "hoc", "er+orthogonal")
    for entry in (
        "podnet.nca=code (code or paper): code: the margin cancels",
        "podnet.clamp=5.0 (> 0): Largest",
        "lwf.ce=new (new or seen):",
        "memory.per_class=0 (≥ 0): Images of every class.",
        "head.bias=true (true or false):",
        "foster.boost_epochs=null (≥ 1 or null):",
        "foster.beta_boost=0.94 (≥ 0, < 1):",
        "hoc.weight=0.1 (≥ 0, ≤ 1): λ_h",
        "adapter.orthogonality=5.0 (≥ 0):",
    ):
        assert entry in " ".join(out.split())


def test_the_command_explains_the_symbols_of_the_formulas_once(cl2r: Command) -> None:
    _, out, _ = cl2r("methods", "lwf", "cl2r+aligner")
    _, _, legend = out.partition("\nsymbols")
    shown = " ".join(legend.split())
    assert shown, "it comes last, once"
    for symbol in ("T_t =", "k_0 old", "N_t =", "z logits", "z° logits", "FD(S) =", "KD_T(z, z°) =", "q a new query"):
        assert symbol in shown
    for name, value in re.findall(r"e\.g\. ([a-z_.]+)=(\d+) on icons", shown):
        assert fields(resolve([read_layer("icons")]))[name] == int(value)
    assert " on icons" in shown


def test_what_a_method_sets_can_be_typed(cl2r: Command) -> None:
    _, out, _ = cl2r("methods", "lucir")
    assert "backbone.last_relu=false" in " ".join(out.split())


class PluginOptions(Section):
    """As an installed method may have them."""

    path: Annotated[str, keyed_from(2)] = "here"
    """Where from."""
    other: Annotated[str | None, keyed_from(2)] = None
    print  # noqa: B018  # an expression, but no text
    rate: Annotated[float | None, keyed_from(2)] = None
    3  # noqa: B018


def test_only_texts_below_a_field_describe_it() -> None:
    assert docstrings(PluginOptions) == {"path": "Where from."}


def test_fields_of_a_class_without_source_have_no_description() -> None:
    made = type("Made", (Section,), {"__module__": "builtins"})
    assert docstrings(made) == {}


def test_an_option_that_can_have_any_value_is_shown_without_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [allowed(field) for field in PluginOptions.model_fields.values()] == ["", "text or null", "a number or null"]
    info = replace(METHODS["er"], name="other", family="other", section="other", build="a:B", options=PluginOptions)
    monkeypatch.setitem(METHODS._loaded[0], "other", info)
    shown = " ".join(" ".join(method_page(info)).split())
    assert "other.path=here: Where from." in shown
    assert "other.other=null (text or null)" in shown
