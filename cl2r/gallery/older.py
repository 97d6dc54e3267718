"""The older model that a search service shows beside its own, and a saved check of the upgrade between them.

--old RUN@k     this model
--old none      no second column
(no --old)      the oldest model that indexed images of the gallery, if it can be loaded
"""

from dataclasses import dataclass

import torch

from cl2r.errors import InputError
from cl2r.gallery.model import Model, ModelFiles, find_model
from cl2r.gallery.runs import CONFIG
from cl2r.gallery.search import Searcher
from cl2r.gallery.upgrade import Answer
from cl2r.storage.path import StoragePath, at

NONE = "none"


@dataclass(frozen=True)
class Older:
    """An older model as plain data, or why there is none; a saved answer of `cl2r upgrade-check`."""

    files: ModelFiles | None = None
    why: str = ""  # one line for everyone who sees the page: it names no path
    reason: str = ""  # the whole reason, for whoever started the service
    check: Answer | None = None


def check_older(searcher: Searcher, files: ModelFiles) -> Older:
    """Return the model if it can search a part of the gallery; raise InputError if it cannot."""
    searcher.earlier(Model(files, torch.device("cpu")))
    return Older(files)


def oldest_of(searcher: Searcher, model: str, storage: StoragePath) -> Older:
    """Return the oldest model of the gallery from the run of `model`, as `--model` named it, or from the storage."""
    own, oldest = searcher.model.card, searcher.gallery.commit.by_task[0]
    if oldest.key == own.key:
        return Older(why=f"all images were indexed by {own.name} itself, so there is no older model to compare with")
    run = model.rpartition("@")[0] or model
    name = f"{run}@{oldest.task}" if (at(run) / CONFIG).exists() else oldest.name
    try:
        return check_older(searcher, find_model(name, storage, "--old"))
    except InputError as error:
        why = f"{oldest.name}, which indexed the oldest part of the gallery, cannot be loaded"
        return Older(why=f"{why}; the service can be started with --old RUN@k", reason=str(error))
