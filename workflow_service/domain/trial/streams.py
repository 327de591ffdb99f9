"""Randomness as a function: numpy's Philox counter generator, keyed by (scenario digest, seed, index, stream).

The raw words of Philox are fixed by its definition, so that the same key gives the same numbers on every machine and with every
version of numpy; uniforms and normals are made from them here, by inversion. A longer draw begins with the shorter one.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

FloatArray = NDArray[np.float64]

SHORTEST_KEPT, LONGEST_KEPT = 32, 1 << 16
"""Shorter draws are not worth keeping, longer ones are those of trials that hardly anybody fits."""
LEAST_KEPT, FEW = 256, 1024
"""Numbers of the shortest draw that is kept, and of the longest of which many are kept."""


def _digest(scenario_digest: str, seed: int, index: int, stream: str) -> bytes:
    return hashlib.blake2b(f"{scenario_digest}|{seed}|{index}|{stream}".encode(), digest_size=16).digest()


class _Philox:
    """A generator that is set to a key and the counter 0 for each draw: making one anew takes ten times as long."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        # A generator before its first word, with an empty buffer.
        self._start = self._bits.state
        self._key = self._start["state"]["key"]

    def raw(self, key: bytes, n: int) -> NDArray[np.uint64]:
        """The first n words of a key of 16 bytes, the lower half first."""
        self._key[:] = np.frombuffer(key, dtype="<u8")
        self._bits.state = self._start
        words: NDArray[np.uint64] = self._bits.random_raw(n)
        return words


_IDLE: list[_Philox] = []
"""Generators that nobody draws from now: one, or where several threads draw at once, as many."""


def _raw(key: bytes, n: int) -> NDArray[np.uint64]:
    try:
        philox = _IDLE.pop()
    except IndexError:
        philox = _Philox()
    words = philox.raw(key, n)
    _IDLE.append(philox)
    return words


def generator(scenario_digest: str, seed: int, index: int, stream: str) -> np.random.Generator:
    """A generator for the methods that need one; its key is its whole state."""
    key = int.from_bytes(_digest(scenario_digest, seed, index, stream), "little")
    return np.random.Generator(np.random.Philox(key=key))


def few_uniforms(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> list[float]:
    """The same numbers as `uniforms`, as a list: quicker for the handful that a cohort takes."""
    words = _raw(_digest(scenario_digest, seed, index, stream), n).tolist()
    return [((word >> 12) + 0.5) * 2.0**-52 for word in words]


def few_normals(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> list[float]:
    """The same numbers as `normals`, as a list."""
    drawn: list[float] = ndtri(few_uniforms(scenario_digest, seed, index, stream, n)).tolist()
    return drawn


def uniforms(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> FloatArray:
    """N numbers strictly between 0 and 1, shape (n,): the middles of 2^52 equal cells. Not to be written to."""
    return _draw(scenario_digest, seed, index, stream, False, n)


def normals(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> FloatArray:
    """N standard normal numbers, shape (n,). Not to be written to."""
    return _draw(scenario_digest, seed, index, stream, True, n)


def _draw(scenario_digest: str, seed: int, index: int, stream: str, is_normal: bool, n: int) -> FloatArray:
    """The first n numbers of a stream, from a longer draw that is kept where that is worth it."""
    if not SHORTEST_KEPT <= n <= LONGEST_KEPT:
        return _fresh(scenario_digest, seed, index, stream, is_normal, n)
    # Rounded up, so that the next look, which sees more patients, need not draw again.
    size = max(LEAST_KEPT, 1 << (n - 1).bit_length())
    kept = _kept if size <= FEW else _kept_long
    return kept(scenario_digest, seed, index, stream, is_normal, size)[:n]


def _fresh(scenario_digest: str, seed: int, index: int, stream: str, is_normal: bool, n: int) -> FloatArray:
    words = _raw(_digest(scenario_digest, seed, index, stream), n)
    drawn = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    drawn = np.asarray(ndtri(drawn), dtype=np.float64) if is_normal else drawn
    drawn.setflags(write=False)
    return drawn


# All looks of a trial and all episodes of a seed see the same patients, who take some twenty draws: 8 MB and 32 MB at most.
_kept = lru_cache(maxsize=1024)(_fresh)
_kept_long = lru_cache(maxsize=64)(_fresh)


def digest_of(text: str) -> str:
    """A short digest of a text, for keys."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
