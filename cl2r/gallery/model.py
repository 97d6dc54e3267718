"""A model φ_t, from the links of a run or from a folder that `cl2r export` wrote, and what it does for a search.

    RUN@5               a run below the storage, also one of a study; RUN may be a prefix of its name, no @t: the last
    results/runs/RUN@5  the same as a path
    DIR                 an exported model, on disk or in an object store

How queries by φ_t are compared with the gallery of an older model φ_k:

    most methods        directly
    adapters            the query is mapped into the space of φ_k (`cl2r/adapters.py`); the gallery is unchanged
    FAN                 the gallery is mapped, ψ_t ∘ … ∘ ψ_{k+1}; queries are unchanged
    growing φ (DER)     the query is cut to the dimensions of φ_k

Vectors have length one, so an inner product is a cosine.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import yaml
from pydantic import PositiveInt, model_validator
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn
from torch.nn import functional

from cl2r.adapters import QueryAdapter, Support
from cl2r.augment import Normalise
from cl2r.config.layers import from_dotted, merge_layers, resolve
from cl2r.config.methods import method_info
from cl2r.config.schema import Config
from cl2r.data.images import MODES, Crop
from cl2r.engine.links import DamagedError, Link, LinkStore, Tensors
from cl2r.engine.plan import Plan, plan_run
from cl2r.errors import InputError, nearest
from cl2r.gallery.gallery import Name, Record, Version, reason
from cl2r.methods.base import Method, TaskInfo, build_method
from cl2r.storage.path import StoragePath, at, sha256
from cl2r.study.folder import finished_runs

Images = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
CARD, STATE, SUPPORTS, FORMAT = "model.json", "task{}.safetensors", "supports.safetensors", 1
SUPPORT_KEYS = ("support", "support_old")
BATCH = 256
MAPPED_AT_ONCE = 8192  # gallery vectors


class ModelCard(Record):
    """Everything about a model except its weights."""

    run: str
    task: PositiveInt
    keys: tuple[Name, ...]
    """Keys of links 1..t. The last one is the model's own, the others are the models whose galleries it can search."""
    config: dict[str, Any]
    num_outputs: int
    classes: tuple[int, ...]  # number of new classes in each of tasks 1..t
    size: PositiveInt
    channels: int
    fit: Crop
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not len(self.keys) == len(self.classes) == self.task:
            raise ValueError(f"task {self.task} with {len(self.keys)} links")
        if self.channels not in MODES or not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"images of {self.channels} channels")
        Config.model_validate(self.config)
        return self

    @property
    def name(self) -> str:
        """RUN@t, as on the command line."""
        return f"{self.run}@{self.task}"

    @property
    def key(self) -> str:
        """Key of the model's own link, by which a gallery knows the version."""
        return self.keys[-1]

    @property
    def method(self) -> str:
        """Name of the method, with its adapter."""
        return str(self.config["method"]["name"])

    @property
    def needed_states(self) -> list[int]:
        """Tasks whose link state φ_t needs."""
        if method_info(self.method).maps_gallery:
            return [*range(2, self.task), self.task]  # ψ_2 … ψ_t
        if self.method.endswith("+slerp"):
            return list(range(1, self.task + 1))  # queries pass through the old models as well
        return [self.task]

    @property
    def needed_supports(self) -> list[int]:
        """Updates whose images an adapter is fitted to."""
        return list(range(2, self.task + 1)) if "+" in self.method else []


@dataclass(frozen=True)
class ModelFiles:
    """A model as plain data that can be written or sent to another process: tensors, no code."""

    card: ModelCard
    states: Mapping[int, Tensors]  # state of the links in `needed_states`, by task
    supports: Mapping[int, Tensors]
    """For adapters: the images at hand at update j, as seen by φ_j and by φ_{j-1}."""


def find_model(text: str, storage: StoragePath | Path) -> ModelFiles:
    """Return the model called `text`; raise InputError if there is none or a file of it is damaged."""
    exported = at(text)
    if (exported / CARD).exists():
        return read_export(exported)
    address, question, query = text.partition("?") if "://" in text else (text, "", "")
    run, mark, number = address.rpartition("@")  # the query of an address (`?region=…`) follows the task
    if mark and (not number.isdecimal() or int(number) < 1 or not run):
        raise InputError(f"--model {text}: give RUN@t with a task t from 1 on, or the folder of an exported model")
    root, name, config = _find_run(run + question + query if mark else text, at(storage))
    return from_links(plan_run(config), name, int(number) if mark else None, LinkStore(root))


