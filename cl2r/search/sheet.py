"""Hits as text, as JSON, and as a contact sheet: one HTML file with the images in it."""

import base64
import html
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from PIL import Image

from cl2r.data.images import FORMATS, UNDECODABLE, refuse_huge
from cl2r.errors import InputError
from cl2r.files import place
from cl2r.search.searching import Hit

THUMBNAIL = 128
"""Pixels a side."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }}
body {{ margin: 1.5rem auto; max-width: 75rem; padding: 0 1rem; }}
section {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .75rem; }}
section {{ margin-bottom: 2rem; }}
figure {{ margin: 0; padding: .6rem; border: 1px solid #8884; border-radius: .5rem; overflow-wrap: anywhere; }}
figure.query {{ border: 2px solid #2a6fdb; }}
img {{ width: 100%; max-width: 128px; aspect-ratio: 1; object-fit: contain; background: #fff; }}
img {{ image-rendering: pixelated; }}
figcaption {{ font-size: .8rem; }}
b {{ font-size: .95rem; }}
.missing {{ aspect-ratio: 1; display: grid; place-items: center; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""


def as_table(hits: Sequence[Hit]) -> str:
    """A line a hit."""
    width = max([len(hit.id) for hit in hits], default=2)
    lines = [f"{'':>4}  {'score':>6}  {'image':<{width}}  {'label':<16}  vector by"]
    lines += [f"{hit.rank:>4}  {hit.score:>6.3f}  {hit.id:<{width}}  {hit.label:<16.16}  {hit.model}" for hit in hits]
    return "\n".join(lines)


def as_json(queries: Sequence[str], results: Sequence[Sequence[Hit]]) -> str:
    """A list: every query and its hits."""
    entries = [
        {"query": query, "hits": [asdict(hit) for hit in hits]} for query, hits in zip(queries, results, strict=True)
    ]
    return json.dumps(entries, indent=1, default=str)


def contact_sheet(queries: Sequence[tuple[str, bytes]], results: Sequence[Sequence[Hit]], title: str) -> str:
    """The page. An image that is not where it was when it was indexed leaves an empty frame."""
    sections = []
    for (name, content), hits in zip(queries, results, strict=True):
        figures = [_figure(content, f"<b>query</b><br>{html.escape(name)}", "query")]
        figures += [_figure(_bytes_of(hit), _caption(hit)) for hit in hits]
        sections.append(f"<section>{''.join(figures)}</section>")
    return _PAGE.format(title=html.escape(title), body="\n".join(sections))


def _caption(hit: Hit) -> str:
    label = f"<br>{html.escape(hit.label)}" if hit.label else ""
    return f"<b>{hit.rank} · {hit.score:.3f}</b>{label}<br>{html.escape(hit.id)}<br>φ{hit.task}"


def _figure(content: bytes | None, caption: str, kind: str = "") -> str:
    shown = thumbnail(content) if content is not None else None
    picture = (
        '<div class="missing">not there any more</div>'
        if shown is None
        else f'<img alt="" src="data:image/png;base64,{base64.b64encode(shown).decode()}">'
    )
    return f'<figure class="{kind}">{picture}<figcaption>{caption}</figcaption></figure>'


def _bytes_of(hit: Hit) -> bytes | None:
    try:
        return (place(hit.source) / hit.path).read_bytes()
    except OSError:
        return None


def thumbnail(content: bytes) -> bytes | None:
    """A small PNG of an image; None if it is none."""
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        refuse_huge("image", image.size)
        image.draft("RGB", (THUMBNAIL, THUMBNAIL))
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL))
    except (*UNDECODABLE, InputError):
        return None
    encoded = io.BytesIO()
    small.save(encoded, "PNG")
    return encoded.getvalue()
