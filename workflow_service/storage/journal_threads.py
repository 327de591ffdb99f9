"""The threads of the journal's store, each with a queue of work, and answers that come back to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

T = TypeVar("T")
Then = Callable[[Any, Exception | None], None]


class Worker:
    """One thread that does its work in order. Belongs to the event loop it is made in; `stopped` is raised once it was stopped."""

    def __init__(self, name: str, stopped: Exception) -> None:
        self._stopped = stopped
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Callable[[], Any], Then] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work_forever, name=f"trialgym-journal-{name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any], then: Then) -> None:
        """Does the work, then calls `then` on the loop with its result, or with the exception it ended in."""
        if self._stopping:
            raise self._stopped
        self._queue.put((work, then))

    async def run(self, work: Callable[[], T]) -> T:
        """What the work returns or raises. It is done also where the caller leaves."""
        done: asyncio.Future[Any] = self._loop.create_future()
        self.submit(work, lambda result, error: _settle(done, result, error))
        return cast("T", await done)

    def stop(self) -> None:
        """Takes nothing further; the thread ends after what was asked for."""
        if not self._stopping:
            self._stopping = True
            self._queue.put(None)

    def join(self) -> None:
        """Waits for the thread to end. Blocks; not to be called on the event loop."""
        self._thread.join()

    def _work_forever(self) -> None:
        while (item := self._queue.get()) is not None:
            work, then = item
            result, problem = None, None
            try:
                result = work()
            except Exception as error:
                problem = error
            try:
                self._loop.call_soon_threadsafe(then, result, problem)
            except RuntimeError:
                return  # the loop was closed over us: nobody is left who could ask for or wait for anything


def _settle(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if done.done():
        return  # whoever asked has gone
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
