"""Parse YAML and JSON from untrusted sources; every fault is one line that names the file.

YAML has plain values only. A repeated key is refused, because the last one would silently win; so are texts that are
nested too deeply, that contain themselves, or that stand for far more values than they have characters.
"""

import json
from collections.abc import Hashable
from typing import Any, NoReturn

import yaml

from cl2r.errors import InputError

MOST_VALUES = 1_000_000
"""Values that a YAML text may stand for, with those that aliases repeat. The largest study has some thousands."""
UNREADABLE = (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError, RecursionError)
"""What PyYAML raises: values such as `2024-99-99`, `!!bool x` or `!!timestamp x` give the errors of Python itself."""
DEEPEST = 100
"""Levels of nesting; whatever walks through the values later needs a few calls per level. Configs have four."""
TAG = "tag:yaml.org,2002:"  # what `!!` stands for
LITERAL_KEYS = (f"{TAG}merge", f"{TAG}value")  # `<<` and `=`, which are no values
CORRECT, RESTORE = "correct it", "restore it from a copy, or run the command that wrote it again"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses repeated keys, huge numbers, lone surrogates and endless aliases."""

    def __init__(self, content: str | bytes) -> None:
        super().__init__(content)
        self.extent: dict[yaml.Node, tuple[int, int]] = {}  # values and levels of a finished node
        self.checked: set[yaml.Node] = set()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        assert node is not None
        problem = "a value that contains itself" if alias and node not in self.extent else ""
        if not alias:
            below = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = [part for entry in below for part in (entry if isinstance(entry, tuple) else (entry,))]
            values = 1 + sum(self.extent[part][0] for part in parts)
            levels = 1 + max((self.extent[part][1] for part in parts), default=0)
            self.extent[node] = values, levels
            problem = f"more than {MOST_VALUES:,} values, with those that aliases repeat" * (values > MOST_VALUES)
            problem = f"more than {DEEPEST} levels of nesting" if levels > DEEPEST else problem
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Called once or more per mapping, and first before merge keys (`<<`) are replaced by what they stand for.
        if node not in self.checked:
            self.checked.add(node)
            first: dict[Hashable, int] = {}
            for key_node, _ in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    continue  # lists and mappings, which PyYAML refuses as keys
                literal, line = key_node.tag in LITERAL_KEYS, key_node.start_mark.line + 1
                key = key_node.value if literal else self.construct_object(key_node)
                if key in first:
                    raise yaml.YAMLError(f"line {line}: key {key!r} again, as in line {first[key]}; give it once")
                first[key] = line
        super().flatten_mapping(node)

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        number = int(self.construct_yaml_int(node))
        if abs(number) >= 2**63:  # Python would refuse to print a number of thousands of digits in a message
            raise yaml.MarkedYAMLError(problem="a whole number of more than 64 bits", problem_mark=node.start_mark)
        return number

    def refuse_tag(self, node: yaml.Node) -> NoReturn:
        tag = node.tag.removeprefix(TAG)
        raise yaml.MarkedYAMLError(problem=f"a value with the tag !!{tag}", problem_mark=node.start_mark)

    def construct_text(self, node: yaml.ScalarNode) -> str:
        text = str(self.construct_scalar(node))
        text.encode()  # an escaped half of a surrogate pair could not be printed or written
        return text


_Loader.add_constructor(f"{TAG}str", _Loader.construct_text)
_Loader.add_constructor(f"{TAG}int", _Loader.construct_whole)
for _name in ("binary", "omap", "pairs", "set"):  # a set has no order, and no config needs the others
    _Loader.add_constructor(f"{TAG}{_name}", _Loader.refuse_tag)


def parse_yaml(content: str | bytes, where: object, advice: str = CORRECT) -> Any:
    """Return the value of a YAML text. Raise InputError, which names `where` and ends with `advice`, if it has none."""
    try:
        return _Loader(content).get_single_data()
    except UNREADABLE as error:
        _refuse("YAML", error, where, advice)


def yaml_mapping(content: str | bytes, where: object, advice: str = CORRECT) -> dict[Any, Any]:
    """Return the mapping in a YAML text; raise InputError if there is something else."""
    found = parse_yaml(content, where, advice)
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected a mapping, e.g. `optim: {{epochs: 3}}`; {advice}")
    return found


def json_mapping(content: bytes, where: object, advice: str = RESTORE) -> dict[str, Any]:
    """Return the mapping in a JSON text; raise InputError if there is something else, such as a list or NaN."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON value")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        for name, value in pairs:
            if name in entry:
                raise ValueError(f"key {name!r} is given twice")
            entry[name] = value
        return entry

    try:
        found = json.loads(content, parse_constant=refuse, object_pairs_hook=once)
        level = [found] if isinstance(found, dict | list) else []
        for _ in range(DEEPEST):
            parts = (part.values() if isinstance(part, dict) else part for part in level)
            level = [value for part in parts for value in part if isinstance(value, dict | list)]
        if level:
            raise ValueError(f"more than {DEEPEST} levels of nesting")
    except (ValueError, RecursionError) as error:
        _refuse("JSON", error, where, advice)
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected a JSON object, e.g. {{}}; {advice}")
    return found


def _refuse(language: str, error: Exception, where: object, advice: str) -> NoReturn:
    """Raise InputError with the line and the fault, without PyYAML's excerpt: one line, and no secret beside it."""
    why = str(error)
    if isinstance(error, RecursionError):
        why = "nested too deeply"
    elif isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = [f"line {mark.line + 1}, column {mark.column + 1}"] if mark else []
        why = ": ".join([*place, ", ".join(filter(None, [error.context, error.problem]))])
    elif isinstance(error, yaml.reader.ReaderError):
        odd = f"character {error.character:#06x}" if isinstance(error.character, int) else f"byte {error.character!r}"
        why = f"{odd} at position {error.position}: {error.reason}"
    elif not isinstance(error, ValueError | yaml.YAMLError):
        why = "a value does not fit its tag"
    elif isinstance(error, UnicodeEncodeError):
        why = "half of a surrogate pair"
    raise InputError(f"{where}: not valid {language} ({' '.join(why.split())[:300]}); {advice}") from error
