"""Steps, exactly once.

A step is: take the episode's turn, answer a known request id from the log, check, have the submission graded, apply the rules,
append to the log, answer. Everything before the append can be cancelled without a trace; the append itself cannot be cut short. The
store's fence decides between replicas: whoever loses reads the log again and starts over, so a cache is only ever a head start.
A refusal is never based on the cache alone, for another replica may have moved the episode on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from trialgym.rpc.errors import Capacity, InvalidField, RequestIdReused, TrialgymError
from trialgym.rpc.incidents import fault
from trialgym.rpc.turns import Turns
from trialgym.rpc.value_digest import value_digest
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
from workflow_service.refusals import refusal, store_errors
from workflow_service.storage.base import Append, EpisodeStore
from workflow_service.turn import Turn

T = TypeVar("T")

_log = structlog.get_logger("trialgym.engine")

_ACTIVE = EpisodeState.ACTIVE

_ROUNDS = 8
"""A step that loses the fence this often is racing somebody who steps without end; its caller may try again."""


@dataclass(slots=True)
class StepCommand:
    """One step to take. `action` is the decoded action, `encoded` the same as the log keeps it."""

    episode_id: str
    request_id: str
    expected_step: int | None
    action: Any
    encoded: bytes


@dataclass(slots=True)
class StepAnswer:
    """A step's stored answer, and the episode it was taken in."""

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

    async def step(self, commands: Sequence[StepCommand], *, may_be_cut: bool = True) -> list[StepAnswer | TrialgymError]:
        """Takes steps of different episodes: one grading call, one commit. The answers are in the order of the commands.

        Cancelling it leaves each episode as it was or with its step committed, never between; `may_be_cut` says if anybody may.
        """
        ids = [command.episode_id for command in commands]
        if len(set(ids)) < len(ids):
            raise ValueError("the steps of a batch must be of different episodes")
        results: dict[int, StepAnswer | TrialgymError] = {}
        held: list[Turn] = []
        try:
            lives = self._take_all(ids, held)
            if lives is None:
                lives = await self._take_each(ids, held, results)
            waiting = await self._round(list(lives.items()), commands, results, may_be_cut)
            for _ in range(_ROUNDS - 1):
                if not waiting:
                    break
                waiting = await self._round(await self._read_again(waiting, ids, results), commands, results, may_be_cut)
            for index, _live in waiting:
                results[index] = Capacity("the episode is being stepped by others without pause; try again", retry_after_ms=100)
        finally:
            for turn in held:
                turn.give_back()
        return [results[index] for index in range(len(commands))]

    def _take_all(self, ids: Sequence[str], held: list[Turn]) -> dict[int, Live] | None:
        """The turns of all episodes at once, or none and None where one is not in memory or is not free."""
        lives: dict[int, Live] = {}
        used = self._live.used
        for index, episode_id in enumerate(ids):
            live = used(episode_id)
            if live is None or not live.turn.try_take():
                for turn in held:
                    turn.give_back()
                held.clear()
                return None
            held.append(live.turn)
            lives[index] = live
        return lives

    async def _take_each(
        self, ids: Sequence[str], held: list[Turn], results: dict[int, StepAnswer | TrialgymError]
    ) -> dict[int, Live]:
        """The turns of the episodes, one after the other in one order everywhere, or two batches could wait for each other."""
        lives: dict[int, Live] = {}
        for index in sorted(range(len(ids)), key=lambda i: ids[i]):
            try:
                with store_errors():
                    live = await self._live.get(ids[index])
                await live.turn.take()
                while (now := self._live.known(ids[index]) or live) is not live:
                    # Whoever had the turn before found that the episode must be read anew.
                    live.turn.give_back()
                    live = now
                    await live.turn.take()
                held.append(live.turn)
                lives[index] = live
            except TrialgymError as error:
                results[index] = error
            except Exception as error:
                results[index] = fault(error)
        return lives

    async def _read_again(
        self, waiting: Sequence[tuple[int, Live]], ids: Sequence[str], results: dict[int, StepAnswer | TrialgymError]
    ) -> list[tuple[int, Live]]:
        found = []
        for index, _ in waiting:
            try:
                with store_errors():
                    found.append((index, await self._live.get(ids[index])))
            except TrialgymError as error:
                results[index] = error
            except Exception as error:
                results[index] = fault(error)
        return found

    async def _round(
        self,
        episodes: Sequence[tuple[int, Live]],
        commands: Sequence[StepCommand],
        results: dict[int, StepAnswer | TrialgymError],
        may_be_cut: bool,
    ) -> list[tuple[int, Live]]:
        """One try at each step; returns those to try again, because somebody else's step came first."""
        plans: list[_Plan] = []
        turns = Turns()  # a batch of hundreds must not keep the loop from everybody else
        now = self._clock()
        for index, live in episodes:
            if turns.due():
                await turns.give()
                now = self._clock()
            command = commands[index]
            try:
                if (command.request_id and command.request_id in live.requests) or _refused(command, live.head, now):
                    outcome = await self._plan_carefully(index, command)
                else:
                    outcome = self._plan(index, command, live)
            except TrialgymError as error:
                results[index] = error
            except Exception as error:
                results[index] = fault(error)
            else:
                if isinstance(outcome, StepAnswer):
                    results[index] = outcome
                elif outcome is not None:
                    plans.append(outcome)
        if any(plan.call is not None for plan in plans):
            plans = await self._grade(plans, results)
        # A reader may have caught the episode up with another replica while the grader worked: what was decided and graded then
        # holds no more, and the step that came first may have been this very request.
        ready: list[_Plan] = []
        now = self._clock()
        for plan in plans:
            if turns.due():
                await turns.give()
                now = self._clock()
            if plan.live.head.step == plan.base and self._apply(plan, now, results):
                ready.append(plan)
        if ready:
            commit = self._commit(ready, results)
            await (_uncut(commit) if may_be_cut else commit)
        return [(index, live) for index, live in episodes if index not in results]

    async def _plan_carefully(self, index: int, command: StepCommand) -> _Plan | StepAnswer | None:
        """The stored answer of a known request, a refusal, or what must be graded for a step that looked refused.

        None where the store has lost the step that the request is remembered for: then it is to be read and tried again.
        """
        with store_errors():
            live = await self._live.get(command.episode_id)
        known = live.requests.get(command.request_id) if command.request_id else None
        if known is None:
            # Another replica may have moved the episode on; only the store may refuse.
            with store_errors():
                live = await self._live.fresh(command.episode_id)
            known = live.requests.get(command.request_id) if command.request_id else None
            refused = self._refusal(command, live)
            if known is None and refused is not None:
                raise refused
        if known is not None:
            return await self._replay(command, live, known)
        return self._plan(index, command, live)

    def _plan(self, index: int, command: StepCommand, live: Live) -> _Plan:
        try:
            call = live.environment.grade_call(live.state, command.action)
        except (WrongAction, InvalidAction) as error:
            raise InvalidField(error.field, error.problem) from error
        return _Plan(index, command, live, live.head.step, call)

    async def _replay(self, command: StepCommand, live: Live, step: int) -> StepAnswer | None:
        with store_errors():
            entries = await self._store.entries(live.episode_id, after=step - 1, limit=1)
        if not entries or entries[0].request_id != command.request_id:
            self._live.forget(live.episode_id)
            return None
        if not self._codec.same_action(entries[0].action, command.encoded):
            raise RequestIdReused(
                f"request_id {command.request_id} was used for another action at step {step}; use a new id for a new action"
            )
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

    def _apply(self, plan: _Plan, now: int, results: dict[int, StepAnswer | TrialgymError]) -> bool:
        """Applies the rules to a plan; False where they failed, which is a fault of ours and no step."""
        live, command = plan.live, plan.command
        try:
            applied: Applied[Any] = live.environment.apply(live.state, command.action, plan.grade)
            after, reward = applied.state, applied.reward
            recent = self._live.recent(live)
            hash_ = value_digest(after)
            step = plan.base + 1
            total = live.head.total_reward + reward.value
            if applied.terminated:
                state, expire_ms = EpisodeState.TERMINATED, now + self._retention_ms
            elif applied.truncated:
                state, expire_ms = EpisodeState.TRUNCATED, now + self._retention_ms
            else:
                state, expire_ms = EpisodeState.ACTIVE, now + live.start.ttl_ms
            head = Head(step, state, expire_ms, now, total, hash_)
            answer = recent.memo.answer(
                TransitionRecord(
                    step,
                    applied.outcome,
                    live.environment.observe(after),
                    reward,
                    total,
                    hash_,
                    applied.terminated,
                    applied.truncated,
                    applied.missing,
                    plan.grade,
                )
            )
        except Exception as error:
            results[plan.index] = fault(error)
            return False
        plan.state = after
        if applied.terminated:
            plan.success = any(term.kind is TermKind.OUTCOME and term.value > 0 for term in reward.terms)
        entry = Entry(step, command.request_id, command.encoded, answer)
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
            entry = append.entry
            if live.head.step < entry.step:  # else a reader has already caught it up, with this step and perhaps with more
                live.state, live.head = plan.state, append.head
            if live.recent is not None:
                live.recent.keep(entry.step, plan.state)
            if entry.request_id:
                live.requests[entry.request_id] = entry.step
            if append.head.state is not EpisodeState.ACTIVE:
                self._places.free(1, since=counts)
                await self._judge(plan)
            self._live.put(live)
            results[plan.index] = StepAnswer(live, entry.step, entry.answer, False)

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


def _refused(command: StepCommand, head: Head, now_ms: int) -> bool:
    """Whether `refusal` would have something to say; asked at every step, so in the fewest words."""
    return (
        head.state is not _ACTIVE
        or head.expire_ms <= now_ms
        or head.deleted
        or (command.expected_step is not None and command.expected_step != head.step)
    )


async def _uncut(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end even where the caller is cancelled meanwhile, then lets the cancellation go on."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break  # its own
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()
