"""Child process of the sandbox: it reads one request, drops its privileges, runs the code and answers.

The sandbox starts it by path, as ``python -I -B child.py``, so that it imports nothing of the application. It reads one
frame from standard input and writes frames to standard output. A frame is four bytes of length (big-endian) and JSON.
Notes come first, the result of the code comes last.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import sys
import traceback
from datetime import datetime
from typing import Any, Final

MAX_OUTPUT_CHARS: Final = 65_536
"""Maximum number of characters kept of the code's printed output."""

MAX_MESSAGE_CHARS: Final = 4_000
"""Maximum length of an error message, in characters."""


def load(name: str) -> Any:
    """Import a module from this module's directory."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(__file__), f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Released(Exception):
    """Base class of the exceptions with which code releases its job."""

    then = ""

    def __init__(self, **more: Any) -> None:
        super().__init__(self.then)
        self.more = {"then": self.then, **more}


def _moment(at: Any, name: str) -> dict[str, str]:
    """Return a time as a member of the release: a ``datetime`` with a time zone, or its ISO 8601 form."""
    if at is None:
        return {}
    when = at if isinstance(at, datetime) else datetime.fromisoformat(at)
    if when.utcoffset() is None:
        raise ValueError(f"{name!r} has no time zone.")
    return {name: when.isoformat()}


class Wait(Released):
    """Suspend the job until it is resumed."""

    then = "wait"

    def __init__(self, timeout: float | None = None, *, deadline: Any = None, again: bool = False) -> None:
        super().__init__(timeout=timeout, again=bool(again), **_moment(deadline, "deadline"))


class Snooze(Released):
    """Run the job again after ``delay`` seconds, or at ``until``, without counting this attempt."""

    then = "queue"

    def __init__(self, delay: float = 0.0, *, until: Any = None) -> None:
        super().__init__(delay=delay, **_moment(until, "until"))


class RetryWorkflow(Released):
    """Retry the whole workflow."""

    then = "retry"

    def __init__(self) -> None:
        super().__init__()


class SkipRest(Released):
    """Complete the job and its workflow, and skip the steps that have not started."""

    then = "skip"

    def __init__(self, result: Any = None) -> None:
        super().__init__(result=result)


class Fail(Exception):
    """Fail the attempt, with a code and details. ``retryable=False``: do not retry."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "failed",
        retryable: bool | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.details = details


class Job(dict[str, Any]):
    """The properties of the job's workflow, which the code may change, and the job's attributes."""

    def __init__(self, request: dict[str, Any], note: Any) -> None:
        super().__init__(request["properties"])
        self.info = note
        for name in ("id", "attempt", "params", "target", "workflow_id", "results", "resumed", "was_resumed"):
            setattr(self, name, request.get(name))


class FrameWriter:
    """Writer of frames to standard output."""

    def __init__(self) -> None:
        self._stream = os.fdopen(1, "wb", buffering=0)

    def send(self, frame: dict[str, Any]) -> None:
        """Write a frame."""
        raw = json.dumps(frame, allow_nan=False, ensure_ascii=False).encode()  # refuses what is no text
        self._stream.write(len(raw).to_bytes(4, "big") + raw)


def main() -> None:
    """Serve one request."""
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    request = json.loads(sys.stdin.buffer.read(size))
    wire = FrameWriter()
    confine = load("confine")
    means: list[str] = []
    try:
        policy = load("policy")
        modules = policy.load_modules(request["modules"])
        policy.load_modules(policy.PRELOADED)
        if request["scratch"] is not None:
            confine.limit(**request["limits"])
            means = confine.confine(request["scratch"], request["parent"], request["without"])
        else:  # weak mode: limits are applied as far as the platform supports them
            with contextlib.suppress(OSError, ValueError):
                confine.limit(**request["limits"])
            with contextlib.suppress(confine.CannotConfine, AttributeError):
                confine.die_with_parent(request["parent"])
    except (confine.CannotConfine, OSError, ValueError, ImportError) as error:
        wire.send({"unconfined": f"{type(error).__name__}: {error}"})
        return
    output: list[str] = []
    room = MAX_OUTPUT_CHARS

    def say(line: str) -> None:
        nonlocal room
        output.append(clean(line[:room]))
        room -= len(output[-1])

    job = Job(request, lambda note: wire.send({"note": note}))
    before = json.dumps(request["properties"], sort_keys=True)
    end = run(policy, request, job, modules, say)
    try:
        after = json.dumps(dict(job), sort_keys=True, allow_nan=False)
        end["properties"] = None if after == before else dict(job)
        wire.send(end | {"output": "".join(output), "means": means})
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        problem = {"type": "TypeError", "message": f"The result and the properties must be JSON values: {error}"[:500]}
        wire.send({"error": problem, "output": "".join(output), "means": means})


def run(policy: Any, request: dict[str, Any], job: Job, modules: Any, say: Any) -> dict[str, Any]:
    """Run the code, and return its result, its release or its error."""
    values = dict(request["values"]) | {
        "Fail": Fail,
        "RetryWorkflow": RetryWorkflow,
        "SkipRest": SkipRest,
        "Snooze": Snooze,
        "Wait": Wait,
        "info": job.info,
    }
    try:
        if request["raw"]:
            code, names = compile(request["body"], "<body>", "exec"), {"__name__": "<body>", **values}
        else:
            code = policy.compile_body(request["body"])
            names = policy.namespace(modules, values, say, files=request["scratch"] is not None)
        exec(code, names)  # noqa: S102  (the purpose of this process)
        return {"result": names["body"](job, *request["args"])}
    except Released as released:
        return {"release": released.more}
    except BaseException as error:
        return {"error": describe(error)}


def clean(text: str) -> str:
    """Return a text without surrogates, which no JSON can have."""
    return text.encode(errors="replace").decode()


def describe(error: BaseException) -> dict[str, Any]:
    """Return the JSON members that describe an exception."""
    # Not `extract_tb`: it looks for the source of each frame, and from Python 3.13 on imports modules to do so, which a
    # confined process cannot read.
    frames = itertools.islice(traceback.walk_tb(error.__traceback__), 50)
    try:
        message = str(error)
    except BaseException:
        message = ""
    shown: dict[str, Any] = {
        "type": type(error).__name__,
        "classes": [
            kind.__name__ if kind.__module__ == "<body>" else f"{kind.__module__}.{kind.__qualname__}"
            for kind in type(error).__mro__
            if issubclass(kind, BaseException)
        ],
        "message": clean(message[:MAX_MESSAGE_CHARS]) or type(error).__name__,
        "backtrace": [
            f"line {line}, in {frame.f_code.co_name}" for frame, line in frames if frame.f_code.co_filename == "<body>"
        ],
    }
    if isinstance(error, Fail):
        shown |= {"code": str(error.code), "retryable": error.retryable, "details": error.details}
    return shown


if __name__ == "__main__":
    main()
