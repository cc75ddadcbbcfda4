"""Child process of a worker: imports the application, runs the requested handlers, and returns their results.

Started as ``python -m ojster.worker.child SOCKET LIFELINE`` with two file descriptors: a connected socket, at whose end
it exits, and a pipe to which only the worker has the other end. When the worker dies, however it dies, a guardian kills
the child with everything that its handlers have started, so that no job goes on that another worker may get.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from ojster.app import App
from ojster.core.values import to_json
from ojster.job_type import JobType
from ojster.outcomes import Released
from ojster.worker.execution import failure_of


def main() -> None:
    """Serve the socket, and die with the worker, whose file descriptors are the two arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides when its children end
    connection = socket.socket(fileno=int(sys.argv[1]))
    _fork_guardian(int(sys.argv[2]), connection)
    stream = connection.makefile("rb")
    sys.path.insert(0, "")
    while header := stream.read(4):
        request = msgspec.json.decode(stream.read(int.from_bytes(header, "big")))
        answer = msgspec.json.encode(_run(request) | {"peak": _peak_memory()})
        connection.sendall(len(answer).to_bytes(4, "big") + answer)


def _fork_guardian(lifeline: int, connection: socket.socket) -> None:
    """Fork a process that waits for the end of the worker; a thread could not act while a handler holds the lock."""
    if os.fork():
        os.close(lifeline)
        return
    connection.close()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def _peak_memory() -> int:
    """Return the largest memory that this process has had, in bytes."""
    with contextlib.suppress(OSError):  # on Linux, the other figure is at least that of the worker which started it
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _run(request: dict[str, Any]) -> dict[str, Any]:
    try:
        handler = _handler(request["module"], request["type"])
        result = msgspec.Raw(to_json(handler.function(*handler.types.convert(request["args"]))))
    except Released as released:
        return {"release": msgspec.to_builtins(released.release("", "", 0))}
    except Exception as error:
        return {"failure": msgspec.to_builtins(failure_of(error))}
    return {"result": result}


def _handler(module_name: str, type: str) -> JobType[Any, Any]:
    module: dict[str, Any]
    if module_name == "__main__":
        raise RuntimeError(
            f"The handler of {type!r} is in '__main__', which a child process cannot import. Move it to a module."
        )
    module = vars(importlib.import_module(module_name))
    for value in module.values():
        app = value if isinstance(value, App) else getattr(value, "app", None)
        if isinstance(app, App) and type in app.handlers:
            return app.handlers[type]
    raise LookupError(f"The module {module_name!r} has no handler for {type!r}.")


if __name__ == "__main__":
    main()
