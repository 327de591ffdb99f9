"""The keyword rubric: scores findings by words in their text, as the published graders of the canonical tasks do.

Each rule becomes, once, a table from what was found to a finished component, so that grading is look-ups and substring tests.

What looks odd here is the published behaviour and must stay: a subject with a blank behind its id is flagged but its text is
not read; an event is flagged by its id anywhere in a text as well as by its subject, and then its text counts twice, which
matters where a phrase arises at the seam; two findings with empty texts flag an event, one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from grader_service.domain.findings import Finding, Submission
from grader_service.domain.key import AnswerKey
from grader_service.domain.rubric import Grader
from grader_service.domain.score import Component, Score, Verdict
from grader_service.domain.task import RubricId, Task
from grader_service.rubrics.keyword_rules import (
    HIGHEST,
    LOWEST,
    MAX_POINTS,
    RULES,
    EligibilityRules,
    EventRule,
    EventRules,
    IssueRule,
    IssueRules,
    SubjectRule,
    Words,
)
from grader_service.rubrics.word_hits import WordHits


class KeywordRubric:
    """Scores the canonical tasks, and no others, in [0.01, 0.99]."""

    id = RubricId("keyword", "1")

    def bind(self, task: Task, key: AnswerKey) -> Grader | None:
        """A grader for a canonical task, None for any other; the key of claims is not used."""
        rules = RULES.get(task.name)
        if rules is None:
            return None
        if isinstance(rules, EligibilityRules):
            return _eligibility_grader(rules)
        if isinstance(rules, EventRules):
            return _event_grader(rules)
        return _issue_grader(rules)


def _score(components: Iterable[Component], accepted: int, invalid: int) -> Score:
    parts = tuple(components)
    points = 0.0
    for part in parts:  # whole numbers, so the sum is exact in any order
        points += part.points
    value = points / MAX_POINTS
    if value > HIGHEST:
        value = HIGHEST
    elif value < LOWEST:
        value = LOWEST
    return Score(value, points, float(MAX_POINTS), parts, accepted, invalid)


def _any_in(words: Words, text: str) -> bool:
    return any(map(text.__contains__, words))


def _shared_start(ids: Sequence[str]) -> str:
    first, last = min(ids), max(ids)
    same = (a == b for a, b in zip(first, last, strict=False))
    return first[: sum(takewhile(bool, same))]


def _component(rule_id: str, points: int, most: int, detail: str) -> Component:
    if points < 0:
        verdict = Verdict.FALSE_POSITIVE
    elif points == 0:
        verdict = Verdict.MISSED if most else Verdict.NEUTRAL
    else:
        verdict = Verdict.CORRECT if points == most else Verdict.PARTIAL
    return Component(rule_id, float(points), float(most), verdict, detail)


def _text_of(finding: Finding) -> str:
    return (finding.description + " " + finding.recommendation).lower().strip()


# --- eligibility screening ---------------------------------------------------------------------------------------------------


def _eligibility_grader(rules: EligibilityRules) -> Grader:
    def outcomes(rule: SubjectRule) -> tuple[Component, tuple[Component, ...]]:
        most, groups = rule.earned[-1], len(rule.groups)
        missed = _component(rule.subject_id, 0, most, "not flagged")
        return missed, tuple(
            _component(rule.subject_id, points, most, f"flagged, {count} of {groups} reasons named")
            for count, points in enumerate(rule.earned)
        )

    compiled = tuple((rule.subject_id, rule.groups, *outcomes(rule)) for rule in rules.subjects)
    clean_kept = _component(rules.clean_subject, rules.clean_earned, rules.clean_earned, "left alone")
    clean_flagged = _component(rules.clean_subject, rules.clean_flagged, rules.clean_earned, "flagged without cause")

    types = tuple(rules.types)  # a short tuple is searched by identity; hashing an Enum's member costs more

    def grade(submission: Submission) -> Score:
        flagged: set[str] = set()
        texts: dict[str, list[str]] = {}
        accepted = 0
        for finding in submission.findings:
            if finding.type not in types:
                continue
            subject = finding.subject_id.upper()
            known = subject.strip()
            flagged.add(known)
            if known in rules.known_subjects:
                accepted += 1
            texts.setdefault(subject, []).append(_text_of(finding))

        parts = []
        for subject_id, groups, missed, by_count in compiled:
            if subject_id in flagged:
                text = " ".join(texts.get(subject_id, ()))
                parts.append(by_count[sum(_any_in(words, text) for words in groups)])
            else:
                parts.append(missed)
        parts.append(clean_flagged if rules.clean_subject in flagged else clean_kept)
        return _score(parts, accepted, len(submission.findings) - accepted)

    return grade


# --- adverse events ----------------------------------------------------------------------------------------------------------


def _event_grader(rules: EventRules) -> Grader:
    def judge(rule: EventRule) -> Callable[[str], tuple[Component, ...]]:
        grade_id, extra_id = f"{rule.ae_id}/grade", f"{rule.ae_id}/significance"
        by_grade = tuple(
            _component(grade_id, points, rule.graded, detail)
            for points, detail in ((rule.flagged, "flagged, grade not named"), (rule.graded, "flagged, grade named"))
        )
        missed: tuple[Component, ...] = (_component(grade_id, 0, rule.graded, "not flagged"),)
        if not rule.extra:
            return lambda text: (by_grade[_any_in(rule.grade_words, text)],) if text else missed
        by_extra = tuple(
            _component(extra_id, points, rule.extra, detail)
            for points, detail in ((0, "significance not named"), (rule.extra, "significance named"))
        )
        missed += (by_extra[0],)
        return lambda text: (
            (by_grade[_any_in(rule.grade_words, text)], by_extra[_any_in(rule.extra_words, text)]) if text else missed
        )

    wrong = tuple((rule.ae_id.lower(), rule.subject_id, judge(rule)) for rule in rules.events)
    clean = tuple(
        (
            ae_id.lower(),
            subject_id,
            _component(ae_id, rules.clean_flagged, 0, "flagged without cause"),
            _component(ae_id, 0, 0, "left alone"),
        )
        for ae_id, subject_id in rules.clean_events
    )
    by_rationale = tuple(
        _component("rationale", points, rules.rationale_earned, detail)
        for points, detail in ((0, "no pattern named"), (rules.rationale_earned, "pattern named"))
    )
    by_restraint = tuple(
        _component("restraint", points, rules.none_flagged, detail)
        for points, detail in ((0, "right records flagged"), (rules.none_flagged, "right records left alone"))
    )
    by_id = {rule.ae_id: rule.subject_id for rule in rules.events} | dict(rules.clean_events)
    ae_ids = tuple(ae_id.lower() for ae_id in by_id)
    subjects = frozenset(by_id.values())
    mark = _shared_start(ae_ids)  # most texts lack it, and then name none of the ids

    types = tuple(rules.types)  # as above

    def grade(submission: Submission) -> Score:
        by_text: dict[str, list[str]] = {}
        by_subject: dict[str, list[str]] = {}
        accepted = 0
        for finding in submission.findings:
            if finding.type not in types:
                continue
            text, subject = _text_of(finding), finding.subject_id.strip().upper()
            named = [ae_id for ae_id in ae_ids if ae_id in text] if mark in text else ()
            for ae_id in named:
                by_text.setdefault(ae_id, []).append(text)
            if subject in subjects:
                by_subject.setdefault(subject, []).append(text)
                accepted += 1
            elif named:
                accepted += 1

        def text_about(ae_id: str, subject_id: str) -> str:
            return " ".join((*by_text.get(ae_id, ()), *by_subject.get(subject_id, ())))

        parts: list[Component] = []
        for ae_id, subject_id, judged in wrong:
            parts += judged(text_about(ae_id, subject_id))
        parts.append(by_rationale[_any_in(rules.rationale_words, submission.rationale.lower())])
        restrained = True
        for ae_id, subject_id, flagged, kept in clean:
            if text_about(ae_id, subject_id):
                parts.append(flagged)
                restrained = False
            else:
                parts.append(kept)
        parts.append(by_restraint[restrained])
        return _score(parts, accepted, len(submission.findings) - accepted)

    return grade


# --- amendments --------------------------------------------------------------------------------------------------------------


def issue_points(rules: IssueRules, weight: int, words: int) -> tuple[int, ...]:
    """Points of an issue by the number of its words that occur, 0 to `words`.

    Computed in floating point and cut as published, so that 0.7 * 20 is 14 and not a rounding away from it.
    """
    earned = []
    for hits in range(words + 1):
        rate = hits / words
        if rate >= rules.identified_rate:
            earned.append(int(weight * min(1.0, rate + rules.identified_bonus)))
        elif rate >= rules.partial_rate:
            earned.append(int(weight * rules.partial_share))
        else:
            earned.append(0)
    return tuple(earned)


def _issue_grader(rules: IssueRules) -> Grader:
    def outcomes(issue: IssueRule) -> tuple[Component, ...]:
        count = len(issue.words)
        return tuple(
            _component(issue.id, points, issue.weight, f"{issue.severity.name.lower()}: {hits} of {count} words")
            for hits, points in enumerate(issue_points(rules, issue.weight, count))
        )

    hits = WordHits(word for issue in rules.issues for word in issue.words)
    compiled = tuple((hits.mask_of(issue.words), outcomes(issue)) for issue in rules.issues)
    most = max(points for _, points in rules.recommendation_points)
    steps = (*rules.recommendation_points, (0, 0))  # the highest count first
    by_recommendations = tuple(
        next(
            _component("recommendations", points, most, f"at least {count} of substance")
            for count, points in steps
            if substantial >= count
        )
        for substantial in range(steps[0][0] + 1)
    )
    characters = rules.recommendation_characters
    enough = len(by_recommendations) - 1

    def grade(submission: Submission) -> Score:
        pieces = [submission.rationale]
        substantial = accepted = 0
        for finding in submission.findings:
            description, recommendation = finding.description, finding.recommendation
            pieces += (description, recommendation)
            if len(recommendation) > characters:
                substantial += 1
            if description or recommendation:
                accepted += 1
        found = hits.mask_in(" ".join(pieces).lower())
        parts = [by_hits[(found & words).bit_count()] for words, by_hits in compiled]
        parts.append(by_recommendations[min(substantial, enough)])
        return _score(parts, accepted, len(submission.findings) - accepted)

    return grade
