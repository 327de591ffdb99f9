"""The closed choices that the actions of a trial offer.

Member names and values are the contract's (action.proto, environment.proto) without the enum's prefix; the contract's zero
member, "not stated", is None here.
"""

from __future__ import annotations

from workflow_service.domain.making import Choice


class Tier(Choice):
    """How strict a trial episode is, from the mildest to the hardest."""

    WARMUP = 1
    BEGINNER = 2
    INTERMEDIATE = 3
    ADVANCED = 4
    EXPERT = 5


class ResponderPopulation(Choice):
    """The patients in whom the drug is expected, or claimed, to work."""

    ALL_COMERS = 1
    BIOMARKER_POSITIVE = 2
    NONE = 3


class EscalationDesign(Choice):
    """A rule for choosing the next cohort's dose."""

    THREE_PLUS_THREE = 1
    BOIN = 2


class AnalysisSet(Choice):
    """The patients whom the primary analysis counts."""

    FULL = 1
    PER_PROTOCOL = 2


class MissingDataStrategy(Choice):
    """What the primary analysis does about missing outcomes."""

    MMRM = 1
    MULTIPLE_IMPUTATION = 2
    LOCF = 3
    COMPLETE_CASES = 4
    NON_RESPONDER = 5


class ControlArm(Choice):
    """What the drug is compared with."""

    PLACEBO = 1
    ACTIVE = 2
    NONE = 3


class Blinding(Choice):
    """Who does not know the allocation."""

    OPEN_LABEL = 1
    SINGLE = 2
    DOUBLE = 3


class BiomarkerUse(Choice):
    """How a biomarker is used."""

    STRATIFY = 1
    ENRICH = 2


class SpendingFunction(Choice):
    """How the interim looks share the error rate; None means that no look may stop for efficacy."""

    OBRIEN_FLEMING = 1
    POCOCK = 2
    HWANG_SHIH_DECANI = 3
    UNADJUSTED = 4


class FutilityRule(Choice):
    """A rule for stopping when success has become unlikely; None means that there is none."""

    CONDITIONAL_POWER = 1
    BETA_SPENDING = 2


class SampleSizeBasis(Choice):
    """Why a planned number of patients is changed."""

    BLINDED_VARIANCE = 1
    CONDITIONAL_POWER = 2


class EarlyStop(Choice):
    """Why a trial ends before its planned number of patients; None means that enrolment completes first."""

    EFFICACY = 1
    FUTILITY = 2


class Decision(Choice):
    """What the sponsor decides about the drug."""

    EFFECTIVE = 1
    NOT_EFFECTIVE = 2
