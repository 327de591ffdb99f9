"""The words of the feedback: facts first, then the reviewer's tone, which the tier's persona sets and which changes no number."""

from __future__ import annotations

from dataclasses import dataclass

from workflow_service.domain.environment import ActionType, Prerequisite
from workflow_service.domain.trial.choices import Tier


@dataclass(frozen=True, slots=True)
class Tone:
    """How a persona speaks of a move: in order, out of effect, behind the frontier, ahead of it, repeated."""

    forward: str
    idle: str
    back: str
    skip: str
    redundant: str


TONES: dict[Tier, Tone] = {
    Tier.WARMUP: Tone(
        "Nice, that is where I would go as well.",
        "That is done now, though it did not bring the trial further.",
        "We are back in an earlier phase; that is fine, it just does not count as progress.",
        "Careful, we have jumped over {n} phase(s) that I would have expected first.",
        "We had this one already, and nothing has changed since.",
    ),
    Tier.BEGINNER: Tone(
        "Good, in order.",
        "Noted, but it moves nothing.",
        "An earlier phase again; no progress, no harm.",
        "{n} phase(s) were passed over. That costs.",
        "This repeats what was done before.",
    ),
    Tier.INTERMEDIATE: Tone(
        "In order.",
        "No progress.",
        "Behind the frontier.",
        "{n} phase(s) skipped; a protocol is built in sequence.",
        "A repetition without new information.",
    ),
    Tier.ADVANCED: Tone(
        "As expected.",
        "This adds nothing.",
        "Behind the frontier; plan ahead.",
        "{n} phase(s) skipped. I would not sign this.",
        "Repeated work is charged at this level.",
    ),
    Tier.EXPERT: Tone(
        "Proceed.",
        "No value.",
        "Late.",
        "{n} phase(s) skipped. Unacceptable.",
        "Redundant, and charged.",
    ),
}

PREREQUISITE_WORDS: dict[Prerequisite, str] = {
    Prerequisite.DOSE_ESCALATION_RUN: "at least one dose-escalation cohort",
    Prerequisite.EFFECT_SIZE_ESTIMATED: "an estimate of the effect size",
    Prerequisite.PRIMARY_ENDPOINT_SET: "a primary endpoint",
    Prerequisite.SAMPLE_SIZE_SET: "a sample size",
    Prerequisite.FDA_APPROVED: "an approved protocol",
    Prerequisite.INTERIM_ANALYSIS_RUN: "an interim analysis",
    Prerequisite.PRIMARY_ANALYSIS_RUN: "the primary analysis",
    Prerequisite.PATIENT_EXPOSED: "a patient exposed to the drug",
    Prerequisite.FDA_HOLD: "a hold to answer",
    Prerequisite.AMENDMENT_LEFT: "an amendment that is left",
    Prerequisite.BUDGET: "the money it costs",
    Prerequisite.TIME: "the time it takes",
    Prerequisite.PACKET_OPEN: "an open review packet of that family",
    Prerequisite.PROTOCOL_OPEN: "a protocol that is open to this change",
    Prerequisite.PARAMETERS_FIT: "parameters that fit the scenario and the design in use",
    Prerequisite.LOOK_LEFT: "a planned look that is left",
    Prerequisite.ANALYSIS_PENDING: "a trial that has not been analysed yet",
}


def name_of(action: ActionType) -> str:
    """The action's name in the contract."""
    return action.name.lower()


def blocked_words(action: ActionType, missing: tuple[Prerequisite, ...]) -> str:
    """What a blocked action lacks, in words."""
    return f"{name_of(action)} was not carried out. It lacks {'; '.join(PREREQUISITE_WORDS[each] for each in missing)}."


def money(usd: float) -> str:
    """An amount of USD for a reader."""
    return f"USD {usd / 1e6:.2f}M" if abs(usd) >= 1e6 else f"USD {usd:,.0f}"
