"""Answers joined from bytes are what the messages of the contract would be written as."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc import mirror
from trialgym.rpc.errors import InvalidField
from trialgym.rpc.value_digest import value_digest
from trialgym.v1 import action_pb2, episode_pb2, error_pb2, observation_pb2, reward_pb2
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service import answers, convert
from workflow_service.answers import AnswerMemo
from workflow_service.domain.environment import Applied, Grade, Malformed, Prerequisite, Submission, SubmitFindings, TaskFamily
from workflow_service.domain.episode import TransitionRecord
from workflow_service.domain.review import ReviewEnvironment
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.policies.baselines import random_legal
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart
from workflow_service.tests.engines import TASK

GRADE = Grade(0.375, 3.0, 8.0, "Two entries were read.", "structured", "1", "d" * 32, 2, 1)


def built(record: TransitionRecord) -> episode_pb2.Transition:
    """The same through messages, field by field."""
    graded = record.grade
    return episode_pb2.Transition(
        step=record.step,
        outcome=record.outcome.value,  # type: ignore[arg-type]
        observation=convert.observation(record.observation),
        reward=reward_pb2.Reward(
            value=record.reward.value,
            terms=[reward_pb2.RewardTerm(kind=t.kind.value, value=t.value) for t in record.reward.terms],  # type: ignore[arg-type]
        ),
        terminated=record.terminated,
        truncated=record.truncated,
        state_hash=record.state_hash,
        missing_prerequisites=[missing.value for missing in record.missing],  # type: ignore[misc]
        score=None if graded is None else answers.score(graded),
        total_reward=record.total_reward,
    )


def record_of(environment: Any, applied: Applied[Any], step: int, grade: Grade | None, total: float) -> TransitionRecord:
    return TransitionRecord(
        step,
        applied.outcome,
        environment.observe(applied.state),
        applied.reward,
        total,
        value_digest(applied.state),
        applied.terminated,
        applied.truncated,
        applied.missing,
        grade,
    )


@pytest.mark.parametrize("scenario", ["solid_tumor_chemo", "rare_disease_orphan", "cns_depression"])
@pytest.mark.parametrize("tier", [Tier.WARMUP, Tier.EXPERT])
def test_transitions_of_a_trial_are_written_as_messages_would_be(scenario: str, tier: Tier) -> None:
    """Over whole trials at random, with one memory for all steps: equal messages, and the bytes of protobuf's own order."""
    environment = TrialEnvironment(TrialStart(scenario, tier, 5, (), RULES_VERSION))
    state, policy, memo, total, ended = environment.reset(), random_legal(5), AnswerMemo(), 0.0, False
    for step in range(1, 60):
        action = Malformed("?") if step % 7 == 0 else policy(environment.observe(state))
        applied = environment.apply(state, action, None)
        total += applied.reward.value
        record = record_of(environment, applied, step, None, total)
        data = memo.answer(record)
        assert episode_pb2.Transition.FromString(data) == built(record)
        state, ended = applied.state, applied.terminated or applied.truncated
        if ended:
            break
    assert step > 5


def test_transitions_of_a_review_are_written_as_messages_would_be() -> None:
    """With grades, endings, and packets whose counts change."""
    environment, memo = ReviewEnvironment(TASK, 7), AnswerMemo()
    state, total = environment.reset(), 0.0
    for step in range(1, 5):
        action = (
            SubmitFindings(Submission(f"{step:032x}", b""), False, TaskFamily.AE_CLASSIFICATION) if step != 2 else Malformed("?")
        )
        grade = None if step == 2 else GRADE
        applied = environment.apply(state, action, grade)
        total += applied.reward.value
        record = record_of(environment, applied, step, grade, total)
        assert memo.answer(record) == built(record).SerializeToString(deterministic=True)
        state = applied.state
    assert record.truncated


def test_a_blocked_step_names_what_it_lacks() -> None:
    """The prerequisites stand packed, as protobuf writes repeated enums."""
    environment = TrialEnvironment(TrialStart("cns_depression", Tier.EXPERT, 5, (), RULES_VERSION))
    applied = environment.apply(environment.reset(), Malformed("?"), None)
    missing = tuple(Prerequisite)
    blocked = Applied(applied.state, applied.outcome, applied.reward, missing)
    record = record_of(environment, blocked, 1, None, 0.0)
    assert episode_pb2.Transition.FromString(AnswerMemo().answer(record)) == built(record)


