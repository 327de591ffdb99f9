"""Judges a run by what its clients recorded and what the service lists at the end. Pure: no service is needed to use or to test it.

A request is known by its episode and request_id. Each attempt of it was acknowledged with a row, refused for good, or ended without
anybody knowing, in which case it may have been executed or not, at once or later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any


class Kind(Enum):
    """What can be wrong with a run."""

    GAP = "the steps are not 1, 2, 3, ..."
    LOST = "an acknowledged step is not in the log"
    CHANGED = "a step in the log is not what was acknowledged"
    ANOTHERS = "an acknowledged step in the log has the action of another request"
    UNASKED = "a transition that no client asked for"
    TWICE = "a request was executed twice"
    REFUSED = "a request was executed of which every attempt was refused"
    DISAGREES = "one request was acknowledged with different answers"
    FRESH_TWICE = "one request was acknowledged twice as not executed before"
    WRONG_PLACE = "a step was executed at another step than the one it was asked for at"
    DISORDER = "a request came before one that was acknowledged before it was made"
    DIFFERS = "a reward or state hash is not that of a run without faults"
    REWRITTEN = "what was in the log before is not there any more"
    CREATED_TWICE = "one creation made several episodes"
    NOT_LISTED = "an episode whose creation was acknowledged is not there"
    UNKNOWN_EPISODE = "an episode that no client asked for"


@dataclass(frozen=True, slots=True)
class Row:
    """A step as it was told: its number, its reward by term, the sums, to the last bit, and the state's digest."""

    step: int
    terms: tuple[tuple[int, str], ...]
    value: str
    total: str
    state_hash: str
    ended: bool = False


def row_of(transition: Any) -> Row:
    """The row of a transition as answered or listed."""
    reward = transition.reward
    return Row(
        transition.step,
        tuple((term.kind, term.value.hex()) for term in reward.terms),
        reward.value.hex(),
        transition.total_reward.hex(),
        transition.state_hash,
        transition.terminated or transition.truncated,
    )


@dataclass(frozen=True, slots=True)
class Logged:
    """A transition as the service lists it."""

    action: bytes
    row: Row


@dataclass(slots=True)
class Attempt:
    """One call for a step. `began` and `ended` are numbers of one order of all events; it is acknowledged where it has a row.

    `refusal` is the reason where the service said that it did not execute it. With neither, nobody knows.
    """

    client: str
    episode: str
    request_id: str
    action: bytes
    expected: int | None
    began: int
    ended: int = 0
    row: Row | None = None
    replayed: bool = False
    refusal: str = ""

    @property
    def unknown(self) -> bool:
        """Whether it may have been executed or not."""
        return self.row is None and not self.refusal


@dataclass(slots=True)
class Creation:
    """A creation by its request_id: the names that it was acknowledged with."""

    request_id: str
    names: list[str] = field(default_factory=list)


