"""Jobs and transactions of SQLAlchemy, wherever the jobs are: after the commit, or through an outbox.

If the jobs are in the PostgreSQL database of the session, neither is needed: ``send.enqueue_in(session, …)`` makes a
job a part of the transaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final, ParamSpec, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    MetaData,
    String,
    Table,
    and_,
    event,
    or_,
    select,
    true,
)
from sqlalchemy import delete as delete_rows
from sqlalchemy import insert as insert_rows
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from ojster.api.app import App
from ojster.core.errors import BackendUnavailable, Duplicate, InvalidRequest, PayloadTooLarge
from ojster.core.ids import new_id
from ojster.core.json_objects import Members, read_members
from ojster.core.refusals import JobDropped
from ojster.handlers.job_type import JobType

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 200
"""Number of jobs that the relay of an outbox enqueues in one transaction."""

_PENDING: Final = "ojster.pending"
"""The key of a session's jobs that wait for its commit, in ``Session.info``."""

PAUSE_SECONDS: Final = 0.5
"""Pause of a relay that has found nothing, in seconds."""

REMINDER_SECONDS: Final = 60.0
"""Pause after which a relay logs the same trouble again, in seconds."""


def enqueue_after_commit(session: Session, job: JobType[P, R], *args: P.args, **kwargs: P.kwargs) -> str:
    """Enqueue a job when the transaction of a session has committed; if it is rolled back, there is no job.

    The job is lost if the process dies, or the server cannot be reached, between the commit and the enqueue: the error
    is logged. An ``Outbox`` loses nothing.

    Parameters
    ----------
    session:
        A session; of an ``AsyncSession``, its ``sync_session``.
    job:
        The declared job, perhaps with options: ``send.using(queue="mail")``.
    args, kwargs:
        Arguments of the handler.

    Returns
    -------
    str
        The id that the job will have.

    Raises
    ------
    TypeError
        The handler does not take these arguments.
    """
    id, request = _with_id(job.request(args, kwargs))
    if session.get_transaction() is None:
        session.begin()
    if _PENDING not in session.info:
        session.info[_PENDING] = []
        event.listen(session, "after_commit", _push)
        event.listen(session, "after_soft_rollback", _forget)
        event.listen(session, "after_transaction_end", _clear)
    transaction = session.get_nested_transaction() or session.get_transaction()
    session.info[_PENDING].append((transaction, job.app, id, request))
    return id


def _push(session: Session) -> None:
    """Enqueue the jobs of a session whose outermost transaction has committed."""
    if session.get_nested_transaction() is not None:
        return  # a savepoint was released, whose jobs the outer transaction may still roll back
    for _, app, id, request in session.info[_PENDING]:
        try:
            app._event_loop_thread.call(app.client().jobs.enqueue([request]))
        except JobDropped:
            continue  # as middleware wants
        except Exception:  # the transaction has committed: an error would tell its caller otherwise
            log.exception("the job %s was not enqueued after the commit", id)


def _forget(session: Session, previous: SessionTransaction) -> None:
    """Forget the jobs of a transaction or savepoint that was rolled back."""
    session.info[_PENDING] = [pending for pending in session.info[_PENDING] if previous not in _around(pending[0])]


def _around(transaction: SessionTransaction | None) -> Iterator[SessionTransaction]:
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


def _clear(session: Session, transaction: SessionTransaction) -> None:
    """Forget what is left when the outermost transaction has ended, however it did."""
    if transaction.parent is None:
        session.info[_PENDING] = []


