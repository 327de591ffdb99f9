"""The structured rubric's numbers, by family of task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grader_service.domain.findings import Severity
from grader_service.domain.task import TaskFamily


@dataclass(frozen=True, slots=True)
class FamilyRules:
    """What claims of one family weigh.

    `weights`: of a right claim by the key's severity, 1 where it is not listed. `false_positive`: what a wrong or invalid claim
    costs. `withheld`: the share of a right claim's weight that only a backed one earns: quoted evidence that equals the record
    (eligibility), the right severity (amendments).
    """

    weights: Mapping[Severity, float] = field(default_factory=dict)
    false_positive: float = 1.0
    withheld: float = 0.0


FAMILY_RULES: dict[TaskFamily, FamilyRules] = {
    TaskFamily.ELIGIBILITY_SCREENING: FamilyRules(withheld=0.15),
    TaskFamily.AE_CLASSIFICATION: FamilyRules(),
    TaskFamily.PROTOCOL_AMENDMENT_REVIEW: FamilyRules(
        weights={Severity.CRITICAL: 3.0, Severity.MAJOR: 2.0, Severity.MINOR: 1.0},
        false_positive=2.0,
        withheld=0.15,
    ),
    TaskFamily.MEDICATION_RECONCILIATION: FamilyRules(),
}
"""A guess that is right less often than every second time loses points on average: weights of right claims average those of
wrong ones."""

CLEAN_POINTS = 1.0
"""What leaving a task without any defect alone earns."""

CLEAN_FALSE_POSITIVE = 0.5
"""What a wrong or invalid claim costs there."""

NEGATION_WINDOW = 5
"""Words before and after an id in free text in which a negation cancels it."""

MAX_MENTIONS = 32
"""A text that lists more ids than this argues for none of them and is not read."""

NEGATIONS: frozenset[str] = frozenset(
    {"no", "not", "never", "none", "neither", "nor", "without", "cannot", "nothing", "hardly", "lacks", "denies"}
)
"""Words that negate; so does any word that ends in n't."""

ASSENTS: frozenset[str] = frozenset(
    {
        "meet", "meets", "met", "meeting",
        "satisfy", "satisfies", "satisfied",
        "fulfil", "fulfils", "fulfill", "fulfills", "fulfilled",
        "comply", "complies", "compliant", "conforms",
        "eligible", "acceptable", "adequate", "appropriate", "fine", "ok", "okay", "sound",
        "addressed", "resolved", "cleared", "excluded", "ruled",
    }
)  # fmt: skip
"""Words that say all is well. They cancel as negations do, and a negation before one undoes both: `does not meet`."""

TURNS: frozenset[str] = frozenset({"but", "however", "although", "whereas"})
"""Words at which a sentence turns, so that a negation on one side says nothing of the other."""
