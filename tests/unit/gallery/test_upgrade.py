"""Upgrade checks: three accuracies on labelled pairs, their differences, and the cost of indexing again."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cl2r.gallery import upgrade
from cl2r.gallery.gallery import Gallery
from cl2r.gallery.upgrade import Difference, Sample, UpgradeCheck
from cl2r.storage.path import LocalPath, at
from cl2r.study.folder import StudyFolder
from cl2r.verification import verification_accuracy
from tests.support.command_line import Command
from tests.support.galleries import Trained, indexed, refused, write_images


@pytest.fixture(scope="module")
def gallery(chain: Trained, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    root = tmp_path_factory.mktemp("upgrade")
    order = np.argsort(chain.plan.dataset.y_open, kind="stable")
    write_images(root / "images", chain.images[order], per_class=len(order) // 6)
    return indexed(root / "images", root / "gallery", chain.model(1))


def slow_accuracy(pairs: pd.DataFrame, query: dict[str, np.ndarray], stored: dict[str, np.ndarray]) -> float:
    distances = [2 - 2 * float(query[a] @ stored[b]) for a, b in zip(pairs["query"], pairs["gallery"], strict=True)]
    return verification_accuracy(np.array(distances), pairs["same"].to_numpy(), 10)


def by_id(gallery: Gallery, chain: Trained, task: int) -> dict[str, np.ndarray]:
    order = np.argsort(chain.plan.dataset.y_open, kind="stable")
    return dict(zip(sorted(gallery.items()["id"]), chain.vectors(task)[order], strict=True))


def test_the_three_accuracies(gallery: Gallery, chain: Trained) -> None:
    """They are computed pair by pair from the features in the links."""
    pairs = upgrade.draw_pairs(gallery, 300)
    sample = UpgradeCheck(gallery, chain.model(1), chain.model(3)).sample(pairs)
    old, new = by_id(gallery, chain, 1), by_id(gallery, chain, 3)
    slow = [slow_accuracy(pairs, *sides) for sides in ((old, old), (new, old), (new, new))]
    assert [sample.old, sample.cross, sample.new] == pytest.approx(slow, abs=1e-9)
    assert sample.change.low <= sample.change.value <= sample.change.high
    assert sample.change.value == pytest.approx(sample.cross - sample.old, abs=0.01), "folds may differ in size"


def test_pairs_are_drawn_from_labels(gallery: Gallery) -> None:
    pairs, items = upgrade.draw_pairs(gallery, 200), gallery.items().set_index("id")["label"]
    same = items[pairs["query"]].to_numpy() == items[pairs["gallery"]].to_numpy()
    assert list(same) == list(pairs["same"])
    assert not (pairs["query"] == pairs["gallery"]).any()
    assert upgrade.draw_pairs(gallery, 200).equals(pairs)


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-0.009, 0.1, "safe"), (-0.2, -0.011, "not safe"), (-0.02, 0.02, "not known")]
)
def test_the_verdict(low: float, high: float, verdict: str) -> None:
    change = Difference((low + high) / 2, low, high)
    assert Sample(9, 0.5, 0.5, 0.5, change, change, 1.0).verdict(0.01) == verdict


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.009, 0.1, ["can search", "+0.046 [-0.009, +0.100]", "lies above -0.010"]),
        (-0.2, -0.011, ["should not search", "lies below -0.010", "Indexing them again would change it by +0.300"]),
        (-0.02, 0.02, ["do not tell", "holds -0.010", "More labelled pairs would tell"]),
    ],
)
def test_a_sentence_explains_the_verdict(
    gallery: Gallery, chain: Trained, low: float, high: float, words: list[str]
) -> None:
    change, gain = Difference((low + high) / 2, low, high), Difference(0.3, 0.2, 0.4)
    sample = Sample(9, 0.5, 0.5, 0.5, change, gain, 1.0)
    answer = UpgradeCheck(gallery, chain.model(1), chain.model(3)).answer(sample, 0.01)
    assert all(word in answer.sentence for word in words), answer.sentence
    assert answer.verdict == sample.verdict(0.01)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a,b\n1,2\n", "'query'"),
        ("query,gallery,same\nx,y,maybe\n", "line 2"),
        ("query,gallery,same\nx,y,1\nx,z,0\n", "at least 2"),
        ("query,gallery,same\nx,x,1\nx,y,1\nx,z,0\nx,w,0\n", "'x'"),
        ("\x00\xff", "does not parse"),
    ],
)
def test_a_wrong_list_of_pairs_is_refused(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes(text.encode("latin-1"))
    with refused(path, part):
        upgrade.read_pairs(path)


def test_pairs_of_images_outside_the_gallery_are_refused(gallery: Gallery, chain: Trained) -> None:
    pairs = upgrade.draw_pairs(gallery, 20)
    pairs.loc[3, "query"] = "../../etc/passwd"
    with refused("--pairs", "../../etc/passwd"):
        UpgradeCheck(gallery, chain.model(1), chain.model(3)).sample(pairs)


def test_the_command_shows_matrix_and_sample(gallery: Gallery, chain: Trained, tmp_path: Path, cl2r: Command) -> None:
    upgrade.draw_pairs(gallery, 100).assign(same=lambda pairs: pairs["same"].astype(int)).to_csv(tmp_path / "p.csv")
    words = ["upgrade-check", gallery.root, "--old", f"{chain.run}@1", "--new", f"{chain.run}@3"]
    words += ["--storage", chain.storage, "--pairs", tmp_path / "p.csv"]
    code, out, err = cl2r(*words, "--price", 10, "--tolerance", 1)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["upgrade", "matrix", "sample", "change", "gain", "cost"]
    matrix = pd.read_parquet(chain.folder / "matrix.parquet").query("pairs == 'report'").set_index(["t", "k"])
    old, cross, new = (matrix.loc[cell, "accuracy"] for cell in ((1, 1), (3, 1), (3, 3)))
    assert f"old {old:.3f}  cross {cross:.3f}  new {new:.3f}" in out
    assert f"{gallery.commit.items:,} images" in out


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("low", "high", "verdict", "expected"),
    [(0.0, 0.1, "safe", 0), (-0.2, -0.1, "not safe", 3), (-0.2, 0.1, "not known", 4)],
)
def test_the_exit_code_is_the_verdict(
    gallery: Gallery,
    chain: Trained,
    cl2r: Command,
    monkeypatch: pytest.MonkeyPatch,
    low: float,
    high: float,
    verdict: str,
    expected: int,
    as_json: bool,
    tmp_path: Path,
) -> None:
    found = Sample(60, 0.4, 0.5, 0.6, Difference(0.0, low, high), Difference(0.0, 0.0, 0.0), 1.0)
    monkeypatch.setattr(UpgradeCheck, "sample", lambda self, pairs: found)
    words = ["upgrade-check", gallery.root, "--old", f"{chain.run}@1", "--new", f"{chain.run}@3"]
    code, out, err = cl2r(*words, "--storage", chain.storage, *["--json"][: int(as_json)])
    assert (code, err) == (expected, "")
    if as_json:
        (tmp_path / "check.json").write_text(out)
        assert upgrade.read_answer(tmp_path / "check.json") == UpgradeCheck(
            gallery, chain.model(1), chain.model(3)
        ).answer(found, 0.01)
        entry = json.loads(out)
        assert entry["verdict"] == verdict
        assert (entry["old_model"], entry["new_model"]) == (f"{chain.run}@1", f"{chain.run}@3")
        assert (entry["old"], entry["cross"], entry["new"]) == (0.4, 0.5, 0.6)
    else:
        assert out.splitlines()[0] == f"upgrade  {chain.run}@1 → {chain.run}@3: {verdict}"


def test_an_exported_model_has_no_matrix(gallery: Gallery, chain: Trained, tmp_path: Path, cl2r: Command) -> None:
    for task in (1, 3):
        cl2r("export", f"{chain.run}@{task}", tmp_path / f"m{task}", "--storage", chain.storage)
    words = ["upgrade-check", gallery.root, "--old", tmp_path / "m1", "--new", tmp_path / "m3", "--sample", 60]
    code, out, _ = cl2r(*words, "--storage", tmp_path / "none", "--tolerance", 1)
    assert code == 0
    assert "matrix   not at hand" in out.splitlines()[1]


def test_the_matrix_of_a_run_inside_a_study(chain: Trained, tmp_path: Path) -> None:
    rows = pd.read_parquet(chain.folder / "matrix.parquet").to_dict("records")
    StudyFolder(tmp_path, "some").ledger.write("finished", "a-run", {"frames": {"matrix": rows}})
    cells = upgrade.run_matrix("a-run", tmp_path)
    assert cells == upgrade.run_matrix(chain.run, chain.storage)
    assert set(cells) == {(t, k) for t in (1, 2, 3) for k in range(1, t + 1)}
    assert upgrade.run_matrix("another", tmp_path) == {}


def forged(content: bytes) -> bytes:
    return pd.read_parquet(io.BytesIO(content)).assign(accuracy=0.5).to_parquet(index=False)


@pytest.mark.parametrize("change", [forged, lambda content: b"junk", lambda content: b"", None])
def test_a_frame_that_does_not_fit_its_seal_is_named_and_not_used(
    chain: Trained, tmp_path: LocalPath, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(chain.folder, tmp_path / "runs" / chain.run)
    path, expected = folder / "matrix.parquet", upgrade.run_matrix(chain.run, at(chain.storage))
    rows = pd.read_parquet(path).to_dict("records")
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    assert upgrade.run_matrix(chain.run, tmp_path) == {}
    assert f"{path} is {'damaged' if change else 'missing'}" in caplog.text
    StudyFolder(tmp_path, "some").ledger.write("finished", chain.run, {"frames": {"matrix": rows}})
    assert upgrade.run_matrix(chain.run, tmp_path) == expected != {}
    (event,) = (tmp_path / "studies" / "some" / "ledger").list("*.json")
    event.write_bytes(b"junk")
    assert upgrade.run_matrix(chain.run, tmp_path) == {}
    assert f"{event} is damaged" in caplog.text


def test_a_folder_of_that_name_elsewhere_is_not_the_run(
    chain: Trained, tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(chain.folder, tmp_path / chain.run)
    monkeypatch.chdir(tmp_path)
    assert upgrade.run_matrix(chain.run, tmp_path / "empty") == {}
