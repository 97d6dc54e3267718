"""Links and unfinished epochs on disk: whole, damaged, missing, hostile."""

import fcntl
import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from quick import flip_bit

from cl2r.engine.store import (
    FEATURES,
    MANIFEST,
    PARTIAL,
    RECORD,
    STATE,
    DamagedError,
    LinkStore,
    Partial,
    check_writable,
)
from cl2r.errors import InputError

KEY = "0123abc"
WEIGHTS = {"method/w": torch.arange(6.0).reshape(2, 3), "memory": torch.tensor([4, 2], dtype=torch.int64)}
OPEN = torch.linspace(0, 1, 8).reshape(4, 2)
LOSSES = {"seconds": 1.5, "curves": [{"epoch": 1, "loss_ce": 0.1}]}


class Warned(LinkStore):
    """A store that remembers its warnings."""

    def __init__(self, root: Path) -> None:
        self.warnings: list[str] = []
        super().__init__(root, self.warnings.append)


@pytest.fixture
def store(tmp_path: Path) -> Warned:
    return Warned(tmp_path / "results")


@pytest.fixture
def filled(store: Warned) -> Warned:
    store.save(KEY, WEIGHTS, {"open": OPEN}, LOSSES)
    return store


def epoch(number: int, stage: int = 0) -> Partial:
    return Partial(stage, number, {"network/w": torch.full((3,), float(number))}, {"curves": [], "seconds": number})


def files(store: LinkStore, key: str = KEY) -> list[str]:
    return sorted(path.name for path in (store.root / key).iterdir())