def _find_run(run: str, storage: StoragePath) -> tuple[StoragePath, str, Config]:
    """Return storage, name and config of a run, given by its folder or by its name in the storage or a study."""
    folder = at(run)
    if (folder / "config.yaml").exists():
        folder = folder.resolve()  # `.`, or the name alone
        storage = folder.parent.parent
    else:
        known = {path.parent.name: path.parent for path in (storage / "runs").list("*/config.yaml")}
        in_studies = finished_runs(storage)
        names = sorted({*known, *in_studies})
        found = [run] if run in names else [name for name in names if name.startswith(run)]
        if not found:
            there = f"; runs there: {', '.join(names[:4])}{', …' * (len(names) > 4)}" if names else ""
            raise InputError(f"--model {run}: no run below {storage} and no exported model{nearest(run, names)}{there}")
        if len(found) > 1:
            raise InputError(f"--model {run}: {len(found)} runs begin like this: {', '.join(found[:4])}")
        if found[0] not in known:
            fields = in_studies[found[0]].read()["config"]
            return storage, found[0], resolve([merge_layers(from_dotted(*field) for field in fields.items())])
        folder = known[found[0]]
    try:
        return storage, folder.name, resolve([yaml.safe_load((folder / "config.yaml").read_bytes())])
    except (yaml.YAMLError, AttributeError) as error:
        raise InputError(f"{folder / 'config.yaml'} does not parse ({reason(error)})") from error


def from_links(plan: Plan, run: str, task: int | None, store: LinkStore) -> ModelFiles:
    """Return the model after `task` (None: the last one) of a run whose links are in `store`."""
    task = task or len(plan.keys)
    if task > len(plan.keys):
        raise InputError(f"--model {run}@{task}: this run has {len(plan.keys)} tasks")
    height, width = plan.dataset.image_size
    if height != width:
        raise InputError(f"{run}: its images are {height} × {width}; only models of square images can search")
    mean, std = plan.dataset.open_moments if plan.config.eval.normalise == "own" else plan.dataset.moments
    card = ModelCard(
        run=run,
        task=task,
        keys=tuple(plan.keys[:task]),
        config=plan.config.model_dump(mode="json"),
        num_outputs=plan.num_outputs,
        classes=tuple(len(info.labels) for info in plan.scenario.tasks[:task]),
        size=height,
        channels=plan.dataset.channels,
        fit=plan.dataset.x_train.crop,
        mean=tuple(mean),
        std=tuple(std),
    )
    states, supports = {}, {}
    for index in sorted({*card.needed_states, *card.needed_supports}):
        key = card.keys[index - 1]
        try:
            link = Link(store.state(key), store.features(key), store.record(key))
        except DamagedError as error:
            fault = f"damaged ({error})" if key in store else "missing"
            again = "run the command that trained it again"
            raise InputError(f"--model {card.name}: link {key} of task {index} is {fault}; {again}") from error
        if index in card.needed_states:
            states[index] = link.state
        if index in card.needed_supports:
            supports[index] = {name: link.features[name] for name in SUPPORT_KEYS}
    return ModelFiles(card, states, supports)


def write_export(model: ModelFiles, folder: StoragePath) -> None:
    """Write safetensors and JSON files to an empty folder; the card is last, without it there is no model."""
    if folder.file_info() is not None:
        raise InputError(f"{folder}: a file; export a model to a folder of its own")
    if folder.list("*"):
        raise InputError(f"{folder}: not empty; export a model to a folder of its own")
    files = {STATE.format(index): tensors_to_bytes(dict(state)) for index, state in model.states.items()}
    if model.supports:
        flat = {f"{index}/{key}": t for index, kept in model.supports.items() for key, t in kept.items()}
        files[SUPPORTS] = tensors_to_bytes(flat)
    digests = {name: sha256(data) for name, data in files.items()}
    content = {"files": digests, "card": model.card.model_dump(mode="json")}
    entry = {"format": FORMAT, "sha256": sha256(json.dumps(content).encode()), **content}
    folder.write_folder({**files, CARD: json.dumps(entry, indent=1).encode()}, last=CARD)


def read_export(folder: StoragePath) -> ModelFiles:
    """Read what `write_export` wrote; raise InputError if any byte has changed or a value makes no sense."""
    try:
        entry = json.loads((folder / CARD).read_bytes())
        if entry.pop("format") != FORMAT:
            raise InputError(f"{folder / CARD}: written by another version of cl2r; export the model again")
        if entry.pop("sha256") != sha256(json.dumps(entry).encode()):
            raise ValueError(f"{CARD}: the checksum differs")
        card = ModelCard.model_validate_json(json.dumps(entry["card"]))  # a stranger may have written it

        def tensors(name: str) -> Tensors:
            content = (folder / name).read_bytes()
            if sha256(content) != entry["files"][name]:
                raise ValueError(f"{name}: the checksum differs")
            return tensors_from_bytes(content)

        states = {index: tensors(STATE.format(index)) for index in card.needed_states}
        flat = tensors(SUPPORTS) if card.needed_supports else {}
        supports = {index: {key: flat[f"{index}/{key}"] for key in SUPPORT_KEYS} for index in card.needed_supports}
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{folder}: a file of the exported model is missing ({error})") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SafetensorError) as error:
        raise InputError(f"{folder}: not an exported model ({type(error).__name__}: {reason(error)})") from error
    return ModelFiles(card, states, supports)


