"""A review episode: submissions that replace each other, a return that is the final score, and nothing told before the end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc.value_digest import value_digest
from workflow_service.domain.environment import ActionType, Malformed, Outcome, TaskFamily
from workflow_service.domain.review import MALFORMED_PENALTY, ReviewEnvironment, ReviewState, WrongAction
from workflow_service.domain.rewards import TermKind, quantise
from workflow_service.domain.trial.actions import ReviewScenario
from workflow_service.tests.review_play import LIMITS, Play, grade, hashes, sheet, task

plays = st.lists(st.tuples(st.none() | st.floats(0, 1), st.booleans()), min_size=1, max_size=5)


def play(environment: ReviewEnvironment, script: Play) -> tuple[ReviewState, list[float], list[Outcome]]:
    """Plays until the script or the episode ends."""
    state, rewards, outcomes = environment.reset(), list[float](), list[Outcome]()
    for number, (value, final) in enumerate(script):
        if state.ended:
            break
        action = Malformed("?") if value is None else sheet(f"s{number}", final=final)
        applied = environment.apply(state, action, None if value is None else grade(value))
        assert applied.reward.value == sum(term.value for term in applied.reward.terms)
        assert applied.state.ended is (applied.terminated or applied.truncated)
        assert not (applied.terminated and applied.truncated)
        rewards.append(applied.reward.value)
        outcomes.append(applied.outcome)
        state = applied.state
    return state, rewards, outcomes


@given(script=plays, family=st.sampled_from(list(LIMITS)))
def test_the_return_is_the_final_score_less_the_penalties(script: Play, family: TaskFamily) -> None:
    """The rewards sum to the quantised score of the last sheet less a fixed amount for each malformed answer, exactly."""
    state, rewards, outcomes = play(ReviewEnvironment(task(family), 7), script)
    taken = script[: len(outcomes)]
    scores = [value for value, _ in taken if value is not None]
    wanted = (quantise(scores[-1]) if scores else 0.0) + sum(v is None for v, _ in taken) * quantise(MALFORMED_PENALTY)
    total = 0.0
    for reward in rewards:
        total += reward
    assert total == wanted
    assert state.score == (quantise(scores[-1]) if scores else 0.0)
    for order in itertools.islice(itertools.permutations(rewards), 24):
        assert sum(order) == wanted


@pytest.mark.parametrize("family", LIMITS)
@pytest.mark.parametrize("filler", [0.5, None])
def test_the_limit_truncates_and_a_final_sheet_terminates(family: TaskFamily, filler: float | None) -> None:
    """Without a final sheet an episode is truncated at its limit of 3, 4 or 5 steps; a final one ends it where it stands."""
    limit, environment = LIMITS[family], ReviewEnvironment(task(family), 7)
    for final_at in range(1, limit + 1):
        state, outcomes = environment.reset(), []
        for number in range(1, final_at + 1):
            last = number == final_at
            if filler is None and not last:
                applied = environment.apply(state, Malformed(), None)
            else:
                applied = environment.apply(state, sheet(final=last), grade(0.5))
            outcomes.append((applied.terminated, applied.truncated))
            state = applied.state
        assert outcomes == [(False, False)] * (final_at - 1) + [(True, False)]
    state, outcomes = environment.reset(), []
    for _ in range(limit):
        applied = environment.apply(state, Malformed() if filler is None else sheet(), None if filler is None else grade(filler))
        outcomes.append((applied.terminated, applied.truncated))
        state = applied.state
    assert outcomes == [(False, False)] * (limit - 1) + [(False, True)]
    seen = environment.observe(state)
    assert (seen.steps_left, seen.legal_actions) == (0, ())


def test_a_malformed_answer_costs_a_step_and_changes_nothing_else() -> None:
    """The sheet that stands, its score and its counts are kept; the step is counted, and the penalty is its only term."""
    environment = ReviewEnvironment(task(), 7)
    before = environment.apply(environment.reset(), sheet(), grade(0.7)).state
    applied = environment.apply(before, Malformed("gibberish \0 \u202e"), None)
    kept = replace(applied.state, step=before.step, feedback=before.feedback)
    assert kept == before
    assert applied.state.step == before.step + 1
    assert applied.outcome is Outcome.MALFORMED
    assert [term.kind for term in applied.reward.terms] == [TermKind.MALFORMED]
    assert "gibberish" not in applied.state.feedback


def test_the_same_sheet_again_earns_nothing() -> None:
    """Repeating a sheet has no term, and a worse one takes back what it loses."""
    environment = ReviewEnvironment(task(), 7)
    one = environment.apply(environment.reset(), sheet(), grade(0.75))
    again = environment.apply(one.state, sheet(), grade(0.75))
    worse = environment.apply(again.state, sheet("w"), grade(0.25))
    assert (one.reward.value, again.reward.value, worse.reward.value) == (0.75, 0.0, -0.5)
    assert again.reward.terms == ()


WRONG = [
    (ReviewScenario(), "action"),
    ("text", "action"),
    (None, "action"),
    (sheet(family=TaskFamily.ELIGIBILITY_SCREENING), "action.submit_findings.family"),
    (sheet(family=TaskFamily.MEDICATION_RECONCILIATION), "action.submit_findings.family"),
]


@pytest.mark.parametrize(("action", "field"), WRONG)
def test_an_action_of_another_environment_is_the_clients_bug(action: object, field: str) -> None:
    """What is no move here is refused with its field, before it is graded and when it is applied, and is no step."""
    environment = ReviewEnvironment(task(), 7)
    state = environment.reset()
    for call in (
        lambda: environment.grade_call(state, action),  # type: ignore[arg-type]
        lambda: environment.apply(state, action, grade(1.0)),  # type: ignore[arg-type]
    ):
        with pytest.raises(WrongAction) as wrong:
            call()
        assert wrong.value.field == field
        assert wrong.value.problem


def test_the_task_of_the_episode_is_what_is_graded() -> None:
    """A submission asks for a grade of its own content under the episode's task and rubric; a malformed answer asks for none."""
    environment = ReviewEnvironment(task(), 7)
    call = environment.grade_call(environment.reset(), sheet(family=TaskFamily.AE_CLASSIFICATION))
    assert call is not None
    assert (call.task, call.submission) == (task(), sheet().submission)
    assert environment.grade_call(environment.reset(), Malformed()) is None
    with pytest.raises(ValueError, match="without its grade"):
        environment.apply(environment.reset(), sheet(), None)


