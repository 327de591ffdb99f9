"""The checker itself: it passes what may happen, and names each thing that may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.history import History, Kind, Logged, Row, check, check_creations


def row(step: int, reward: float = 0.25) -> Row:
    return Row(step, ((1, reward.hex()),), reward.hex(), (reward * step).hex(), f"hash-{step}")


def logged(step: int, said: bytes = b"") -> Logged:
    return Logged(said or b"say %d" % step, row(step))


def told(
    history: History, step: int, request_id: str = "", *, said: bytes = b"", replayed: bool = False, of: Row | None = None
) -> None:
    """A request that was acknowledged."""
    attempt = history.begin("c", "e", request_id or f"r{step}", said or b"say %d" % step, step - 1)
    history.end(attempt, of or row(step), replayed=replayed)


def unsure(history: History, step: int, request_id: str = "") -> None:
    """A request of which nobody knows what became."""
    history.end(history.begin("c", "e", request_id or f"r{step}", b"say %d" % step, step - 1))


def three() -> tuple[History, list[Logged]]:
    """Three steps, the second one repeated after a lost answer; all is well."""
    history = History()
    told(history, 1)
    unsure(history, 2)
    told(history, 2, replayed=True)
    told(history, 3)
    return history, [logged(step) for step in (1, 2, 3)]


def test_a_good_run_passes() -> None:
    """Lost answers, replays, refusals of what was not executed, and steps that nobody was told of are all in order."""
    history, log = three()
    unsure(history, 4)
    unsure(history, 5)
    refused = history.begin("d", "e", "other", b"too late", 1)
    history.end(refused, refusal="STEP_MISMATCH")
    log.append(logged(4))
    report = check(history, {"e": log}, fault_free={"e": [row(step) for step in (1, 2, 3, 4)]})
    assert report.faults == []
    assert report.lost == 0
    assert "5 steps asked for" not in history.counts
    assert history.acknowledged == 3


def test_two_requests_with_one_action_may_both_be_executed() -> None:
    """It is the request_id and not the action that must not be executed twice."""
    history = History()
    told(history, 1, "a", said=b"same")
    told(history, 2, "b", said=b"same")
    assert check(history, {"e": [logged(1, b"same"), logged(2, b"same")]}).faults == []


def _wrong_reference(history: History, log: list[Logged]) -> None:
    log[1] = replace(log[1], row=replace(log[1].row, state_hash="another"))
    history.attempts[2].row = log[1].row


BAD: dict[str, tuple[Callable[[History, list[Logged]], object], set[Kind]]] = {
    "the last acknowledged step is lost": (lambda h, log: log.pop(), {Kind.LOST}),
    "all is lost": (lambda h, log: log.clear(), {Kind.LOST}),
    "a step in the middle is lost": (lambda h, log: log.pop(1), {Kind.GAP, Kind.LOST}),
    "two steps change places": (lambda h, log: log.reverse(), {Kind.GAP}),
    "a reward changes by one bit": (
        lambda h, log: log.__setitem__(0, replace(log[0], row=row(1, 0.25000000000000006))),
        {Kind.CHANGED},
    ),
    "a hash changes": (
        lambda h, log: log.__setitem__(2, replace(log[2], row=replace(row(3), state_hash="x"))),
        {Kind.CHANGED},
    ),
    "a request is executed twice": (lambda h, log: log.append(logged(4, b"say 3")), {Kind.TWICE}),
    "an unsure request is executed twice": (
        lambda h, log: (unsure(h, 4), log.append(logged(4)), log.append(logged(5, b"say 4"))),
        {Kind.TWICE},
    ),
    "a transition comes from nowhere": (lambda h, log: log.append(logged(4, b"nobody")), {Kind.UNASKED}),
    "another's step stands where one was acknowledged": (
        lambda h, log: log.__setitem__(2, Logged(b"nobody", row(3))),
        {Kind.ANOTHERS, Kind.UNASKED},
    ),
    "a refused request is executed": (
        lambda h, log: (
            h.end(h.begin("d", "e", "no", b"too late", 3), refusal="STEP_MISMATCH"),
            log.append(logged(4, b"too late")),
        ),
        {Kind.REFUSED},
    ),
    "a replay has another answer": (
        lambda h, log: told(h, 3, replayed=True, of=row(3, 0.5)),
        {Kind.DISAGREES, Kind.CHANGED},
    ),
    "a request is fresh twice": (lambda h, log: told(h, 3), {Kind.FRESH_TWICE}),
    "a request is answered with another step": (
        lambda h, log: (told(h, 3, "late", said=b"late", of=row(4)), log.append(logged(4, b"late"))),
        {Kind.WRONG_PLACE},
    ),
    "a later request comes before an earlier one": (
        lambda h, log: (
            told(h, 5, "x", said=b"x"),
            told(h, 4, "y", said=b"y"),
            log.extend([logged(4, b"y"), logged(5, b"x")]),
        ),
        {Kind.DISORDER},
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_run_is_caught(what: str) -> None:
    """Each way to break the promise is found, and named as what it is."""
    history, log = three()
    spoil, kinds = BAD[what]
    spoil(history, log)
    assert check(history, {"e": log}).kinds() == kinds


def test_an_order_that_only_spans_is_caught() -> None:
    """The rule holds for any two requests, not for neighbours only."""
    history = History()
    told(history, 3, "c", said=b"c")
    middle = history.begin("d", "e", "b", b"b", 1)  # under way all the time, so it may stand anywhere
    told(history, 1, "a", said=b"a")
    history.end(middle, row(2))
    assert check(history, {"e": [logged(1, b"a"), logged(2, b"b"), logged(3, b"c")]}).kinds() == {Kind.DISORDER}


def test_what_differs_from_a_run_without_faults_is_caught() -> None:
    """Also where client and log agree with each other."""
    history, log = three()
    _wrong_reference(history, log)
    free = [row(step) for step in (1, 2, 3)]
    assert check(history, {"e": log}).faults == []
    assert check(history, {"e": log}, fault_free={"e": free}).kinds() == {Kind.DIFFERS}
    assert check(*_good(), fault_free={"e": free[:2]}).kinds() == {Kind.DIFFERS}


def _good() -> tuple[History, dict[str, list[Logged]]]:
    history, log = three()
    return history, {"e": log}


def test_a_loss_that_was_announced_is_counted() -> None:
    """The ends of logs may be missing then, and nothing else."""
    history, log = three()
    report = check(history, {"e": log[:1]}, may_lose=True)
    assert (report.faults, report.lost) == ([], 2)
    assert check(history, {"e": [log[0], log[2]]}, may_lose=True).kinds() == {Kind.GAP, Kind.LOST}
    changed = [log[0], replace(log[1], row=row(2, 0.5))]
    assert check(history, {"e": changed}, may_lose=True).kinds() == {Kind.CHANGED}


def test_what_was_there_before_must_stay() -> None:
    """A run that goes on from logs may add to them only; what they have needs no request of this run."""
    history = History()
    told(history, 3)
    log = [logged(step) for step in (1, 2, 3)]
    assert check(history, {"e": log}, before={"e": log[:2]}).faults == []
    assert Kind.REWRITTEN in check(history, {"e": [logged(1), logged(2, b"z"), logged(3)]}, before={"e": log[:2]}).kinds()
    assert check(history, {"e": log}).kinds() == {Kind.UNASKED}


def test_creations() -> None:
    """Each makes one episode, which is there; episodes beyond are those of creations whose answers were lost."""
    history = History()
    history.create("a").names += ["e1", "e1"]
    history.create("b")
    assert check_creations(history, ["e1", "e2"]).faults == []
    assert check_creations(history, ["e1", "e0"], known=["e0"]).faults == []
    assert check_creations(history, ["e1", "e2", "e3"]).kinds() == {Kind.UNKNOWN_EPISODE}
    assert check_creations(history, ["e2"]).kinds() == {Kind.NOT_LISTED}
    history.create("a").names.append("e4")
    assert check_creations(history, ["e1", "e4"]).kinds() == {Kind.CREATED_TWICE}
