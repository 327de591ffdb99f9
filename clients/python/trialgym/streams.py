"""The step stream and the watch of the synchronous client."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import grpc

from trialgym.connection import Connection
from trialgym.flows.connecting import broken
from trialgym.flows.effects import Patience
from trialgym.flows.episodes import Choice, EpisodeRecord
from trialgym.flows.steps import Step, accept
from trialgym.flows.streaming import Answer, StepLedger, WatchLedger, closed_unanswered, ended_early
from trialgym.rpc.errors import TrialgymError
from trialgym.v1 import action_pb2
from trialgym.v1 import workflow_service_pb2 as ws
from trialgym.v1 import workflow_service_pb2_grpc as rpc


class StepStream:
    """Steps of many episodes over one stream, each submitted without waiting for the others. Safe to share between threads.

    A stream that breaks is opened again, and what was not answered is sent again under its request ids, so that nothing is
    executed twice. Use it as a context manager.
    """

    def __init__(self, connection: Connection, patience: Patience) -> None:
        self._connection = connection
        self._stub = rpc.WorkflowServiceStub(connection.channel("workflow"))
        self._ledger = StepLedger(patience)
        self._changed = threading.Condition()
        self._outbox: queue.SimpleQueue[ws.StreamStepsRequest | None] | None = None
        self._call: Any = None
        self._timers: set[threading.Timer] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="trialgym-steps", daemon=True)
        self._thread.start()

    def submit(self, episode: EpisodeRecord, action: action_pb2.Action, *, view: Choice = None) -> Future[Step]:
        """Sends a step and returns at once. The future holds the Step, or the TrialgymError.

        Raises ValueError where a step of the episode is still under way.
        """
        future: Future[Step] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            if self._closed:
                raise ValueError("this stream is closed; open another with client.stream()")
            request = self._ledger.ask(episode, action, view, _settler(episode, future))
            if self._outbox is not None:
                self._outbox.put(request)
            self._changed.notify_all()
        return future

    def step(self, episode: EpisodeRecord, action: action_pb2.Action, *, view: Choice = None) -> Step:
        """Sends a step and waits for it. Raises TrialgymError."""
        return self.submit(episode, action, view=view).result()

    def __enter__(self) -> StepStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream. Steps under way fail with a TrialgymError; given again, they get what they got."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._outbox is not None:
                self._outbox.put(None)
            if self._call is not None:
                self._call.cancel()
            for timer in self._timers:
                timer.cancel()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while self._serve_once():
                pass
        finally:
            with self._changed:
                self._closed = True
                self._ledger.give_up(closed_unanswered())

    def _serve_once(self) -> bool:
        """Serves one stream to its end, then waits as long as a new one should. False where no new one is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ledger))
            if self._closed:
                return False
            outbox = self._outbox = queue.SimpleQueue()
            for request in self._ledger.unanswered():
                outbox.put(request)
            try:
                call = self._call = self._stub.StreamSteps(iter(outbox.get, None))
            except ValueError:  # the client and its channel were closed
                return False
        error = self._read(call)
        with self._changed:
            outbox.put(None)  # ends gRPC's thread that reads it
            self._outbox = self._call = None
            if self._closed:
                return False
            pause = self._ledger.broken(error)
            self._changed.wait_for(lambda: self._closed, timeout=pause)
        return True

    def _read(self, call: Any) -> TrialgymError:
        try:
            for answer in call:
                with self._changed:
                    resend = self._ledger.answered(answer)
                    if resend is not None:
                        self._later(resend.after_s, resend.request)
        except grpc.RpcError as error:
            return broken(error, self._connection.targets["workflow"])
        return ended_early()

    def _later(self, seconds: float, request: ws.StreamStepsRequest) -> None:
        def send() -> None:
            with self._changed:
                self._timers.discard(timer)
                if self._outbox is not None and self._ledger.is_open(request):
                    self._outbox.put(request)

        timer = threading.Timer(seconds, send)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()


def _settler(episode: EpisodeRecord, future: Future[Step]) -> Callable[[Answer], None]:
    def settle(answer: Answer) -> None:
        if isinstance(answer, TrialgymError):
            future.set_exception(answer)
        else:
            future.set_result(accept(episode, answer))

    return settle


class Watch:
    """The events of episodes, as they happen. It is an iterator and a context manager; `close` ends it from any thread.

    A watch that breaks is opened again where it stood, so that no event is lost or repeated.
    """

    def __init__(self, connection: Connection, ledger: WatchLedger) -> None:
        self._connection = connection
        self._ledger = ledger
        self._stub = rpc.WorkflowServiceStub(connection.channel("workflow"))
        self._call: Any = None
        self._closed = threading.Event()
        self._early: list[ws.EpisodeEvent] = []

    @property
    def resume_token(self) -> str:
        """Where the watch stands; `client.watch(resume_token=...)` goes on from it, in another process too."""
        return self._ledger.resume_token

    def start(self) -> None:
        """Returns once the service is watching: every event from now on will come. Raises TrialgymError."""
        if self._call is None:
            event = self._receive()
            if event is not None:
                self._early.append(event)

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the watch; an iteration under way stops."""
        self._closed.set()
        call = self._call
        if call is not None:
            call.cancel()

    def __iter__(self) -> Iterator[ws.EpisodeEvent]:
        return self

    def __next__(self) -> ws.EpisodeEvent:
        if self._early:
            return self._early.pop(0)
        while not self._closed.is_set():
            event = self._receive()
            if event is not None:
                return event
        raise StopIteration

    def _receive(self) -> ws.EpisodeEvent | None:
        """The next event, None for a heartbeat or where the watch was closed."""
        while not self._closed.is_set():
            error: TrialgymError
            try:
                if self._call is None:
                    self._call = self._stub.WatchEpisodes(self._ledger.request())
                message = next(self._call, None)
                if message is not None:
                    return self._ledger.received(message)
                error = ended_early()
            except grpc.RpcError as raised:
                error = broken(raised, self._connection.targets["workflow"])
            self._call = None
            if not self._closed.is_set():
                self._closed.wait(self._ledger.broken(error))
        return None
