"""The command line as tests call it."""

from collections.abc import Callable
from pathlib import Path

from tests.support.quick import flat_quick, set_options
from tests.support.small_study import tree

Outputs = tuple[int | str | None, str, str]
"""Exit code, stdout and stderr."""
Command = Callable[..., Outputs]


def quick_options(data: Path | None = None, **settings: object) -> list[str]:
    """Return the quick config as options; `optim__lr=3` stands for optim.lr. A later --tasks wins."""
    flat = flat_quick() | {key.replace("__", "."): value for key, value in settings.items()}
    where = [] if data is None else ["--data", str(data)]
    return [*where, "--tasks", str(flat.pop("scenario.n_tasks")), *set_options(flat)]


def refused(cl2r: Command, folder: Path, *words: object) -> str:
    """Return the one line of a command that ends with exit code 2 and writes nothing below `folder`."""
    before = tree(folder)
    code, _, err = cl2r(*words)
    assert code == 2
    assert err.startswith("cl2r: ")
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    assert tree(folder) == before, "nothing is written"
    return err
