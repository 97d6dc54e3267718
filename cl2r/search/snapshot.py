"""A model φ_t as plain data: from the links of a run, or from a folder that `cl2r export` wrote.

RUN@5             a run below the storage, also one of a study; RUN may be the beginning of its name; no @: the last
results/runs/RUN  the same as a path
DIR               an exported model, on a disk or in an object store
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from cl2r.config import Config
from cl2r.data.images import MODES, Fit, LazyImages
from cl2r.engine.plan import Plan, plan_run
from cl2r.engine.store import LinkStore, Tensors
from cl2r.errors import InputError, nearest
from cl2r.files import Place, listed, place, write_folder
from cl2r.layers import resolve
from cl2r.methods.catalog import method_info
from cl2r.search.shards import is_plain_name
from cl2r.study.folder import StudyFolder

CARD, SUPPORTS = "model.json", "supports.safetensors"
FORMAT = 1
SUPPORT_KEYS = ("support", "support_old")


@dataclass(frozen=True)
class Card:
    """What a model is besides its weights."""

    run: str
    task: int
    keys: tuple[str, ...]
    """Of the links of tasks 1..t; the last one is the model's own, the others are the models it may meet."""
    config: Mapping[str, Any]
    num_outputs: int
    classes: tuple[int, ...]
    """New classes of tasks 1..t."""
    size: int
    channels: int
    fit: Fit
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"{self.run}@{self.task}"

    @property
    def key(self) -> str:
        """Of its own link; what a gallery calls a version."""
        return self.keys[-1]

    @property
    def method(self) -> str:
        """By name, with its adapter."""
        return str(self.config["method"]["name"])


@dataclass(frozen=True)
class Snapshot:
    """A model that can be written down, or sent to another process: no code, tensors only."""

    card: Card
    states: Mapping[int, Tensors]
    """What the links of some tasks carry: of t, and of those whose models or maps φ_t needs to meet older galleries."""
    supports: Mapping[int, Tensors]
    """For adapters: images at hand at update j, as φ_j and as φ_{j-1} see them."""


def find_snapshot(text: str, storage: Place) -> Snapshot:
    """The model called `text`; InputError if there is none, or its link is not whole."""
    exported = place(text)
    if (exported / CARD).exists():
        return read_export(exported)
    run, task = _split(text)
    root, name, config = _find_run(run, storage)
    return from_links(plan_run(config), name, task, LinkStore(root, _refuse_damage))


def _split(text: str) -> tuple[str, int | None]:
    """Run and task; the query of an address (`?region=…`) comes after the task."""
    address, question, query = text.partition("?") if "://" in text else (text, "", "")
    run, mark, number = address.rpartition("@")
    if not mark:
        return text, None
    if not number.isdecimal() or int(number) < 1 or not run:
        raise InputError(f"--model {text}: give RUN@t with a task t from 1 on, or the folder of an exported model")
    return run + question + query, int(number)


def _refuse_damage(line: str) -> None:
    raise InputError(line.replace("it will be trained again", "the command that trained it trains it again"))


def _find_run(run: str, storage: Place) -> tuple[Place, str, Config]:
    """Storage, name and config of a run: by its folder, by its name below the storage, or inside of a study."""
    folder = place(run)
    if (folder / "config.yaml").exists():
        folder = folder.resolve() if isinstance(folder, Path) else folder  # also `.`, or a run's name alone
        return folder.parent.parent, folder.name, _config(folder)
    known = {path.parent.name: path.parent for path in listed(storage / "runs", "*/config.yaml")}
    in_studies = {
        subject: event
        for path in listed(storage / "studies", "*/ledger")
        for subject, event in StudyFolder(storage, path.parent.name).ledger.last("finished").items()
    }
    name = _only(run, sorted({*known, *in_studies}), storage)
    if name in known:
        return storage, name, _config(known[name])
    flat = in_studies[name].read()["config"]
    return storage, name, resolve([_nested(flat)])


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    for dotted, value in flat.items():
        section, _, key = dotted.partition(".")
        if key:
            sections.setdefault(section, {})[key] = value
        else:
            sections[section] = value
    return sections


def _only(run: str, names: list[str], storage: Place) -> str:
    found = [run] if run in names else [name for name in names if name.startswith(run)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"--model {run}: {len(found)} runs begin so: {', '.join(found[:4])}")
    there = f"; there are {', '.join(names[:4])}{', …' * (len(names) > 4)}" if names else ""
    raise InputError(f"--model {run}: no such run below {storage}, and no exported model{nearest(run, names)}{there}")


def _config(folder: Place) -> Config:
    try:
        return resolve([yaml.safe_load((folder / "config.yaml").read_bytes())])
    except (yaml.YAMLError, AttributeError) as error:
        raise InputError(f"{folder / 'config.yaml'} does not parse ({' '.join(str(error).split())})") from error


