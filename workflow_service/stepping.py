"""Steps, exactly once.

A step is: take the episode's turn, answer a known request id from the log, check, have the submission graded, apply the rules,
append to the log, answer. Everything before the append can be cancelled without a trace; the append itself cannot be cut short. The
store's fence decides between replicas: whoever loses reads the log again and starts over, so a cache is only ever a head start.
A refusal is never based on the cache alone, for another replica may have moved the episode on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from trialgym.rpc.encoding import digest
from trialgym.rpc.errors import Capacity, InvalidField, RequestIdReused, TrialgymError
from trialgym.rpc.incidents import fault
from trialgym.rpc.turns import Turns
from workflow_service.curricula import Curricula
from workflow_service.domain.environment import Applied, Grade, GradeCall
from workflow_service.domain.episode import Entry, EpisodeState, Head, TransitionRecord
from workflow_service.domain.review import WrongAction
from workflow_service.domain.rewards import TermKind
from workflow_service.domain.trial.actions import InvalidAction
from workflow_service.grader_port import GraderPort
from workflow_service.live import Live, LiveEpisodes
from workflow_service.ports import Clock, Codec
from workflow_service.quota import Places
from workflow_service.refusals import refusal, store_errors, unknown
from workflow_service.storage.base import Append, EpisodeStore

T = TypeVar("T")

_log = structlog.get_logger("trialgym.engine")

_ROUNDS = 8
"""A step that loses the fence this often is racing somebody who steps without end; its caller may try again."""


@dataclass(frozen=True, slots=True)
class StepCommand:
    """One step to take. `action` is the decoded action, `encoded` the same as the log keeps it, `payload_digest` its digest."""

    episode_id: str
    request_id: str
    expected_step: int | None
    action: Any
    encoded: bytes
    payload_digest: str


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """A step's stored answer. `observe` gives what a fuller view of it needs."""

    live: Live
    step: int
    answer: bytes
    replayed: bool


@dataclass(slots=True)
class _Plan:
    """A step on its way to the log, from the state after `base` steps."""

    index: int
    command: StepCommand
    live: Live
    base: int
    call: GradeCall | None
    grade: Grade | None = None
    state: Any = None
    append: Append | None = None
    success: bool = False


