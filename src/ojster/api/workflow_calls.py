"""What an application does with workflows and what they hand on: defines, starts and finds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import msgspec

from ojster.api.workflow_handle import Run
from ojster.client.event_loop_thread import InEventLoopThread
from ojster.client.interface import Client
from ojster.client.plain_methods import plain
from ojster.collections.items import Where
from ojster.core.errors import Conflict, Duplicate, NotFound
from ojster.core.json_objects import Members
from ojster.core.values import check_options, to_json
from ojster.handlers import tracing
from ojster.handlers.codec import Codecs
from ojster.handlers.collection_handle import SharedCollection
from ojster.handlers.job_options import policy_to_wire
from ojster.handlers.orchestrator import Orchestrator
from ojster.handlers.workflow_requests import (
    ONLY_STARTS,
    OPTIONS_OF_DEFINITIONS,
    DefinitionOptions,
    Startable,
    StartOptions,
    whole,
    workflow_request,
)
from ojster.jobs.queries import no_workflow
from ojster.workflows.broadcast import Broadcast, key_of_broadcast
from ojster.workflows.declaration import Step, Workflow
from ojster.workflows.declared_results import Convert
from ojster.workflows.definition import Definition
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.shapes import ResultShape, shape_of_wire

T = TypeVar("T")


class AppWorkflows(InEventLoopThread):
    """The part of ``App`` that is about workflows and collections."""

    @property
    def codecs(self) -> Codecs:
        """The codecs of arguments."""
        raise NotImplementedError

    def client(self) -> Client:
        """Return the client for the running event loop."""
        raise NotImplementedError

    async def adefine(self, /, name: str, workflow: Step, **options: Unpack[DefinitionOptions]) -> Definition:
        """Create a workflow definition, or add a new version to it if the definition has changed.

        Workflows that were started from an earlier version do not change.

        Parameters
        ----------
        name:
            Name of the definition, with which ``astart`` starts it.
        workflow:
            Steps of its workflows. A single step becomes a chain of one.
        options:
            Options of all its workflows: ``params_schema``, a JSON Schema of their parameters; ``retry``, the policy of
            workflow retries (``RetryWorkflow``); and ``options``, ``timeout``, ``on_error``, ``on_cancel``,
            ``on_lost_worker`` and ``metadata``, as in ``astart``.

        Returns
        -------
        Definition
            The latest version of the definition.

        Raises
        ------
        InvalidRequest, InvalidWorkflow
            The workflow is invalid.
        TypeError
            An option does not exist.
        BackendUnavailable
            The server cannot be reached.
        """
        check_options(options, OPTIONS_OF_DEFINITIONS, ONLY_STARTS)
        retry, schema = options.get("retry"), options.get("params_schema")
        shared: dict[str, Any] = {name: options.get(name) for name in options if name not in ("retry", "params_schema")}
        members = whole(workflow).request(**shared)
        if retry is not None:
            members["retry"] = msgspec.Raw(to_json(policy_to_wire("retry", retry)))
        if schema is not None:
            members["params_schema"] = msgspec.Raw(to_json(schema))
        client = self.client()
        try:
            return await client.definitions.update(name, members)
        except NotFound:
            pass
        try:
            return await client.definitions.create(name, members)
        except Duplicate:  # another client has just created it
            return await client.definitions.update(name, members)

    define = plain(adefine)

    @overload
    async def astart(self, /, workflow: Step[T], **options: Unpack[StartOptions]) -> Run[T]: ...

    @overload
    async def astart(self, /, workflow: str | type[Orchestrator], **options: Unpack[StartOptions]) -> Run: ...

    async def astart(self, /, workflow: Startable, **options: Unpack[StartOptions]) -> Run:
        """Start a workflow: steps, a definition by name, or an orchestrator.

        Parameters
        ----------
        workflow:
            Steps, the name of a definition, or a class declared with ``orchestrator``. A single step becomes a chain of
            one.
        options:
            Options of the workflow: ``name``; ``params``, the values of parameter references; ``metadata``; ``options``
            and ``priority``, which its jobs inherit; ``timeout`` (seconds), after which it fails; ``scheduled_at`` or
            ``delay`` (seconds), before which it does not start; ``expires_in`` (seconds), after which it no longer
            starts; ``on_error`` and ``on_cancel``, a step or a list of steps that run if it fails or is cancelled;
            ``on_lost_worker``, ``"cancel"`` to cancel it when a worker is lost with one of its jobs; ``properties``,
            the initial properties that its tasks share; ``expiration_delay`` (seconds, or ``never``), the retention of
            the finished workflow and all its jobs.

            A definition sets ``options``, ``timeout``, ``on_error``, ``on_cancel`` and ``on_lost_worker`` itself, and
            adds: ``version``, by default the latest; ``target``, the resource that the workflow works on: no two
            unfinished workflows of a definition may have the same target and ``params``; ``locks``, a regular
            expression: until the workflow finishes, no other workflow starts for a target that matches.

        Returns
        -------
        Run
            The started workflow.

        Raises
        ------
        InvalidRequest
            An option is malformed, or the orchestrator rejects ``params``.
        InvalidWorkflow
            The workflow breaks a rule; the message names the place.
        TypeError
            An option does not exist.
        NotFound
            The definition does not exist.
        Duplicate, Conflict
            The target is taken or locked; ``existing_workflow_id`` in the details names the other workflow.
        BackendUnavailable
            The server cannot be reached.
        """
        with tracing.starting(_workflow_type(workflow)) as carried:
            info = await self.client().workflows.create(_request(workflow, options, carried))
            return Run(self, info, _convert_of(workflow), _shape_of(workflow))

    if TYPE_CHECKING:  # a plain twin of overloads has the first of them alone

        @overload
        def start(self, /, workflow: Step[T], **options: Unpack[StartOptions]) -> Run[T]: ...

        @overload
        def start(self, /, workflow: str | type[Orchestrator], **options: Unpack[StartOptions]) -> Run: ...

        def start(self, /, workflow: Startable, **options: Unpack[StartOptions]) -> Run:
            """Start a workflow. See ``astart``."""
    else:
        start = plain(astart)

    @overload
    def start_in(self, connection: Any, /, workflow: Step[T], **options: Unpack[StartOptions]) -> Run[T]: ...

    @overload
    def start_in(
        self, connection: Any, /, workflow: str | type[Orchestrator], **options: Unpack[StartOptions]
    ) -> Run: ...

    def start_in(self, connection: Any, /, workflow: Startable, **options: Unpack[StartOptions]) -> Run:
        """Start a workflow in the caller's transaction on ``connection``: it exists if and only if that commits.

        Parameters
        ----------
        connection:
            Connection to the PostgreSQL database of the ``App``, with an open transaction: a ``psycopg.Connection``, an
            SQLAlchemy ``Connection`` or ``Session``, or Django's ``connection``.
        workflow, options:
            As in ``start``, without ``target`` and ``locks``: other starts for the target would have to wait for the
            end of the transaction.

        Returns
        -------
        Run
            The started workflow. Others see it, and workers run it, after the commit.

        Raises
        ------
        InvalidRequest
            As in ``start``; or the application does not use PostgreSQL, the workflow has a target, or a step that
            starts at once has reactions to its creation.
        InvalidWorkflow, NotFound
            As in ``start``. The transaction stays usable.
        TypeError
            An option does not exist, or ``connection`` is none of these.
        NotInTransaction
            The connection has no open transaction.
        """
        with tracing.starting(_workflow_type(workflow)) as carried:
            info = self._start_in(connection, _request(workflow, options, carried))
            return Run(self, info, _convert_of(workflow), _shape_of(workflow))

    @overload
    async def astart_in(self, connection: Any, /, workflow: Step[T], **options: Unpack[StartOptions]) -> Run[T]: ...

    @overload
    async def astart_in(
        self, connection: Any, /, workflow: str | type[Orchestrator], **options: Unpack[StartOptions]
    ) -> Run: ...

    async def astart_in(self, connection: Any, /, workflow: Startable, **options: Unpack[StartOptions]) -> Run:
        """Start a workflow in the caller's transaction on ``connection``. See ``start_in``.

        Parameters
        ----------
        connection:
            As in ``start_in``; also a ``psycopg.AsyncConnection``, an ``asyncpg`` connection, or an SQLAlchemy
            ``AsyncConnection`` or ``AsyncSession``.
        workflow, options:
            As in ``start_in``.

        Returns
        -------
        Run
            The started workflow.
        """
        with tracing.starting(_workflow_type(workflow)) as carried:
            info = await self._astart_in(connection, _request(workflow, options, carried))
            return Run(self, info, _convert_of(workflow), _shape_of(workflow))

    def _start_in(self, connection: Any, request: Members) -> WorkflowInfo:
        raise NotImplementedError

    async def _astart_in(self, connection: Any, request: Members) -> WorkflowInfo:
        raise NotImplementedError

    async def afind_workflow(self, workflow_id: str) -> Run:
        """Return an existing workflow.

        Parameters
        ----------
        workflow_id:
            Id of the workflow; the beginning of an id, which is easy to guess, finds none.

        Returns
        -------
        Run
            The workflow.

        Raises
        ------
        NotFound
            The workflow does not exist.
        """
        try:
            shown = await self.client().workflows.show(workflow_id)
        except Conflict:  # several ids begin so
            raise no_workflow(workflow_id) from None
        if shown.id != workflow_id:
            raise no_workflow(workflow_id)
        return Run(self, shown)

    find_workflow = plain(afind_workflow)

    def collection(self, name: str) -> SharedCollection:
        """Return a named collection. Its existence is checked on first use.

        Parameters
        ----------
        name:
            Name of the collection.

        Returns
        -------
        SharedCollection
            The collection.
        """
        return SharedCollection(self.client, Where(name), self._wait)

    def collection_of(self, workflow_id: str) -> SharedCollection:
        """Return the collection of a workflow; its jobs call it ``internal``.

        Parameters
        ----------
        workflow_id:
            Id of the workflow.

        Returns
        -------
        SharedCollection
            The collection.
        """
        return SharedCollection(self.client, Where(workflow_id=workflow_id), self._wait)

    async def asend(self, name: str, data: Any = None, *, key: str | int, idempotency_key: str | None = None) -> int:
        """Send a message to all flows that wait for this name and key: ``flow.receive(name, key=key)``.

        They are those of the tenant of the application. The message is kept for 7 days: flows that begin to wait later
        receive it if they look back that far. ``Run.send`` sends a message to one flow.

        Parameters
        ----------
        name:
            Name of the message.
        data:
            Any JSON value, of at most 256 KiB; ``None`` by default.
        key:
            What the message is about, such as the id of an order.
        idempotency_key:
            A message with the same name, key and idempotency key is sent once in 7 days. By default each call sends
            one.

        Returns
        -------
        int
            The number of flows that waited for it.

        Raises
        ------
        Conflict
            10,000 messages with this name and key are kept.
        InvalidRequest
            The name is not allowed.
        PayloadTooLarge, TypeError
            ``data`` is too large, or not a JSON value.
        ValueError
            The key is empty or too long.
        """
        encoded = self.codecs.encode_value(to_json(data))
        return await self.client().flows.broadcast(Broadcast(name, key_of_broadcast(key), encoded, idempotency_key))

    send = plain(asend)


def _request(workflow: Startable, options: Mapping[str, Any], carried: Mapping[str, str]) -> Members:
    """Return the request that starts a workflow; ``carried``: what its metadata takes from the caller's trace."""
    if carried:
        options = {**options, "metadata": {**carried, **(options.get("metadata") or {})}}
    return workflow_request(workflow, options)


def _workflow_type(workflow: Startable) -> str:
    if isinstance(workflow, str):
        return workflow
    if isinstance(workflow, type):
        return workflow.name
    return str(workflow.wire.get("type", "chain")) if isinstance(workflow, Workflow) else "chain"


def _convert_of(workflow: Startable) -> Convert | None:
    return workflow.whole.convert if isinstance(workflow, Step) else None


def _shape_of(workflow: Startable) -> ResultShape | None:
    return shape_of_wire(whole(workflow).wire) if isinstance(workflow, Step) else None
