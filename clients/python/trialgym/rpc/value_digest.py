"""Digests of plain values, for what is digested at every step: the state of an episode, and what an answer sheet says.

The encoding is msgspec's MessagePack: written in C, it takes a whole state in less time than remembering what changed since the
last step would. It has no names of classes in it and takes tuples for lists, so it serves where only values of one kind are
compared. `encoding` has the digests for everything else.
"""

from __future__ import annotations

import hashlib

import msgspec

from trialgym.rpc.encoding import DIGEST_BYTES

_encode = msgspec.msgpack.Encoder().encode


def value_digest(value: object) -> str:
    """The digest of a value, 32 lower-case hex digits.

    The value consists of None, bool, int, finite float, str, Enum with such a value, tuple, list and frozen dataclass. -0.0 is
    another number than 0.0 here; what clients send is rid of it where it is read. Raises TypeError for any other class.
    """
    return hashlib.blake2b(_encode(value), digest_size=DIGEST_BYTES).hexdigest()
