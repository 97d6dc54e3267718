"""A seeded sample of the damages of `corruption.py`, and what its verdicts mean."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cl2r.storage.path import LocalPath
from tests.faults.corruption import WAYS, Place, Scene, damages, deleted, emptied, judge, prepared, run_suite, table

SAMPLE = 200


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Scene]]:
    with prepared(LocalPath(tmp_path_factory.mktemp("storages"))) as made:
        yield made


def test_a_damaged_file_is_made_again_or_named_and_never_used(scenes: list[Scene], tmp_path: LocalPath) -> None:
    verdicts = run_suite(scenes, SAMPLE, seed=1, scratch=tmp_path)
    assert [one.problems for one in verdicts if one.problems] == []
    assert {one.word for one in verdicts} == {"same", "rebuilt", "refused"}
    assert f"{SAMPLE} damages" in table(verdicts)
    assert "silently different results: 0\ntracebacks: 0" in table(verdicts)


def test_there_are_at_least_eight_ways_for_every_kind_of_file(scenes: list[Scene], tmp_path: LocalPath) -> None:
    kinds = {(scene.name, kind) for scene in scenes for kind in scene.kinds}
    assert len(kinds) >= 40
    assert len(WAYS) >= 10
    first = damages(scenes, 0)
    cases = [next(first) for _ in range(len(kinds) * len(WAYS))]
    assert len({(scene.name, kind, way.__name__) for scene, kind, way, _ in cases}) == len(cases)


def test_the_same_seed_gives_the_same_damages(scenes: list[Scene]) -> None:
    def begin(seed: int) -> list[str]:
        drawn = damages(scenes, seed)
        return [next(drawn)[3].partition(" ")[2] for _ in range(20)]

    assert begin(0) == begin(0)
    assert begin(0) != begin(1)


@pytest.mark.parametrize(("error", "word"), [(None, "SILENT"), (KeyError("state"), "TRACEBACK")])
def test_what_is_silent_or_a_traceback_is_noticed(
    scenes: list[Scene], tmp_path: LocalPath, error: Exception | None, word: str
) -> None:
    """A reader that uses whatever it finds, and one that fails with any exception."""
    (scene,) = [one for one in scenes if one.name == "study"]

    def read(root: LocalPath) -> int:
        size = (root / "studies" / "small" / "about.json").stat().st_size
        if not size and error is not None:
            raise error
        return size

    careless = Scene("study", scene.kinds, {"size": read}, {}, scene.root, scene.others, {"size": read(scene.root)})
    verdict = judge(careless, "about.json", emptied, "0", tmp_path)
    assert verdict is not None
    assert verdict.word == word
    assert "about.json" in verdict.problems[0]
    fine = judge(careless, "runs frame", deleted, "0", tmp_path)
    assert fine is not None
    assert fine.word == "same"


def test_a_damage_that_changes_nothing_is_not_counted(scenes: list[Scene], tmp_path: LocalPath) -> None:
    (scene,) = [one for one in scenes if one.name == "study"]

    def nothing(place: Place) -> bool:
        return place.rewrite(Path(place.path).read_bytes())

    assert judge(scene, "about.json", nothing, "0", tmp_path) is None
    assert list(tmp_path.iterdir()) == [], "its copy is removed"
