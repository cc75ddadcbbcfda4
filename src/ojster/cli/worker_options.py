"""Options of workers, read into what a ``Worker`` takes."""

from __future__ import annotations

import functools
import os
import signal
import threading
from pathlib import Path
from typing import Any, Final, Literal, get_args

import click
import msgspec

from ojster.cli.declared import MEBIBYTES, NUMBER, Command, option_of
from ojster.cli.option_rules import needs
from ojster.cli.options import parameters
from ojster.core.errors import InvalidRequest
from ojster.core.wire import FairnessStrategy
from ojster.fleet.requirements import check_capabilities
from ojster.jobs.names import check_queue_name
from ojster.queues.fairness import Sharing
from ojster.sandbox.sandbox import DEFAULT_MODULES, Sandbox
from ojster.worker.children import ChildLimits
from ojster.worker.worker import Worker

STRATEGIES: Final = get_args(FairnessStrategy)


def ends_with_parent(command: Command) -> Command:
    """Add a hidden option that stops the process, as SIGTERM does, when its parent process dies."""

    def watch(context: click.Context, option: click.Parameter, wanted: bool) -> None:
        def wait() -> None:
            while os.read(0, 1024):  # ends when the parent dies, which holds the other end of this pipe
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        if wanted:
            threading.Thread(target=wait, name="ojster-parent", daemon=True).start()

    return click.option("--ends-with-parent", is_flag=True, hidden=True, expose_value=False, callback=watch)(command)


class Capabilities(click.ParamType[dict[str, Any]]):
    """Capabilities of a worker: JSON, or ``@`` and the name of a file with JSON."""

    name = "capabilities"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return the capabilities; fail if they are malformed."""
        try:
            raw = Path(value[1:]).read_bytes() if value.startswith("@") else value
            members: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
            check_capabilities(members)
        except OSError as error:
            self.fail(f"{value[1:]}: {error.strerror}", param, ctx)
        except msgspec.MsgspecError as error:
            self.fail(f"Give a JSON object, or @FILE: {error}", param, ctx)
        except InvalidRequest as error:
            self.fail(error.message, param, ctx)
        return members


with_include: Final = click.option(
    "--include",
    multiple=True,
    metavar="MODULE",
    help="Module with jobs of APP to import; PACKAGE.* stands for all its modules named 'tasks'; repeatable.",
)


with_concurrency: Final = option_of(Worker.__init__, "concurrency", "--concurrency", "-c")


def with_child_limits(function: Command) -> Command:
    """Add the options that say when child processes are replaced, as the argument ``children``."""

    @click.option(
        "--max-memory-per-child",
        type=MEBIBYTES,
        metavar="MIB",
        help="Replace a child process after a job that has made it larger than this.",
    )
    @click.option(
        "--max-jobs-per-child",
        type=NUMBER,
        help="Replace a child process (handlers with process=True) after so many jobs.",
    )
    @functools.wraps(function)
    def limited(*args: Any, max_jobs_per_child: int | None, max_memory_per_child: int | None, **more: Any) -> Any:
        bytes_of_child = None if max_memory_per_child is None else max_memory_per_child << 20
        children = ChildLimits(max_jobs=max_jobs_per_child, max_memory=bytes_of_child)
        return function(*args, children=children, **more)

    return limited


def with_queues(function: Command) -> Command:
    """Add ``--queues`` and ``--strategy``, as the arguments ``queues`` and ``sharing``."""

    @click.option(
        "--queues",
        "-q",
        help="Comma-separated queues, the most important first; or NAME=WEIGHT. By default 'default' and all that the "
        "handlers name, in turn.",
    )
    @click.option(
        "--strategy",
        type=click.Choice(STRATEGIES),
        help="Order in which queues are served; by default weighted if --queues has weights, strict if it has none, "
        "and round-robin without it.",
    )
    @functools.wraps(function)
    def read(*args: Any, queues: str | None, strategy: FairnessStrategy | None, **more: Any) -> Any:
        names, sharing = _parse_queues(queues, strategy)
        return function(*args, queues=names, sharing=sharing, **more)

    return read


def with_capabilities(function: Command) -> Command:
    """Add ``--capabilities`` and ``--provide``, as the argument ``capabilities``."""

    @click.option(
        "--capabilities",
        type=Capabilities(),
        metavar="JSON",
        help="Capabilities for jobs that require GPUs, memory, …: a JSON object, or @FILE.",
    )
    @click.option(
        "--provide",
        "provided",
        multiple=True,
        metavar="NAME=VALUE",
        help="Capability for jobs that require it, as a label in --capabilities; repeatable.",
    )
    @functools.wraps(function)
    def read(*args: Any, capabilities: dict[str, Any] | None, provided: tuple[str, ...], **more: Any) -> Any:
        return function(*args, capabilities=_with_labels(capabilities, provided), **more)

    return read


def with_code(function: Command) -> Command:
    """Add the options for jobs that carry their code, as the argument ``code``."""

    @click.option(
        "--code-tasks",
        type=click.Choice(["confined", "weak"]),
        help="Run jobs that carry their code: only if the platform can confine it, or (weak) even if it cannot.",
    )
    @click.option(
        "--code-module",
        "code_modules",
        multiple=True,
        metavar="NAME",
        help="Module that such code may import, instead of the default modules; repeatable.",
    )
    @click.option(
        "--code-value", "code_values", multiple=True, metavar="NAME=JSON", help="Value for such code; repeatable."
    )
    @needs("code_tasks", "code_modules", "code_values")
    @functools.wraps(function)
    def read(
        *args: Any,
        code_tasks: Literal["confined", "weak"] | None,
        code_modules: tuple[str, ...],
        code_values: tuple[str, ...],
        **more: Any,
    ) -> Any:
        return function(*args, code=_sandbox(code_tasks, code_modules, code_values), **more)

    return read


def _with_labels(capabilities: dict[str, Any] | None, provided: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the capabilities of a worker with those of ``--provide``."""
    if not provided:
        return capabilities
    declared = capabilities or {}
    return declared | {"labels": declared.get("labels", {}) | parameters(provided)}


