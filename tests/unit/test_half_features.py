"""Feature stores in float16: half the bytes, the matrix all but the same, and never an infinite value."""

from pathlib import Path

import numpy as np
import pytest
import torch
from quick import quick_config, train
from safetensors.torch import load_file

from cl2r.engine.link_features import in_precision
from cl2r.engine.plan import plan_run
from cl2r.engine.store import LinkStore
from cl2r.errors import TrainingError

HALF = {"eval": {"features": "float16"}}


def test_links_keep_half_the_bytes_and_the_matrix(tiny: Path, tmp_path: Path) -> None:
    plain, half = quick_config(tiny), quick_config(tiny, HALF)
    before, after = train(plain, tmp_path / "plain"), train(half, tmp_path / "half")
    for config, place, kind in ((plain, "plain", torch.float32), (half, "half", torch.float16)):
        key = plan_run(config).keys[-1]
        kept = load_file(tmp_path / place / "links" / key / "features.safetensors")
        assert {tensor.dtype for tensor in kept.values()} == {kind}
        read = LinkStore(tmp_path / place, pytest.fail).features(key)
        assert {tensor.dtype for tensor in read.values()} == {torch.float32}
    np.testing.assert_allclose(after.report.matrix, before.report.matrix, atol=0.02)
    assert [link.record["curves"][-1]["loss_ce"] for link in after.links] == [
        link.record["curves"][-1]["loss_ce"] for link in before.links
    ], "training does not depend on how features are kept"


def test_float16_rounds_to_eleven_bits(tiny: Path) -> None:
    features = {"open": torch.tensor([[1.0 + 2**-12, 1.0 + 2**-10]])}
    assert in_precision(features, "float16")["open"].tolist() == [[1.0, 1.0 + 2**-10]]
    assert in_precision(features, "float32") is features


def test_what_float16_cannot_hold_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"eval.features=float16: open has values above 65504"):
        in_precision({"open": torch.tensor([[7e4]])}, "float16")
