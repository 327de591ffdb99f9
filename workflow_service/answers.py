"""What a step is answered with, as bytes: the observation, the transition that the log keeps, and the messages around it.

These are the bytes that the messages of the contract would be written as, joined from parts, since building and writing messages is
most of what a step costs otherwise. What did not change since the episode's last step is not encoded again.
"""

from __future__ import annotations

import struct
from operator import attrgetter, is_
from typing import Any

from trialgym.rpc.message_memo import MessageMemo, share
from trialgym.rpc.wire import field, varint
from trialgym.v1 import environment_pb2, error_pb2, observation_pb2, score_pb2
from workflow_service.domain.environment import BlockedAction, Grade, Observation, Outcome, ReviewPacket
from workflow_service.domain.episode import TransitionRecord
from workflow_service.domain.rewards import Reward, TermKind

_double = struct.Struct("<d").pack

_KEPT = 4_096


class Remembered:
    """The bytes of values that many episodes share as one object, by identity; forgotten all at once when there are too many."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}

    def get(self, value: Any) -> bytes | None:
        """The bytes of this very object."""
        found = self._known.get(id(value))
        # The object is kept with its bytes, so that its id cannot become another's meanwhile.
        return found[1] if found is not None and found[0] is value else None

    def keep(self, value: Any, data: bytes) -> bytes:
        """Remembers the bytes of an object."""
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[id(value)] = (value, data)
        return data


_legal = Remembered()
_blocked = Remembered()
_rewards = Remembered()


class AnswerMemo:
    """What is remembered from one step of an episode to the next; see ports.Memo."""

    __slots__ = ("_packets", "_rest", "_shown", "_trial")

    def __init__(self) -> None:
        self._trial = MessageMemo()
        self._packets: dict[ReviewPacket, bytes] = {}
        self._shown: tuple[Any, ...] = ()
        self._rest = b""

    def answer(self, record: TransitionRecord) -> bytes:
        """See ports.Memo."""
        seen = self.observation(record.observation)
        parts = [
            b"\x10" + varint(record.step) if record.step else b"",
            _OUTCOMES[record.outcome],
            b"\x2a" + varint(len(seen)),
            seen,
            reward(record.reward),
        ]
        if record.terminated:
            parts.append(b"\x38\x01")
        if record.truncated:
            parts.append(b"\x40\x01")
        if record.state_hash:
            parts.append(field(9, record.state_hash.encode()))
        if record.missing:
            parts.append(field(10, b"".join([varint(each.value) for each in record.missing])))
        if record.grade is not None:
            parts.append(field(11, score(record.grade).SerializeToString()))
        if record.total_reward:
            parts.append(b"\x61" + _double(record.total_reward))
        return b"".join(parts)

    def observation(self, seen: Observation) -> bytes:
        """The structured part of an observation."""
        shown = _SHOWN(seen)
        last = self._shown
        if not last or not all(map(is_, shown, last)):
            self._rest = self._encode(seen)
            self._shown = shown  # last, so that one that failed half-way is not gone on from
        steps = b"\x08" + varint(seen.step) if seen.step else b""
        return (steps + b"\x10" + varint(seen.steps_left) if seen.steps_left else steps) + self._rest

    def _encode(self, seen: Observation) -> bytes:
        """All but the steps, which alone differ in each observation."""
        parts = []
        if seen.feedback:
            parts.append(field(3, seen.feedback.encode()))
        if seen.hint:
            parts.append(field(4, seen.hint.encode()))
        if seen.legal_actions:
            parts.append(_legal.get(seen.legal_actions) or _legal.keep(seen.legal_actions, _actions(seen)))
        if seen.blocked_actions:
            parts.append(_blocked.get(seen.blocked_actions) or _blocked.keep(seen.blocked_actions, _blocks(seen.blocked_actions)))
        parts += [self._packets.get(packet) or self._packet(packet) for packet in seen.review_packets]
        if seen.trial is not None:
            if seen.trial.brief is not None:
                share(seen.trial.brief, environment_pb2.ScenarioBrief)
            parts.append(field(8, self._trial.encode(seen.trial, observation_pb2.TrialObservation)))
        return b"".join(parts)

    def _packet(self, packet: ReviewPacket) -> bytes:
        if len(self._packets) >= 8:  # of each task of the episode only the last is met again
            self._packets.clear()
        message = observation_pb2.ReviewPacket(
            task=packet.task,
            family=packet.family.value,  # type: ignore[arg-type]
            content_digest=packet.content_digest,
            submissions=packet.submissions,
            accepted_entries=packet.accepted_entries,
            invalid_entries=packet.invalid_entries,
        )
        data = self._packets[packet] = field(7, message.SerializeToString())
        return data


_SHOWN = attrgetter("feedback", "hint", "legal_actions", "blocked_actions", "review_packets", "trial")

_OUTCOMES = {outcome: b"\x20" + varint(outcome.value) for outcome in Outcome}
_TERMS = {kind: b"\x08" + varint(kind.value) for kind in TermKind}


def _actions(seen: Observation) -> bytes:
    return field(5, b"".join([varint(action.value) for action in seen.legal_actions]))


def _blocks(blocked: tuple[BlockedAction, ...]) -> bytes:
    out = []
    for each in blocked:
        missing = b"".join([varint(one.value) for one in each.missing])
        out.append(field(6, b"\x08" + varint(each.action.value) + (field(2, missing) if missing else b"")))
    return b"".join(out)


def reward(earned: Reward) -> bytes:
    """The reward of a transition with its terms."""
    known = _rewards.get(earned)
    if known is not None:
        return known
    body = b"\x09" + _double(earned.value) if earned.value else b""
    for term in earned.terms:
        inner = _TERMS[term.kind] + (b"\x11" + _double(term.value) if term.value else b"")
        body += b"\x12" + varint(len(inner)) + inner
    return _rewards.keep(earned, field(6, body))


def score(graded: Grade) -> score_pb2.Score:
    """A grade as the contract has it."""
    return score_pb2.Score(
        value=graded.value,
        points=graded.points,
        max_points=graded.max_points,
        feedback=graded.feedback,
        rubric=score_pb2.Rubric(name=graded.rubric, version=graded.rubric_version),
        content_digest=graded.content_digest,
        accepted_entries=graded.accepted_entries,
        invalid_entries=graded.invalid_entries,
    )


# The messages around a stored transition


def step_response(episode_id: str, step: int, answer: bytes, *, replayed: bool) -> bytes:
    """A StepEpisodeResponse: the stored transition with its name, and whether it was taken before."""
    name, size = _name(episode_id, step)
    return b"".join((b"\x0a", varint(size + len(answer)), name, answer, b"\x10\x01" if replayed else b""))


def step_result(response: bytes) -> bytes:
    """A StepResult with a response, as an item of a BatchStepEpisodesResponse."""
    size = varint(len(response))
    return b"".join((b"\x0a", varint(1 + len(size) + len(response)), b"\x0a", size, response))


def step_item(episode_id: str, step: int, answer: bytes, *, replayed: bool) -> bytes:
    """`step_result` of `step_response`, joined once."""
    name, size = _name(episode_id, step)
    transition = varint(size + len(answer))
    tail = b"\x10\x01" if replayed else b""
    whole = 1 + len(transition) + size + len(answer) + len(tail)
    response = varint(whole)
    return b"".join((b"\x0a", varint(1 + len(response) + whole), b"\x0a", response, b"\x0a", transition, name, answer, tail))


def _name(episode_id: str, step: int) -> tuple[bytes, int]:
    """The field with a transition's name, and its size."""
    text = f"episodes/{episode_id}/transitions/{step}".encode()
    data = b"\x0a" + varint(len(text)) + text
    return data, len(data)


def failed_result(failed: error_pb2.Failure) -> bytes:
    """A StepResult with a failure, as an item of a BatchStepEpisodesResponse."""
    return field(1, field(2, failed.SerializeToString()))


def failed_in_stream(correlation_id: int, failed: error_pb2.Failure) -> bytes:
    """A StreamStepsResponse with a failure."""
    tag = b"\x08" + varint(correlation_id) if correlation_id else b""
    return tag + field(3, failed.SerializeToString())


def streamed(correlation_id: int, response: bytes) -> bytes:
    """A StreamStepsResponse with a response."""
    tag = b"\x08" + varint(correlation_id) if correlation_id else b""
    return tag + b"\x12" + varint(len(response)) + response