@dataclass
class History:
    """What the clients of a run did and were told."""

    attempts: list[Attempt] = field(default_factory=list)
    creations: dict[str, Creation] = field(default_factory=dict)
    acknowledged: int = 0
    _now: int = 0

    def tick(self) -> int:
        """The number of an event, larger than all before."""
        self._now += 1
        return self._now

    def begin(self, client: str, episode: str, request_id: str, action: bytes, expected: int | None = None) -> Attempt:
        """Records that a call is made."""
        attempt = Attempt(client, episode, request_id, action, expected, self.tick())
        self.attempts.append(attempt)
        return attempt

    def end(self, attempt: Attempt, row: Row | None = None, *, replayed: bool = False, refusal: str = "") -> None:
        """Records how a call ended."""
        attempt.ended, attempt.row, attempt.replayed, attempt.refusal = self.tick(), row, replayed, refusal
        self.acknowledged += row is not None

    def create(self, request_id: str) -> Creation:
        """Records that a creation is asked for, once or again."""
        return self.creations.setdefault(request_id, Creation(request_id))

    @property
    def counts(self) -> str:
        """The run in numbers."""
        ends = Counter("acknowledged" if a.row else a.refusal or "unknown" for a in self.attempts)
        replayed = sum(a.replayed for a in self.attempts)
        requests = len({(a.episode, a.request_id) for a in self.attempts})
        return (
            f"{requests} steps asked for in {len(self.attempts)} attempts, {dict(ends)}, {replayed} of them answered from the log"
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong."""

    kind: Kind
    episode: str
    text: str


@dataclass(slots=True)
class Report:
    """What a check found: faults, and how many acknowledged steps are gone where a loss was announced."""

    faults: list[Fault] = field(default_factory=list)
    lost: int = 0

    def kinds(self) -> set[Kind]:
        """The kinds of its faults."""
        return {fault.kind for fault in self.faults}

    def add(self, kind: Kind, episode: str, text: str) -> None:
        """Notes a fault."""
        self.faults.append(Fault(kind, episode, text))


Logs = Mapping[str, Sequence[Logged]]


def check(
    history: History,
    logs: Logs,
    *,
    before: Logs | None = None,
    fault_free: Mapping[str, Sequence[Row]] | None = None,
    may_lose: bool = False,
) -> Report:
    """Holds a history against the logs at its end.

    `before` are logs that the run began with, if it did not begin with new episodes. `fault_free` has the rows of the logs' actions
    without faults. Only with `may_lose` may the ends of logs be missing: the newest steps, and no step that is followed by another.
    """
    report = Report()
    by_episode: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in history.attempts:
        by_episode[attempt.episode].append(attempt)
    for episode in logs.keys() | by_episode.keys():
        log = logs.get(episode, ())
        base = (before or {}).get(episode, ())
        _check_log(report, episode, log, base, None if fault_free is None else fault_free.get(episode, ()))
        _check_requests(report, episode, log, len(base), by_episode[episode], may_lose=may_lose)
    return report


def check_creations(history: History, listed: Sequence[str], known: Sequence[str] = ()) -> Report:
    """Holds the creations against the names that the service lists; `known` are those that were there before."""
    report = Report()
    there = Counter(listed)
    acknowledged = set(known)
    unsure = 0
    for creation in history.creations.values():
        names = set(creation.names)
        unsure += not names
        acknowledged |= names
        if len(names) > 1:
            report.add(Kind.CREATED_TWICE, creation.request_id, f"acknowledged as {sorted(names)}")
    for name in sorted(acknowledged - there.keys()):
        report.add(Kind.NOT_LISTED, name, "not listed")
    strangers = sorted(there.keys() - acknowledged)
    if len(strangers) > unsure:
        report.add(Kind.UNKNOWN_EPISODE, strangers[0], f"{len(strangers)} are listed, {unsure} creations ended without an answer")
    return report


def _check_log(report: Report, episode: str, log: Sequence[Logged], base: Sequence[Logged], free: Sequence[Row] | None) -> None:
    steps = [entry.row.step for entry in log]
    if steps != list(range(1, len(log) + 1)):
        report.add(Kind.GAP, episode, f"the log has the steps {steps}")
    if list(log[: len(base)]) != list(base):
        report.add(Kind.REWRITTEN, episode, f"the first {len(base)} steps are not those of before")
    if free is not None:
        rows = [entry.row for entry in log]
        for got, wanted in zip(rows, free, strict=False):
            if got != wanted:
                report.add(Kind.DIFFERS, episode, f"{got} is {wanted} without faults")
        if len(rows) != len(free):
            report.add(Kind.DIFFERS, episode, f"{len(rows)} steps, {len(free)} without faults")


def _check_requests(
    report: Report, episode: str, log: Sequence[Logged], base: int, attempts: Sequence[Attempt], *, may_lose: bool
) -> None:
    requests: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        requests[attempt.request_id].append(attempt)
    by_step = {entry.row.step: entry for entry in log}
    for request_id, tries in requests.items():
        _check_request(report, episode, request_id, tries, by_step, may_lose=may_lose)
    _check_origins(report, episode, log[base:], requests)
    _check_order(report, episode, requests)


def _check_request(
    report: Report, episode: str, request_id: str, tries: Sequence[Attempt], by_step: Mapping[int, Logged], *, may_lose: bool
) -> None:
    answered = [attempt for attempt in tries if attempt.row is not None]
    rows = {attempt.row for attempt in answered}
    if len(rows) > 1:
        report.add(Kind.DISAGREES, episode, f"{request_id} was answered with {rows}")
    if sum(not attempt.replayed for attempt in answered) > 1:
        report.add(Kind.FRESH_TWICE, episode, request_id)
    for attempt in answered:
        row = attempt.row
        assert row is not None
        if attempt.expected is not None and row.step != attempt.expected + 1:
            report.add(Kind.WRONG_PLACE, episode, f"{request_id} at step {row.step}, asked for after {attempt.expected}")
    for row in rows:
        assert row is not None
        entry = by_step.get(row.step)
        if entry is None:
            if may_lose and row.step > max(by_step, default=0):
                report.lost += 1
            else:
                report.add(Kind.LOST, episode, f"{request_id} at step {row.step}")
        elif entry.action != tries[0].action:
            report.add(Kind.ANOTHERS, episode, f"{request_id} at step {row.step}")
        elif entry.row != row:
            report.add(Kind.CHANGED, episode, f"{request_id} was told {row}, the log has {entry.row}")


def _check_origins(report: Report, episode: str, log: Sequence[Logged], requests: Mapping[str, Sequence[Attempt]]) -> None:
    """Every transition is one of a request that may have been executed, and each request accounts for one."""
    asked: Counter[bytes] = Counter()
    possible: Counter[bytes] = Counter()
    for tries in requests.values():
        action = tries[0].action
        asked[action] += 1
        possible[action] += any(attempt.row is not None or attempt.unknown for attempt in tries)
    for action, count in Counter(entry.action for entry in log).items():
        if not asked[action]:
            report.add(Kind.UNASKED, episode, f"{action[:60]!r}")
        elif count > asked[action]:
            report.add(Kind.TWICE, episode, f"{action[:60]!r} stands {count} times in the log, asked for {asked[action]} times")
        elif count > possible[action]:
            report.add(Kind.REFUSED, episode, f"{action[:60]!r}")


def _check_order(report: Report, episode: str, requests: Mapping[str, Sequence[Attempt]]) -> None:
    """What was asked for after an answer comes after what was answered."""
    told = []
    for request_id, tries in requests.items():
        ends = [(attempt.ended, attempt.row.step) for attempt in tries if attempt.row is not None]
        if ends:
            ended, step = min(ends)
            told.append((step, min(attempt.began for attempt in tries), ended, request_id))
    told.sort()
    latest = 0  # of all requests so far, when the one that was made last was made
    for (_, began, _, _), (step, _, ended, request_id) in pairwise(told):
        latest = max(latest, began)
        if ended < latest:
            report.add(Kind.DISORDER, episode, f"{request_id} at step {step} was answered before one of an earlier step was made")
