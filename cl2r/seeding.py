"""One seed, many independent named random streams.

Every random decision of a run (class order, initial weights, memory, batches, augmentation, pairs, bootstrap)
draws from its own stream, addressed by a name and, where it applies, a task and an epoch. So a change of one
decision never shifts another, and a resumed run can re-enter any stream without replaying those before it.
"""

import hashlib

import numpy as np
import torch

MAX_SEED = 2**63 - 1


def derive(seed: int, name: str, *indices: int) -> int:
    """A 63-bit seed for the stream `name` at `indices`, a pure function of its arguments."""
    text = "/".join([str(seed), name, *map(str, indices)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") & MAX_SEED


def numpy_stream(seed: int, name: str, *indices: int) -> np.random.Generator:
    """The numpy generator of the stream."""
    return np.random.Generator(np.random.PCG64(derive(seed, name, *indices)))


def torch_stream(seed: int, name: str, *indices: int) -> torch.Generator:
    """The torch (CPU) generator of the stream."""
    return torch.Generator().manual_seed(derive(seed, name, *indices))
