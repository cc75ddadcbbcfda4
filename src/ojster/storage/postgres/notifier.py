"""How do processes that share a PostgreSQL database wake each other? One connection each, LISTEN and NOTIFY.

What is to be told is sent after the transaction, merged with what else has happened meanwhile, and only if somebody
else listens: a NOTIFY inside would let one transaction commit at a time in the whole database. What may be missed that
way (a process dies between its commit and its word; a connection breaks) is looked for whenever the connection is new,
and at every heartbeat.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import psycopg
from psycopg import sql

log = logging.getLogger(__name__)

HEARTBEAT: Final = 15.0
"""How often the connection is tried, and everybody looks for what was missed, in seconds."""

HEARTBEAT_WITHOUT_EARS: Final = 1.0
"""The same where nothing can be listened to: behind a pooler that hands connections from one to the next."""

ALONE_AFTER: Final = 3 * HEARTBEAT
"""For how long nobody else must have been heard, in seconds, until there is nobody to tell anything."""

INTRODUCTION: Final = 2.0
"""For how long a new process cannot know whether it is alone, and tells whoever there may be, in seconds."""

PAUSE: Final = 0.001
"""How long to collect topics after some were sent, in seconds."""

LONGEST_PAUSE: Final = 2.0
"""How long to wait at most before a lost connection is tried again, in seconds."""

LARGEST_MESSAGE: Final = 7_500
"""PostgreSQL takes less than 8,000 bytes."""

_HELLO: Final = "hello"
_HERE: Final = "here"


class Herald:
    """The ear and the voice of this process.

    Parameters
    ----------
    connect:
        Opens a connection in autocommit mode.
    channel:
        The channel of those who share the tables.
    listens:
        Whether the connection stays the same from statement to statement, so that it can listen.
    on_ring:
        Called in the herald's thread with the topics that somebody rang for.
    on_gap:
        Called in the herald's thread, with a connection to use, when something may have been missed.
    on_deaf:
        Called in the herald's thread, again and again, while there is no connection to listen with.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        channel: str,
        on_ring: Callable[[Sequence[str]], None],
        on_gap: Callable[[psycopg.Connection], None],
        on_deaf: Callable[[], None],
        *,
        listens: bool = True,
    ) -> None:
        self._connect = connect
        self.channel = channel
        self._on_ring = on_ring
        self._on_gap = on_gap
        self._on_deaf = on_deaf
        self._listens = listens
        self._interval = HEARTBEAT if listens else HEARTBEAT_WITHOUT_EARS
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._topics: dict[str, None] = {}
        self._heard_at = float("-inf")
        self._new_until = time.monotonic() + INTRODUCTION
        self._met_somebody = False
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ojster-herald", daemon=True)

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()

    @property
    def has_company(self) -> bool:
        """Whether somebody else was heard of lately, or has had no time yet to answer."""
        now = time.monotonic()
        return now - self._heard_at < ALONE_AFTER or now < self._new_until

    def ring(self, topics: Sequence[str]) -> None:
        """Tell every other process of these topics. Costs nothing when there is none."""
        if topics and self.has_company:
            self._say(topics)

    def close(self) -> None:
        """Say what is left to say, and stop listening."""
        self._closing = True
        self._pull()
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            os.close(self._bell)
            os.close(self._rope)

    def _say(self, topics: Iterable[str]) -> None:
        with self._lock:
            silent = not self._topics
            self._topics.update(dict.fromkeys(topics))
        if silent:
            self._pull()

    def _pull(self) -> None:
        os.write(self._rope, b"!")

    def _run(self) -> None:
        failures = 0
        while not self._closing or (self._topics and not failures):
            pause = LONGEST_PAUSE
            try:
                with self._connect() as connection:
                    if self._listens:
                        connection.add_notify_handler(self._heed)
                        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))
                        self._say([_HELLO])
                    failures = 0
                    self._serve(connection)
            except psycopg.Error as error:
                failures += 1
                if failures in (1, 10) or failures % 100 == 0:
                    words = " ".join(str(error).split())
                    log.warning("the connection that wakes this process is lost, and is opened again: %s", words)
                pause = min(LONGEST_PAUSE, 0.1 * 2 ** min(failures, 10))
            except Exception:
                log.exception("the herald stumbled, and goes on")
            self._on_deaf()  # nobody tells us anything: look, as far as the database lets us
            self._rest(pause)

    def _serve(self, connection: psycopg.Connection) -> None:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        next_beat = 0.0
        while True:
            if (now := time.monotonic()) >= next_beat:
                self._on_gap(connection)
                next_beat = now + self._interval
                if now - self._heard_at < ALONE_AFTER:
                    self._say([_HERE])
            self._send(connection)
            if self._closing:
                return
            poll.poll(max(0.0, next_beat - time.monotonic()) * 1000)
            self._listen(connection)
            if self._met_somebody:  # who may have acted before hearing of us
                self._met_somebody = False
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
        self._met_somebody = self._met_somebody or time.monotonic() - self._heard_at > ALONE_AFTER
        self._heard_at = time.monotonic()
        topics = rest.split("\n")
        if _HELLO in topics:
            self._say([_HERE])
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
            time.sleep(PAUSE)

    def _empty_bell(self) -> None:
        try:
            os.read(self._bell, 4096)
        except BlockingIOError:
            return

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self._empty_bell()


def messages(sender: str, topics: Iterable[str]) -> list[str]:
    """Return topics as messages of a sender, in as few as they fit into."""
    found: list[str] = []
    message = sender
    for topic in topics:
        if len(message.encode()) + len(topic.encode()) >= LARGEST_MESSAGE:
            found.append(message)
            message = sender
        message += "\n" + topic
    return [*found, message]
