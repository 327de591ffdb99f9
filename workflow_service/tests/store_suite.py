"""One suite for every episode store: each promise of `storage.base`, which an engine runs in a few lines.

An engine's test module subclasses `StoreSuite`, with a fixture `place` that says where its data live, and makes a state machine
with `store_machine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from workflow_service.domain.episode import Entry, EpisodeStart, EpisodeState, Event, EventKind, Head
from workflow_service.storage.base import (
    Cursor,
    Document,
    EpisodeStore,
    EventsPurged,
    Filter,
    Stored,
    StoreError,
)
from workflow_service.tests.rows import LEASE, NOW, TRIAL, new, step_of

WAIT_S = 20.0
"""Longer than anything here takes on a loaded machine; only a lost wake-up reaches it."""

HOSTILE = [
    "nul \0 inside",
    "\0",
    "quote ' \" `; DROP TABLE episodes; --",
    "percent % and underscore _ and star * ? [a]",
    "new\nline\r\n\ttab",
    "right\u202eto left \u0627\u0644",
    "\U0001f9ea \U0010ffff \ufffe",
    '["json", {"k": null}]',
    "x" * 4096,
    " ",
    "\\u0000 \\ $[0]",
    "e\u0301 beside \u00e9",
]

ENDED = (EpisodeState.TERMINATED, EpisodeState.TRUNCATED)
GIVEN_UP = {
    EpisodeState.CANCELLED: EventKind.CANCELLED,
    EpisodeState.EXPIRED: EventKind.EXPIRED,
    EpisodeState.FAILED: EventKind.FAILED,
}


class Place(Protocol):
    """Where one engine keeps its data during a test. `durable` says whether they outlive the last open handle."""

    durable: bool

    def handle(self) -> EpisodeStore:
        """A store over this place's data, not yet open; several may be open at a time."""


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[EpisodeStore]:
    store = place.handle()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def all_events(store: EpisodeStore, *, after: int = 0, page: int = 1000) -> list[Event]:
    found: list[Event] = []
    while events := await store.events(after=found[-1].position if found else after, limit=page):
        found += events
    return found


async def pages(store: EpisodeStore, filter_: Filter, size: int) -> list[str]:
    """The ids of a whole list, read page by page."""
    ids: list[str] = []
    after: Cursor | None = None
    while found := await store.find(filter_, after=after, limit=size):
        assert len(found) <= size
        ids += [stored.start.episode_id for stored in found]
        after = Cursor(found[-1].start.create_ms, found[-1].start.episode_id)
    return ids


async def snapshot(store: EpisodeStore, *ids: str) -> Any:
    """Everything that a refused operation must leave as it was."""
    return [
        [await store.get(i) for i in ids],
        [await store.entries(i) for i in ids],
        await store.position(),
        await store.count_active(),
    ]


