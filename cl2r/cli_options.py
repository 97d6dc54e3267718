"""Options that several commands share. Needs no torch."""

from typing import Any

import click


class PlaceType(click.ParamType):  # type: ignore[type-arg]  # generic in recent click only
    """A folder, or an address such as s3://bucket/folder."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """`cl2r.files.place`, which is imported only by those who need it."""
        from cl2r.files import place

        return place(value) if isinstance(value, str) else value


storage_option = click.option(
    "--storage",
    type=PlaceType(),
    default="results",
    envvar="CL2R_STORAGE",
    show_default=True,
    metavar="DIR",
)