@given(value=st.floats(0, 1), points=st.floats(-10, 10), accepted=st.integers(0, 64), invalid=st.integers(0, 64))
def test_what_the_agent_sees_does_not_follow_from_the_score(value: float, points: float, accepted: int, invalid: int) -> None:
    """Observation and text are the same for the best and the worst sheet with equal counts: they reveal nothing of the key."""
    environment = ReviewEnvironment(task(), 7)
    shown = []
    for score in (value, 0.0, 1.0):
        applied = environment.apply(
            environment.reset(), sheet(), replace(grade(score, "Received.", accepted, invalid), points=points)
        )
        shown.append((environment.observe(applied.state), environment.render(applied.state)))
    assert shown[0] == shown[1] == shown[2]


def test_observations_name_the_steps_and_the_legal_moves() -> None:
    """Steps, steps left, counts and legal actions are as the state has them, from the start to the end."""
    environment = ReviewEnvironment(task(), 7)
    state = environment.reset()
    for taken in range(4):
        seen = environment.observe(state)
        assert (seen.step, seen.steps_left) == (taken, 4 - taken)
        assert seen.legal_actions == (ActionType.SUBMIT_FINDINGS, ActionType.MALFORMED)
        assert (seen.blocked_actions, seen.trial, seen.hint) == ((), None, "")
        (packet,) = seen.review_packets
        assert (packet.task, packet.family, packet.submissions) == (task().name, task().family, taken)
        assert "submit_findings" in environment.render(state)
        state = environment.apply(state, sheet(f"s{taken}"), grade(0.1 * taken)).state
    assert environment.observe(state).legal_actions == ()
    assert len(environment.render(state).encode()) < 8 * 1024


# The same everywhere


GOLDEN = {
    "ELIGIBILITY_SCREENING": [
        "ab05ec6f5f334298a3895ac90b924776",
        "afc6c9d93728cc6e1964fcd221cf2a19",
        "165a9fa5223aef6d27ee7ae1071bbcfd",
        "667d14d83d7bdfe85c2ce1344bba6d35",
    ],
    "AE_CLASSIFICATION": [
        "cd664c99682f76414253bdec5d9f5f3a",
        "ae0f6eff22495903152a1cfc53844e08",
        "225c00c3e3cb294a72f1c2016976e596",
        "9031f5f6c4a0e3193a74c907d18ba4eb",
        "94581fc84f248389a46c00a108094b94",
    ],
    "PROTOCOL_AMENDMENT_REVIEW": [
        "4e2f3e3cabc5b4bb16ca569ad60c6a7e",
        "13220914102e1c4275bd3b94bb2a1aab",
        "c5faa4cd9fd6b9dab230188b722d78d2",
        "3d8911ef16e98451a996c5a4f74e7f4e",
        "9d1bd15ae75255eab9aa5558a7151e6c",
    ],
}
"""The state hash after each step of the script. Stored episodes are kept by them: another hash means that none can be continued."""


def test_state_hashes_never_change() -> None:
    """The hashes of a fixed play are the ones written down."""
    assert hashes() == GOLDEN


async def test_state_hashes_do_not_depend_on_the_process() -> None:
    """Under every seed of Python's own hashes, a fresh process computes the same state hashes."""
    script = "import json, sys; from workflow_service.tests.review_play import hashes; json.dump(hashes(), sys.stdout)"
    places = asyncio.Semaphore(2)

    async def run(seed: int) -> dict[str, list[str]]:
        async with places:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", script, stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": str(seed)}
            )
            out, _ = await child.communicate()
            return json.loads(out)  # type: ignore[no-any-return]

    for found in await asyncio.gather(*map(run, range(21))):
        assert found == GOLDEN


def test_the_state_hash_covers_the_whole_state() -> None:
    """A change of any field of the state changes its hash."""
    state = ReviewState(task(), 7)
    changed: dict[str, Any] = {
        "task": task(TaskFamily.ELIGIBILITY_SCREENING),
        "seed": 8,
        "step": 1,
        "score": 0.5,
        "sheet": "x",
        "submissions": 1,
        "accepted_entries": 1,
        "invalid_entries": 1,
        "ended": True,
        "feedback": "x",
    }
    assert set(changed) == {field.name for field in fields(ReviewState)}
    assert (
        len({value_digest(state), *(value_digest(replace(state, **{name: value})) for name, value in changed.items())})
        == len(changed) + 1
    )