def test_the_observation_is_the_mirror_of_the_domains() -> None:
    """Blocked actions and packets as the mirror has them."""
    environment = TrialEnvironment(TrialStart("cns_depression", Tier.EXPERT, 5, (TASK, TASK), RULES_VERSION))
    seen = environment.observe(environment.reset())
    message = observation_pb2.Observation.FromString(AnswerMemo().observation(seen))
    assert message == convert.observation(seen)
    assert list(message.blocked_actions) == [mirror.to_message(b, observation_pb2.BlockedAction) for b in seen.blocked_actions]


@given(
    st.text("abcXYZ019_-", min_size=1, max_size=64),
    st.integers(1, 300_000),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 40, 90, 9_000]),
)
def test_the_messages_around_a_transition(episode_id: str, step: int, replayed: bool, number: int, letters: int) -> None:
    """A response, an item of a batch and an answer on a stream are read as what they stand for, and written in protobuf's order."""
    stored = episode_pb2.Transition(step=step, state_hash="ab", total_reward=1.5)
    stored.observation.feedback = "é" * letters
    whole = episode_pb2.Transition()
    whole.CopyFrom(stored)
    whole.name = f"episodes/{episode_id}/transitions/{step}"
    response = pb.StepEpisodeResponse(transition=whole, replayed=replayed)
    data = answers.step_response(episode_id, step, stored.SerializeToString(), replayed=replayed)
    assert data == response.SerializeToString()
    assert answers.step_item(episode_id, step, stored.SerializeToString(), replayed=replayed) == answers.step_result(data)
    failed = error_pb2.Failure(message="no")
    batch = answers.step_result(data) + answers.failed_result(failed)
    results = [pb.StepResult(response=response), pb.StepResult(failure=failed)]
    assert batch == pb.BatchStepEpisodesResponse(results=results).SerializeToString()
    assert answers.streamed(number, data) == pb.StreamStepsResponse(correlation_id=number, response=response).SerializeToString()
    failure = pb.StreamStepsResponse(correlation_id=number, failure=failed)
    assert answers.failed_in_stream(number, failed) == failure.SerializeToString()


def test_an_observation_that_could_not_be_written_leaves_nothing_to_go_on_from() -> None:
    """The next one is written whole, though most of it is what it was."""
    environment = TrialEnvironment(TrialStart("cns_depression", Tier.EXPERT, 5, (), RULES_VERSION))
    seen = environment.observe(environment.reset())
    memo = AnswerMemo()
    memo.observation(seen)
    with pytest.raises(UnicodeEncodeError):
        memo.observation(replace(seen, feedback="\ud800"))
    for feedback in ("", "read", "read", seen.feedback):
        now = replace(seen, feedback=feedback, step=seen.step + 1)
        assert observation_pb2.Observation.FromString(memo.observation(now)) == convert.observation(now)


def command(action: action_pb2.Action) -> Any:
    """What the engine would be told of a step with this action."""
    return convert.step_command(pb.StepEpisodeRequest(name="episodes/e", expected_step=0, action=action))


def test_equal_actions_are_decoded_once() -> None:
    """An action of the same bytes is the same object; one of other bytes is another, and a refused one is never remembered."""
    blinding = [action_pb2.Action(set_blinding=action_pb2.SetBlinding(blinding=kind)) for kind in (1, 1, 2)]  # type: ignore[arg-type]
    first, second, other = map(command, blinding)
    assert first.action is second.action
    assert first.action != other.action
    for _ in range(2):
        with pytest.raises(InvalidField):
            command(action_pb2.Action(set_blinding=action_pb2.SetBlinding(blinding=99)))  # type: ignore[arg-type]
        with pytest.raises(InvalidField):
            command(action_pb2.Action())


def test_actions_in_memory_are_bounded() -> None:
    """Texts that differ each time do not pile up, and long ones are not kept at all."""
    for number in range(5_000):
        text = f"{number} " + "x" * (number % 2 * 300)
        assert command(action_pb2.Action(malformed=action_pb2.Malformed(raw_text=text))).action == Malformed(text)
    assert len(convert._known) <= 4_096
    assert max(map(len, convert._known)) <= 256


def test_what_is_remembered_by_identity_is_bounded() -> None:
    """Objects that come and go never get each other's bytes, and do not pile up."""
    known = answers.Remembered()
    for number in range(10_000):
        value = (number, "x")
        assert known.get(value) is None
        known.keep(value, b"%d" % number)
        assert known.get(value) == b"%d" % number
    assert len(known._known) <= 4_096
