"""The books of a step stream and of a watch: what was asked, what was answered, and what to send after a break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trialgym.flows.effects import Patience
from trialgym.flows.episodes import Choice, EpisodeRecord
from trialgym.rpc.errors import TrialgymError, Unavailable, WatchTooSlow, from_failure
from trialgym.v1 import action_pb2
from trialgym.v1 import workflow_service_pb2 as ws

_IDS = 2**32
"""correlation_id is 32 bits wide; numbering starts again behind it."""

Answer = ws.StepEpisodeResponse | TrialgymError
Deliver = Callable[[Answer], None]


@dataclass(slots=True)
class _Open:
    record: EpisodeRecord
    request: ws.StreamStepsRequest
    deliver: Deliver
    started: float
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Resend:
    """A request to send again on the same stream, after so many seconds."""

    request: ws.StreamStepsRequest
    after_s: float


class StepLedger:
    """The steps that a stream was asked for and has not answered. Not safe for concurrent use.

    What is delivered is the answer as it came; whoever awaits it takes it into the episode's record.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._open: dict[int, _Open] = {}
        self._names: set[str] = set()
        self._next = 0

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, record: EpisodeRecord, action: action_pb2.Action, view: Choice, deliver: Deliver) -> ws.StreamStepsRequest:
        """Books a step and returns the message to send. Raises ValueError where a step of the episode is still under way."""
        if record.name in self._names:
            raise ValueError(f"a step of {record.name} is still under way on this stream; await it before the next")
        while self._next in self._open:
            self._next = (self._next + 1) % _IDS
        request = ws.StreamStepsRequest(correlation_id=self._next, request=record.request_step(action, view))
        self._open[self._next] = _Open(record, request, deliver, self._patience.clock())
        self._names.add(record.name)
        self._next = (self._next + 1) % _IDS
        return request

    def forget(self, request: ws.StreamStepsRequest) -> None:
        """Nobody waits for this step any more. Its answer will be ignored; the same action given again gets it."""
        entry = self._open.pop(request.correlation_id, None)
        if entry is not None:
            self._names.discard(entry.record.name)

    def _close(self, entry: _Open, result: Answer) -> None:
        self.forget(entry.request)
        entry.deliver(result)

    def answered(self, response: ws.StreamStepsResponse) -> Resend | None:
        """Takes in an answer: delivers it, or says to send the step again where it failed for a while only."""
        entry = self._open.get(response.correlation_id)
        if entry is None:
            return None
        if response.WhichOneof("result") == "response":
            self._close(entry, response.response)
            return None
        failed = from_failure(response.failure)
        pause = self._patience.pause_after(failed, entry.attempt, entry.started)
        if pause is None:
            self._close(entry, failed)
            return None
        entry.attempt += 1
        return Resend(entry.request, pause)

    def is_open(self, request: ws.StreamStepsRequest) -> bool:
        """Whether the step still waits for its answer."""
        return request.correlation_id in self._open

    def unanswered(self) -> list[ws.StreamStepsRequest]:
        """What to send first on a new stream: every open request as it was, in the order asked."""
        return [entry.request for entry in self._open.values()]

    def broken(self, error: TrialgymError) -> float:
        """Takes in the end of the stream: gives up the steps that have waited too long. Returns seconds until a new stream."""
        pause = 0.0
        for entry in list(self._open.values()):
            wait = self._patience.pause_after(error, entry.attempt, entry.started)
            if wait is None:
                self._close(entry, error)
            else:
                entry.attempt += 1
                pause = max(pause, wait)
        return pause

    def give_up(self, error: TrialgymError) -> None:
        """Fails every open step."""
        for entry in list(self._open.values()):
            self._close(entry, error)


def closed_unanswered() -> TrialgymError:
    """The error of a step whose stream was closed by its own client."""
    return TrialgymError("the stream was closed before the step was answered; step again with the same action to learn its answer")


def ended_early() -> Unavailable:
    """What the orderly end of a stream means to one who still waits on it."""
    return Unavailable("the server ended the stream; it is opened again")


class WatchLedger:
    """Where a watch stands, and for how long it has been broken."""

    def __init__(
        self, names: Sequence[str], group: str, labels: Mapping[str, str] | None, resume_token: str, patience: Patience
    ) -> None:
        self._request = ws.WatchEpisodesRequest(names=names, group=group, labels=labels, resume_token=resume_token)
        self._patience = patience
        self._broken_at: float | None = None
        self._attempt = 0

    @property
    def resume_token(self) -> str:
        """The token of the last message; a new watch that starts from it loses and repeats nothing."""
        return self._request.resume_token

    def request(self) -> ws.WatchEpisodesRequest:
        """The request that goes on where the watch stands."""
        return self._request

    def received(self, message: ws.WatchEpisodesResponse) -> ws.EpisodeEvent | None:
        """Takes in a message; the event in it, or None for a heartbeat."""
        self._request.resume_token = message.resume_token
        self._broken_at, self._attempt = None, 0
        return message.event if message.HasField("event") else None

    def broken(self, error: TrialgymError) -> float:
        """Seconds until the watch is opened again. Raises the error where it cannot be, or where it took too long already."""
        if isinstance(error, WatchTooSlow):
            raise error
        now = self._patience.clock()
        self._broken_at = now if self._broken_at is None else self._broken_at
        pause = self._patience.pause_after(error, self._attempt, self._broken_at)
        if pause is None:
            raise error
        self._attempt += 1
        return pause