def _sandbox(
    code_tasks: Literal["confined", "weak"] | None, modules: tuple[str, ...], values: tuple[str, ...]
) -> Sandbox | None:
    """Return the sandbox for jobs that carry their code; ``None`` if the worker does not run them."""
    if code_tasks is None:
        return None
    return Sandbox(modules or DEFAULT_MODULES, values=parameters(values), weak=code_tasks == "weak")


def _parse_queues(queues: str | None, strategy: FairnessStrategy | None) -> tuple[list[str] | None, Sharing | None]:
    """Parse ``--queues`` and ``--strategy`` into queue names and a ``Sharing``; ``None``: the worker's defaults."""
    if queues is None:
        return None, None if strategy is None else Sharing(strategy)
    weights: dict[str, int | None] = {}
    for part in filter(None, (part.strip() for part in queues.split(","))):
        name, _, weight = part.partition("=")
        if weight and not (weight.isdecimal() and int(weight)):
            raise click.UsageError(f"--queues: the weight {weight!r} of {name!r} is invalid. Use an integer from 1.")
        try:
            weights[check_queue_name(name.strip())] = int(weight) if weight else None
        except InvalidRequest as error:
            raise click.UsageError(f"--queues: {error.message}") from None
    if not weights:
        raise click.UsageError("--queues is empty. Name at least one queue.")
    weighted = {name: weight for name, weight in weights.items() if weight is not None}
    if weighted and strategy not in (None, "weighted"):
        raise click.UsageError(f"--queues has weights, but --strategy {strategy} does not use them. Remove one.")
    if strategy is None:
        strategy = "weighted" if weighted else "strict"
    return list(weights), Sharing(strategy, tuple(sorted(weighted.items())))
