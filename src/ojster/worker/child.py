"""Child process of a worker: imports the application, runs the requested handlers, and returns their results.

Started as ``python -m ojster.worker.child SOCKET LIFELINE LEVEL`` with two file descriptors: a connected socket, at
whose end it exits, and a pipe to which only the worker has the other end. When the worker dies, however it dies, a
guardian kills the child with everything that its handlers have started, so that no job goes on that another worker may
get. LEVEL is the level of the worker's root logger: otherwise no line below ``warning`` would be kept, or written.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import msgspec

from ojster.core.job import Job
from ojster.core.values import result_to_json
from ojster.handlers.held_context import HeldContext
from ojster.handlers.job_type import JobType
from ojster.handlers.kept_logs import Offer, collecting
from ojster.handlers.middleware import through_thread_middleware
from ojster.handlers.outcomes import Released
from ojster.handlers.provision import provided
from ojster.handlers.register import HandlerRegister
from ojster.jobs.job_logs import LogLevel
from ojster.storage.urls import url_in_environment
from ojster.worker.failures import class_names, described
from ojster.worker.recycling import peak_memory

T = TypeVar("T")

Send = Callable[[dict[str, Any]], None]
"""Sends something to the worker."""


def main() -> None:
    """Serve the socket, and die with the worker, whose file descriptors are the first two arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides when its children end
    logging.getLogger().setLevel(int(sys.argv[3]))  # before the application sets up logging, if it does
    connection = socket.socket(fileno=int(sys.argv[1]))
    _fork_guardian(int(sys.argv[2]), connection)
    stream = connection.makefile("rb")
    sys.path.insert(0, "")
    lives = _Lives()
    while header := stream.read(4):
        request = msgspec.json.decode(stream.read(int.from_bytes(header, "big")), type=_Request)
        outcome = _run(request, lives, partial(_send, connection))
        _send(connection, outcome | {"peak": peak_memory()})
    lives.end()


_sending = threading.Lock()


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    encoded = msgspec.json.encode(answer, enc_hook=str)  # records may have any members
    with _sending:  # threads of a handler log at the same time
        connection.sendall(len(encoded).to_bytes(4, "big") + encoded)


class _Relay(QueueHandler):
    """Hands log records to the worker, whose handlers write them. The queue is not used."""

    def __init__(self, send: Send) -> None:
        super().__init__(SimpleQueue())
        self._send = send

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record, with its message and traceback as text."""
        self._send({"record": vars(record)})


def _relay_logs(send: Send) -> None:
    """Let the worker write what is logged here, unless the application has set up logging itself."""
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(_Relay(send))


def _fork_guardian(lifeline: int, connection: socket.socket) -> None:
    """Fork a process that waits for the end of the worker; a thread could not act while a handler holds the lock."""
    if os.fork():
        os.close(lifeline)
        return
    connection.close()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


class _Request(msgspec.Struct):
    setup: str | None
    module: str
    root: str | None
    type: str
    args: list[Any]
    job: Job | None
    url: str | None
    keep_logs: LogLevel | None


class _Lives:
    """The lifespans of the applications that this process runs handlers of."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._context = contextvars.copy_context()
        self._started: dict[HandlerRegister, _Entered[None]] = {}

    def begin(self, app: HandlerRegister) -> None:
        """Start the lifespan of an application, if it has not."""
        if app not in self._started:
            self._started[app] = self.hold(app.lifespan.running(app))

    def hold(self, manager: AbstractAsyncContextManager[T]) -> _Entered[T]:
        """Enter an asynchronous context manager."""
        return _Entered(self._loop, self._context, manager)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function with the context variables that the context managers have set."""
        return self._context.run(function)

    def end(self) -> None:
        """End the lifespans, the last first."""
        for life in reversed(self._started.values()):
            try:
                life.leave(None)
            except BaseException:
                traceback.print_exc()
        self._loop.close()


class _Entered(Generic[T]):
    """An asynchronous context manager that is open while other code runs: its task runs between two runs of the loop.

    Handlers do not run inside the event loop, so that they can start one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        manager: AbstractAsyncContextManager[T],
    ) -> None:
        self._loop = loop
        self._held = HeldContext(loop, manager, context)
        entered, task = self._held.entered, self._held.task
        loop.run_until_complete(asyncio.wait((entered, task), return_when=asyncio.FIRST_COMPLETED))
        if task.done() and (raised := task.result()) is not None:
            raise raised
        self.value = entered.result()

    def leave(self, error: BaseException | None) -> None:
        """Leave the context manager, because of an error or not; that error is not raised again."""
        self._held.leave(error)
        raised = self._loop.run_until_complete(self._held.task)
        if raised is not None and raised is not error:
            raise raised


def _run(request: _Request, lives: _Lives, send: Send) -> dict[str, Any]:
    is_set_up = False
    try:
        with url_in_environment(request.url):  # modules may read it; handlers, and what they start, do not see it
            _set_up(request.setup)
            is_set_up = True
            handler, app = _handler(request.root or request.module, request.type)
        _relay_logs(send)
        if request.url is not None and request.url != app.url:
            app.choose_url(request.url)
        lives.begin(app)
        if request.keep_logs is not None:
            handler = copy.copy(handler)
            handler.function = _kept(handler.function, request.keep_logs, lambda line: send({"line": line}))
        result = msgspec.Raw(result_to_json(handler.type, _call(handler, app, request, lives)))
    except Released as released:
        return {"release": msgspec.to_builtins(released.release("", "", 0))}
    except BaseException as error:  # also SystemExit, which would look like the death of the process
        failure = msgspec.to_builtins(described(error))
        return {"failure": failure, "class_names": class_names(error), "is_set_up": is_set_up}
    return {"result": result}


@cache
def _set_up(where: str | None) -> None:
    """Call the function at ``module:name``, once."""
    if where is not None:
        module, _, name = where.partition(":")
        getattr(importlib.import_module(module), name)()


def _call(handler: JobType[Any, Any], app: HandlerRegister, request: _Request, lives: _Lives) -> Any:
    arguments, named = handler.types.convert(request.args)
    if request.job is None:
        return lives.call(partial(handler.function, *arguments, **named))
    if handler.needs is None:
        call = partial(handler.function, *arguments, **named)
        return lives.call(partial(through_thread_middleware, app.thread_middleware, request.job, call))
    needed = lives.hold(provided(handler.needs, request.job))
    try:
        call = partial(handler.function, *arguments, **named, **needed.value)
        result = lives.call(partial(through_thread_middleware, app.thread_middleware, request.job, call))
    except BaseException as error:
        needed.leave(error)
        del needed  # it keeps the error, whose traceback has this frame
        raise
    needed.leave(None)
    return result


def _kept(function: Callable[..., Any], level: LogLevel, offer: Offer) -> Callable[..., Any]:
    """Return a handler that offers what it logs."""

    def logged(*args: Any, **needed: Any) -> Any:
        with collecting(level, offer):
            return function(*args, **needed)

    return logged


def _handler(module_name: str, type: str) -> tuple[JobType[Any, Any], HandlerRegister]:
    module: dict[str, Any]
    if module_name == "__main__":
        raise RuntimeError(
            f"The handler of {type!r} is in '__main__', which a child process cannot import. Move it to a module."
        )
    module = vars(importlib.import_module(module_name))
    for value in module.values():
        app = value.app if isinstance(value, JobType) else value
        if isinstance(app, HandlerRegister) and type in app.handlers:
            return app.root.handlers[type], app.root
    raise LookupError(f"The module {module_name!r} has no handler for {type!r}.")


if __name__ == "__main__":
    main()
