"""Curricula: which tier and scenario a run's next trial gets, from how its earlier ones went.

Source: "Curriculum" of the workflow rules. A tier is judged by its last ten episodes, and only once there are ten since it was
entered, so that one lucky episode never advances a run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from workflow_service.domain.trial.choices import Tier

WINDOW = 10
"""A tier is judged by so many last episodes, and never by fewer."""

ADVANCE_ONE, ADVANCE_TWO, STEP_BACK = 0.7, 0.9, 0.3
"""Success rates: from the first on, one tier up; from the second on, two; below the third, one down."""

WEAK_SHARE = 70
"""Per cent of the episodes that go to the scenario with the lowest success rate; the rest are spread evenly."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How a run has fared in one scenario at one tier. `recent` holds the last outcomes, oldest first, at most WINDOW."""

    tier: Tier
    scenario: str
    episodes: int = 0
    successes: int = 0
    recent: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Curriculum:
    """A run's state. `recent` holds the outcomes at the present tier since it was entered, oldest first, at most WINDOW.

    `revision` rises by one with every change. `scenarios` is what it chooses from; all there are where empty.
    """

    curriculum_id: str
    tier: Tier = Tier.WARMUP
    scenarios: tuple[str, ...] = ()
    recent: tuple[bool, ...] = ()
    tallies: tuple[Tally, ...] = ()
    revision: int = 0
    update_ms: int = 0


def recorded(curriculum: Curriculum, tier: Tier, scenario: str, success: bool, now_ms: int) -> Curriculum:
    """The curriculum after one more finished episode; one of another tier than the present is counted but judges nothing."""
    tallies = {(t.tier, t.scenario): t for t in curriculum.tallies}
    tally = tallies.get((tier, scenario), Tally(tier, scenario))
    tallies[tier, scenario] = replace(
        tally,
        episodes=tally.episodes + 1,
        successes=tally.successes + success,
        recent=(*tally.recent, success)[-WINDOW:],
    )
    recent = (*curriculum.recent, success)[-WINDOW:] if tier is curriculum.tier else curriculum.recent
    after = _judged(curriculum.tier, recent)
    return replace(
        curriculum,
        tier=after,
        recent=recent if after is curriculum.tier else (),
        tallies=tuple(sorted(tallies.values(), key=lambda t: (t.tier.value, t.scenario))),
        revision=curriculum.revision + 1,
        update_ms=now_ms,
    )


def _judged(tier: Tier, recent: tuple[bool, ...]) -> Tier:
    if len(recent) < WINDOW:
        return tier
    rate = sum(recent) / len(recent)
    step = 2 if rate >= ADVANCE_TWO else 1 if rate >= ADVANCE_ONE else -1 if rate < STEP_BACK else 0
    return Tier(min(max(tier.value + step, Tier.WARMUP.value), Tier.EXPERT.value))


def chosen_scenario(curriculum: Curriculum, offered: tuple[str, ...], seed: int) -> str:
    """The scenario of the episode with this seed: mostly the weakest at the present tier, a function of curriculum and seed.

    `offered` is not empty. A scenario without outcomes counts as the weakest of all.
    """
    among = tuple(s for s in offered if s in curriculum.scenarios) or offered
    rates = {t.scenario: sum(t.recent) / len(t.recent) for t in curriculum.tallies if t.tier is curriculum.tier and t.recent}
    drawn = hashlib.blake2b(f"{curriculum.curriculum_id}|{curriculum.revision}|{seed}".encode(), digest_size=8).digest()
    if drawn[0] * 100 < WEAK_SHARE * 256:
        return min(among, key=lambda s: (rates.get(s, -1.0), s))
    return among[int.from_bytes(drawn[1:], "big") % len(among)]
