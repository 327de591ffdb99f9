"""Reads claims out of the text of findings that carry none, for clients that send only words.

It accepts explicit ids and grades, never topics: a criterion, defect code or `grade N` that stands in a finding about a known
subject, event or item, as a word of its own, and that no negation nearby takes back. Whatever is doubtful is dropped, so that
text earns less than the same claims would, and text without ids nothing.

A text becomes a list of words once, and everything after that is look-ups; a text without any id is not even split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from grader_service.domain.findings import Finding, canonical_id
from grader_service.domain.key import Pair, Value
from grader_service.domain.task import Task, TaskFamily
from grader_service.rubrics.structured_rules import ASSENTS, MAX_MENTIONS, NEGATION_WINDOW, NEGATIONS, TURNS


@dataclass(frozen=True, slots=True)
class Mention:
    """That a text says of `pair` that it is `value`, or, where `negated`, that it is not."""

    pair: Pair
    value: Value
    negated: bool


Extractor = Callable[[Finding], list[Mention]]

_TOKENS = re.compile(
    r"[^\W_](?:[\w-]|['’](?=t\b)|[./–](?=\w))*"  # a word; 3.5 and 3/4 are one, isn't too
    r"|[.;!?](?=\s|$)"  # ends a sentence
    r"|\n\s*[-*•\n]"  # so does a blank line or a bullet
    r"|,"
)
_COMMA = ","
_GRADES = frozenset("12345")


@dataclass(frozen=True, slots=True)
class _Target:
    """An id or grade in a text: `words[start:end]`, about the subject, event or item `owner`."""

    owner: str
    value: str
    start: int
    end: int


class _Grammar:
    """How one family names what its claims are about, and what they say.

    `owners` maps what a finding's subject_id may hold to a subject, event or item; `names` does so for words in a text, one or two
    of them. `targets` are the ids that a text may state; one without any of the `probes` in it states nothing.
    """

    def __init__(
        self, owners: Mapping[str, str], names: Mapping[str, str], targets: Iterable[str] = (), *, grades: bool = False
    ) -> None:
        self.owners = {_plain(way): owner for way, owner in owners.items()}
        self._names = {_plain(way): owner for way, owner in names.items()}
        self._targets = {target.lower(): target for target in targets}
        self._grades = grades
        self.probes = ("grade",) if grades else tuple(self._targets)
        self._marks = frozenset({*self._targets, *(way.split()[0] for way in self._names)})

    def scan(self, words: list[str], own: str) -> Iterator[_Target]:
        """The targets that belong to `own`: those behind its name, or behind no name at all."""
        owner = own
        for index, word in enumerate(words):
            if word in self._marks:
                named = self.name_at(words, index)
                owner = named or owner
                if word in self._targets and owner == own:
                    yield _Target(own, self._targets[word], index, index + 1)
            elif "/" in word and owner == own:
                for part in word.split("/"):
                    if part in self._targets:
                        yield _Target(own, self._targets[part], index, index + 1)
            elif self._grades and word.startswith("grade") and owner == own:
                if word == "grade" and words[index + 1 : index + 2] and words[index + 1] in _GRADES:
                    yield _Target(own, words[index + 1], index, index + 2)
                elif word[5:6] == "-" and word[6:] in _GRADES:
                    yield _Target(own, word[6:], index, index + 1)

    def name_at(self, words: list[str], index: int) -> str:
        """The subject, event or item named at a word, empty if none is."""
        word = words[index]
        if word not in self._marks:
            return ""
        return self._names.get(word) or self._names.get(" ".join(words[index : index + 2]), "")


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def extractor(task: Task) -> Extractor:
    """An extractor for the task; one that finds nothing in families whose claims cannot be told from topics."""
    vocabulary = task.vocabulary
    records = {canonical_id(record_id): canonical_id(record_id) for record_id in vocabulary.record_ids}
    if task.family is TaskFamily.ELIGIBILITY_SCREENING:
        return _reader(_Grammar(records, records, map(canonical_id, vocabulary.rule_ids)))
    if task.family is TaskFamily.AE_CLASSIFICATION:
        events = records | _events_by_subject(task)
        return _reader(_Grammar(events, events, grades=True))
    if task.family is TaskFamily.PROTOCOL_AMENDMENT_REVIEW:
        items = {canonical_id(item): canonical_id(item) for item in vocabulary.item_ids}
        # A lone letter, or the word base, means too many things in a text.
        names = {way: item for item in items for way in (f"AMENDMENT {item}", f"{item} PROTOCOL")}
        return _reader(_Grammar(items | names, names, (canonical_id(entry.code) for entry in vocabulary.defect_codes)))
    return lambda finding: []


def _events_by_subject(task: Task) -> dict[str, str]:
    """Event by subject, for subjects with a single one."""
    events: dict[str, list[str]] = {}
    for record in task.records:
        subject = next((f.value for f in record.fields if f.name == "subject_id"), None)
        if isinstance(subject, str):
            events.setdefault(canonical_id(subject), []).append(canonical_id(record.id))
    return {subject: ids[0] for subject, ids in events.items() if len(ids) == 1}


def _reader(grammar: _Grammar) -> Extractor:
    def read(finding: Finding) -> list[Mention]:
        text = f"{finding.description}. {finding.recommendation}".lower()
        if not any(map(text.__contains__, grammar.probes)):
            return []
        words = _TOKENS.findall(text)
        subject = _plain(finding.subject_id)
        own = grammar.owners.get(subject, "") if subject else _only_one(grammar, words)
        targets = list(islice(grammar.scan(words, own), MAX_MENTIONS + 1)) if own else []
        return [_mention(target, words) for target in targets] if len(targets) <= MAX_MENTIONS else []

    return read


def _only_one(grammar: _Grammar, words: list[str]) -> str:
    """What a finding without a subject is about, if its text names one thing alone."""
    named = {owner for index in range(len(words)) if (owner := grammar.name_at(words, index))}
    return named.pop() if len(named) == 1 else ""


def _mention(target: _Target, words: list[str]) -> Mention:
    negated = _negated(words, target)
    if target.value in _GRADES:
        return Mention((target.owner, "corrected_grade"), int(target.value), negated)
    return Mention((target.owner, target.value), True, negated)


def _negated(words: list[str], target: _Target) -> bool:
    """Whether words around the target take it back."""
    before: list[str] = []
    for index in range(target.start - 1, -1, -1):
        word = words[index]
        if len(before) == NEGATION_WINDOW or _parts(word):
            break
        if word != _COMMA:
            before.append(word)
    after: list[str] = []
    for index in range(target.end, len(words)):
        word = words[index]
        # Behind a comma a negation speaks of what follows: "grade 3, not grade 2".
        if len(after) == NEGATION_WINDOW or _parts(word) or (_negates(word) and words[index - 1] == _COMMA):
            break
        if word != _COMMA:
            after.append(word)
    return _takes_back(before[::-1]) or _takes_back(after)


def _parts(word: str) -> bool:
    """Whether a negation on one side of the word says nothing of the other."""
    return word in TURNS or word[0] in ".;!?\n"


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
