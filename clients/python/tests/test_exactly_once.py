"""Steps are executed once, whatever is lost on the way and however often a call is repeated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trialgym
from trialgym.flows import episodes, steps
from trialgym.flows.episodes import EpisodeRecord
from trialgym.rpc.errors import (
    Busy,
    CancelledElsewhere,
    Capacity,
    DeadlineExceeded,
    Draining,
    EpisodeFinished,
    GraderUnavailable,
    InvalidField,
    StepMismatch,
    TrialgymError,
    Unavailable,
)
from trialgym.v1 import action_pb2, episode_pb2


def action(text: str = "") -> action_pb2.Action:
    return trialgym.malformed(text)


@pytest.fixture
def record(scripted: Any) -> EpisodeRecord:
    scripted.episodes["episodes/a"] = []
    return EpisodeRecord(scripted.GetEpisode(episode_pb2.Episode(name="episodes/a")))


def test_a_dropped_answer_is_fetched_not_executed_again(
    scripted: Any, run_flow: Any, fake_time: Any, faults: Any, record: Any
) -> None:
    scripted.faults.extend([faults.Drop(), faults.Drop(), None])
    step = run_flow(steps.step(record, action("x"), None, fake_time.patience(30)))
    assert step.info["replayed"]
    assert len(scripted.episodes["episodes/a"]) == 1
    assert len({request.request_id for request in scripted.requests}) == 1


def test_after_an_ambiguous_failure_the_same_action_gets_its_one_answer(
    scripted: Any, run_flow: Any, fake_time: Any, faults: Any, record: Any
) -> None:
    """A caller who gives up and comes back with the same action sends the same request_id, and the step counts once."""
    scripted.faults.append(faults.Drop())
    with pytest.raises(Unavailable):
        run_flow(steps.step(record, action("x"), None, fake_time.patience(0)))
    assert record.steps == 0
    step = run_flow(steps.step(record, action("x"), None, fake_time.patience(0)))
    assert step.info["replayed"]
    assert record.steps == 1
    assert len(scripted.episodes["episodes/a"]) == 1


def test_another_action_after_an_ambiguous_failure_is_refused_not_executed(
    scripted: Any, run_flow: Any, fake_time: Any, faults: Any, record: Any
) -> None:
    scripted.faults.append(faults.Drop())
    with pytest.raises(Unavailable):
        run_flow(steps.step(record, action("x"), None, fake_time.patience(0)))
    with pytest.raises(StepMismatch) as raised:
        run_flow(steps.step(record, action("y"), None, fake_time.patience(0)))
    assert raised.value.current_step == 1
    assert len(scripted.episodes["episodes/a"]) == 1


def test_every_step_has_its_own_request_id_even_for_equal_actions(
    scripted: Any, run_flow: Any, fake_time: Any, record: Any
) -> None:
    for _ in range(5):
        run_flow(steps.step(record, action("same"), None, fake_time.patience(0)))
    assert len({request.request_id for request in scripted.requests}) == 5
    assert [request.expected_step for request in scripted.requests] == [0, 1, 2, 3, 4]


def test_an_action_changed_in_place_is_another_action(
    scripted: Any, run_flow: Any, fake_time: Any, faults: Any, record: Any
) -> None:
    """The request holds a copy, so a caller who reuses one message object cannot confuse what was sent."""
    reused = action("x")
    scripted.faults.append(faults.Drop())
    with pytest.raises(Unavailable):
        run_flow(steps.step(record, reused, None, fake_time.patience(0)))
    reused.malformed.raw_text = "y"
    with pytest.raises(StepMismatch):
        run_flow(steps.step(record, reused, None, fake_time.patience(0)))


@pytest.mark.parametrize(
    "error", [Unavailable("down"), GraderUnavailable("down"), Draining("stopping"), CancelledElsewhere("again")]
)
def test_what_passes_is_waited_out_within_retry_for(
    error: TrialgymError, scripted: Any, run_flow: Any, fake_time: Any, record: Any
) -> None:
    scripted.faults.extend([error] * 12)
    run_flow(steps.step(record, action(), None, fake_time.patience(30)))
    assert scripted.calls["StepEpisode"] == 13
    assert fake_time.now < 1030.5


def test_the_time_to_retry_is_bounded_and_the_last_error_is_raised(
    scripted: Any, run_flow: Any, fake_time: Any, record: Any
) -> None:
    scripted.faults.extend([Unavailable("down")] * 1000)
    with pytest.raises(Unavailable):
        run_flow(steps.step(record, action(), None, fake_time.patience(30)))
    assert 1027 < fake_time.now <= 1030.5


def test_a_busy_server_is_asked_again_when_it_said(scripted: Any, run_flow: Any, fake_time: Any, record: Any) -> None:
    scripted.faults.append(Capacity("full", retry_after_ms=4000))
    run_flow(steps.step(record, action(), None, fake_time.patience(30)))
    assert fake_time.now >= 1004
    scripted.faults.append(Capacity("full", retry_after_ms=60_000))
    with pytest.raises(Busy):
        run_flow(steps.step(record, action(), None, fake_time.patience(30)))


@pytest.mark.parametrize(
    "error", [InvalidField("action", "is required"), DeadlineExceeded("late"), Capacity("full"), EpisodeFinished("over")]
)
def test_what_does_not_pass_is_raised_at_once(
    error: TrialgymError, scripted: Any, run_flow: Any, fake_time: Any, record: Any
) -> None:
    scripted.faults.append(error)
    with pytest.raises(type(error)):
        run_flow(steps.step(record, action(), None, fake_time.patience(30)))
    assert scripted.calls["StepEpisode"] == 1


ERRORS = [
    Unavailable("down"),
    GraderUnavailable("down"),
    DeadlineExceeded("late"),
    Capacity("full", retry_after_ms=50),
    InvalidField("x", "no"),
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_run_of_faults_leaves_one_transition_for_each_step(
    data: st.DataObject, scripted: Any, run_flow: Any, fake_time: Any, faults: Any
) -> None:
    """Whatever is refused or lost, in steps and in batches, n steps that returned are n transitions with those answers."""
    fault = st.one_of(st.none(), st.just(faults.Drop()), st.sampled_from(ERRORS))
    scripted.faults.clear()
    scripted.item_faults.clear()
    scripted.episodes.clear()
    scripted.episodes.update({f"episodes/{i}": [] for i in range(3)})
    records = [EpisodeRecord(episode_pb2.Episode(name=name, state=episodes.ACTIVE)) for name in scripted.episodes]
    got: dict[str, list[str]] = {record.name: [] for record in records}
    patience = fake_time.patience(data.draw(st.sampled_from([0, 3])))
    for turn in range(data.draw(st.integers(1, 6))):
        todo = {record.name: record for record in records}
        while todo:
            scripted.faults.extend(data.draw(st.lists(fault, max_size=4)))
            scripted.item_faults.extend(data.draw(st.lists(st.one_of(st.none(), st.sampled_from(ERRORS)), max_size=4)))
            if data.draw(st.booleans()):
                pairs = [(record, action(str(turn))) for record in todo.values()]
                results = run_flow(steps.step_batch(pairs, None, patience))
            else:
                pairs = [(next(iter(todo.values())), action(str(turn)))]
                try:
                    results = [run_flow(steps.step(*pairs[0], None, patience))]
                except TrialgymError as error:
                    results = [error]
            for (record, _), result in zip(pairs, results, strict=True):
                if not isinstance(result, TrialgymError):
                    got[record.name].append(result.info["state_hash"])
                    del todo[record.name]
    for name, log in scripted.episodes.items():
        assert [transition.state_hash for _, _, transition in log] == got[name]
        assert len({request_id for request_id, _, _ in log}) == len(log)


def test_a_batch_sends_only_the_failed_items_again(scripted: Any, run_flow: Any, fake_time: Any) -> None:
    names = [f"episodes/{i}" for i in range(4)]
    scripted.episodes.update({name: [] for name in names})
    records = [EpisodeRecord(episode_pb2.Episode(name=name)) for name in names]
    scripted.item_faults.extend([None, GraderUnavailable("down"), None, InvalidField("action", "is required"), None])
    results = run_flow(steps.step_batch([(record, action()) for record in records], None, fake_time.patience(30)))
    assert [type(result).__name__ for result in results] == ["Step", "Step", "Step", "InvalidField"]
    assert [len(request.requests) for request in scripted.requests] == [4, 1]


def test_batches_are_cut_to_256_items_and_to_the_message_size(scripted: Any, run_flow: Any, fake_time: Any) -> None:
    scripted.episodes.update({f"episodes/{i}": [] for i in range(600)})
    records = [EpisodeRecord(episode_pb2.Episode(name=name)) for name in scripted.episodes]
    results = run_flow(steps.step_batch([(record, action()) for record in records], None, fake_time.patience(0)))
    assert all(isinstance(result, steps.Step) for result in results)
    assert [len(request.requests) for request in scripted.requests] == [256, 256, 88]

    scripted.requests.clear()
    heavy = trialgym.submit_findings([trialgym.finding(description="x" * 4000) for _ in range(20)])
    run_flow(steps.step_batch([(record, heavy) for record in records[:200]], None, fake_time.patience(0)))
    assert len(scripted.requests) > 1
    assert max(request.ByteSize() for request in scripted.requests) < 8 * 1024 * 1024


def test_a_failed_call_is_the_error_of_its_own_items_only(scripted: Any, run_flow: Any, fake_time: Any) -> None:
    scripted.episodes.update({f"episodes/{i}": [] for i in range(300)})
    records = [EpisodeRecord(episode_pb2.Episode(name=name)) for name in scripted.episodes]
    scripted.faults.append(Unavailable("down"))
    results = run_flow(steps.step_batch([(record, action()) for record in records], None, fake_time.patience(0)))
    assert [isinstance(result, Unavailable) for result in results] == [True] * 256 + [False] * 44


def test_an_episode_twice_in_a_batch_is_refused_before_anything_is_sent(
    scripted: Any, run_flow: Any, fake_time: Any, record: Any
) -> None:
    with pytest.raises(InvalidField) as raised:
        run_flow(steps.step_batch([(record, action()), (record, action())], None, fake_time.patience(0)))
    assert raised.value.field == "steps[1]"
    assert not scripted.requests
