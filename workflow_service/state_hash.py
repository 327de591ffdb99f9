"""The digest of an episode's state, by which replicas, forks and replays know that they mean the same game.

It is taken of the whole state at every step, so the encoding is msgspec's: written in C, it costs less than remembering what
changed since the last step, and nothing has to be kept for it. Only values of one class are compared with each other, so that
fields of equal place and name mean the same.
"""

from __future__ import annotations

import hashlib

import msgspec

from trialgym.rpc.encoding import DIGEST_BYTES

_encode = msgspec.msgpack.Encoder().encode


def state_hash(state: object) -> str:
    """The digest of a state, 32 lower-case hex digits.

    A state consists of None, bool, int, finite float, str, Enum with such a value, tuple and frozen dataclass. -0.0 is another
    number than 0.0 here: actions are rid of it where they are read. Raises TypeError for a value of any other class.
    """
    return hashlib.blake2b(_encode(state), digest_size=DIGEST_BYTES).hexdigest()
