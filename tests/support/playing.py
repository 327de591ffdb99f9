"""Answer sheets, scripted episodes, and players that never give up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from trialgym.rpc.errors import DeadlineExceeded, TrialgymError, Unavailable, from_rpc_error
from trialgym.v1 import action_pb2, episode_pb2, finding_pb2
from trialgym.v1 import workflow_service_pb2 as ws

ELIGIBILITY, EVENTS, AMENDMENTS = (
    "tasks/eligibility_screening",
    "tasks/ae_classification",
    "tasks/protocol_amendment_review",
)
TASKS = (ELIGIBILITY, EVENTS, AMENDMENTS)
STEPS = {ELIGIBILITY: 3, EVENTS: 4, AMENDMENTS: 5}
"""How many submissions an episode of each takes."""

_SUBJECTS = [f"PT-00{i}" for i in range(1, 6)]
_CRITERIA = [f"IC-{i}" for i in range(1, 6)] + [f"EC-{i}" for i in range(1, 6)]
_EVENTS = [f"AE-00{i}" for i in range(1, 9)]
_DEFECTS = ["SAF-01", "SAF-02", "CON-01", "STA-01", "REG-01", "END-01"]


def findings(task: str, count: int, start: int = 0) -> list[finding_pb2.Finding]:
    """So many different claims on a task, beginning with another one for each `start`; some of them are right."""
    found = []
    for index in range(start, start + count):
        if task == ELIGIBILITY:
            subject, criterion = _SUBJECTS[index % 5], _CRITERIA[index // 5 % 10]
            claim: dict[str, Any] = {"subject_id": subject, "eligibility": {"criterion_ids": [criterion]}}
        elif task == EVENTS:
            event, grade = _EVENTS[index % 8], 1 + index // 8 % 5
            claim = {"subject_id": event, "adverse_event": {"ae_id": event, "corrected_grade": grade, "serious": bool(index % 2)}}
        else:
            item, code = "ABCD"[index % 4], _DEFECTS[index // 4 % 6]
            claim = {"subject_id": item, "amendment": {"item_id": item, "defect_code": code}}
        found.append(finding_pb2.Finding(type="FINDING_TYPE_SAFETY_CONCERN", severity="SEVERITY_MAJOR", **claim))
    return found


def submit(task: str, count: int = 2, start: int = 0, *, final: bool = False) -> action_pb2.Action:
    """Submits so many findings."""
    sheet = finding_pb2.Submission(findings=findings(task, count, start), rationale=f"sheet {start} of {count}")
    return action_pb2.Action(submit_findings={"submission": sheet, "final": final})


MALFORMED = action_pb2.Action(malformed={"raw_text": "I cannot say."})


def script(task: str, seed: int) -> list[action_pb2.Action]:
    """The actions of a whole episode, other ones for each seed; every third step is malformed."""
    return [MALFORMED if (seed + step) % 3 == 2 else submit(task, 1 + step % 4, seed + step) for step in range(STEPS[task])]


@dataclass
class Played:
    """What a player got."""

    name: str
    transitions: list[episode_pb2.Transition] = field(default_factory=list)
    attempts: int = 0
    replays: int = 0

    @property
    def rewards(self) -> list[float]:
        """The rewards in order."""
        return [transition.reward.value for transition in self.transitions]

    @property
    def hashes(self) -> list[str]:
        """The state hashes in order."""
        return [transition.state_hash for transition in self.transitions]


@dataclass
class Patience:
    """How a player meets trouble: which errors it repeats a call after, how often, and how long each attempt may take."""

    attempts: int = 200
    pause_s: float = 0.05
    timeout_s: float = 10.0
    again_after: tuple[type[TrialgymError], ...] = (Unavailable, DeadlineExceeded)


async def insist(send: Any, request: Any, patience: Patience) -> tuple[Any, int]:
    """Sends a call until it is answered; the answer and the number of attempts. Raises what no repeat can cure."""
    for attempt in range(1, patience.attempts + 1):
        try:
            return await send(request, timeout=patience.timeout_s), attempt
        except grpc.aio.AioRpcError as raised:
            error = from_rpc_error(raised)
            lost = raised.code() in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED} and not error.reason
            if not (lost or isinstance(error, patience.again_after)) or attempt == patience.attempts:
                raise
        await asyncio.sleep(patience.pause_s)
    raise AssertionError("a player makes at least one attempt")


async def play(stub: Any, task: str, seed: int, patience: Patience | None = None, *, key: str = "") -> Played:
    """Plays one scripted episode to its end, through whatever happens meanwhile; `key` makes its request ids its own."""
    patience = patience or Patience()
    create = ws.CreateEpisodeRequest(
        episode=episode_pb2.Episode(review={"task": task}, seed=seed),
        request_id=f"create-{key}{task[6:]}-{seed}",
        view="OBSERVATION_VIEW_BASIC",
    )
    made, _ = await insist(stub.CreateEpisode, create, patience)
    played = Played(made.name)
    for index, action in enumerate(script(task, seed)):
        step = ws.StepEpisodeRequest(name=made.name, expected_step=index, action=action, request_id=f"step-{index}")
        answer, attempts = await insist(stub.StepEpisode, step, patience)
        assert answer.transition.step == index + 1
        reward = answer.transition.reward
        assert reward.value == sum(term.value for term in reward.terms), "the terms sum to the reward, bit for bit"
        assert answer.transition.total_reward == sum([*played.rewards, reward.value])
        played.transitions.append(answer.transition)
        played.attempts += attempts
        played.replays += answer.replayed
    return played


def plan(count: int) -> list[tuple[str, int]]:
    """Tasks and seeds of so many episodes, the tasks by turns."""
    return [(TASKS[index % 3], index) for index in range(count)]


async def play_all(
    stub: Any, episodes: Iterable[tuple[str, int]], patience: Patience | None = None, *, key: str = ""
) -> list[Played]:
    """Plays them all at once."""
    return list(await asyncio.gather(*(play(stub, task, seed, patience, key=key) for task, seed in episodes)))


async def trajectory(stub: Any, name: str) -> list[episode_pb2.Transition]:
    """An episode's whole trajectory, page by page."""
    found: list[episode_pb2.Transition] = []
    token = ""
    while True:
        page = await stub.ListTransitions(ws.ListTransitionsRequest(parent=name, page_token=token))
        found += page.transitions
        token = page.next_page_token
        if not token:
            return found
        assert page.transitions, f"an empty page of {name} after step {len(found)} names a next one"


def same_play(one: Sequence[Played], other: Sequence[Played]) -> None:
    """Fails where two runs of the same scripts differ in any reward or state hash."""
    assert [p.rewards for p in one] == [p.rewards for p in other]
    assert [p.hashes for p in one] == [p.hashes for p in other]
