"""One seed, many independent named random streams.

Every random decision of a run (class order, initial weights, memory, batches, augmentation, pairs, bootstrap) has its
own stream, addressed by a name and, if it applies, a task and an epoch. So a change of one decision never changes
another, and a resumed run can enter any stream without replaying earlier ones.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch  # imported where it is needed: data sets can be listed and checked without it

MAX_SEED = 2**63 - 1


def derive(seed: int, name: str, *indices: int) -> int:
    """Return a 63-bit seed for the stream `name` at `indices`, a pure function of its arguments."""
    text = "/".join([str(seed), name, *map(str, indices)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") & MAX_SEED


def numpy_stream(seed: int, name: str, *indices: int) -> np.random.Generator:
    """Return the numpy generator of the stream."""
    return np.random.Generator(np.random.PCG64(derive(seed, name, *indices)))


def torch_stream(seed: int, name: str, *indices: int) -> "torch.Generator":
    """Return the torch (CPU) generator of the stream."""
    import torch

    return torch.Generator().manual_seed(derive(seed, name, *indices))
