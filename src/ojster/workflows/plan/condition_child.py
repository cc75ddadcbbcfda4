"""A program that evaluates conditions for ``condition_process``, each in a process of its own with limits.

It reads requests from standard input and writes answers to standard output: JSON after its length in four bytes. It
forks for each request, so that a condition beyond its limits ends nothing but its own evaluation. It ends with its
input.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from contextlib import suppress
from typing import Any

from cel_expr_python import cel

LENGTH = struct.Struct(">I")
"""The length of a message, before it."""

LONGEST_TEXT = 1_000
"""Maximum length of an error in an answer, in characters."""


def main() -> None:
    """Answer requests until the input ends."""
    _evaluate_once()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(header := requests.read(LENGTH.size)) == LENGTH.size:
        answer = _answer_in_a_fork(requests.read(*LENGTH.unpack(header)))
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


def _evaluate_once() -> None:
    """Let the library make what it makes at its first use, which each fork would otherwise make again."""
    environment = cel.NewEnv(variables={"value": cel.Type.DYN})
    environment.compile("value.matches('.') && value in ['a']").eval(data={"value": "a"}).value()


def _answer_in_a_fork(request: bytes) -> bytes:
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.write(write_end, json.dumps(_answer(json.loads(request))).encode())
            os._exit(0)
        os._exit(1)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return answer
    out_of_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
    return json.dumps({"exceeded": "time" if out_of_time else "memory"}).encode()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the type of an expression, or its value if the request has data; or why it has none."""
    _limit(request["seconds"], request["bytes"])
    environment = cel.NewEnv(variables=dict.fromkeys(request["names"], cel.Type.DYN))
    try:
        program = environment.compile(request["text"])
    except RuntimeError as error:
        return {"invalid": str(error)[:LONGEST_TEXT]}
    if "data" not in request:
        return {"type": str(program.return_type())}
    try:
        value = program.eval(data=request["data"]).value()
    except RuntimeError as error:
        return {"error": str(error)[:LONGEST_TEXT]}
    return {"value": value if isinstance(value, bool) or value is None else str(value)[:LONGEST_TEXT]}


def _limit(seconds: float, more_bytes: int) -> None:
    """Limit this process to so many seconds of processor time, and so many bytes beyond those that it has."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # macOS has neither /proc nor this limit
        with open("/proc/self/statm", "rb") as sizes:
            most = int(sizes.read().split()[0]) * resource.getpagesize() + more_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    main()
