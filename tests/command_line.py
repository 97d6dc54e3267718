"""The command line as tests call it."""

from collections.abc import Callable

Outputs = tuple[int | str | None, str, str]
"""Exit code, stdout and stderr."""
Command = Callable[..., Outputs]
