"""Entries by name: those of this package, and those that installed packages add through an entry point group."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, TypeVar

T = TypeVar("T")


class Plugins(Mapping[str, T]):
    """The entries by name, loaded when first needed.

    `problem` returns why an object cannot be added to the entries so far, None if it can.
    """

    def __init__(
        self, group: str, built_in: Callable[[], dict[str, T]], problem: Callable[[Any, Mapping[str, T]], str | None]
    ) -> None:
        self.group, self.built_in, self.problem = group, built_in, problem

    @cached_property
    def _loaded(self) -> tuple[dict[str, T], list[str]]:
        entries, errors = self.built_in(), []
        for point in entry_points(group=self.group):
            try:
                entry = point.load()
                error = self.problem(entry, entries)
            except Exception as raised:  # an error of another package must not stop this one
                error = f"{type(raised).__name__}: {raised}"
            if error:
                errors.append(f"{point.name} ({point.value}): {error}")
            else:
                entries[entry.name] = entry
        return entries, errors

    def __getitem__(self, name: str) -> T:
        return self._loaded[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded[0])

    def __len__(self) -> int:
        return len(self._loaded[0])

    @property
    def errors(self) -> list[str]:
        """Return one line, with the reason, for every entry point that could not be used."""
        return self._loaded[1]

    def __str__(self) -> str:
        return ", ".join(self) + "".join(f"; not loaded: {line}" for line in self.errors)
