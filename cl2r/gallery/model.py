"""A model φ_t, from the links of a run or from a folder that `cl2r export` wrote, and what it does for a search.

    RUN@5               a run below the storage, also one of a study (`runs.py`); without @t its last model
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
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, FiniteFloat, PositiveInt, model_validator
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn
from torch.nn import functional

from cl2r.adapters import QueryAdapter, Support
from cl2r.augment import Normalise
from cl2r.config.methods import method_info
from cl2r.config.schema import Config
from cl2r.data.images import MODES, Crop
from cl2r.engine.links import MODEL, DamagedError, Link, LinkStore, Tensors
from cl2r.errors import InputError
from cl2r.gallery.gallery import WRONG_KIND, Name, Record, Version, reason
from cl2r.gallery.runs import RESULT, StoredRun, find_runs
from cl2r.methods.base import Method, TaskInfo, build_method
from cl2r.storage.path import StoragePath, at, sha256
from cl2r.storage.seal import SealError, read_beside, seal_path, sealed

Images = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
CARD, STATE, SUPPORTS, FORMAT = "model.json", "task{}.safetensors", "supports.safetensors", 2
EXPORT = "an exported model"  # what the seal of a card says
SUPPORT_KEYS = ("support", "support_old")
BATCH = 256
MAPPED_AT_ONCE = 8192  # gallery vectors


class ModelCard(Record):
    """Everything about a model except its weights."""

    run: Annotated[str, Field(pattern=r"^\P{Cc}+$")]  # is printed: no control characters
    task: PositiveInt
    keys: tuple[Name, ...]
    """Keys of links 1..t. The last one is the model's own, the others are the models whose galleries it can search."""
    config: dict[str, Any]
    num_outputs: Annotated[int, Field(ge=1, le=10**6)]
    classes: tuple[PositiveInt, ...]  # number of new classes in each of tasks 1..t
    size: Annotated[int, Field(ge=1, le=4096)]
    channels: int
    fit: Crop
    mean: tuple[FiniteFloat, ...]
    std: tuple[Annotated[FiniteFloat, Field(gt=0)], ...]

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


def find_model(text: str, storage: StoragePath | Path, option: str = "--model") -> ModelFiles:
    """Return the model called `text`; raise InputError if there is none or a file of it is damaged."""
    return find_models({option: text}, storage)[0]


def find_models(texts: Mapping[str, str], storage: StoragePath | Path) -> list[ModelFiles]:
    """Return the models that options name, of one run if their names allow it. No training data are needed."""
    exported = {option: read_export(at(text)) for option, text in texts.items() if _is_export(at(text))}
    runs, tasks = dict[str, str](), dict[str, int | None]()
    for option, text in texts.items():
        if option in exported:
            continue
        address, question, query = text.partition("?") if "://" in text else (text, "", "")
        run, mark, number = address.rpartition("@")  # the query of an address (`?region=…`) follows the task
        if mark and (not number.isdecimal() or int(number) < 1 or not run):
            raise InputError(f"{option} {text}: give RUN@t with a task t from 1 on, or the folder of an exported model")
        runs[option], tasks[option] = (run + question + query, int(number)) if mark else (text, None)
    found = find_runs(runs, at(storage), {files.card.run for files in exported.values()})
    return [
        exported.get(option) or _from_run(f"{option} {text}", found[option], tasks[option])
        for option, text in texts.items()
    ]


def _is_export(folder: StoragePath) -> bool:
    """Return whether a folder has the card of an exported model, or what was beside it."""
    return (folder / CARD).exists() or seal_path(folder / CARD).exists()


def _from_run(asked: str, run: StoredRun, task: int | None) -> ModelFiles:
    """Return the model after `task` (None: the last one) of a run; errors begin with what was `asked` for."""
    store = LinkStore(run.storage)
    keys = run.keys
    if not keys:
        where = run.folder / RESULT if run.folder is not None else run.storage
        raise InputError(f"{asked}: no links are recorded in {where}; run the command that trained it again")
    task = task or len(keys)
    if task > len(keys):
        raise InputError(f"{asked}: {run.name} has {len(keys)} tasks; give a task from 1 to {len(keys)}")
    try:
        facts = store.record(keys[task - 1])[MODEL]
    except (DamagedError, KeyError) as error:
        raise _unusable(asked, store, task, keys[task - 1], error) from error
    return from_links(run.name, run.config, facts, store, asked)