class Model:
    """φ_t on a device: maps images to vectors, and queries or galleries to each other's space."""

    def __init__(self, files: ModelFiles, device: torch.device | None = None) -> None:
        self.files, self.card = files, files.card
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.config = Config.model_validate(self.card.config)
        self.info = method_info(self.config.method.name)
        # Whether stored vectors of older models must be mapped before this model's queries can search them.
        self.maps_gallery = self.info.maps_gallery
        self.normalise = Normalise(self.card.mean, self.card.std, self.device)
        self._methods: dict[int, Method] = {}
        self._extractors: dict[int, nn.Module] = {}

    @cached_property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        return int(self.embed(np.zeros((1, self.card.size, self.card.size, self.card.channels), np.uint8)).shape[1])

    @cached_property
    def digest(self) -> str:
        """Digest of the weights: the same run trained on another machine has the same key, but other bits."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.files.states[self.card.task].items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
        return found.hexdigest()[:32]

    @cached_property
    def version(self) -> Version:
        """The model as a gallery records it."""
        card = {name: getattr(self.card, name) for name in ("key", "name", "task", "method", "keys")}
        return Version(dim=self.dim, digest=self.digest, **card)

    def embed(self, images: Images, task: int | None = None) -> Vectors:
        """Return φ_t(x)/‖φ_t(x)‖ of uint8 images (N, H, W, C); `task`: of an older model whose state is at hand."""
        shape = (self.card.size, self.card.size, self.card.channels)
        if images.dtype != np.uint8 or images.shape[1:] != shape:  # the network would accept them
            found = f"{images.dtype} of shape {images.shape}"
            raise InputError(f"{self.card.name}: expected images as uint8 of shape {('N', *shape)}, found {found}")
        task = task or self.card.task
        if task not in self._extractors:
            self._extractors[task] = self.method(task).extractor().eval()
        rows = []
        with torch.inference_mode():
            for start in range(0, len(images), BATCH):
                batch = torch.from_numpy(np.array(images[start : start + BATCH], order="C"))  # a copy PyTorch can own
                features = self._extractors[task](self.normalise(batch.to(self.device))).float()
                rows.append(functional.normalize(features).cpu().numpy())
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def to_space_of(self, task: int, queries: Vectors, images: Images | None = None) -> Vectors:
        """Return queries as they are compared with a gallery of φ_k, k = `task`; slerp needs their images."""
        self._refuse_later(task)
        if task == self.card.task:
            return queries
        if self.info.grows:  # by the same number of dimensions in every task
            old = self.dim // self.card.task * task
            return np.asarray(functional.normalize(torch.from_numpy(queries[:, :old])).numpy())
        if self.config.adapter.name == "none":
            return queries
        seen: list[Vectors] = [queries] * self.card.task
        if self.config.adapter.name == "slerp":
            if images is None:
                raise InputError("the adapter slerp runs old models on every query: give images, not vectors")
            seen[task - 1] = self.embed(images, task)
        return self._adapter(seen, self.card.task - 1, task - 1)

    def map_gallery(self, task: int, vectors: npt.NDArray[np.floating]) -> Vectors:
        """Return stored vectors of φ_k, k = `task`, in the space of φ_t: ψ_t ∘ … ∘ ψ_{k+1}."""
        self._refuse_later(task)
        if not self.maps_gallery or task == self.card.task:
            return vectors
        mapped = []
        with torch.inference_mode():
            for start in range(0, len(vectors), MAPPED_AT_ONCE):
                rows = np.array(vectors[start : start + MAPPED_AT_ONCE], np.float32)
                block: Tensor = torch.from_numpy(rows).to(self.device)
                for step in range(task + 1, self.card.task + 1):
                    block = self.method(step).adapt_gallery(block)
                mapped.append(functional.normalize(block.float()).cpu().numpy())
        return np.concatenate(mapped) if mapped else vectors

    def _refuse_later(self, task: int) -> None:
        if not 1 <= task <= self.card.task:
            raise InputError(f"{self.card.name}: searches galleries of φ_1..φ_{self.card.task}, not of φ_{task}")

    @cached_property
    def _adapter(self) -> QueryAdapter:
        supports = [
            Support(kept["support"].cpu().numpy(), kept["support_old"].cpu().numpy())
            for _, kept in sorted(self.files.supports.items())
        ]
        return QueryAdapter(self.config.adapter, supports)

    def method(self, task: int) -> Method:
        """Return the method in the state of link `task`; raise InputError if its tensors do not fit the config."""
        if task not in self._methods:
            card = self.card
            method = build_method(self.config, card.channels, card.num_outputs)
            method.network.to(self.device)
            state = {name: tensor.to(self.device) for name, tensor in self.files.states[task].items()}
            try:
                info = TaskInfo(task, sum(card.classes[: task - 1]), card.classes[task - 1], len(state.pop("memory")))
                method.restore({name.removeprefix("method/"): tensor for name, tensor in state.items()}, info)
            except (RuntimeError, KeyError) as error:
                raise InputError(f"{card.name}: its tensors do not fit its config ({reason(error)})") from error
            method.network.eval()
            self._methods[task] = method
        return self._methods[task]
