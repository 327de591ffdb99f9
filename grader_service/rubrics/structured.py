"""The structured rubric: scores claims against the key, right ones for their weight, wrong ones against it.

score = clip((right - wrong) / all that is in the key, 0, 1), each by weight. A task whose key is empty starts at 1 and loses half
a point for each wrong claim. Text is only read for findings without a claim, and only for explicit ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from grader_service.domain.findings import Submission
from grader_service.domain.key import AnswerKey, Expected, Pair, Value
from grader_service.domain.rubric import Grader
from grader_service.domain.score import Component, Score, Verdict
from grader_service.domain.task import RubricId, Task
from grader_service.rubrics.claims import ClaimReader, Reading
from grader_service.rubrics.structured_rules import CLEAN_FALSE_POSITIVE, CLEAN_POINTS, FAMILY_RULES, FamilyRules


class StructuredRubric:
    """Scores every family, canonical and generated tasks alike, in [0, 1]."""

    id = RubricId("structured", "1")

    def bind(self, task: Task, key: AnswerKey) -> Grader | None:
        """A grader for the task."""
        return _Sheet(task, key).grade


@dataclass(frozen=True, slots=True)
class _Line:
    """One expected claim with what each outcome of it becomes."""

    value: Value
    backed: Component
    unbacked: Component
    missed: Component
    wrong: Component


class _Sheet:
    """A task's key, worked out so that grading a submission is look-ups."""

    def __init__(self, task: Task, key: AnswerKey) -> None:
        rules = FAMILY_RULES[task.family]
        self._reader = ClaimReader(task, key)
        lines = {expected.pair: _line(expected, rules) for expected in key.expected}
        clean = Component("clean", CLEAN_POINTS, CLEAN_POINTS, Verdict.CORRECT, "no defects")
        self._empty = [line.missed for line in lines.values()] if lines else [clean]
        self._empty_points = sum(part.points for part in self._empty)
        self._lines = {pair: (place, line) for place, (pair, line) in enumerate(lines.items())}
        self._neutral = key.neutral
        self._site_values = key.site_values
        self._cost = rules.false_positive if lines else CLEAN_FALSE_POSITIVE
        self._max_points = sum(line.backed.points for line in lines.values()) if lines else CLEAN_POINTS

    def grade(self, submission: Submission) -> Score:
        """The score; never raises, and does not depend on the order of the findings."""
        reading = self._reader.read(submission)
        stated = reading.stated
        parts, places = self._empty.copy(), []
        for pair, (value, backed) in stated.items():
            expected = self._lines.get(pair)
            if expected is None:
                continue
            place, line = expected
            places.append(place)
            if value == line.value:
                parts[place] = line.backed if backed else line.unbacked
            elif value is None or value != self._site_values.get(pair):
                parts[place] = line.wrong
        points = self._empty_points
        places.sort()
        for place in places:  # in the order of the key, so that every machine gets the same bits; what is missed has no points
            points += parts[place].points
        if len(places) < len(stated) or reading.invalid:
            extra = self._beyond_key(reading, len(parts))
            for part in extra:
                points += part.points
            parts += extra
        share = points / self._max_points
        score = 0.0 if share < 0.0 else 1.0 if share > 1.0 else share
        invalid = sum(reading.invalid.values()) + reading.unreadable
        return Score(score, points, self._max_points, tuple(parts), len(stated), invalid)

    def _beyond_key(self, reading: Reading, place: int) -> list[Component]:
        """Components for what is not in the key, the first of which stands at `place`."""
        parts = []
        for pair in sorted(reading.stated.keys() - self._lines.keys()):
            value, _ = reading.stated[pair]
            if value is not None and (pair in self._neutral or value == self._site_values.get(pair)):
                parts.append(Component(_id(pair), 0.0, 0.0, Verdict.NEUTRAL, "neither required nor wrong"))
            else:
                parts.append(Component(_id(pair), -self._cost, 0.0, Verdict.FALSE_POSITIVE, "not in the key"))
        for reason in sorted(reading.invalid):
            count = reading.invalid[reason]
            claim_id, detail = f"invalid/{place + len(parts)}", f"{count} × {reason}"
            parts.append(Component(claim_id, -self._cost * count, 0.0, Verdict.INVALID, detail))
        return parts


def _id(pair: Pair) -> str:
    return "/".join(pair)


def _line(expected: Expected, rules: FamilyRules) -> _Line:
    claim_id = _id(expected.pair)
    weight = rules.weights.get(expected.severity, 1.0)
    unbacked = Component(claim_id, weight * (1.0 - rules.withheld), weight, Verdict.PARTIAL, "right, but not backed")
    backed = Component(claim_id, weight, weight, Verdict.CORRECT, "right")
    return _Line(
        value=expected.value,
        backed=backed,
        unbacked=unbacked if rules.withheld else backed,
        missed=Component(claim_id, 0.0, weight, Verdict.MISSED, "not claimed"),
        wrong=Component(claim_id, -rules.false_positive, weight, Verdict.FALSE_POSITIVE, "claimed with a wrong value"),
    )