def from_links(plan: Plan, run: str, task: int | None, store: LinkStore) -> Snapshot:
    """The model after `task` (None: the last one) of a run whose links are in `store`."""
    task = task or len(plan.keys)
    if task > len(plan.keys):
        raise InputError(f"--model {run}@{task}: this run has {len(plan.keys)} tasks")
    card = make_card(plan, run, task)
    needed, adapted = needed_states(card), needed_supports(card)
    for index in sorted({*needed, *adapted}):
        if not store.has(plan.keys[index - 1]):
            missing = f"link {plan.keys[index - 1]} of task {index} is not there"
            raise InputError(f"--model {run}@{task}: {missing}; the command that trained the run trains it again")
    supports = {}
    for index in adapted:
        features = store.features(plan.keys[index - 1])
        supports[index] = {key: features[key] for key in SUPPORT_KEYS}
    return Snapshot(card, {index: store.state(plan.keys[index - 1]) for index in needed}, supports)


def make_card(plan: Plan, run: str, task: int) -> Card:
    """What is known of the model after `task`."""
    height, width = plan.dataset.image_size
    if height != width:
        raise InputError(f"{run}: its images are {height} × {width}; only models of square images can search")
    own = plan.config.eval.normalise == "own"
    mean, std = plan.dataset.open_moments if own else plan.dataset.moments
    images = plan.dataset.x_train
    return Card(
        run=run,
        task=task,
        keys=tuple(plan.keys[:task]),
        config=plan.config.model_dump(mode="json"),
        num_outputs=plan.num_outputs,
        classes=tuple(len(info.labels) for info in plan.scenario.tasks[:task]),
        size=height,
        channels=plan.dataset.channels,
        fit=images.fit if isinstance(images, LazyImages) else "centre",
        mean=mean,
        std=std,
    )


def needed_states(card: Card) -> list[int]:
    """Tasks whose link φ_t cannot do without."""
    if method_info(card.config["method"]["name"]).gallery:
        return [*range(2, card.task), card.task]  # ψ_2 … ψ_t
    if card.method.endswith("+slerp"):
        return list(range(1, card.task + 1))  # queries pass the old models too
    return [card.task]


def needed_supports(card: Card) -> list[int]:
    """Updates whose images an adapter is fitted to."""
    return list(range(2, card.task + 1)) if "+" in card.method else []


# ---------------------------------------------------------------- exported


def write_export(snapshot: Snapshot, folder: Place) -> None:
    """A folder of safetensors and JSON; the card comes last, without it there is no model."""
    if isinstance(folder, Path) and folder.is_file():
        raise InputError(f"{folder}: a file; export a model to a folder of its own")
    if listed(folder, "*"):
        raise InputError(f"{folder}: not empty; export a model to a folder of its own")
    files = {_state_name(index): tensors_to_bytes(dict(state)) for index, state in snapshot.states.items()}
    if snapshot.supports:
        flat = {f"{index}/{key}": t for index, kept in snapshot.supports.items() for key, t in kept.items()}
        files[SUPPORTS] = tensors_to_bytes(flat)
    said = {"files": {name: _digest(content) for name, content in files.items()}, "card": asdict(snapshot.card)}
    entry = {"format": FORMAT, "sha256": _digest(json.dumps(said).encode()), **said}
    write_folder(folder, files, (CARD, json.dumps(entry, indent=1).encode()))


def _state_name(index: int) -> str:
    return f"task{index}.safetensors"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_export(folder: Place) -> Snapshot:
    """What `write_export` wrote, every byte of it; or InputError."""
    try:
        entry = json.loads((folder / CARD).read_bytes())
        if entry.pop("format") != FORMAT:
            raise InputError(f"{folder / CARD}: written by another version of cl2r")
        if entry.pop("sha256") != _digest(json.dumps(entry).encode()):
            raise ValueError(f"{CARD}: the checksum differs")
        return _snapshot(folder, _checked_card(entry["card"]), entry["files"])
    except FileNotFoundError as error:
        raise InputError(f"{folder}: the exported model is not whole ({error})") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{folder}: not an exported model ({why})") from error


def _checked_card(entry: dict[str, Any]) -> Card:
    """Whoever offers a model for download has written it: what it says is looked at before it is used."""
    card = TypeAdapter(Card).validate_json(json.dumps(entry), strict=True)
    if card.task < 1 or not len(card.keys) == len(card.classes) == card.task or not all(map(is_plain_name, card.keys)):
        raise ValueError(f"task {card.task} with {len(card.keys)} links")
    if card.size < 1 or card.channels not in MODES or not len(card.mean) == len(card.std) == card.channels:
        raise ValueError(f"images of {card.size} pixels and {card.channels} channels")
    Config.model_validate(dict(card.config))
    return card


def _snapshot(folder: Place, card: Card, digests: Mapping[str, str]) -> Snapshot:
    def tensors(name: str) -> Tensors:
        content = (folder / name).read_bytes()
        if _digest(content) != digests[name]:
            raise ValueError(f"{name}: the checksum differs")
        return tensors_from_bytes(content)

    states = {index: tensors(_state_name(index)) for index in needed_states(card)}
    adapted = needed_supports(card)
    flat = tensors(SUPPORTS) if adapted else {}
    return Snapshot(card, states, {index: {key: flat[f"{index}/{key}"] for key in SUPPORT_KEYS} for index in adapted})
