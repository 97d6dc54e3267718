"""Searches for tests: images to search among, and the metrics of a search by their definitions, in plain loops."""

import numpy as np

from cl2r.retrieval import Integers, SearchImages, Vectors


def all_images(labels: Integers) -> SearchImages:
    """Return all images as the gallery; every image with another one of its class is a query."""
    images = SearchImages.of(labels, np.arange(len(labels)), seed=0)
    assert images is not None
    return images


def ranking(query: Vectors, gallery: Vectors, own: int) -> list[int]:
    """Return rows from the nearest to the farthest, by Python's stable sort."""
    scores = [float(np.float32(sum(float(a) * float(b) for a, b in zip(query, row, strict=True)))) for row in gallery]
    return sorted((row for row in range(len(gallery)) if row != own), key=lambda row: -scores[row])


def search_by_hand(queries: Vectors, gallery: Vectors, images: SearchImages) -> list[list[float]]:
    """Return recall@1, 5, 10 and average precision of every query; no image is its own hit."""
    table = []
    for own, query in zip(images.queries.tolist(), queries, strict=True):
        right = [bool(images.labels[row] == images.labels[own]) for row in ranking(query, gallery, own)]
        precisions = [sum(right[: place + 1]) / (place + 1) for place in range(len(right)) if right[place]]
        table.append([*(float(any(right[:top])) for top in (1, 5, 10)), sum(precisions) / len(precisions)])
    return table
