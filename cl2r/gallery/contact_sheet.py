"""Hits as a text table, and as a contact sheet: one HTML file with the images in it."""

import base64
from collections.abc import Sequence
from importlib import resources

from jinja2 import Template

from cl2r.errors import InputError
from cl2r.gallery.images import ImageInMemory, thumbnail
from cl2r.gallery.search import Hit
from cl2r.storage.path import at

THUMBNAIL = 128  # longer side in pixels


def as_table(hits: Sequence[Hit]) -> str:
    """Return one line per hit below a header."""
    width = max([len(hit.id) for hit in hits], default=2)
    lines = [f"{'':>4}  {'score':>6}  {'image':<{width}}  {'label':<16}  vector by"]
    lines += [f"{hit.rank:>4}  {hit.score:>6.3f}  {hit.id:<{width}}  {hit.label:<16.16}  {hit.model}" for hit in hits]
    return "\n".join(lines)


def contact_sheet(queries: Sequence[tuple[str, bytes]], results: Sequence[Sequence[Hit]], title: str) -> str:
    """Return the page. An image that can no longer be read leaves an empty frame."""
    sections = [
        {
            "query": name,
            "picture": _picture(ImageInMemory(content, name)),
            "hits": [(hit, _picture(hit)) for hit in hits],
        }
        for (name, content), hits in zip(queries, results, strict=True)
    ]
    page = resources.files("cl2r.gallery").joinpath("pages/contact_sheet.html").read_text("utf-8")
    return str(Template(page, autoescape=True).render(title=title, sections=sections))


def _picture(image: ImageInMemory | Hit) -> str | None:
    """Return a thumbnail in base64, or None if the image cannot be read."""
    try:
        path = at(image.source) / image.path if isinstance(image, Hit) else image
        return base64.b64encode(thumbnail(path, THUMBNAIL)).decode()
    except (InputError, OSError):
        return None
