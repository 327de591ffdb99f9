"""Fields as protobuf writes them, to be joined where a whole message would cost more."""

from __future__ import annotations


def tag(number: int) -> bytes:
    """The tag of a length-delimited field."""
    return varint(number << 3 | 2)


def varint(value: int) -> bytes:
    """A number, not negative, as protobuf writes it."""
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [bytes((value,)) for value in range(0x80)]


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field: a message, a text or bytes, joined to whatever stands before it."""
    return varint(number << 3 | 2) + varint(len(data)) + data
