"""Keeps a set of processes running: replaces those that end, passes signals on, and ends with all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from ojster.cli.health import MAX_AGE_SECONDS, age_of, touch
from ojster.cli.signals import on_signals

log = logging.getLogger(__name__)

REPLACE: Final = 75
"""Exit code with which a process asks to be replaced by a new one (``EX_TEMPFAIL``)."""

QUIET_VARIABLE: Final = "OJSTER_START_QUIET"
"""Environment variable of a process that should fetch no jobs until it gets SIGCONT."""

NUMBER_VARIABLE: Final = "OJSTER_PROCESS_NUMBER"
"""Environment variable with the number of a process among several alike, from 1."""

SETTLED_SECONDS: Final = 10.0
"""A process that has run for so long, in seconds, was started rightly: if it fails, it is started again."""

LONGEST_PAUSE: Final = 30.0
"""Longest pause before a process that keeps failing is started again, in seconds."""

_PASSED_ON: Final = ("SIGTERM", "SIGINT", "SIGTSTP", "SIGCONT")
_ENDING: Final = ("SIGTERM", "SIGINT")
_ENDED_AS_TOLD: Final = (REPLACE, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes of processes that were told to stop; the signal itself ends those that have only just begun."""


def hold_back() -> None:
    """Hold SIGTSTP and SIGCONT back, here and in processes that are started now, until they ``let_through``."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP, signal.SIGCONT})


def let_through() -> None:
    """Receive SIGTSTP and SIGCONT, also what was held back; a process calls it when it has handlers for them."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP, signal.SIGCONT})


class ProcessCommand(NamedTuple):
    """A command, variables for its environment, and open files that it takes over, by their numbers.

    ``is_endless``: it is started again also if it ends with success.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})
    files: tuple[int, ...] = ()
    is_endless: bool = False


def same_command() -> tuple[str, ...]:
    """Return the command of this process, as one of several processes that it supervises."""
    name, *arguments = sys.argv[1:]
    return (sys.executable, "-m", "ojster", name, "--supervised", "--ends-with-parent", *arguments)


class Supervisor:
    """Runs one process for each command until all have ended.

    A process that ends with ``REPLACE`` is replaced at once, and one that fails after a pause that grows, as is an
    endless one that ends with success. If one fails before any has run for ten seconds, the command is wrong, and all
    are stopped.

    Parameters
    ----------
    commands:
        The commands; each gets a pipe as its standard input, at whose end it should stop.
    health:
        The health files of the processes; none by default.
    all_healthy:
        The file that is touched as long as all of them are fresh; ``None``, the default: none.
    on_stop:
        Called when the processes are told to end.
    wait:
        Time that a process may wait for the database before it fails, in seconds; 0 by default.
    """

    def __init__(
        self,
        commands: Sequence[ProcessCommand],
        health: Sequence[Path] = (),
        all_healthy: Path | None = None,
        on_stop: Callable[[], object] = lambda: None,
        wait: float = 0.0,
    ) -> None:
        self._commands = commands
        self._health = health
        self._all_healthy = all_healthy
        self._on_stop = on_stop
        self._settled_after = SETTLED_SECONDS + wait
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._began: dict[int, float] = {}
        self._settled = False
        self._quiet = False

    async def run(self) -> int:
        """Run the processes; return the first exit code that is not 0, or 0."""
        numbers = {name: getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)}
        on_signals(
            asyncio.get_running_loop(), {name: partial(self._pass_on, number) for name, number in numbers.items()}
        )
        for file in (*self._health, *([] if self._all_healthy is None else [self._all_healthy])):
            file.unlink(missing_ok=True)  # that of a supervisor that was killed
        watching = asyncio.create_task(self._watch_health())
        try:
            codes = await asyncio.gather(*(self._keep(number) for number in range(len(self._commands))))
        finally:
            watching.cancel()
            if self._all_healthy is not None:
                self._all_healthy.unlink(missing_ok=True)
        return next((code for code in codes if code), 0)

    def _pass_on(self, number: signal.Signals) -> None:
        if number.name in _ENDING:
            self._stopping.set()
            self._on_stop()
        self._quiet = number.name == "SIGTSTP" or (self._quiet and number.name != "SIGCONT")
        for process in self._running.values():
            _signal(process, number)

    async def _keep(self, number: int) -> int:
        pause = 1.0
        while True:
            began = self._began[number] = time.monotonic()
            process = await self._start(self._commands[number])
            if process is None:
                code = 1
            else:
                self._running[number] = process
                if self._stopping.is_set():  # the signal came while it was started
                    _signal(process, signal.SIGTERM)
                code = await process.wait()
                del self._running[number]
            lived = time.monotonic() - began
            ages = [time.monotonic() - began for began in self._began.values()]
            self._settled = self._settled or max(ages) > self._settled_after or code == REPLACE or process is None
            if self._stopping.is_set():
                return 0 if process is None or code in _ENDED_AS_TOLD else code
            if code == REPLACE:
                log.info("a process is replaced")
                continue
            if code == 0 and not self._commands[number].is_endless:
                return 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if code > 0 and not self._settled:
                self._pass_on(signal.SIGTERM)
                return code
            pause = 1.0 if lived > LONGEST_PAUSE else pause
            log.error("a process %s; starting another in %.0f s", how, pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return 0
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _start(self, command: ProcessCommand) -> asyncio.subprocess.Process | None:
        """Start a process; ``None`` if the machine cannot at the moment."""
        quiet = {QUIET_VARIABLE: "1"} if self._quiet else {}
        environment = os.environ | command.environment | quiet
        hold_back()
        try:
            return await asyncio.create_subprocess_exec(
                *command.words,
                stdin=asyncio.subprocess.PIPE,
                env=environment,
                pass_fds=command.files,
                process_group=0,  # else a Ctrl-C in the terminal would reach it twice
            )
        except OSError as error:
            log.error("cannot start a process: %s", error.strerror)
            return None
        finally:
            let_through()

    async def _watch_health(self) -> None:
        while self._all_healthy is not None:
            if all((age := age_of(file)) is not None and age <= MAX_AGE_SECONDS for file in self._health):
                touch(self._all_healthy)
            await asyncio.sleep(1.0)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended.

    ``Process.send_signal`` also asks whether it has ended, and so takes its exit code away from ``Process.wait``, which
    then reports 255.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
