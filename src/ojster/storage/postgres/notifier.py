"""The Postgres notifier: wake-ups between processes that share a database, with LISTEN and NOTIFY.

Each process has one connection for it. Topics are sent after the commit, merged with those of other transactions, and
only if another process listens: with a NOTIFY inside, only one transaction of the whole database could commit at a
time. Ends of jobs are told only while another process waits for some: it announces that, and those who did not know
answer once that jobs have finished, for the ends that they have not told.

A notification may be lost (a process dies between its commit and its NOTIFY; a connection breaks). So each process also
looks for changes whenever its connection is new, and at every heartbeat.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql
from psycopg.waiting import Ready, Wait

from ojster.storage.wakeups import FINISHED, QUIET

log = logging.getLogger(__name__)

R = TypeVar("R")

HEARTBEAT: Final = 15.0
"""Interval at which the connection is tested and missed notifications are looked for, in seconds."""

FIRST_POLL_SECONDS: Final = 0.1
"""Where LISTEN is impossible: interval after this process has done something, in seconds; doubled each time after."""

MAX_POLL_SECONDS: Final = 2.0
"""Where LISTEN is impossible: longest interval, in seconds."""

MIN_LOOK_SECONDS: Final = 1.0
"""Where LISTEN is impossible: shortest interval at which settings and the clock are read again, too, in seconds."""

PEER_TIMEOUT_SECONDS: Final = 3 * HEARTBEAT
"""Time without a notification from another process, in seconds, after which none is sent."""

DISCOVERY_SECONDS: Final = 2.0
"""Time after the start, in seconds, in which notifications are sent even if no other process was heard; after each new
connection, too, those of ends of jobs."""

ANSWER_SECONDS: Final = 5.0
"""Maximum wait for an answer, in seconds, before the connection counts as lost."""

IDLE_WARNING_SECONDS: Final = 3_600.0
"""Time between two warnings that the database ends idle connections, in seconds."""

IDLE_SESSION_TIMEOUT: Final = "57P05"
"""SQLSTATE of a session that was ended because it was idle."""

MERGE_PAUSE_SECONDS: Final = 0.001
"""Pause after a notification, in seconds, in which further topics are merged."""

MAX_RECONNECT_PAUSE_SECONDS: Final = 2.0
"""Maximum pause before reconnecting, in seconds."""

MAX_NOTIFICATION_BYTES: Final = 7_500
"""Maximum size of a notification, in bytes; PostgreSQL accepts fewer than 8,000."""

NO_WORK: Final = ("due:", QUIET, "configured")
"""Beginnings of the topics that do not say that there is something to do."""

_HELLO: Final = "hello"
_HERE: Final = "here"
_WAITS: Final = "waits"


class ListeningConnection(psycopg.Connection):
    """A connection that gives up a server that does not answer. Otherwise a process would be deaf for as long as its
    former primary hangs, although another has been promoted.
    """

    def wait(self, gen: Generator[int, Any, R], *_: Any, **__: Any) -> R:
        """Run the steps of a statement; wait at most ``ANSWER_SECONDS`` for each."""
        try:
            wanted = next(gen)
            while True:
                poll = select.poll()
                poll.register(
                    self.pgconn.socket,
                    (select.POLLIN if wanted & Wait.R else 0) | (select.POLLOUT if wanted & Wait.W else 0),
                )
                if not (ready := poll.poll(ANSWER_SECONDS * 1000)):
                    self.close()
                    raise psycopg.OperationalError(f"The database has not answered for {ANSWER_SECONDS:g} seconds.")
                events = ready[0][1]
                wanted = gen.send(Ready.R * bool(events & ~select.POLLOUT) | Ready.W * bool(events & select.POLLOUT))
        except StopIteration as end:
            answer: R = end.value
            return answer


class PostgresNotifier:
    """The thread that sends and receives this process's notifications.

    Parameters
    ----------
    connect:
        Opens a connection in autocommit mode.
    channel:
        Channel of the processes that share the tables.
    listens:
        Whether the connection can LISTEN. If not, missed notifications are looked for often: other processes send none.
    on_ring:
        Called in the notifier's thread with the topics of a notification.
    on_gap:
        Called in the notifier's thread, with a connection to use, when notifications may have been missed.
    on_poll:
        Called in the notifier's thread, more often, to look for work where no notifications arrive.
    on_disconnect:
        Called in the notifier's thread after each failed attempt to connect and each lost connection.
    waits:
        Returns whether this process waits for ends of jobs.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        channel: str,
        on_ring: Callable[[Sequence[str]], None],
        on_gap: Callable[[psycopg.Connection], None],
        on_poll: Callable[[], None],
        on_disconnect: Callable[[], None],
        waits: Callable[[], bool],
        *,
        listens: bool = True,
    ) -> None:
        self._connect = connect
        self.channel = channel
        self._on_ring = on_ring
        self._on_gap = on_gap
        self._on_poll = on_poll
        self._on_deaf = on_disconnect
        self._waits = waits
        self._listens = listens
        self._interval = HEARTBEAT if listens else FIRST_POLL_SECONDS
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._topics: dict[str, None] = {}
        self._heard_at = float("-inf")
        self._new_until = self._unsure_until = time.monotonic() + DISCOVERY_SECONDS
        self._heard_waits_at = self._announced_at = float("-inf")
        self._in_doubt = False
        self._ended_by: str | None = None
        self._idle_warning_at = float("-inf")
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        self._closing = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ojster-notifier", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def has_peers(self) -> bool:
        """Whether another process was heard recently, or may not have had time to answer."""
        now = time.monotonic()
        return self._listens and (now - self._heard_at < PEER_TIMEOUT_SECONDS or now < self._new_until)

    @property
    def tells_ends(self) -> bool:
        """Whether other processes are told of ends of jobs: one of them may wait for some."""
        now = time.monotonic()
        return not self._listens or now - self._heard_waits_at < PEER_TIMEOUT_SECONDS or now < self._unsure_until

    def announce_wait(self) -> None:
        """Have other processes tell of ends of jobs. The waiter must be known to ``waits`` before.

        A process that does not know yet answers, and the waiter looks again. So it misses no end. If the announcement
        or the answer is lost with a connection, the waiter looks again at the next heartbeat.
        """
        if not self._closing and self.has_peers and time.monotonic() - self._announced_at >= HEARTBEAT:
            self._announce()

    def _announce(self) -> None:
        self._announced_at = time.monotonic()
        self._note_topics([_WAITS])

    def ring(self, topics: Sequence[str]) -> None:
        """Send topics to every other process. Costs nothing if there is none."""
        if topics and self.has_peers:
            self._note_topics(topics)
        elif not (self._listens or all(topic.startswith(NO_WORK) for topic in topics)):
            # others may soon answer in kind
            was_slow, self._interval = self._interval > 2 * FIRST_POLL_SECONDS, FIRST_POLL_SECONDS
            if was_slow:
                self.check()

    def check(self) -> None:
        """Test the connection now, and look for missed notifications: another connection is lost."""
        self._in_doubt = True
        self._wake_thread()

    def close(self) -> None:
        """Send the remaining topics, and stop the thread."""
        if self.has_peers and not self.tells_ends:  # whoever begins to wait now gets no answer
            self._note_topics([FINISHED])
        self._closing = True
        self._wake_thread()
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            with self._lock:
                self._is_closed = True
                os.close(self._wake_reader)
                os.close(self._wake_writer)

    def _note_topics(self, topics: Iterable[str]) -> None:
        with self._lock:
            silent = not self._topics
            self._topics.update(dict.fromkeys(topics))
        if silent:
            self._wake_thread()

    def _wake_thread(self) -> None:
        with self._lock:
            if not self._is_closed:  # its number may be that of another file by now
                os.write(self._wake_writer, b"!")

    def _run(self) -> None:
        failures = 0
        while not self._closing or (self._topics and not failures):
            pause = MAX_RECONNECT_PAUSE_SECONDS
            try:
                with self._connect() as connection:
                    # The server says why it ends a connection before it does; the error tells only of the end.
                    self._ended_by = None
                    connection.add_notice_handler(self._note_end)
                    if self._listens:
                        connection.add_notify_handler(self._heed)
                        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))
                        self._note_topics([_HELLO])
                        self._unsure_until = time.monotonic() + DISCOVERY_SECONDS
                        self._announced_at = float("-inf")  # an announcement may be lost with the last connection
                    failures = 0
                    self._serve(connection)
            except psycopg.Error as error:
                failures += 1
                if IDLE_SESSION_TIMEOUT in (error.sqlstate, self._ended_by):
                    self._warn_of_idle_timeout()
                elif failures in (1, 10) or failures % 100 == 0:
                    words = " ".join(str(error).split())
                    log.warning("notification connection lost; reconnecting: %s", words)
                pause = min(MAX_RECONNECT_PAUSE_SECONDS, 0.1 * 2 ** min(failures, 10))
            except Exception:
                log.exception("unexpected error in the Postgres notifier; it continues")
            self._on_deaf()  # no notifications arrive without a connection
            self._rest(pause)

    def _note_end(self, notice: psycopg.errors.Diagnostic) -> None:
        self._ended_by = notice.sqlstate

    def _warn_of_idle_timeout(self) -> None:
        """Log that the database ends idle connections, once in a while: it does so again and again."""
        if time.monotonic() >= self._idle_warning_at:
            self._idle_warning_at = time.monotonic() + IDLE_WARNING_SECONDS
            log.warning(
                "the database ends idle connections, which are opened again each time: set idle_session_timeout to 0 "
                "for this role, or to more than %g s",
                HEARTBEAT,
            )

    def _serve(self, connection: psycopg.Connection) -> None:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        next_beat = next_look = 0.0
        while True:
            if (now := time.monotonic()) >= next_beat:
                if self._listens or now >= next_look:
                    self._on_gap(connection)
                    next_look = now + MIN_LOOK_SECONDS
                else:
                    self._on_poll()
                next_beat = now + self._interval
                if not self._listens:
                    self._interval = min(MAX_POLL_SECONDS, 2 * self._interval)
                if now - self._heard_at < PEER_TIMEOUT_SECONDS:
                    self._note_topics([_HERE])
                    if self._waits():
                        self._announce()
            self._send(connection)
            if self._closing:
                return
            poll.poll(max(0.0, next_beat - time.monotonic()) * 1000)
            self._listen(connection)
            if self._in_doubt:  # which may have committed before it knew of this process
                self._in_doubt = False
                next_beat = 0.0

    def _listen(self, connection: psycopg.Connection) -> None:
        libpq = connection.pgconn
        libpq.consume_input()
        while notification := libpq.notifies():
            self._hear(notification.extra.decode())

    def _heed(self, notification: psycopg.Notify) -> None:
        self._hear(notification.payload)

    def _hear(self, message: str) -> None:
        sender, _, rest = message.partition("\n")
        if sender == self.name:
            return
        self._in_doubt = self._in_doubt or time.monotonic() - self._heard_at > PEER_TIMEOUT_SECONDS
        self._heard_at = time.monotonic()
        topics = rest.split("\n")
        if _HELLO in topics:
            self._note_topics([_HERE])
            self._announced_at = float("-inf")  # a waiter that looks at it from here on announces itself
            if self._waits():
                self._announce()
        if _WAITS in topics:
            knew, self._heard_waits_at = self._heard_waits_at, time.monotonic()
            if self._heard_waits_at - knew >= PEER_TIMEOUT_SECONDS:
                self._note_topics([FINISHED])
        self._on_ring(topics)

    def _send(self, connection: psycopg.Connection) -> None:
        self._empty_bell()
        with self._lock:
            topics, self._topics = list(self._topics), {}
        if not topics or not self._listens:
            return
        try:
            for message in messages(self.name, topics):
                connection.execute("SELECT pg_notify(%s, %s)", (self.channel, message))
        except psycopg.Error:
            with self._lock:
                self._topics = dict.fromkeys(topics) | self._topics
            raise
        if not self._closing:
            time.sleep(MERGE_PAUSE_SECONDS)

    def _empty_bell(self) -> None:
        try:
            os.read(self._wake_reader, 4096)
        except BlockingIOError:
            return

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self._empty_bell()


def messages(sender: str, topics: Iterable[str]) -> list[str]:
    """Return the messages of a sender with these topics, as few as possible."""
    messages: list[str] = []
    message = sender
    for topic in topics:
        if len(message.encode()) + len(topic.encode()) >= MAX_NOTIFICATION_BYTES:
            messages.append(message)
            message = sender
        message += "\n" + topic
    return [*messages, message]
