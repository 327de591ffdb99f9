"""Our own encoding: one for each value, equal everywhere."""

from __future__ import annotations

import math
import os
import random
import struct
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc.encoding import digest, encode
from trialgym.v1 import action_pb2, episode_pb2, finding_pb2, score_pb2


class Colour(Enum):
    """An enum."""

    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Empty:
    """A value without fields."""


@dataclass(frozen=True)
class Point:
    """A value with fields of several kinds."""

    x: float
    colour: Colour | None = None


@dataclass(frozen=True)
class Single:
    """A value with one field."""

    only: Any


GOLDEN: list[tuple[Any, str]] = [
    (None, "4e"),
    (True, "54"),
    (False, "46"),
    (0, "490000000130"),
    (-7, "49000000022d37"),
    (10**30, "490000001f31" + "30" * 30),
    (0.5, "523fe0000000000000"),
    (-0.0, "520000000000000000"),
    ("", "5300000000"),
    ("é", "5300000002c3a9"),
    (b"\x00\xff", "420000000200ff"),
    ((), "4c00000000"),
    ([1], "4c00000001490000000131"),
    ({}, "4d00000000"),
    ({"b": 1, "a": None}, "4d00000002530000000161" + "4e" + "530000000162" + "490000000131"),
    (Colour.RED, "450000000a436f6c6f75722e524544"),
    (Empty(), "4400000005456d70747900000000"),
    (Single("a"), "440000000653696e676c6500000001530000000161"),
    (Point(0.5, Colour.BLUE), "4400000005506f696e7400000002523fe0000000000000450000000b436f6c6f75722e424c5545"),
]
"""Written out by hand from the module's description; they never change, for stored hashes would lose their meaning."""


@pytest.mark.parametrize(("value", "expected"), GOLDEN, ids=lambda value: repr(value)[:40])
def test_encodings_never_change(value: Any, expected: str) -> None:
    """A value's encoding is the one written down, in every release."""
    assert encode(value).hex() == expected


DIGESTS: list[tuple[Any, str]] = [
    (None, "738096e476d3c5447c3cb95c39bfc964"),
    ({"b": [1, 2.5, "x"], "a": {"z": None}}, "6ac2826eae632d8350713216ecff061b"),
    (Point(1 / 3, Colour.RED), "9cf04a59bd26e1291b2918a3a97fcd49"),
    (action_pb2.Action(malformed={"raw_text": "?"}), "4e95bfbee3c0cc52ec7ff79e21b5de05"),
    (
        finding_pb2.Submission(findings=[{"type": "FINDING_TYPE_ADVERSE_EVENT", "severity": "SEVERITY_MAJOR"}], rationale="é"),
        "e3432f047ecdd1e4e6971d2837e6584b",
    ),
    (
        episode_pb2.Episode(seed=7, labels={"k": "v", "a": ""}, review={"task": "tasks/x"}, ttl={"seconds": 9}),
        "abac33e8c700ec9e95e5690d920abc32",
    ),
]


@pytest.mark.parametrize(("value", "expected"), DIGESTS, ids=range(len(DIGESTS)))
def test_digests_never_change(value: Any, expected: str) -> None:
    """128 bits of BLAKE2b over the encoding, as 32 lower-case hex digits."""
    assert digest(value) == expected


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.binary(),
    st.sampled_from(Colour),
    st.builds(Empty),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.builds(Single, inner),
    ),
    max_leaves=12,
)


def canonical(value: Any) -> Any:
    """A value with what the encoding holds equal made equal, and what it tells apart told apart (Python has True == 1 == 1.0)."""
    match value:
        case float():
            return ("float", struct.pack(">d", value + 0.0))
        case list() | tuple():
            return ("list", tuple(map(canonical, value)))
        case dict():
            return ("dict", tuple((key, canonical(value[key])) for key in sorted(value)))
        case Single(only):
            return ("single", canonical(only))
        case _:
            return (type(value).__name__, value)


@given(values, values)
def test_encodings_are_equal_exactly_where_values_are(one: Any, other: Any) -> None:
    """No two different values share an encoding, and no value has two."""
    assert (encode(one) == encode(other)) == (canonical(one) == canonical(other))


@given(st.dictionaries(st.text(), scalars, max_size=8), st.randoms())
def test_the_order_of_insertion_does_not_matter(mapping: dict[str, Any], rng: random.Random) -> None:
    """Dictionaries are encoded by sorted key."""
    pairs = list(mapping.items())
    rng.shuffle(pairs)
    assert encode(dict(pairs)) == encode(mapping)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=8), st.randoms())
def test_equal_messages_have_equal_encodings(labels: dict[str, str], rng: random.Random) -> None:
    """Maps in another order, a detour over the wire and defaults that were set on purpose change nothing."""
    pairs = list(labels.items())
    rng.shuffle(pairs)
    one, other = episode_pb2.Episode(labels=labels), episode_pb2.Episode(seed=0, state_hash="", labels=dict(pairs))
    assert encode(one) == encode(other) == encode(episode_pb2.Episode.FromString(other.SerializeToString()))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [1.0, math.nan], {"a": math.inf}, Point(math.nan)])
def test_what_is_not_finite_has_no_encoding(value: Any) -> None:
    """NaN differs from itself, so no digest may cover it."""
    with pytest.raises(ValueError, match="finite"):
        encode(value)
    with pytest.raises(ValueError, match="finite"):
        encode(score_pb2.Score(value=math.nan))


@pytest.mark.parametrize("value", [{1, 2}, object(), 1j, range(3), bytearray(b"x"), [object()], {"a": {1}}])
def test_what_has_no_order_has_no_encoding(value: Any) -> None:
    """A type that the encoding does not know is an error at once, never a text made up for it."""
    with pytest.raises(TypeError, match="has no encoding"):
        encode(value)


def test_minus_zero_is_zero_in_messages_too() -> None:
    """proto3 sends -0.0 though it leaves 0.0 out; a client whose language writes one or the other asks for the same."""
    for cls, field in ((score_pb2.Score, "value"), (score_pb2.ScoreComponent, "points")):
        assert cls(**{field: -0.0}).SerializeToString() != cls().SerializeToString(), "protobuf still tells them apart"
        assert encode(cls(**{field: -0.0})) == encode(cls(**{field: 0.0})) == encode(cls())
    assert encode(finding_pb2.Evidence(number=-0.0)) == encode(finding_pb2.Evidence(number=0.0)) != encode(finding_pb2.Evidence())
    assert encode(action_pb2.InterimPlan(information_fractions=[-0.0])) == encode(
        action_pb2.InterimPlan(information_fractions=[0.0])
    )


HASHES = """
import random, sys
from trialgym.rpc.encoding import digest
from trialgym.v1 import episode_pb2
pairs = [(f"key{i}", f"value{i}") for i in range(16)]
random.Random(int(sys.argv[1])).shuffle(pairs)
print(digest([dict(pairs), episode_pb2.Episode(labels=dict(pairs)), {"set": sorted({"b", "a", "c"})}]))
"""


def test_digests_do_not_depend_on_the_process() -> None:
    """Under any hash seed and any order of insertion the digest is the same."""
    seen = set()
    for seed in range(6):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", HASHES, str(seed)]
        seen.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert len(seen) == 1