def refresh_checksum(store: LinkStore, name: str) -> None:
    """What someone who wants a file to be believed would do."""
    path = store.root / KEY / MANIFEST
    checksums = json.loads(path.read_text())
    checksums[name] = hashlib.sha256((store.root / KEY / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(checksums))


# ---------------------------------------------------------------- links


def test_a_link_round_trips(filled: Warned) -> None:
    assert filled.has(KEY)
    state = filled.state(KEY)
    assert state.keys() == WEIGHTS.keys()
    assert all(
        torch.equal(state[name], tensor) and state[name].dtype == tensor.dtype for name, tensor in WEIGHTS.items()
    )
    assert torch.equal(filled.features(KEY)["open"], OPEN)
    assert filled.record(KEY) == LOSSES
    assert filled.warnings == []
    assert files(filled) == sorted([STATE, FEATURES, RECORD, MANIFEST])


def test_a_second_store_finds_it(filled: Warned, tmp_path: Path) -> None:
    assert Warned(tmp_path / "results").has(KEY)


def test_strided_tensors_are_stored(store: Warned) -> None:
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    store.save(KEY, {"w": image, "t": OPEN.T}, {"open": OPEN}, {})
    assert torch.equal(store.state(KEY)["w"], image)
    assert torch.equal(store.state(KEY)["t"], OPEN.T)


def test_an_unknown_link_is_not_there(store: Warned) -> None:
    assert not store.has("ffff")
    assert store.warnings == []


def test_a_link_is_invisible_until_all_of_it_is_there(store: Warned, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def looked_at(self: Path, target: Path) -> Path:
        assert not store.has(KEY)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", looked_at)
    store.save(KEY, WEIGHTS, {"open": OPEN}, LOSSES)
    assert store.has(KEY)


def test_of_two_writers_of_a_link_the_first_wins_and_nothing_is_left_over(filled: Warned) -> None:
    filled.save(KEY, WEIGHTS, {"open": OPEN}, {**LOSSES, "seconds": 9.0})
    assert filled.has(KEY)
    assert filled.record(KEY) == LOSSES
    assert [path.name for path in filled.root.iterdir()] == [KEY]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def break_manifest(text: str) -> Callable[[Path], object]:
    return lambda path: (path.parent / MANIFEST).write_text(text)


@pytest.mark.parametrize("name", [STATE, FEATURES, RECORD])
@pytest.mark.parametrize("damage", [truncate, flip_bit, Path.unlink], ids=["truncated", "flipped", "missing"])
def test_a_damaged_file_is_reported_and_never_used(filled: Warned, name: str, damage: Callable[[Path], object]) -> None:
    damage(filled.root / KEY / name)
    with pytest.raises(DamagedError, match=name):
        {STATE: filled.state, FEATURES: filled.features, RECORD: filled.record}[name](KEY)
    assert not filled.has(KEY)
    assert len(filled.warnings) == 1
    assert KEY in filled.warnings[0]
    assert name in filled.warnings[0]
    assert not filled.has(KEY)
    assert len(filled.warnings) == 1, "it is gone: the second look finds nothing to complain of"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"state.safetensors": 3}'])
def test_a_broken_manifest_is_reported(filled: Warned, text: str) -> None:
    break_manifest(text)(filled.root / KEY / STATE)
    assert not filled.has(KEY)
    assert KEY in filled.warnings[0]


def test_a_manifest_of_random_bytes_is_reported(filled: Warned) -> None:
    (filled.root / KEY / MANIFEST).write_bytes(b"\xff\xfe\x00\x80")
    assert not filled.has(KEY)
    assert KEY in filled.warnings[0]


def test_a_damaged_link_can_be_saved_again(filled: Warned) -> None:
    flip_bit(filled.root / KEY / STATE)
    assert not filled.has(KEY)
    filled.save(KEY, WEIGHTS, {"open": OPEN}, LOSSES)
    assert filled.has(KEY)


def test_damage_to_one_link_leaves_the_others(filled: Warned) -> None:
    filled.save("feed", WEIGHTS, {"open": OPEN}, LOSSES)
    flip_bit(filled.root / KEY / STATE)
    assert [filled.has(KEY), filled.has("feed")] == [False, True]


# ---------------------------------------------------------------- unfinished epochs


def test_a_partial_round_trips_and_is_no_link(store: Warned) -> None:
    store.save_partial(KEY, epoch(2, stage=1))
    back = store.partial(KEY)
    assert back is not None
    assert (back.stage, back.epoch, back.record) == (1, 2, {"curves": [], "seconds": 2})
    assert torch.equal(back.tensors["network/w"], torch.full((3,), 2.0))
    assert not store.has(KEY)
    assert store.warnings == []


def test_no_partial(store: Warned) -> None:
    assert store.partial(KEY) is None
    assert store.warnings == []


def test_a_partial_replaces_the_one_before(store: Warned) -> None:
    for number in (1, 2, 3):
        store.save_partial(KEY, epoch(number))
    back = store.partial(KEY)
    assert back is not None
    assert back.epoch == 3
    assert len(list((store.partials / KEY).iterdir())) == 2, "one epoch on disk, not three"


def test_a_partial_is_dropped_when_the_link_is_saved(store: Warned) -> None:
    store.save_partial(KEY, epoch(1))
    store.save(KEY, WEIGHTS, {"open": OPEN}, LOSSES)
    assert store.partial(KEY) is None
    assert files(store) == sorted([STATE, FEATURES, RECORD, MANIFEST])


def test_a_partial_interrupted_while_written_leaves_the_one_before(
    store: Warned, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save_partial(KEY, epoch(1))
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        if Path(target).name == PARTIAL:
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.save_partial(KEY, epoch(2))
    back = store.partial(KEY)
    assert back is not None
    assert back.epoch == 1
    assert torch.equal(back.tensors["network/w"], torch.full((3,), 1.0))


def tensors_of(store: LinkStore) -> Path:
    return next((store.partials / KEY).glob("stage*.safetensors"))


@pytest.mark.parametrize("damage", [truncate, flip_bit, Path.unlink], ids=["truncated", "flipped", "missing"])
def test_a_damaged_partial_is_reported_and_ignored(store: Warned, damage: Callable[[Path], object]) -> None:
    store.save_partial(KEY, epoch(2))
    damage(tensors_of(store))
    assert store.partial(KEY) is None
    assert len(store.warnings) == 1
    assert KEY in store.warnings[0]
    assert not (store.partials / KEY).exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"file": 3}'])
def test_a_broken_partial_record_is_reported_and_ignored(store: Warned, text: str) -> None:
    store.save_partial(KEY, epoch(2))
    (store.partials / KEY / PARTIAL).write_text(text)
    assert store.partial(KEY) is None
    assert KEY in store.warnings[0]


@pytest.mark.parametrize(("old", "new"), [('"epoch": 2', '"epoch": 3'), ('"seconds": 2', '"seconds": 6')])
def test_one_flipped_bit_beside_the_tensors_is_reported_too(store: Warned, old: str, new: str) -> None:
    """Resuming after another epoch than the tensors are of would give another model without a word."""
    store.save_partial(KEY, epoch(2))
    path = store.partials / KEY / PARTIAL
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert store.partial(KEY) is None
    assert KEY in store.warnings[0]


# ---------------------------------------------------------------- hostile surroundings


@pytest.mark.parametrize("in_the_way", ["results", "results/links", "results/runs"])
def test_a_root_that_cannot_be_written_is_refused(tmp_path: Path, in_the_way: str) -> None:
    (tmp_path / in_the_way).parent.mkdir(exist_ok=True)
    (tmp_path / in_the_way).write_text("in the way")
    with pytest.raises(InputError, match="cannot write to") as caught:
        check_writable(tmp_path / "results")
    assert str(tmp_path / "results") in str(caught.value)
    assert "\n" not in str(caught.value)


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", [STATE, FEATURES])
def test_a_pickle_is_refused_and_not_executed(filled: Warned, tmp_path: Path, name: str) -> None:
    mark = tmp_path / "executed"
    payload = pickle.dumps(Bomb(mark))
    (filled.root / KEY / name).write_bytes(payload)
    refresh_checksum(filled, name)
    with pytest.raises(DamagedError, match="does not parse"):
        {STATE: filled.state, FEATURES: filled.features}[name](KEY)
    assert not filled.has(KEY), "it is trained again"
    assert not mark.exists()
    pickle.loads(payload)
    assert mark.exists(), "the bomb would have gone off"


def test_a_pickle_without_a_matching_manifest_is_damage(filled: Warned, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (filled.root / KEY / STATE).write_bytes(pickle.dumps(Bomb(mark)))
    assert not filled.has(KEY)
    assert not mark.exists()
    assert KEY in filled.warnings[0]


def test_a_pickled_partial_is_reported_and_not_executed(store: Warned, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    store.save_partial(KEY, epoch(2))
    tensors_of(store).write_bytes(pickle.dumps(Bomb(mark)))
    path = store.partials / KEY / PARTIAL
    entry = json.loads(path.read_text().partition("\n")[2])
    entry["sha256"] = hashlib.sha256(tensors_of(store).read_bytes()).hexdigest()
    body = json.dumps(entry)
    path.write_text(hashlib.sha256(body.encode()).hexdigest() + "\n" + body)
    assert store.partial(KEY) is None
    assert not mark.exists()
    assert KEY in store.warnings[0]


def test_a_claim_ends_though_a_process_forked_meanwhile_lives_on(tmp_path: Path) -> None:
    """Processes that decode images are forked while a link is trained, and outlive it."""
    store = LinkStore(tmp_path, print)
    reading, writing = os.pipe()
    with store.claim("key"):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the test is over
            os._exit(0)
        with (tmp_path / "claims" / "key").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        waiting = (tmp_path / "claims" / "key").open()
    fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    waiting.close()
    os.close(writing)
    os.close(reading)
    os.waitpid(child, 0)
