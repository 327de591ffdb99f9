"""A step does what it always did: games by many players against the digests that were stored of them."""

from __future__ import annotations

import pytest

from workflow_service.tests.trial import golden


def unequal(slow: bool) -> list[str]:
    """The games that went another way than the stored ones."""
    stored, now = golden.stored(slow), golden.capture(slow)
    assert stored.keys() == now.keys()
    return [name for name, digest in now.items() if stored[name] != digest]


def test_every_kind_of_player_sees_what_was_seen_before() -> None:
    assert unequal(slow=False) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_player_in_every_setting_sees_what_was_seen_before() -> None:
    assert unequal(slow=True) == []
