"""The usual evaluation of a cell: both sides extracted for it, thresholds 0 to 4 by 0.001 tried one by one in Python.

And, to check the engine's accuracies, a search that tries every threshold at which a judgement can change.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader

from cl2r.data.dataset import Images, Labels
from studies.speed.plain_data import Item, Moments, PilImages, evaluation_transform

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
THRESHOLDS = np.arange(0, 4, 0.001)
CHUNK = 512
"""Thresholds that are tried at a time by exhaustion."""


def plain_features(network: nn.Module, images: Images, rows: Labels, moments: Moments, batch: int) -> Floats:
    """φ of some images, rows that come twice twice; on the unit sphere."""
    labels = np.zeros(len(images), np.int64)
    loader: DataLoader[Item] = DataLoader(PilImages(images, labels, rows, evaluation_transform(moments)), batch)
    network.eval()
    with torch.no_grad():
        features = torch.cat([network(x) for x, _ in loader]).numpy().astype(np.float64)
    lengths: Floats = np.linalg.norm(features, axis=1, keepdims=True)
    return features / lengths


def plain_distances(query: Floats, gallery: Floats) -> Floats:
    """|q − g|² of every pair."""
    distances: Floats = np.sum(np.square(query - gallery), axis=1)
    return distances


def plain_accuracy(distances: Floats, same: Bools, folds: Labels) -> float:
    """Mean over folds, each judged by the threshold that is best on the others."""
    accuracies = []
    for fold in range(int(folds.max()) + 1):
        others, held_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        # Indexed anew for every threshold, as it is usually written.
        scores = [accuracy_at(threshold, distances[others], same[others]) for threshold in THRESHOLDS]
        best = THRESHOLDS[np.argmax(scores)]
        accuracies.append(accuracy_at(best, distances[held_out], same[held_out]))
    return float(np.mean(accuracies))


def accuracy_at(threshold: float, distances: Floats, same: Bools) -> float:
    """Share of pairs judged rightly."""
    judged = np.less(distances, threshold)
    true_positives = np.sum(np.logical_and(judged, same))
    true_negatives = np.sum(np.logical_and(np.logical_not(judged), np.logical_not(same)))
    return float(true_positives + true_negatives) / len(distances)


def exhaustive_accuracy(distances: Floats, same: Bools, folds: Labels) -> float:
    """With the lowest of the best thresholds among none, all, and the middle between any two neighbours."""
    accuracies = []
    for fold in range(int(folds.max()) + 1):
        others, held_out = folds != fold, folds == fold
        values = np.unique(distances[others])
        thresholds = np.concatenate([[-np.inf], values[:-1] + np.diff(values) / 2, [np.inf]])
        right = _right(thresholds, distances[others], same[others])
        best = thresholds[int(np.argmax(right))]
        accuracies.append(np.mean(np.less(distances[held_out], best) == same[held_out]))
    return float(np.mean(accuracies))


def _right(thresholds: Floats, distances: Floats, same: Bools) -> npt.NDArray[np.int64]:
    """Pairs that each threshold judges rightly."""
    parts = [
        np.count_nonzero((distances < thresholds[start : start + CHUNK, None]) == same, axis=1)
        for start in range(0, len(thresholds), CHUNK)
    ]
    return np.concatenate(parts)
