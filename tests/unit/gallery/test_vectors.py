"""Formats of vectors and kinds of index; `tests/unit/studies/test_search.py` checks their rows on a real chain."""

import numpy as np

from cl2r.features import Features
from cl2r.gallery.vectors import FORMATS, possible, stored_as


def test_shorter_codes_lose_more() -> None:
    vectors = Features(np.random.default_rng(0).normal(size=(600, 30)).astype(np.float32)).unit()
    errors, sizes = {}, {}
    for form in FORMATS:
        back, sizes[form] = stored_as(vectors, form)
        assert (back.shape, back.dtype) == (vectors.shape, np.float32)
        errors[form] = float(np.square(back - vectors).sum(1).mean())
    assert sizes == {"float32": 120, "float16": 60, "pq32": 32, "pq16": 16, "pq8": 8}
    assert errors["float32"] == 0 < errors["float16"] < 1e-6 < errors["pq32"] < errors["pq16"] < errors["pq8"] < 0.5


def test_codes_need_at_least_256_rows() -> None:
    assert possible(FORMATS, 255) == ["float32", "float16"]
    assert possible(FORMATS, 256) == list(FORMATS)
