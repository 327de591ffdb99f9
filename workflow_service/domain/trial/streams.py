"""Randomness as a function: numpy's Philox counter generator, keyed by (scenario digest, seed, index, stream).

The raw words of Philox are fixed by its definition, so that the same key gives the same numbers on every machine and with every
version of numpy; uniforms and normals are made from them here, by inversion. A longer draw begins with the shorter one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

FloatArray = NDArray[np.float64]

MOST_KEPT = 1 << 21
"""Numbers that are kept, 16 MB, for some 400 seeds: all looks of a trial and all episodes of a seed see the same patients."""
_SHORTEST, _LONGEST = 32, 1 << 16
"""Shorter draws are not worth keeping, longer ones are those of trials that hardly anybody fits."""
_LEAST_DRAWN = 256
"""Drawn at once where a draw is kept, since the next look sees more patients."""


def _digest(scenario_digest: str, seed: int, index: int, stream: str) -> bytes:
    return hashlib.blake2b(f"{scenario_digest}|{seed}|{index}|{stream}".encode(), digest_size=16).digest()


class _Philox:
    """One generator that is set to a key and the counter 0 for each draw: making one anew takes ten times as long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bits = np.random.Philox(key=0)
        # A generator before its first word, with an empty buffer.
        self._start = self._bits.state
        self._key = self._start["state"]["key"]

    def raw(self, key: bytes, n: int) -> NDArray[np.uint64]:
        """The first n words of a key of 16 bytes, the lower half first."""
        with self._lock:
            self._key[:] = np.frombuffer(key, dtype="<u8")
            self._bits.state = self._start
            words: NDArray[np.uint64] = self._bits.random_raw(n)
            return words


_PHILOX = _Philox()


def generator(scenario_digest: str, seed: int, index: int, stream: str) -> np.random.Generator:
    """A generator for the methods that need one; its key is its whole state."""
    key = int.from_bytes(_digest(scenario_digest, seed, index, stream), "little")
    return np.random.Generator(np.random.Philox(key=key))


def few_uniforms(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> list[float]:
    """The same numbers as `uniforms`, as a list: quicker for the handful that a cohort takes."""
    words = _PHILOX.raw(_digest(scenario_digest, seed, index, stream), n).tolist()
    return [((word >> 12) + 0.5) * 2.0**-52 for word in words]


def few_normals(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> list[float]:
    """The same numbers as `normals`, as a list."""
    drawn: list[float] = ndtri(few_uniforms(scenario_digest, seed, index, stream, n)).tolist()
    return drawn


def uniforms(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> FloatArray:
    """N numbers strictly between 0 and 1, shape (n,): the middles of 2^52 equal cells. Not to be written to."""
    return _draw((scenario_digest, seed, index, stream, False), n)


def normals(scenario_digest: str, seed: int, index: int, stream: str, n: int) -> FloatArray:
    """N standard normal numbers, shape (n,). Not to be written to."""
    return _draw((scenario_digest, seed, index, stream, True), n)


_Name = tuple[str, int, int, str, bool]
"""The arguments that name a stream, and whether its numbers are normal."""


class _Draws:
    """Draws by name, the least recently used leaving first when there are too many numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Name, FloatArray] = OrderedDict()
        self._numbers = 0

    def get(self, name: _Name, n: int) -> FloatArray | None:
        """The first n numbers of a stream where so many are kept."""
        with self._lock:
            found = self._kept.get(name)
            if found is None or len(found) < n:
                return None
            self._kept.move_to_end(name)
            return found[:n]

    def put(self, name: _Name, drawn: FloatArray) -> None:
        """Keeps a draw in place of a shorter one."""
        drawn.setflags(write=False)
        with self._lock:
            before = self._kept.pop(name, None)
            self._kept[name] = drawn
            self._numbers += len(drawn) - (0 if before is None else len(before))
            while self._numbers > MOST_KEPT:
                self._numbers -= len(self._kept.popitem(last=False)[1])


_DRAWS = _Draws()


def _draw(name: _Name, n: int) -> FloatArray:
    """The first n numbers of a stream, from a longer draw that is kept where there is one."""
    if not _SHORTEST <= n <= _LONGEST:
        return _fresh(name, n)
    found = _DRAWS.get(name, n)
    if found is None:
        drawn = _fresh(name, max(_LEAST_DRAWN, 1 << (n - 1).bit_length()))
        _DRAWS.put(name, drawn)
        found = drawn[:n]
    return found


def _fresh(name: _Name, n: int) -> FloatArray:
    scenario_digest, seed, index, stream, is_normal = name
    words = _PHILOX.raw(_digest(scenario_digest, seed, index, stream), n)
    drawn = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(ndtri(drawn), dtype=np.float64) if is_normal else drawn


def digest_of(text: str) -> str:
    """A short digest of a text, for keys."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
