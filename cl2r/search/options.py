"""What several commands of search ask for."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from cl2r.cli_options import PlaceType
from cl2r.errors import InputError

if TYPE_CHECKING:
    from cl2r.files import Place
    from cl2r.search.index import IndexOptions
    from cl2r.search.model import Model

model_option = click.option(
    "--model", required=True, metavar="RUN@t", help="A run's model after task t, or the folder of an exported one."
)
gallery_argument = click.argument("gallery", type=PlaceType(), metavar="GALLERY")


def load_model(name: str, storage: "Place") -> "Model":
    """The model called `name`."""
    from cl2r.search.model import Model
    from cl2r.search.snapshot import find_snapshot

    return Model(find_snapshot(name, storage))


def index_options_of(kind: str, settings: Sequence[str]) -> "IndexOptions":
    from cl2r.search.index import IndexOptions

    numbers: dict[str, Any] = {}
    known = [name for name in IndexOptions.__dataclass_fields__ if name != "kind"]
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in known or not value.isdecimal():
            raise InputError(f"--index-option {setting}: NAME=NUMBER with one of {', '.join(known)}")
        numbers[name] = int(value)
    return IndexOptions(kind, **numbers)  # type: ignore[arg-type]  # checked by the class


index_options: list[Callable[[Any], Any]] = [
    click.option("--index", "kind", default="auto", show_default=True, help="auto, exact, ivf, hnsw or pq."),
    click.option("--index-option", "settings", multiple=True, metavar="NAME=N", help="nlist, nprobe, links, …"),
]
