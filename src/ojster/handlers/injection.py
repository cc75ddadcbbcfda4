"""What a handler needs beside the arguments of its job, such as a connection: ``Depends``.

Declared as in FastAPI, and resolved by ``uncalled_for``. What is added here: one function for both scopes, generators,
plain functions in threads, and the job itself.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, overload

import uncalled_for
from uncalled_for import Provided

from ojster.core.job import Job
from ojster.handlers.context import JobContext
from ojster.handlers.provision import Needs, by_owner, manager_of, running_context, running_job

if TYPE_CHECKING:
    from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager

__all__ = ["Depends", "Provided", "needs_of"]

T = TypeVar("T")

DependencyScope = Literal["job", "worker"]


@overload
def Depends(
    factory: Callable[..., AsyncGenerator[T, Any] | _AsyncGeneratorContextManager[T, Any]],
    /,
    *,
    scope: DependencyScope = "job",
) -> T: ...


@overload
def Depends(
    factory: Callable[..., Generator[T, Any, Any] | _GeneratorContextManager[T, Any, Any]],
    /,
    *,
    scope: DependencyScope = "job",
) -> T: ...


@overload
def Depends(
    factory: Callable[..., AsyncIterator[Any] | Iterator[Any]], /, *, scope: DependencyScope = "job"
) -> Any: ...


@overload
def Depends(factory: Callable[..., Awaitable[T]], /, *, scope: DependencyScope = "job") -> T: ...


@overload
def Depends(factory: Callable[..., T], /, *, scope: DependencyScope = "job") -> T: ...


def Depends(factory: Callable[..., Any], /, *, scope: DependencyScope = "job") -> Any:  # noqa: N802  (as in FastAPI)
    """Declare that a parameter of a handler, or of another factory, is what ``factory`` returns.

    As a default (``pool: Pool = Depends(open_pool)``) or as an annotation (``pool: Annotated[Pool, Depends(open_pool)]
    = Provided``, where the default lets type checkers accept an ``enqueue`` without it). Such parameters follow the
    arguments of the job, and are not among them.

    Parameters
    ----------
    factory:
        A function or class, asynchronous or plain; plain ones run in a thread. A generator function yields the value
        once and cleans up afterwards; an exception of the handler is raised at its ``yield``. Its parameters are filled
        in the same way; one that is annotated with ``Job`` or ``JobContext`` gets the job. Context variables that a
        plain factory sets are its own; those of an asynchronous one are seen by asynchronous handlers.
    scope:
        ``"job"``, the default: it is called once for each job that needs it. ``"worker"``: once in each worker and
        child process, when a job needs it first; it cleans up when the process stops, and cannot know the job.

    Returns
    -------
    Any
        A stand-in. The handler gets the value.

    Raises
    ------
    TypeError
        A parameter of ``factory`` is neither declared in this way nor has a default.
    ValueError
        The scope is neither ``"job"`` nor ``"worker"``.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, Depends, Job, Worker
    >>> app = App("sqlite:///:memory:")
    >>> async def open_pool():
    ...     yield ["connection"]
    >>> def tenant(job: Job) -> str:
    ...     return job.meta.get("tenant", "nobody")
    >>> @app.job("report.build")
    ... async def build(month: str, pool=Depends(open_pool, scope="worker"), who: str = Depends(tenant)):
    ...     return f"{month} for {who} with {len(pool)} connection"
    >>> async def main() -> None:
    ...     handle = await build.aenqueue("January")
    ...     await Worker(app).run(until_empty=True)
    ...     print(await handle.aresult())
    ...     await app.aclose()
    >>> asyncio.run(main())
    January for nobody with 1 connection
    """
    if scope not in ("job", "worker"):
        raise ValueError(f"The scope of a dependency is 'job' or 'worker', not {scope!r}.")
    declare = uncalled_for.Depends if scope == "job" else uncalled_for.Shared
    return declare(_opener(factory, scope))


def needs_of(function: Callable[..., Any], signature: inspect.Signature) -> tuple[inspect.Signature, Needs | None]:
    """Return the signature without the parameters that ``Depends`` declares, and what these need.

    Raises
    ------
    TypeError
        A parameter that is to be filled in comes before an argument of the job.
    """
    dependencies = {
        name: value for name, parameter in signature.parameters.items() if (value := _declared(function, parameter))
    }
    left = [parameter for name, parameter in signature.parameters.items() if name not in dependencies]
    if not dependencies:
        return signature, None
    names = list(signature.parameters)
    for name in dependencies:
        if any(names.index(parameter.name) > names.index(name) and parameter.kind in _POSITIONAL for parameter in left):
            raise TypeError(
                f"{function.__qualname__}: the parameter {name!r} has Depends(…), so it must follow those that are "
                "arguments of the job."
            )
    return signature.replace(parameters=left), _with_parameters(lambda: None, dependencies)


_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


@functools.cache
def _opener(factory: Callable[..., Any], scope: DependencyScope) -> Callable[..., Any]:
    """Return the function that opens what a factory returns, with parameters that all have a default."""
    needed: dict[str, Any] = {}
    where = getattr(factory, "__qualname__", repr(factory))
    for name, parameter in inspect.signature(factory).parameters.items():
        need = _declared(factory, parameter) or _the_job(factory, parameter)
        if need is None:
            if parameter.default is parameter.empty and parameter.kind not in _VARIABLE:
                raise TypeError(
                    f"{where}: the parameter {name!r} needs a default, Depends(…), or Job as its annotation."
                )
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{where}: the parameter {name!r} must not be positional-only.")
        if scope == "worker" and not isinstance(need, _WORKER_SCOPE):
            raise TypeError(f"{where} lives as long as the worker, so its parameter {name!r} cannot belong to one job.")
        needed[name] = need
    manager = manager_of(factory)
    return _with_parameters(manager if scope == "job" else functools.partial(by_owner, manager), needed)


_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_WORKER_SCOPE: Final = type(uncalled_for.Shared(lambda: None))


def _with_parameters(function: Callable[..., Any], defaults: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function with a signature that has these parameters, with their defaults, and no others."""

    def call(**values: Any) -> Any:
        return function(**values)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default) for name, default in defaults.items()
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _declared(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return what ``Depends`` has declared for a parameter; ``None`` if it has not."""
    if isinstance(parameter.default, uncalled_for.Provider):
        return parameter.default
    annotation = _resolved(function, parameter.annotation)
    need = declared_in(annotation)
    if need is None and parameter.default is Provided:
        raise TypeError(
            f"{function.__qualname__}: the parameter {parameter.name!r} is Provided, but by nothing: annotate it with "
            "Annotated[…, Depends(…)], of classes that are already defined."
        )
    return need


def declared_in(annotation: Any) -> Any:
    """Return what ``Depends`` has declared in an annotation; ``None`` if it has not."""
    if typing.get_origin(annotation) is not Annotated:
        return None
    return next(
        (annotated for annotated in typing.get_args(annotation)[1:] if isinstance(annotated, uncalled_for.Provider)),
        None,
    )


def _the_job(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return what provides the job, if the annotation asks for it."""
    annotation = _resolved(function, parameter.annotation)
    if annotation is Job:
        return uncalled_for.Depends(running_job)
    return uncalled_for.Depends(running_context) if annotation is JobContext else None


def _resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """Return an annotation that may be text; the text if it names what does not exist yet."""
    if not isinstance(annotation, str):
        return annotation
    holder = type("holder", (), {"__annotations__": {"it": annotation}})
    with suppress(NameError, AttributeError, SyntaxError, TypeError):
        return typing.get_type_hints(holder, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True)[
            "it"
        ]
    return annotation
