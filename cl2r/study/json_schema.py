"""JSON schemas of the files of runs and studies, for editors (yaml-language-server) and for programs that write them.

Everything comes from the models that check the files: sections, fields, types, limits and the docstrings of fields.
`cl2r/schemas` holds the schemas of this package; `cl2r schema` prints them with the methods that other packages add.
"""

import json
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from cl2r.config.layers import NO_PRESET, STUDY_KEYS, presets
from cl2r.config.methods import ADAPTERS, METHODS, sections
from cl2r.config.schema import Config
from cl2r.config.section import Section, docstrings
from cl2r.data import DATASETS
from cl2r.metrics import METRICS
from cl2r.study.race import RaceSpec
from cl2r.study.space import Range, is_context
from cl2r.study.spec import OBJECTIVES, ConfirmSpec, SearchSpec, StudySpec

Schema = dict[str, Any]
DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest that YAML language servers support fully


def schema_text(kind: str) -> str:
    """Return the schema of the file of a `run` or a `study` as JSON, one line per definition and key of the file."""
    line = partial(json.dumps, ensure_ascii=False)
    entries = []
    for name, value in (run_schema() if kind == "run" else study_schema()).items():
        text = line(value)
        if name in ("properties", "$defs"):
            text = "{\n" + ",\n".join(f"  {line(key)}: {line(entry)}" for key, entry in value.items()) + "\n }"
        entries.append(f" {line(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def run_schema() -> Schema:
    """Return the schema of the file of a run: a base, sections of fields, and fields by dotted name."""
    fields = _fields()
    settings = _mapping(fields, _ref, "The same fields by dotted name.")
    return _file("The file of a run of cl2r, or a preset", {"set": settings, **_sections(fields)}, fields)


def study_schema() -> Schema:
    """Return the schema of the file of a study: that of a run without its seed, and what varies."""
    fields = _fields()
    del fields["seed"]
    own = _model(StudySpec)["properties"]
    search, race = _model(SearchSpec), _model(RaceSpec)
    search["properties"]["objectives"]["items"] = {"enum": list(OBJECTIVES)}
    search["properties"]["constraints"]["propertyNames"] = {"enum": [*dict.fromkeys([*OBJECTIVES, *METRICS])]}
    search["properties"]["confirm"] = _model(ConfirmSpec)
    race["properties"]["methods"] = {**race["properties"]["methods"], **_several({"enum": list(METHODS)})}
    del race["properties"]["methods"]["anyOf"]  # null is the default, not a value to write
    race["properties"]["adapters"]["items"] = {"enum": list(ADAPTERS)}
    settings = _mapping(fields, _ref, own["set"]["description"])
    entries = {
        "seeds": own["seeds"],
        "grid": _mapping(fields, lambda name: _several(_ref(name)), own["grid"]["description"]),
        "variants": {**own["variants"], "additionalProperties": _mapping(fields, _ref, "")},
        "space": _mapping(fields, _choice, own["space"]["description"]),
        "search": search,
        "race": race,
    }
    assert tuple(entries) == STUDY_KEYS
    definitions = fields | {"range": _model(Range)}
    return _file("The file of a study of cl2r", {"set": settings, **entries, **_sections(fields)}, definitions)


def _file(title: str, properties: Schema, definitions: Schema) -> Schema:
    text = "The base: a preset, another YAML file of a run, or none for the built-in defaults. Default: icons."
    bases = [{"enum": [*presets(), NO_PRESET]}, {"type": "string", "pattern": r"\.ya?ml$"}]
    entries = {"preset": {"description": text, "anyOf": bases}, **properties}
    return {"$schema": DIALECT, "title": title, **_object(entries), "$defs": definitions}


def _kinds() -> dict[str, type[Section]]:
    """Return the sections of every config and of all methods, by name."""
    every = {name: info.annotation for name, info in Config.model_fields.items() if name != "options"}
    common = {name: kind for name, kind in every.items() if isinstance(kind, type) and issubclass(kind, Section)}
    return common | sections()


def _fields() -> Schema:
    """Return the schema of every field by dotted name. There are no defaults: the value of the base counts."""
    from cl2r.backbones import BUILT_IN, GROUP  # imports torch

    alone = _model(Config)["properties"]
    found: Schema = {name: alone[name] for name in ("seed", "threads")}
    for name, kind in _kinds().items():
        found |= {f"{name}.{key}": entry for key, entry in _model(kind)["properties"].items()}
    found = {name: {key: value for key, value in entry.items() if key != "default"} for name, entry in found.items()}
    adapted = rf"^({'|'.join(METHODS)})\+({'|'.join(ADAPTERS)})$"
    found["method.name"] = {"anyOf": [{"enum": list(METHODS)}, {"type": "string", "pattern": adapted}]}
    found["adapter.name"]["enum"] = ["none", *ADAPTERS]
    found["backbone.name"] = {"enum": [*BUILT_IN, *(point.name for point in entry_points(group=GROUP))]}
    found["data.name"]["examples"] = [*DATASETS, "photos.npz", "photos/"]
    return found


def _sections(fields: Iterable[str]) -> Schema:
    """Return the properties of a file that are single fields or sections of these fields."""
    found: Schema = {name: _ref(name) for name in fields if "." not in name}
    for name, kind in _kinds().items():
        own = _object({key: _ref(f"{name}.{key}") for key in kind.model_fields})
        found[name] = {"description": " ".join((kind.__doc__ or "").split()), **own}
    return found


def _model(kind: type[Section]) -> Schema:
    """Return a model as a schema; its properties have the docstrings of its fields as descriptions."""
    made, found = kind.model_json_schema(), Schema()
    for key, entry in made["properties"].items():
        found[key] = {name: value for name, value in entry.items() if name not in ("title", "keyed_from")}
    for key, text in docstrings(kind).items():
        found[key]["description"] = text
    # Only a range must be complete: a section leaves the rest to its base.
    return _object(found) | ({"required": made["required"]} if kind is Range else {})


def _object(properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _mapping(fields: Iterable[str], entry: Callable[[str], Schema], description: str) -> Schema:
    return {"description": description, **_object({name: entry(name) for name in fields})}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _several(entry: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": entry}


def _choice(name: str) -> Schema:
    """Return what the space of a sweep may say of a field; a context cannot be a range."""
    listed = _several(_ref(name))
    return listed if is_context(name) else {"anyOf": [_ref("range"), listed]}
