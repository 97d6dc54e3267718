"""What the README says of regimes, checked on the embedded icons. Minutes: `make test-slow`."""

from pathlib import Path

import pytest

from cl2r.config.layers import override, read_layer, resolve
from tests.support.quick import train


def first_upgrade(root: Path, *settings: str) -> float:
    """C[2,1] − C[1,1] on the tuning pairs."""
    layers = [read_layer("icons"), override("scenario.stop_after=2"), *map(override, settings)]
    evaluation = train(resolve(layers), root).tuning
    assert evaluation is not None
    return evaluation.values["BC"]


@pytest.mark.slow
def test_the_fixed_classifier_needs_centred_inputs_or_seen_outputs_only(tmp_path: Path) -> None:
    plain = first_upgrade(tmp_path, "head.centre=false")
    assert first_upgrade(tmp_path, "head.centre=true") > plain + 0.05
    assert first_upgrade(tmp_path, "head.centre=false", "head.mask_unseen=true") > plain + 0.05
