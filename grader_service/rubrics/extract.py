"""Reads claims out of the text of findings that carry none, for clients that send only words.

It accepts explicit ids and grades, never topics: a criterion, defect code or `grade N` that stands in a finding about a known
subject, event or item, as a word of its own, and that no negation nearby takes back. Whatever is doubtful is dropped, so that
text earns less than the same claims would, and text without ids nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from grader_service.domain.findings import Finding, canonical_id
from grader_service.domain.key import Pair, Value
from grader_service.domain.task import Task, TaskFamily
from grader_service.rubrics.structured_rules import ASSENTS, NEGATION_WINDOW, NEGATIONS, TURNS


@dataclass(frozen=True, slots=True)
class Mention:
    """That a text says of `pair` that it is `value`, or, where `negated`, that it is not."""

    pair: Pair
    value: Value
    negated: bool


Extractor = Callable[[Finding], list[Mention]]

_WORD = r"(?P<word>[^\W_][\w'’-]*)"
_STOP = r"(?P<stop>[.;!?](?=\s|$)|\n\s*\n|\n\s*[-*•])"
_COMMA = r"(?P<comma>,)"
_GRADE = r"(?<![\w-])grade[\s:=-]{0,3}(?P<grade>[1-5])(?![\w/–-]|\.\d)"


def extractor(task: Task) -> Extractor:
    """An extractor for the task; one that finds nothing for families whose claims cannot be told from topics."""
    vocabulary = task.vocabulary
    if task.family is TaskFamily.ELIGIBILITY_SCREENING:
        about = {canonical_id(r): r for r in vocabulary.record_ids}
        return _Scanner(_ids(vocabulary.rule_ids, "target"), _ids(vocabulary.record_ids, "anchor"), about).criteria
    if task.family is TaskFamily.AE_CLASSIFICATION:
        about = {canonical_id(r): canonical_id(r) for r in vocabulary.record_ids}
        about |= _events_by_subject(task)
        return _Scanner(_GRADE, _ids(about, "anchor"), about).grades
    if task.family is TaskFamily.PROTOCOL_AMENDMENT_REVIEW:
        items = [canonical_id(i) for i in vocabulary.item_ids]
        about = {form: item for item in items for form in (item, f"AMENDMENT {item}", f"{item} PROTOCOL")}
        codes = (entry.code for entry in vocabulary.defect_codes)
        named = "|".join(re.escape(item) for item in items)
        anchor = rf"(?<![\w-])(?P<anchor>amendment\s+(?:{named})|(?:{named})\s+protocol)(?![\w-])"
        return _Scanner(_ids(codes, "target"), anchor, about).criteria
    return lambda finding: []


def _ids(ids: Iterable[str], group: str) -> str:
    longest_first = sorted(ids, key=len, reverse=True)
    return rf"(?<![\w-])(?P<{group}>{'|'.join(map(re.escape, longest_first))})(?![\w-])"


def _events_by_subject(task: Task) -> dict[str, str]:
    """Event by subject, for subjects with a single one."""
    events: dict[str, list[str]] = {}
    for record in task.records:
        subject = next((f.value for f in record.fields if f.name == "subject_id"), None)
        if isinstance(subject, str):
            events.setdefault(canonical_id(subject), []).append(canonical_id(record.id))
    return {subject: ids[0] for subject, ids in events.items() if len(ids) == 1}


class _Scanner:
    """Finds targets that stand next to the finding's own subject.

    `about` maps the ways to name a subject, event or item to its id. A target belongs to the one named last before it, and to the
    finding's subject where none is; targets of others are left out.
    """

    def __init__(self, target: str, anchor: str, about: Mapping[str, str]) -> None:
        self._tokens = re.compile("|".join((target, anchor, _STOP, _COMMA, _WORD)), re.IGNORECASE)
        self._about = about

    def criteria(self, finding: Finding) -> list[Mention]:
        """Ids of criteria or codes: each says that its subject fails it."""
        return [Mention((owner, text.upper()), True, negated) for owner, text, negated in self._scan(finding)]

    def grades(self, finding: Finding) -> list[Mention]:
        """Grades: each says that its event should have it."""
        return [Mention((owner, "corrected_grade"), int(text), negated) for owner, text, negated in self._scan(finding)]

    def _scan(self, finding: Finding) -> Iterator[tuple[str, str, bool]]:
        text = f"{finding.description}. {finding.recommendation}"
        tokens = [(found.lastgroup or "", found[found.lastgroup or 0]) for found in self._tokens.finditer(text)]
        if not any(kind in {"target", "grade"} for kind, _ in tokens):
            return
        own = self._subject(finding.subject_id, tokens)
        if own is None:
            return
        current = own
        for index, (kind, token) in enumerate(tokens):
            if kind == "anchor":
                current = self._about.get(_spaced(token), "")
            elif kind in {"target", "grade"} and current == own:
                yield own, token, _negated(tokens, index)

    def _subject(self, subject_id: str, tokens: list[tuple[str, str]]) -> str | None:
        if subject_id.strip():
            return self._about.get(_spaced(subject_id))
        named = {self._about.get(_spaced(token)) for kind, token in tokens if kind == "anchor"}
        return named.pop() if len(named) == 1 else None


def _spaced(text: str) -> str:
    return " ".join(canonical_id(text).split())


def _negated(tokens: list[tuple[str, str]], index: int) -> bool:
    """Whether words around the token take it back."""
    before: list[str] = []
    for kind, token in reversed(tokens[max(0, index - 2 * NEGATION_WINDOW) : index]):
        word = token.lower()
        if kind == "stop" or word in TURNS or len(before) == NEGATION_WINDOW:
            break
        if kind != "comma":
            before.append(word)
    after: list[str] = []
    comma = False
    for kind, token in tokens[index + 1 : index + 1 + 2 * NEGATION_WINDOW]:
        word = token.lower()
        # Behind a comma a negation speaks of what follows: "grade 3, not grade 2".
        if kind == "stop" or word in TURNS or len(after) == NEGATION_WINDOW or (comma and _negates(word)):
            break
        comma = kind == "comma"
        if not comma:
            after.append(word)
    return _takes_back(before[::-1]) or _takes_back(after)


def _negates(word: str) -> bool:
    return word in NEGATIONS or word.endswith(("n't", "n’t"))


def _takes_back(words: list[str]) -> bool:
    index = 0
    while index < len(words):
        if _negates(words[index]):
            undone = next((i for i in (index + 1, index + 2) if i < len(words) and words[i] in ASSENTS), None)
            if undone is None:
                return True
            index = undone
        elif words[index] in ASSENTS:
            return True
        index += 1
    return False
