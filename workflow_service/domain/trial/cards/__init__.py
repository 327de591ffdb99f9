"""The scenario cards: one module for each simulated drug and disease, facts as data.

Numbers come from "Scenario cards to start from" of the trial science; what that table leaves open (endpoints, criteria, toxicity
of each dose, assays) is chosen here to be plausible for the drug that each card parallels.
"""

from __future__ import annotations

from workflow_service.domain.trial.cards.autoimmune import AUTOIMMUNE_BIOLOGIC
from workflow_service.domain.trial.cards.card import Card
from workflow_service.domain.trial.cards.depression import CNS_DEPRESSION
from workflow_service.domain.trial.cards.rare_disease import RARE_DISEASE_ORPHAN
from workflow_service.domain.trial.cards.solid_tumor import SOLID_TUMOR_CHEMO

CARDS: dict[str, Card] = {card.id: card for card in (SOLID_TUMOR_CHEMO, AUTOIMMUNE_BIOLOGIC, CNS_DEPRESSION, RARE_DISEASE_ORPHAN)}
"""The cards by scenario id, in the catalogue's order."""
