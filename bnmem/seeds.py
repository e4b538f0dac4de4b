"""Independent random streams, one a purpose, so that changing one never moves another."""

import numpy as np

from bnmem.errors import InputError

# Append only: a stream is known by its position, and records depend on it.
PURPOSES = ("init", "order", "corrupt", "mask", "noise", "bias", "canary", "dropout")


def rng(seed: int, purpose: str) -> np.random.Generator:
    """The stream of one purpose under one seed; equal arguments give an equal stream.

    Raises InputError for an unknown purpose or a negative seed.
    """
    if purpose not in PURPOSES:
        raise InputError(f"unknown random stream {purpose!r}; choose one of {', '.join(PURPOSES)}")
    if seed < 0:
        raise InputError(f"seed must be 0 or larger, not {seed}")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose),)))


def torch_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for ``torch.manual_seed``, drawn from the stream of that purpose."""
    return int(rng(seed, purpose).integers(2**63))