def _unusable(asked: str, store: LinkStore, task: int, key: str, error: Exception) -> InputError:
    fault = f"damaged ({error})" if key in store else "missing"
    return InputError(
        f"{asked}: link {store.root / key} of task {task} is {fault}; run the command that trained it again"
    )


def from_links(run: str, config: Config, facts: Mapping[str, Any], store: LinkStore, asked: str = "") -> ModelFiles:
    """Return a model of a run whose links are in `store`; `facts` are `Plan.model_facts`."""
    asked = asked or run
    try:
        known = dict(facts)
        height, width = known.pop("image_size")
        if height != width:
            found = f"its images are {height} × {width}, and only models of square images can search"
            raise InputError(f"{asked}: {found}; train one on square images")
        card = {"run": run, "task": len(known["keys"]), "config": config.model_dump(mode="json"), "size": height}
        checked = ModelCard.model_validate_json(json.dumps(card | known))
    except InputError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        fault = f"what its link says about the model makes no sense ({reason(error)})"
        raise InputError(f"{asked}: {fault}; run the command that trained it again") from error
    states, supports = {}, {}
    for index in sorted({*checked.needed_states, *checked.needed_supports}):
        key = checked.keys[index - 1]
        try:
            link = Link(store.state(key), store.features(key), store.record(key))
        except DamagedError as error:
            raise _unusable(asked, store, index, key, error) from error
        if index in checked.needed_states:
            states[index] = link.state
        if index in checked.needed_supports:
            supports[index] = {name: link.features[name] for name in SUPPORT_KEYS}
    return ModelFiles(checked, states, supports)


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
    entry = {"format": FORMAT, "files": digests, "card": model.card.model_dump(mode="json")}
    card = json.dumps(entry, indent=1).encode()
    # Other programs may read the card as JSON and the tensors as safetensors, so the seal is beside the card, which
    # holds the checksums of the rest. Both are written with the folder, which appears at once.
    line = sealed(card, EXPORT).removesuffix(card)
    folder.write_folder({**files, seal_path(folder / CARD).name: line, CARD: card}, last=CARD)


def read_export(folder: StoragePath) -> ModelFiles:
    """Read what `write_export` wrote; raise InputError if any byte has changed or a value makes no sense."""
    try:
        try:
            entry = json.loads(read_beside(folder / CARD, EXPORT))
        except SealError as error:
            raise ValueError(f"{CARD}: {error}") from error
        if entry["format"] != FORMAT:
            raise InputError(f"{folder / CARD}: written by another version of cl2r; export the model again")
        card = ModelCard.model_validate_json(json.dumps(entry["card"]))  # a stranger may have written it

        def tensors(name: str) -> Tensors:
            try:
                content = (folder / name).read_bytes()
            except WRONG_KIND as error:
                raise ValueError(f"{name}: {reason(error)}") from error
            if sha256(content) != entry["files"][name]:
                raise ValueError(f"{name}: the checksum differs")
            return tensors_from_bytes(content)

        states = {index: tensors(STATE.format(index)) for index in card.needed_states}
        flat = tensors(SUPPORTS) if card.needed_supports else {}
        supports = {index: {key: flat[f"{index}/{key}"] for key in SUPPORT_KEYS} for index in card.needed_supports}
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{folder}: a file of the exported model is missing ({error}); export it again") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SafetensorError) as error:
        why = f"{type(error).__name__}: {reason(error)}"
        raise InputError(f"{folder}: not an exported model, or a damaged one ({why}); export it again") from error
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
            own = self.card.task
            raise InputError(
                f"{self.card.name}: searches galleries of φ_1..φ_{own}, not of φ_{task}; use a later model"
            )

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
            try:
                method = build_method(self.config, card.channels, card.num_outputs)
                method.network.to(self.device)
                state = {name: tensor.to(self.device) for name, tensor in self.files.states[task].items()}
                info = TaskInfo(task, sum(card.classes[: task - 1]), card.classes[task - 1], len(state.pop("memory")))
                method.restore({name.removeprefix("method/"): tensor for name, tensor in state.items()}, info)
            except (RuntimeError, MemoryError, ValueError, KeyError, InputError) as error:
                why = f"its tensors do not fit its config ({reason(error)})"
                raise InputError(f"{card.name}: {why}; train it again, or export it again") from error
            method.network.eval()
            self._methods[task] = method
        return self._methods[task]