class Stepper:
    """Takes steps over a store, a grader and the live episodes."""

    def __init__(
        self,
        *,
        store: EpisodeStore,
        grader: GraderPort,
        live: LiveEpisodes,
        codec: Codec,
        clock: Clock,
        retention_ms: int,
        places: Places,
        curricula: Curricula,
    ) -> None:
        self._store = store
        self._grader = grader
        self._live = live
        self._codec = codec
        self._clock = clock
        self._retention_ms = retention_ms
        self._places = places
        self._curricula = curricula

    async def step(self, commands: Sequence[StepCommand]) -> list[StepAnswer | TrialgymError]:
        """Takes steps of different episodes: one grading call, one commit. The answers are in the order of the commands.

        Cancelling it leaves each episode as it was or with its step committed, never between.
        """
        if len({command.episode_id for command in commands}) < len(commands):
            raise ValueError("the steps of a batch must be of different episodes")
        results: dict[int, StepAnswer | TrialgymError] = {}
        async with AsyncExitStack() as turns:
            waiting: list[int] = []
            # Turns are taken in one order everywhere, or two batches could wait for each other.
            for index in sorted(range(len(commands)), key=lambda i: commands[i].episode_id):
                try:
                    with store_errors():
                        live = await self._live.get(commands[index].episode_id)
                    await turns.enter_async_context(live.lock)
                except TrialgymError as error:
                    results[index] = error
                except Exception as error:
                    results[index] = fault(error)
                else:
                    waiting.append(index)
            for _ in range(_ROUNDS):
                waiting = await self._round(waiting, commands, results)
                if not waiting:
                    break
            for index in waiting:
                results[index] = Capacity("the episode is being stepped by others without pause; try again", retry_after_ms=100)
        return [results[index] for index in range(len(commands))]

    async def _round(
        self,
        indices: Sequence[int],
        commands: Sequence[StepCommand],
        results: dict[int, StepAnswer | TrialgymError],
    ) -> list[int]:
        """One try at each step; returns those to try again, because somebody else's step came first."""
        plans: list[_Plan] = []
        turns = Turns()  # a batch of hundreds must not keep the loop from everybody else
        for index in indices:
            await turns.give()
            try:
                with store_errors():
                    live = await self._live.get(commands[index].episode_id)
                outcome = await self._plan(index, commands[index], live)
            except TrialgymError as error:
                results[index] = error
            except Exception as error:
                results[index] = fault(error)
            else:
                if isinstance(outcome, StepAnswer):
                    results[index] = outcome
                else:
                    plans.append(outcome)
        plans = await self._grade(plans, results)
        # A reader may have caught the episode up with another replica while the grader worked: what was decided and graded then
        # holds no more, and the step that came first may have been this very request.
        ready: list[_Plan] = []
        for plan in plans:
            await turns.give()
            if plan.live.head.step == plan.base and self._apply(plan, results):
                ready.append(plan)
        if ready:
            await _uncut(self._commit(ready, results))
        return [index for index in indices if index not in results]

    async def _plan(self, index: int, command: StepCommand, live: Live) -> _Plan | StepAnswer:
        """The stored answer of a known request, or what must be graded for a new one."""
        known = live.requests.get(command.request_id) if command.request_id else None
        if known is None and self._refusal(command, live) is not None:
            # Another replica may have moved the episode on; only the store may refuse.
            with store_errors():
                live = await self._live.fresh(command.episode_id)
            known = live.requests.get(command.request_id) if command.request_id else None
            refused = self._refusal(command, live)
            if known is None and refused is not None:
                raise refused
        if known is not None:
            return await self._replay(command, live, *known)
        try:
            call = live.environment.grade_call(live.state, command.action)
        except (WrongAction, InvalidAction) as error:
            raise InvalidField(error.field, error.problem) from error
        return _Plan(index, command, live, live.head.step, call)

    async def _replay(self, command: StepCommand, live: Live, step: int, payload_digest: str) -> StepAnswer:
        if payload_digest != command.payload_digest:
            raise RequestIdReused(
                f"request_id {command.request_id} was used for another action at step {step}; use a new id for a new action"
            )
        with store_errors():
            entries = await self._store.entries(live.episode_id, after=step - 1, limit=1)
        if not entries:
            self._live.forget(live.episode_id)
            raise unknown(live.episode_id)
        return StepAnswer(live, step, entries[0].answer, replayed=True)

    async def _grade(self, plans: list[_Plan], results: dict[int, StepAnswer | TrialgymError]) -> list[_Plan]:
        wanted = [(plan, plan.call) for plan in plans if plan.call is not None]
        if not wanted:
            return plans
        grades: Sequence[Grade | TrialgymError]
        try:
            grades = await self._grader.grade([call for _, call in wanted])
            if len(grades) != len(wanted):
                raise ValueError(f"{len(grades)} grades for {len(wanted)} submissions")
        except Exception as error:
            grades = [fault(error)] * len(wanted)
        for (plan, _), grade in zip(wanted, grades, strict=True):
            if isinstance(grade, TrialgymError):
                await self._not_graded(plan, grade, results)
            elif not 0.0 <= grade.value <= 1.0:  # as no number, too: never to become a reward
                results[plan.index] = fault(ValueError(f"the grader gave {plan.live.episode_id} the score {grade.value!r}"))
            else:
                plan.grade = grade
        return [plan for plan in plans if plan.call is None or plan.grade is not None]

    async def _not_graded(self, plan: _Plan, error: TrialgymError, results: dict[int, StepAnswer | TrialgymError]) -> None:
        """Answers with the grader's failure, unless what asked for a grade was a stale cache: then the step is planned anew."""
        try:
            with store_errors():
                live = await self._live.fresh(plan.command.episode_id)
        except TrialgymError as unreadable:
            results[plan.index] = unreadable
        except Exception as unreadable:
            results[plan.index] = fault(unreadable)
        else:
            if live.head.step == plan.base and self._refusal(plan.command, live) is None:
                results[plan.index] = error

    def _apply(self, plan: _Plan, results: dict[int, StepAnswer | TrialgymError]) -> bool:
        """Applies the rules to a plan; False where they failed, which is a fault of ours and no step."""
        live, command = plan.live, plan.command
        try:
            applied: Applied[Any] = live.environment.apply(live.state, command.action, plan.grade)
            state_hash = digest(applied.state)
            now, step = self._clock(), live.head.step + 1
            total = live.head.total_reward + applied.reward.value
            ended = EpisodeState.TERMINATED if applied.terminated else EpisodeState.TRUNCATED if applied.truncated else None
            lease_ms = live.start.ttl_ms if ended is None else self._retention_ms
            head = Head(step, ended or EpisodeState.ACTIVE, now + lease_ms, now, total, state_hash)
            record = TransitionRecord(
                step=step,
                outcome=applied.outcome,
                observation=live.environment.observe(applied.state),
                reward=applied.reward,
                total_reward=total,
                state_hash=state_hash,
                terminated=applied.terminated,
                truncated=applied.truncated,
                missing=applied.missing,
                grade=plan.grade,
            )
            answer = self._codec.encode_answer(record)
        except Exception as error:
            results[plan.index] = fault(error)
            return False
        plan.state = applied.state
        plan.success = any(term.kind is TermKind.OUTCOME and term.value > 0 for term in applied.reward.terms)
        entry = Entry(step, command.request_id, command.payload_digest, command.encoded, answer)
        plan.append = Append(live.episode_id, entry, head, live.head.state_hash)
        return True

    async def _commit(self, plans: list[_Plan], results: dict[int, StepAnswer | TrialgymError]) -> None:
        """Appends the steps; those that lose the fence get no result, and their episodes are read anew."""
        appends = [plan.append for plan in plans if plan.append is not None]
        counts = self._places.counts
        try:
            with store_errors():
                passed = await self._store.append(appends)
        except Exception as error:
            told = error if isinstance(error, TrialgymError) else fault(error)
            for plan in plans:
                results[plan.index] = told
                self._live.forget(plan.live.episode_id)  # it may have been written all the same: the log decides
            return
        for plan, append, won in zip(plans, appends, passed, strict=True):
            live = plan.live
            if not won:
                await self._reload(plan, results)
                continue
            if live.head.step < append.entry.step:  # else a reader has already caught it up, with this step and perhaps with more
                live.state, live.head = plan.state, append.head
            if append.entry.request_id:
                live.requests[append.entry.request_id] = (append.entry.step, append.entry.payload_digest)
            if append.head.state is not EpisodeState.ACTIVE:
                self._places.free(1, since=counts)
                await self._judge(plan)
            self._live.put(live)
            results[plan.index] = StepAnswer(live, append.entry.step, append.entry.answer, replayed=False)

    async def _judge(self, plan: _Plan) -> None:
        """Tells the episode's curriculum how it went. The step stands whatever becomes of that."""
        start = plan.live.start
        if not start.curriculum_id or start.trial is None:
            return
        try:
            await self._curricula.record(start.curriculum_id, start.trial, success=plan.success)
        except Exception as error:
            _log.warning("an outcome was not recorded", curriculum=start.curriculum_id, cause=str(error))

    async def _reload(self, plan: _Plan, results: dict[int, StepAnswer | TrialgymError]) -> None:
        # Read anew from the log, not caught up: a store that lost its last commits stands behind what is remembered here.
        self._live.forget(plan.live.episode_id)
        try:
            with store_errors():
                await self._live.fresh(plan.live.episode_id)
        except TrialgymError as error:
            results[plan.index] = error
        except Exception as error:
            results[plan.index] = fault(error)

    def _refusal(self, command: StepCommand, live: Live) -> TrialgymError | None:
        return refusal(live.episode_id, live.head, command.expected_step, self._clock())


async def _uncut(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end even where the caller is cancelled meanwhile, then lets the cancellation go on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()
