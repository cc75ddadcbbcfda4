"""What operators change in another process that shares the file: seen by each transaction, whatever messages are lost.

A process remembers what operators have set (``ojster.storage.memory``). The message that tells it to
read them again may not arrive: its buffer is full, or the sender has died. So each change also leaves a mark in the
file, at which transactions look if another connection has written since.
"""

from __future__ import annotations

import threading
from typing import Final
from weakref import WeakKeyDictionary

import apsw

from ojster.core.ids import new_id
from ojster.storage.memory import Memory
from ojster.storage.system import note, recall
from ojster.storage.transaction import Transaction

CONFIGURED: Final = "configured"
"""Name of the mark of the last change by an operator."""


def mark_change(tx: Transaction) -> None:
    """Leave the mark of a change by an operator, if the transaction makes one."""
    if tx.effects.configured:
        note(tx, CONFIGURED, new_id())


class SettingsWatch:
    """Looks whether operators have changed something.

    Parameters
    ----------
    memory:
        Forgets what it remembers when they have.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._versions = WeakKeyDictionary[apsw.Connection, int]()
        """The version of the data at the last look, by connection."""
        self._mark: bytes | None = None

    def look(self, connection: apsw.Connection, tx: Transaction) -> None:
        """Look at the beginning of a transaction, and forget what is remembered if the mark is another."""
        version = connection.execute("PRAGMA data_version").get
        if self._versions.get(connection) == version:
            return
        mark = recall(tx, CONFIGURED)
        with self._lock:
            self._versions[connection] = version
            if mark != self._mark:
                self._mark = mark
                self._memory.forget()
                tx.memory_version = self._memory.version