class StoreSuite:
    """See the module's docstring."""

    @pytest.fixture
    async def store(self, place: Place) -> AsyncIterator[EpisodeStore]:
        async with opened(place) as store:
            yield store

    # Creating

    async def test_created_episodes_read_back_as_they_were_given(self, store: EpisodeStore) -> None:
        """Starts, heads and inherited logs come back equal, value by value and type by type."""
        given_ = [new("plain"), new("grouped", group_id="g", labels=(("a", "1"), ("b", ""))), new("fork", inherited=3)]
        given_.append(new("trial", trial=TRIAL))
        assert await store.create(given_)
        for episode in given_:
            stored = await store.get(episode.start.episode_id)
            assert stored == Stored(episode.start, episode.head)
            assert repr(stored) == repr(Stored(episode.start, episode.head)), "equal, and of the same types"
            assert await store.entries(episode.start.episode_id) == list(episode.entries)

    @pytest.mark.parametrize("text", HOSTILE)
    async def test_hostile_text_is_kept_and_found_as_it_is(self, store: EpisodeStore, text: str) -> None:
        """Text of any kind in ids, labels and group ids neither changes nor matches anything but itself."""
        await store.create([new("other", labels=(("k", text + "x"),)), new("other2", labels=(("k", text.split("\0")[0] + "\0y"),))])
        hostile = new(f"id {text}", labels=((text, text), ("k", text)), group_id=f"g{text}")
        assert await store.create([hostile])
        assert await store.append([step_of(f"id {text}", 1, tag=text)]) == [True]
        stored = await store.get(f"id {text}")
        assert stored is not None
        assert stored.start == hostile.start
        assert (await store.entries(f"id {text}"))[0].request_id == f"{text}-1"
        for filter_ in (Filter(group_id=f"g{text}"), Filter(labels=((text, text),)), Filter(labels=(("k", text), (text, text)))):
            assert await pages(store, filter_, 10) == [f"id {text}"]
        events = [event for event in await all_events(store) if event.group_id == f"g{text}"]
        assert [event.labels for event in events] == [hostile.start.labels] * 2

    async def test_bytes_are_kept_bit_for_bit(self, store: EpisodeStore) -> None:
        """Actions and answers of any bytes, none included, come back as they were."""
        blobs = [b"", b"\0", bytes(range(256)), b"\0" * 70_000, b"\xff\xfe" * 500_000]
        await store.create([new("e")])
        for step, blob in enumerate(blobs, 1):
            append = step_of("e", step)
            changed = replace(append, entry=replace(append.entry, action=blob, answer=blob[::-1]))
            assert await store.append([changed]) == [True]
        assert [(e.action, e.answer) for e in await store.entries("e")] == [(blob, blob[::-1]) for blob in blobs]

    @pytest.mark.parametrize("ids", [["a", "taken", "b"], ["taken"], ["a", "b", "a"], ["a", "deleted"]])
    async def test_creation_is_all_or_nothing(self, store: EpisodeStore, ids: list[str]) -> None:
        """Where one id is in use, deleted but remembered, or named twice, nothing of the batch comes to be."""
        await store.create([new("taken"), new("deleted")])
        await store.delete("deleted", now_ms=NOW, expire_ms=NOW + 1)
        before = await snapshot(store, "a", "b", "taken", "deleted")
        assert await store.create([new(i, inherited=2) for i in ids]) is False
        assert await snapshot(store, "a", "b", "taken", "deleted") == before

    async def test_racing_creations_of_overlapping_batches_make_one_of_each_id(self, place: Place) -> None:
        """Of batches that share an id and race, through two handles, exactly one is created."""
        async with opened(place) as one, opened(place) as two:
            batches = [[new(f"own-{k}"), new("shared"), new(f"tail-{k}")] for k in range(12)]
            won = await asyncio.gather(*(store.create(b) for store, b in zip([one, two] * 6, batches, strict=True)))
            assert won.count(True) == 1
            winner = won.index(True)
            assert sorted(await pages(one, Filter(), 50)) == sorted([f"own-{winner}", "shared", f"tail-{winner}"])

    # The fence

    @pytest.mark.parametrize(
        ("case", "step", "base", "now_ms"),
        [
            ("unknown", 1, 0, NOW),
            ("fresh", 2, 1, NOW),
            ("fresh", 0, 0, NOW),
            ("fresh", 1, 9, NOW),
            ("stepped", 1, 0, NOW),
            ("stepped", 3, 2, NOW),
            ("stepped", 2, 0, NOW),
            ("terminated", 2, 1, NOW),
            ("truncated", 2, 1, NOW),
            ("cancelled", 2, 1, NOW),
            ("expired", 2, 1, NOW),
            ("failed", 2, 1, NOW),
            ("deleted", 2, 1, NOW),
            ("stepped", 2, 1, NOW + LEASE),
            ("stepped", 2, 1, NOW + LEASE + 1),
        ],
    )
    async def test_the_fence_stops_a_step_that_does_not_follow(
        self, store: EpisodeStore, case: str, step: int, base: int, now_ms: int
    ) -> None:
        """A step from another place, another state, after the end or after the lease is not committed and changes nothing."""
        await store.create([new("e" if case != "unknown" else "someone")])
        if case not in ("fresh", "unknown"):
            state = EpisodeState[case.upper()] if case in ("terminated", "truncated") else EpisodeState.ACTIVE
            assert await store.append([step_of("e", 1, state=state)]) == [True]
        if case in ("cancelled", "expired", "failed"):
            assert await store.finish("e", EpisodeState[case.upper()], now_ms=NOW, expire_ms=NOW + LEASE)
        if case == "deleted":
            assert await store.delete("e", now_ms=NOW, expire_ms=NOW + LEASE)
        before = await snapshot(store, "e", "someone")
        assert await store.append([step_of("e", step, base=base, now_ms=now_ms)]) == [False]
        assert await snapshot(store, "e", "someone") == before

    async def test_a_step_is_committed_until_the_last_instant_of_the_lease(self, store: EpisodeStore) -> None:
        """A lease runs to the millisecond before its end, and a committed step sets the next one."""
        await store.create([new("e")])
        assert await store.append([step_of("e", 1, now_ms=NOW + LEASE - 1)]) == [True]
        assert await store.append([step_of("e", 2, now_ms=NOW + LEASE + 1)]) == [True]

    async def test_a_batch_commits_each_step_that_passes(self, store: EpisodeStore) -> None:
        """In one batch some pass and some do not, answered in order."""
        await store.create([new(i) for i in "abc"])
        batch = [step_of("a", 1), step_of("b", 2), step_of("nobody", 1), step_of("c", 1, state=EpisodeState.TERMINATED)]
        assert await store.append(batch) == [True, False, False, True]
        heads = {i: (await store.get(i)) for i in "abc"}
        assert {i: (s.head.step, s.head.state) for i, s in heads.items() if s} == {
            "a": (1, EpisodeState.ACTIVE),
            "b": (0, EpisodeState.ACTIVE),
            "c": (1, EpisodeState.TERMINATED),
        }

    async def test_of_many_racing_appends_one_wins(self, place: Place) -> None:
        """Whatever number race for a step, over two handles, one wins, and the log holds the winner's entry."""
        async with opened(place) as one, opened(place) as two:
            await one.create([new("e")])
            for step in range(1, 16):
                racers = [step_of("e", step, tag=f"racer{k}") for k in range(10)]
                calls = [store.append([racer]) for store, racer in zip([one, two] * 5, racers, strict=True)]
                won = [passed for (passed,) in await asyncio.gather(*calls)]
                assert won.count(True) == 1
                assert (await two.entries("e", after=step - 1))[0] == racers[won.index(True)].entry
            assert [e.step for e in await one.entries("e")] == list(range(1, 16))

    async def test_many_concurrent_operations_are_each_answered_with_their_own_result(self, store: EpisodeStore) -> None:
        """Hundreds of operations of all kinds at once, good and refused ones mixed, get their own answers."""
        await store.create([new(f"{kind}{k}") for kind in "ef" for k in range(100)])
        calls: list[Any] = []
        expected: list[Any] = []
        for k in range(100):
            calls += [
                store.append([step_of(f"e{k}", 1)]),
                store.append([step_of(f"e{k}", 3)]),
                store.renew([(f"e{k}", NOW + 2 * LEASE), ("nobody", NOW)], now_ms=NOW),
                store.create([new(f"e{k}")]),
                store.create([new(f"n{k}")]),
                store.finish(f"f{k}", EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW),
            ]
            expected += [[True], [False], [True, False], False, True, True]
        assert await asyncio.gather(*calls) == expected
        assert await store.count_active() == 200

    async def test_entries_are_cut_by_after_and_limit(self, store: EpisodeStore) -> None:
        """Every part of a log, inherited steps included, can be read by itself."""
        await store.create([new("e", inherited=2)])
        await store.append([step_of("e", 3)])
        await store.append([step_of("e", 4)])
        for after in range(6):
            for limit in range(6):
                wanted = [step for step in (1, 2, 3, 4) if step > after][:limit]
                assert [e.step for e in await store.entries("e", after=after, limit=limit)] == wanted

    # Endings and leases

    @pytest.mark.parametrize("state", GIVEN_UP)
    async def test_finish_ends_what_is_active_and_nothing_else(self, store: EpisodeStore, state: EpisodeState) -> None:
        """An active episode ends in the state asked for, once; ended, deleted and unknown ones are left."""
        await store.create([new("e"), new("done"), new("gone")])
        await store.append([step_of("done", 1, state=EpisodeState.TERMINATED)])
        await store.delete("gone", now_ms=NOW, expire_ms=NOW + LEASE)
        assert await store.finish("e", state, now_ms=NOW + 1, expire_ms=NOW + 2)
        stored = await store.get("e")
        assert stored is not None
        assert (stored.head.state, stored.head.update_ms, stored.head.expire_ms) == (state, NOW + 1, NOW + 2)
        last = (await all_events(store))[-1]
        assert (last.kind, last.episode_id, last.state, last.time_ms) == (GIVEN_UP[state], "e", state, NOW + 1)
        before = await snapshot(store, "e", "done", "gone")
        for episode_id in ("e", "done", "gone", "nobody"):
            assert not await store.finish(episode_id, state, now_ms=NOW + 3, expire_ms=NOW + 4)
        assert await snapshot(store, "e", "done", "gone") == before

    async def test_expire_needs_a_lease_that_has_run_out(self, store: EpisodeStore) -> None:
        """A lease has run out at its end and not a millisecond before; a renewed one runs on."""
        await store.create([new("e"), new("renewed")])
        assert await store.renew([("renewed", NOW + 3 * LEASE)], now_ms=NOW) == [True]
        assert not await store.expire("e", now_ms=NOW + LEASE - 1, expire_ms=NOW + 9 * LEASE)
        assert await store.overdue(now_ms=NOW + LEASE - 1, limit=10) == []
        assert await store.overdue(now_ms=NOW + LEASE, limit=10) == ["e"]
        assert await store.expire("e", now_ms=NOW + LEASE, expire_ms=NOW + 9 * LEASE)
        assert not await store.expire("e", now_ms=NOW + LEASE, expire_ms=NOW + 9 * LEASE)
        assert not await store.expire("renewed", now_ms=NOW + LEASE, expire_ms=NOW + 9 * LEASE)
        assert not await store.expire("nobody", now_ms=NOW + LEASE, expire_ms=NOW + 9 * LEASE)
        stored = await store.get("e")
        assert stored is not None
        assert (stored.head.state, stored.head.expire_ms) == (EpisodeState.EXPIRED, NOW + 9 * LEASE)
        assert await store.overdue(now_ms=NOW + LEASE, limit=10) == []

    async def test_renew_sets_running_leases_only(self, store: EpisodeStore) -> None:
        """A lease is set for an active episode before its end; nothing brings back what has run out, ended or gone."""
        await store.create([new(i) for i in ("e", "late", "ended", "gone")])
        await store.create([new("late2", expire_ms=NOW + 5)])
        await store.finish("ended", EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW + LEASE)
        await store.delete("gone", now_ms=NOW, expire_ms=NOW + LEASE)
        position = await store.position()
        ids = ["e", "late2", "ended", "gone", "nobody", "late"]
        assert await store.renew([(i, NOW + 100) for i in ids], now_ms=NOW + 5) == [True, False, False, False, False, True]
        assert await store.overdue(now_ms=NOW + 100, limit=10) != []
        assert sorted(await store.overdue(now_ms=NOW + 100, limit=10)) == ["e", "late", "late2"]
        assert len(await store.overdue(now_ms=NOW + 100, limit=2)) == 2
        assert await store.position() == position, "a lease is no event"

    async def test_delete_leaves_a_tombstone_without_a_log(self, store: EpisodeStore) -> None:
        """A deleted episode is known as deleted, has no log, is in no list, and cannot be deleted twice."""
        await store.create([new("e", inherited=1), new("other")])
        await store.append([step_of("e", 2)])
        assert await store.delete("e", now_ms=NOW + 1, expire_ms=NOW + 2)
        stored = await store.get("e")
        assert stored is not None
        assert stored.head.deleted
        assert (stored.head.expire_ms, stored.head.update_ms) == (NOW + 2, NOW + 1)
        assert await store.entries("e") == []
        assert await pages(store, Filter(), 10) == ["other"]
        assert await store.count_active() == 1
        assert await store.overdue(now_ms=NOW + LEASE * 9, limit=10) == ["other"]
        assert not await store.delete("e", now_ms=NOW + 3, expire_ms=NOW + 4)
        assert not await store.delete("nobody", now_ms=NOW + 3, expire_ms=NOW + 4)
        assert [event.kind for event in await all_events(store) if event.episode_id == "e"] == [
            EventKind.CREATED,
            EventKind.STEPPED,
            EventKind.DELETED,
        ]

    async def test_purge_removes_for_good_what_has_had_its_time(self, store: EpisodeStore) -> None:
        """Ended and deleted episodes go at their time, active ones never; their ids are free again, positions are not."""
        await store.create([new(i, labels=(("k", "v"),)) for i in ("cancelled", "deleted", "ended", "active", "later")])
        await store.finish("cancelled", EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW + 10)
        await store.delete("deleted", now_ms=NOW, expire_ms=NOW + 10)
        ended = step_of("ended", 1, state=EpisodeState.TRUNCATED)
        await store.append([replace(ended, head=replace(ended.head, expire_ms=NOW + 10))])
        await store.finish("later", EpisodeState.FAILED, now_ms=NOW, expire_ms=NOW + 11)
        assert await store.purge(now_ms=NOW + 9, limit=10) == 0
        assert await store.purge(now_ms=NOW + 10, limit=2) == 2
        assert await store.purge(now_ms=NOW + 10, limit=2) == 1
        assert await store.purge(now_ms=NOW + 10, limit=2) == 0
        for gone in ("cancelled", "deleted", "ended"):
            assert await store.get(gone) is None
            assert await store.entries(gone) == []
        assert sorted(await pages(store, Filter(labels=(("k", "v"),)), 10)) == ["active", "later"]
        assert await store.purge(now_ms=NOW + 10 * LEASE, limit=10) == 1
        position = await store.position()
        assert await store.create([new("ended", labels=(("k", "v"),))])
        assert [event.position for event in await store.events(after=position, limit=10)] == [position + 1]
        assert await store.append([step_of("ended", 1)]) == [True]
        assert sorted(await pages(store, Filter(labels=(("k", "v"),)), 10)) == ["active", "ended"]

    async def test_positions_are_never_used_again(self, place: Place) -> None:
        """After everything was purged, and where data last after a restart, positions go on rising."""
        async with opened(place) as store:
            await store.create([new("e")])
            await store.delete("e", now_ms=NOW, expire_ms=NOW)
            assert await store.purge(now_ms=NOW, limit=10) == 1
            last = await store.position()
            assert last == 2
        async with opened(place) as store:
            if place.durable:
                assert await store.position() == last
            before = await store.position()
            await store.create([new("e")])
            assert await store.position() > before

    # Lists

    async def test_lists_are_filtered_by_all_that_is_asked(self, store: EpisodeStore) -> None:
        """State, group and labels narrow a list together; an empty filter lists all that were not deleted."""
        for k in range(24):
            labels = tuple((key, str(k % n)) for key, n in (("two", 2), ("three", 3)))
            await store.create([new(f"e{k:02}", create_ms=NOW + k // 3, group_id=f"g{k % 4}" if k % 2 else "", labels=labels)])
        for k in range(0, 24, 5):
            await store.finish(f"e{k:02}", EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW + LEASE)
        await store.delete("e07", now_ms=NOW, expire_ms=NOW + LEASE)
        order = sorted((k for k in range(24) if k != 7), key=lambda k: (-(k // 3), k))
        states = (None, EpisodeState.ACTIVE, EpisodeState.CANCELLED, EpisodeState.FAILED)
        for state in states:
            for group in ("", "g1", "g3", "g9"):
                for labels in ((), (("two", "1"),), (("three", "0"),), (("two", "0"), ("three", "1")), (("two", "9"),)):
                    wanted = [
                        f"e{k:02}"
                        for k in order
                        if (state is None or (state is EpisodeState.CANCELLED) == (k % 5 == 0))
                        and state is not EpisodeState.FAILED
                        and (not group or (k % 2 and group == f"g{k % 4}"))
                        and all(str(k % {"two": 2, "three": 3}[key]) == value for key, value in labels)
                    ]
                    for size in (1, 7, 100):
                        assert await pages(store, Filter(state, group, labels), size) == wanted

    async def test_pages_are_stable_under_what_happens_meanwhile(self, store: EpisodeStore) -> None:
        """Episodes created between two pages never shift what a later page shows, and nothing is shown twice."""
        await store.create([new(f"old{k}", create_ms=NOW + k % 2) for k in range(10)])
        seen: list[str] = []
        after: Cursor | None = None
        for turn in range(20):
            found = await store.find(Filter(), after=after, limit=3)
            if not found:
                break
            seen += [stored.start.episode_id for stored in found]
            after = Cursor(found[-1].start.create_ms, found[-1].start.episode_id)
            await store.create([new(f"newer{turn}", create_ms=NOW + 100 + turn)])
        assert seen == [f"old{k}" for k in (1, 3, 5, 7, 9, 0, 2, 4, 6, 8)]

    # Events

    async def test_each_change_is_one_event_in_the_order_of_commits(self, store: EpisodeStore) -> None:
        """Creation, steps, endings and deletion are one event each; a read resumed after any of them sees exactly the rest."""
        await store.create([new("a", labels=(("k", "v"),), group_id="g"), new("fork", inherited=3)])
        await store.append([step_of("fork", 4, state=EpisodeState.TERMINATED, now_ms=NOW + 5), step_of("a", 1)])
        await store.finish("a", EpisodeState.CANCELLED, now_ms=NOW + 6, expire_ms=NOW + LEASE)
        await store.delete("fork", now_ms=NOW + 7, expire_ms=NOW + LEASE)
        events = await all_events(store)
        assert [(e.kind, e.episode_id, e.step, e.state, e.time_ms) for e in events] == [
            (EventKind.CREATED, "a", 0, EpisodeState.ACTIVE, NOW),
            (EventKind.CREATED, "fork", 3, EpisodeState.ACTIVE, NOW),
            (EventKind.STEPPED, "fork", 4, EpisodeState.TERMINATED, NOW + 5),
            (EventKind.STEPPED, "a", 1, EpisodeState.ACTIVE, NOW),
            (EventKind.CANCELLED, "a", 1, EpisodeState.CANCELLED, NOW + 6),
            (EventKind.DELETED, "fork", 4, EpisodeState.TERMINATED, NOW + 7),
        ]
        assert [(e.group_id, e.labels) for e in events if e.episode_id == "a"] == [("g", (("k", "v"),))] * 3
        positions = [e.position for e in events]
        assert positions == sorted(set(positions))
        assert await store.position() == positions[-1]
        for cut, position in enumerate([0, *positions]):
            for page in (1, 2, 100):
                assert await all_events(store, after=position, page=page) == events[cut:]
        assert await store.events(after=positions[-1] + 1000, limit=10) == []

    async def test_events_that_are_no_longer_kept_are_not_passed_over(self, store: EpisodeStore) -> None:
        """A read from before a purged event is refused; one from the last purged event on is not."""
        await store.create([new("kept"), new("gone"), new("late")])
        await store.delete("gone", now_ms=NOW, expire_ms=NOW)
        events = await all_events(store)
        await store.append([step_of("late", 1)])
        await store.purge(now_ms=NOW, limit=10)
        purged = max(e.position for e in events if e.episode_id == "gone")
        for after in range(purged):
            with pytest.raises(EventsPurged):
                await store.events(after=after, limit=10)
        assert [e.kind for e in await all_events(store, after=purged)] == [EventKind.STEPPED]

    async def test_a_purge_never_makes_a_hole_in_a_read_of_events(self, store: EpisodeStore) -> None:
        """A reader who races with purges sees every event after its position, or is told that some are gone."""
        for turn in range(60):
            await store.create([new(f"e{turn}")])
            created = await store.position()
            await store.delete(f"e{turn}", now_ms=NOW, expire_ms=NOW)
            read, _ = await asyncio.gather(
                asyncio.gather(*(store.events(after=created - 1, limit=10) for _ in range(4)), return_exceptions=True),
                store.purge(now_ms=NOW, limit=10),
            )
            for outcome in read:
                if not isinstance(outcome, EventsPurged):
                    assert isinstance(outcome, list)
                    assert [e.kind for e in outcome] == [EventKind.CREATED, EventKind.DELETED]

    async def test_a_wait_ends_with_the_next_event(self, store: EpisodeStore) -> None:
        """Every waiter wakes by the next commit, and one who waits for what has come returns at once."""
        before = await store.position()
        waiters = [asyncio.create_task(store.wait_past(before, 3600)) for _ in range(50)]
        await asyncio.sleep(0)
        await store.create([new("e")])
        await asyncio.wait_for(asyncio.gather(*waiters), WAIT_S)
        await asyncio.wait_for(store.wait_past(before, 3600), WAIT_S)
        assert await store.events(after=before, limit=10) != []

    async def test_a_wait_sees_another_handles_commits(self, place: Place) -> None:
        """A commit through another handle, which may be another process, ends a wait, too."""
        async with opened(place) as one, opened(place) as two:
            waiter = asyncio.create_task(one.wait_past(await one.position(), 3600))
            await asyncio.sleep(0)
            await two.create([new("e")])
            await asyncio.wait_for(waiter, WAIT_S)
            assert len(await one.events(after=0, limit=10)) == 1

    async def test_a_wait_ends_at_its_time_and_not_before(self, store: EpisodeStore) -> None:
        """Where nothing happens, a wait lasts as long as was asked; a wait of no time returns."""
        loop = asyncio.get_running_loop()
        for seconds in (0.0, 0.05, 0.6):
            began = loop.time()
            await asyncio.wait_for(store.wait_past(await store.position(), seconds), WAIT_S)
            assert loop.time() - began >= seconds - 0.005

    async def test_no_wake_up_is_lost_between_a_read_and_a_wait(self, store: EpisodeStore) -> None:
        """A reader who reads, then waits from what it read, follows a writer to the end."""
        count = 150

        async def follow() -> list[int]:
            seen: list[int] = []
            while len(seen) < count + 1:
                after = seen[-1] if seen else 0
                seen += [event.position for event in await store.events(after=after, limit=7)]
                if len(seen) < count + 1:
                    await store.wait_past(seen[-1] if seen else 0, 3600)
            return seen

        readers = [asyncio.create_task(follow()) for _ in range(3)]
        await store.create([new("e")])
        for step in range(1, count + 1):
            await store.append([step_of("e", step)])
        for seen in await asyncio.wait_for(asyncio.gather(*readers), WAIT_S * 2):
            assert seen == sorted(set(seen))

    # Documents

    async def test_a_document_is_written_only_from_the_revision_it_is_at(self, store: EpisodeStore) -> None:
        """A document begins at revision 1, rises by one with each write, and a write from any other revision changes nothing."""
        assert await store.document("k") is None
        assert not await store.put_document("k", "never", revision=1)
        assert await store.document("k") is None
        for revision, text in enumerate(["", *HOSTILE]):
            for wrong in {0, revision - 1, revision + 1} - {revision}:
                assert not await store.put_document("k", "wrong", revision=wrong)
            assert await store.put_document("k", text, revision=revision)
            assert await store.document("k") == Document(text, revision + 1)
        assert await store.document("other") is None
        assert await store.position() == 0, "a document is no event"

    async def test_of_racing_writers_of_a_document_one_wins_each_revision(self, place: Place) -> None:
        """Over two handles, each revision is written once, and what is read is what its one writer wrote."""
        async with opened(place) as one, opened(place) as two:
            for revision in range(8):
                calls = [store.put_document("k", f"{revision}-{n}", revision=revision) for n, store in enumerate([one, two] * 4)]
                won = await asyncio.gather(*calls)
                assert won.count(True) == 1
                wanted = Document(f"{revision}-{won.index(True)}", revision + 1)
                assert await one.document("k") == await two.document("k") == wanted
        if place.durable:
            async with opened(place) as again:
                assert await again.document("k") == wanted

    # Edges

    async def test_empty_batches_do_nothing(self, store: EpisodeStore) -> None:
        """A batch of nothing succeeds and is no event."""
        assert await store.create([]) is True
        assert await store.append([]) == []
        assert await store.renew([], now_ms=NOW) == []
        assert await store.purge(now_ms=NOW, limit=0) == 0
        assert await store.find(Filter(), after=None, limit=0) == []
        assert await store.position() == 0

    async def test_unknown_episodes_are_unknown(self, store: EpisodeStore) -> None:
        """Nothing is read from, and nothing done to, what does not exist."""
        assert await store.get("nobody") is None
        assert await store.entries("nobody") == []
        assert await store.count_active() == 0
        assert await store.events(after=0, limit=10) == []

    async def test_a_caller_who_leaves_harms_nobody(self, store: EpisodeStore) -> None:
        """Cancelling a call that is under way leaves it done or not done, and the store in order."""
        await store.create([new(f"e{k}") for k in range(30)])
        calls = [asyncio.create_task(store.append([step_of(f"e{k}", 1)])) for k in range(30)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(outcome == [True] for outcome in outcomes[1::2])
        for k in range(30):
            stored = await store.get(f"e{k}")
            assert stored is not None
            assert stored.head.step == len(await store.entries(f"e{k}"))
            assert await store.append([step_of(f"e{k}", stored.head.step + 1)]) == [True]

    async def test_closing_finishes_what_is_under_way(self, place: Place) -> None:
        """Each write that was asked for before closing is answered; what was answered with success is there afterwards."""
        store = place.handle()
        await store.open()
        await store.create([new(f"e{k}") for k in range(100)])
        calls = [asyncio.create_task(store.append([step_of(f"e{k}", 1)])) for k in range(100)]
        reads = [asyncio.create_task(store.get(f"e{k}")) for k in range(100)]
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(store.close(), store.close()), WAIT_S)
        await store.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, *reads, return_exceptions=True), WAIT_S)
        assert all(isinstance(o, list | Stored | StoreError) for o in outcomes)
        if place.durable:
            async with opened(place) as again:
                for k, outcome in enumerate(outcomes[:100]):
                    if outcome == [True]:
                        assert [e.step for e in await again.entries(f"e{k}")] == [1]

    async def test_a_closed_store_can_be_opened_again(self, place: Place) -> None:
        """Opening after closing gives a store that works, over the same data where they last."""
        store = place.handle()
        await store.open()
        await store.create([new("e")])
        await store.close()
        await store.open()
        assert await store.append([step_of("e", 1)]) == [True]
        await store.close()


class Model:
    """What a store does, in the fewest words; the state machine holds every engine to it."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[EpisodeStart, Head, list[Entry]]] = {}
        self.events: list[Event] = []
        self.position = 0
        self.purged = 0

    def active(self, episode_id: str) -> bool:
        row = self.rows.get(episode_id)
        return row is not None and row[1].state is EpisodeState.ACTIVE and not row[1].deleted

    def set(self, episode_id: str, kind: EventKind | None, **changes: Any) -> None:
        start, head, log = self.rows[episode_id]
        head = replace(head, **changes)
        self.rows[episode_id] = (start, head, log)
        if kind is not None:
            self.emit(kind, start, head)

    def emit(self, kind: EventKind, start: EpisodeStart, head: Head) -> None:
        self.events.append(Event(0, kind, start.episode_id, head.step, head.state, head.update_ms, start.group_id, start.labels))


IDS = ("a", "b", "c", "d", "e")


def store_machine(make_place: Callable[[], AbstractContextManager[Place]]) -> type[RuleBasedStateMachine]:
    """A state machine that drives an engine and the model side by side; `make_place` gives each run a place of its own."""

    class StoreMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.runner = asyncio.Runner()
            self.making = make_place()
            self.model = Model()
            self.now = NOW

        @initialize()
        def begin(self) -> None:
            self.place = self.making.__enter__()
            self.store = self.place.handle()
            self.runner.run(self.store.open())

        def teardown(self) -> None:
            if hasattr(self, "store"):
                self.runner.run(self.store.close())
                self.making.__exit__(None, None, None)
            self.runner.close()

        @rule(
            ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=3),
            inherited=st.integers(0, 2),
            group=st.sampled_from(["", "g"]),
            label=st.sampled_from([(), (("k", "v"),), (("k", "w"), ("l", "v"))]),
        )
        def create(self, ids: list[str], inherited: int, group: str, label: tuple[tuple[str, str], ...]) -> None:
            made = [
                new(i, create_ms=self.now, expire_ms=self.now + LEASE, labels=label, group_id=group, inherited=inherited)
                for i in ids
            ]
            free = len(set(ids)) == len(ids) and not any(i in self.model.rows for i in ids)
            assert self.runner.run(self.store.create(made)) is free
            if free:
                for one in made:
                    self.model.rows[one.start.episode_id] = (one.start, one.head, list(one.entries))
                    self.model.emit(EventKind.CREATED, one.start, one.head)

        @rule(
            picks=st.lists(
                st.tuples(st.sampled_from(IDS), st.sampled_from([1, 1, 1, 1, 0, 2]), st.booleans()),
                max_size=4,
                unique_by=lambda pick: pick[0],
            ),
            state=st.sampled_from([EpisodeState.ACTIVE, EpisodeState.ACTIVE, *ENDED]),
        )
        def append(self, picks: list[tuple[str, int, bool]], state: EpisodeState) -> None:
            steps, wanted = [], []
            for episode_id, distance, other_base in picks:
                row = self.model.rows.get(episode_id)
                at = row[1].step if row else 0
                step = step_of(episode_id, at + distance, state=state, now_ms=self.now, base=99 if other_base else None)
                steps.append(step)
                passes = (
                    row is not None
                    and self.model.active(episode_id)
                    and distance == 1
                    and not other_base
                    and row[1].expire_ms > self.now
                )
                wanted.append(passes)
            assert self.runner.run(self.store.append(steps)) == wanted
            for step, passes in zip(steps, wanted, strict=True):
                if passes:
                    start, _, log = self.model.rows[step.episode_id]
                    log.append(step.entry)
                    self.model.rows[step.episode_id] = (start, step.head, log)
                    self.model.emit(EventKind.STEPPED, start, step.head)

        @rule(episode_id=st.sampled_from(IDS), state=st.sampled_from(list(GIVEN_UP)), keep=st.integers(0, 3 * LEASE))
        def finish(self, episode_id: str, state: EpisodeState, keep: int) -> None:
            wanted = self.model.active(episode_id)
            done = self.runner.run(self.store.finish(episode_id, state, now_ms=self.now, expire_ms=self.now + keep))
            assert done is wanted
            if wanted:
                self.model.set(episode_id, GIVEN_UP[state], state=state, update_ms=self.now, expire_ms=self.now + keep)

        @rule(episode_id=st.sampled_from(IDS))
        def expire(self, episode_id: str) -> None:
            wanted = self.model.active(episode_id) and self.model.rows[episode_id][1].expire_ms <= self.now
            assert self.runner.run(self.store.expire(episode_id, now_ms=self.now, expire_ms=self.now + LEASE)) is wanted
            if wanted:
                changes = {"state": EpisodeState.EXPIRED, "update_ms": self.now, "expire_ms": self.now + LEASE}
                self.model.set(episode_id, EventKind.EXPIRED, **changes)

        @rule(ids=st.lists(st.sampled_from(IDS), max_size=4, unique=True), length=st.integers(-1, 2 * LEASE))
        def renew(self, ids: list[str], length: int) -> None:
            wanted = [self.model.active(i) and self.model.rows[i][1].expire_ms > self.now for i in ids]
            assert self.runner.run(self.store.renew([(i, self.now + length) for i in ids], now_ms=self.now)) == wanted
            for episode_id, passes in zip(ids, wanted, strict=True):
                if passes:
                    self.model.set(episode_id, None, expire_ms=self.now + length)

        @rule(episode_id=st.sampled_from(IDS), keep=st.integers(0, LEASE))
        def delete(self, episode_id: str, keep: int) -> None:
            row = self.model.rows.get(episode_id)
            wanted = row is not None and not row[1].deleted
            assert self.runner.run(self.store.delete(episode_id, now_ms=self.now, expire_ms=self.now + keep)) is wanted
            if wanted:
                self.model.set(episode_id, EventKind.DELETED, deleted=True, update_ms=self.now, expire_ms=self.now + keep)
                self.model.rows[episode_id][2].clear()

        @rule(seconds=st.sampled_from([1, 30_000, LEASE, 4 * LEASE]))
        def pass_time(self, seconds: int) -> None:
            self.now += seconds

        @rule()
        def purge(self) -> None:
            due = [i for i, (_, head, _) in self.model.rows.items() if not self.model.active(i) and head.expire_ms <= self.now]
            before = self.runner.run(all_events(self.store, after=self.model.purged))
            assert self.runner.run(self.store.purge(now_ms=self.now, limit=100)) == len(due)
            for episode_id in due:
                del self.model.rows[episode_id]
            gone = [e.position for e in before if e.episode_id in due]
            self.model.purged = max([self.model.purged, *gone])
            self.model.events = [e for e in self.model.events if e.episode_id not in due]
            kept = [e for e in before if e.episode_id not in due and e.position > self.model.purged]
            self.model.events = self.model.events[len(self.model.events) - len(kept) :]

        @rule()
        def reopen(self) -> None:
            if self.place.durable:
                self.runner.run(self.store.close())
                self.store = self.place.handle()
                self.runner.run(self.store.open())

        @invariant()
        def agrees(self) -> None:
            if hasattr(self, "store"):
                self.runner.run(self._agrees())

        async def _agrees(self) -> None:
            for episode_id in IDS:
                row = self.model.rows.get(episode_id)
                assert await self.store.get(episode_id) == (None if row is None else Stored(row[0], row[1]))
                assert await self.store.entries(episode_id) == ([] if row is None else row[2])
            assert await self.store.count_active() == sum(map(self.model.active, self.model.rows))
            late = {i for i, row in self.model.rows.items() if self.model.active(i) and row[1].expire_ms <= self.now}
            assert set(await self.store.overdue(now_ms=self.now, limit=100)) == late
            for filter_ in (Filter(), Filter(EpisodeState.ACTIVE), Filter(group_id="g"), Filter(labels=(("k", "v"),))):
                assert await pages(self.store, filter_, 2) == self._listed(filter_)
            events = await all_events(self.store, after=self.model.purged)
            assert [replace(event, position=0) for event in events] == self.model.events
            positions = [event.position for event in events]
            assert positions == sorted(set(positions))
            position = await self.store.position()
            assert position >= max([self.model.position, *positions])
            self.model.position = position

        def _listed(self, filter_: Filter) -> list[str]:
            wanted = [
                (-start.create_ms, start.episode_id)
                for start, head, _ in self.model.rows.values()
                if not head.deleted
                and filter_.state in (None, head.state)
                and (not filter_.group_id or start.group_id == filter_.group_id)
                and set(filter_.labels) <= set(start.labels)
            ]
            return [episode_id for _, episode_id in sorted(wanted)]

    return StoreMachine


MACHINE = settings(max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def paging_property(make_place: Callable[[], AbstractContextManager[Place]]) -> Callable[[], None]:
    """The property, for one engine, that pages of any size put together are the whole list."""

    @settings(max_examples=30, deadline=None)
    @given(
        created=st.lists(st.tuples(st.integers(0, 3), st.text(max_size=3), st.booleans()), max_size=12, unique_by=lambda t: t[1]),
        size=st.integers(1, 5),
    )
    def check(created: list[tuple[int, str, bool]], size: int) -> None:
        async def run() -> None:
            with make_place() as place:
                async with opened(place) as store:
                    for at, episode_id, labelled in created:
                        labels = (("k", "v"),) if labelled else ()
                        await store.create([new(episode_id, create_ms=NOW + at, labels=labels)])
                    for filter_ in (Filter(), Filter(labels=(("k", "v"),))):
                        whole = [s.start.episode_id for s in await store.find(filter_, after=None, limit=100)]
                        wanted = sorted((-at, i) for at, i, labelled in created if labelled or not filter_.labels)
                        assert whole == [i for _, i in wanted]
                        assert await pages(store, filter_, size) == whole

        asyncio.run(run())

    return check