class Outbox:
    """A table for jobs that are to be enqueued: it is written in the transaction of your data, and a relay empties it.

    Each job is enqueued exactly once, whatever dies: the relay deletes a row after the server has taken the job, and a
    job that it sends twice has the same id both times.

    Parameters
    ----------
    app:
        The application with the jobs.
    metadata:
        The metadata to which the table is added, so that ``metadata.create_all`` and Alembic create it.
    name:
        Name of the table; ``ojster_outbox`` by default.

    Examples
    --------
    >>> from ojster import App
    >>> from ojster.sqlalchemy import Outbox
    >>> from sqlalchemy import MetaData, create_engine
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("order.ship")
    ... def ship(order: int) -> None: ...
    >>> outbox = Outbox(app, metadata := MetaData())
    >>> engine = create_engine("sqlite://")
    >>> metadata.create_all(engine)
    >>> with engine.begin() as connection:
    ...     id = outbox.add(connection, ship, 42)
    >>> outbox.relay(engine), app.find(id).job.args
    (1, [42])
    >>> app.close()
    """

    def __init__(self, app: App, metadata: MetaData, name: str = "ojster_outbox") -> None:
        self.app = app
        self.table = Table(
            name,
            metadata,
            Column("id", String(36), primary_key=True),
            Column("request", LargeBinary, nullable=False),
            Column("created_at", BigInteger, nullable=False),
        )
        self._after: tuple[int, str] | None = None
        """The last row that a relay has tried to enqueue, if rows before it stay; ``None``: begin with the oldest."""

    def add(self, session: Session | Connection, job: JobType[P, R], *args: P.args, **kwargs: P.kwargs) -> str:
        """Write a job into the outbox, in the transaction of a session or connection.

        Parameters
        ----------
        session:
            A session or connection; of an ``AsyncSession``, its ``sync_session``.
        job:
            The declared job, perhaps with options.
        args, kwargs:
            Arguments of the handler.

        Returns
        -------
        str
            The id that the job will have.

        Raises
        ------
        TypeError
            The handler does not take these arguments.
        """
        id, request = _with_id(job.request(args, kwargs))
        row = {"id": id, "request": msgspec.json.encode(request), "created_at": time.time_ns() // 1_000}
        session.execute(insert_rows(self.table), row)
        return id

    def relay(self, engine: Engine, most: int = MOST_AT_ONCE) -> int:
        """Enqueue the oldest jobs of the outbox, and delete them from it.

        If some of them stay, the next call begins with younger ones, until it has been through all.

        Parameters
        ----------
        engine:
            The engine of the database with the table.
        most:
            Maximum number of jobs; 200 by default.

        Returns
        -------
        int
            The number of jobs that are no longer in the outbox.

        Raises
        ------
        BackendUnavailable
            The server cannot be reached, or does not take some jobs for now: they stay.
        """
        table = self.table
        with engine.begin() as connection:
            # Relays beside each other take different jobs, instead of waiting for each other's requests.
            oldest = (
                select(table).order_by(table.c.created_at, table.c.id).limit(most).with_for_update(skip_locked=True)
            )
            begun, self._after = self._after, None
            rows = connection.execute(oldest.where(self._is_after(begun))).all()
            if not rows and begun is not None:
                begun, rows = None, connection.execute(oldest).all()
            if not rows:
                return 0
            refusals = self.app._event_loop_thread.call(self._push([bytes(row.request) for row in rows]))
            done = [row.id for row, refusal in zip(rows, refusals, strict=True) if refusal is None]
            connection.execute(delete_rows(table).where(table.c.id.in_(done)))
        left = [refusal for refusal in refusals if refusal is not None]
        if len(rows) == most and (left or begun is not None):
            self._after = rows[-1].created_at, rows[-1].id
        if left:
            raise BackendUnavailable(f"The outbox keeps {len(left)} jobs for now: {left[0]}") from left[0]
        return len(rows)

    def _is_after(self, row: tuple[int, str] | None) -> ColumnElement[bool]:
        if row is None:
            return true()
        created_at, id = row
        columns = self.table.c
        return or_(columns.created_at > created_at, and_(columns.created_at == created_at, columns.id > id))

    def run(self, engine: Engine) -> None:
        """Relay for ever, and wait for the server whenever it is away. For a process or thread of its own.

        Parameters
        ----------
        engine:
            The engine of the database with the table.
        """
        logged, remind_at = "", 0.0
        while True:
            try:
                moved = self.relay(engine)
            except (BackendUnavailable, DBAPIError) as error:
                why, now = str(error.__cause__ or error), time.monotonic()
                if why != logged or now >= remind_at:
                    log.warning("the outbox waits for the server or its database: %s", error)
                    logged, remind_at = why, now + REMINDER_SECONDS
                moved = 0
            if moved < MOST_AT_ONCE:
                time.sleep(PAUSE_SECONDS)

    async def _push(self, requests: Sequence[bytes]) -> Sequence[Exception | None]:
        """Enqueue jobs; return for each why it must stay in the outbox, or ``None``."""
        try:
            await self.app.client().jobs.enqueue([read_members(request, "The job") for request in requests])
        except BackendUnavailable:
            raise
        except Exception:  # one of them is refused: the others must not wait for it
            return await asyncio.gather(*[self._push_one(request) for request in requests])
        return [None] * len(requests)

    async def _push_one(self, request: bytes) -> Exception | None:
        try:
            await self.app.client().jobs.enqueue([read_members(request, "The job")])
        except (Duplicate, JobDropped):  # an earlier relay has enqueued it, a unique job exists, or middleware drops it
            return None
        except (InvalidRequest, PayloadTooLarge) as refusal:
            log.error("a job of the outbox was refused, and is dropped: %s: %s", refusal, request.decode())
        except Exception as refusal:  # such as a token that has expired, or an error of middleware
            return refusal
        return None


def _with_id(request: Members) -> tuple[str, Members]:
    id = new_id()
    return id, {"id": msgspec.Raw(msgspec.json.encode(id)), **request}
