"""The catalogue of scenarios for readers: public cards, no numbers of a seed."""

from __future__ import annotations

from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.view import Scenario


def catalogue() -> tuple[Scenario, ...]:
    """The scenarios that can be played, in the catalogue's order; each at every tier."""
    return tuple(
        Scenario(f"scenarios/{card.id}", card.title, f"{card.disease}. {card.description}", tuple(Tier)) for card in CARDS.values()
    )


def scenario_ids() -> tuple[str, ...]:
    """The ids that a start may name."""
    return tuple(CARDS)
