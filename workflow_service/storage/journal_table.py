"""What the journal's store holds in memory: episodes' tips, which of them the index does not have yet, and the last events.

Belongs to the event loop. An episode's slot has two tips: `durable` is what is committed, and all that anybody is shown; `tip` is
that and what is on its way down, against which the next change is checked. None stands for no episode.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable

from workflow_service.domain.episode import EpisodeStart, EpisodeState, Event, EventKind
from workflow_service.storage.codec import load_start
from workflow_service.storage.journal_records import Counters, Place, Tip

_LOOKED_AT = 512
"""So many slots are looked at, after one commit, for some that may leave; the next commit goes on from there."""


class Slot:
    """One episode in memory.

    `due` is the earliest instant at which the index has the episode looked at. `in_index` says that the index has a row for it,
    `dirty` that this row is an old one, and `moved` that `place` is an old one there. `seen` is the tip that it had when it
    was last looked at for leaving, None where it was read since.
    """

    __slots__ = ("dirty", "due", "durable", "episode_id", "in_index", "moved", "number", "place", "seen", "start", "text", "tip")

    def __init__(self, number: int, episode_id: str, tip: Tip | None, *, in_index: bool) -> None:
        self.number = number
        self.episode_id = episode_id
        self.tip = tip
        self.durable: Tip | None = tip if in_index else None
        self.start: EpisodeStart | None = None
        self.text: str = ""
        self.place = Place(0, 0, 0)
        self.due = 0
        self.in_index = in_index
        self.moved = False
        self.dirty = False
        self.seen: Tip | None = None

    def read_start(self) -> EpisodeStart:
        """The episode's start, decoded when it is first asked for."""
        if self.start is None:
            self.start = load_start(self.text)
            self.text = ""
        return self.start


class Table:
    """See the module's docstring. `keep` bounds the slots whose episodes the index has, `events` the events."""

    def __init__(self, counters: Counters, *, keep: int, events: int) -> None:
        self.slots: OrderedDict[str, Slot] = OrderedDict()
        self.keep = keep
        self.counters = counters
        self.ahead = counters.copy()
        self.dirty: dict[int, Slot] = {}
        self.unlisted: dict[int, Slot] = {}
        self.pins: dict[str, int] = {}
        self.generation = 0
        """Rises when episodes leave the index: what was read from it before may be of one that is gone."""
        self._events = events
        self._recent: list[tuple[int, list[Slot], list[Tip | None]]] = []
        self._recent_from: list[int] = []
        self._recent_to = counters.position

    def restore(self, new: Iterable[Slot], gone: Iterable[int]) -> None:
        """Takes in episodes that the index lacks, and numbers of episodes that it should no longer have."""
        for number in gone:  # first, since a new episode may have the id of one of them
            self.mark(Slot(number, "", None, in_index=True))
        for slot in new:
            self.slots[slot.episode_id] = slot
            self.mark(slot)

    def mark(self, slot: Slot) -> None:
        """Notes that the index has an episode otherwise than it is, also in what lists and sweeps go by."""
        self.unlisted[slot.number] = slot
        slot.dirty = True
        self.dirty[slot.number] = slot

    def pin(self, ids: Iterable[str]) -> None:
        """Keeps these episodes, or the knowledge that they do not exist, until they are unpinned."""
        for episode_id in ids:
            self.pins[episode_id] = self.pins.get(episode_id, 0) + 1

    def unpin(self, ids: Iterable[str]) -> None:
        """Ends a pin."""
        for episode_id in ids:
            if self.pins[episode_id] == 1:
                del self.pins[episode_id]
            else:
                self.pins[episode_id] -= 1

    def commit(self, slots: list[Slot], tips: list[Tip | None], kind: int | None) -> None:
        """Makes durable what was on its way down. `kind` is the event that each change is, None where it is none."""
        dirty = self.dirty
        for slot, tip in zip(slots, tips, strict=True):
            slot.durable = tip
            if not slot.dirty:
                slot.dirty = True
                dirty[slot.number] = slot
        if kind is not None:
            self._recent_from.append(self._recent_to)
            self._recent.append((kind, slots, tips))
            self._recent_to += len(slots)
            if self._recent_to - self._recent_from[0] > 2 * self._events:  # rarely, since it moves them all
                over = bisect_right(self._recent_from, self._recent_to - self._events) - 1
                del self._recent[:over], self._recent_from[:over]
        if len(self.slots) > self.keep:
            self.shrink()

    def written(self, slot: Slot, tip: Tip | None) -> None:
        """Notes that the index has the episode as `tip` says, which may be the newest or not."""
        if slot.durable is tip:
            slot.dirty = False
            self.dirty.pop(slot.number, None)

    def shrink(self) -> None:
        """Forgets episodes that were not used lately, as far as the index has them and nobody counts on them."""
        for _ in range(_LOOKED_AT):
            if len(self.slots) <= self.keep:
                return
            episode_id, slot = self.slots.popitem(last=False)
            if slot.seen is not slot.durable or slot.dirty or slot.tip is not slot.durable or episode_id in self.pins:
                slot.seen = slot.durable
                self.slots[episode_id] = slot

    def recent(self, after: int, limit: int) -> list[Event] | None:
        """Events after a position, None where they reach back further than what is in memory."""
        if not self._recent or after < self._recent_from[0]:
            return None
        events: list[Event] = []
        for index in range(bisect_right(self._recent_from, after) - 1, len(self._recent)):
            first, (kind, slots, tips) = self._recent_from[index], self._recent[index]
            begin = max(0, after - first)
            end = begin + limit - len(events)
            for position, slot, tip in zip(
                range(first + begin + 1, first + end + 1), slots[begin:end], tips[begin:end], strict=False
            ):
                if tip is not None:
                    start, head = slot.read_start(), tip[0]
                    change = (EventKind(kind), start.episode_id, head.step, head.state, head.update_ms)
                    events.append(Event(position, *change, start.group_id, start.labels))
            if len(events) >= limit:
                break
        return events


def is_active(tip: Tip | None) -> bool:
    """Whether there is an episode that is neither ended nor deleted."""
    return tip is not None and tip[0].state is EpisodeState.ACTIVE and not tip[0].deleted
