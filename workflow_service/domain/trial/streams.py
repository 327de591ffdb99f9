"""Randomness as a function: numpy's Philox counter generator, keyed by (scenario digest, seed, index, stream).

The raw words of Philox are fixed by its definition, so that the same key gives the same numbers on every machine and with every
version of numpy; uniforms and normals are made from them here, by inversion. A longer draw begins with the shorter one.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

FloatArray = NDArray[np.float64]


def _key(scenario_digest: str, seed: int, index: int, stream: str) -> int:
    text = f"{scenario_digest}|{seed}|{index}|{stream}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(scenario_digest: str, seed: int, index: int, stream: str) -> np.random.Generator:
    """A generator for the methods that need one; its key is its whole state."""
    return np.random.Generator(np.random.Philox(key=_key(scenario_digest, seed, index, stream)))


def uniforms(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> FloatArray:
    """N numbers strictly between 0 and 1, shape (n,): the middles of 2^52 equal cells."""
    words = np.random.Philox(key=_key(scenario_digest, seed, index, stream)).random_raw(n)
    return ((np.asarray(words, dtype=np.uint64) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normals(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> FloatArray:
    """N standard normal numbers, shape (n,)."""
    return np.asarray(ndtri(uniforms(scenario_digest, seed, index, stream, n)), dtype=np.float64)


def digest_of(text: str) -> str:
    """A short digest of a text, for keys."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
