"""URLs of databases and servers that programs and the environment name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.storage.database import SQLITE, URL_VARIABLE, are_same, names_a_database, sqlite_path, without_password

DEFAULT_URL: Final = "sqlite:///ojster.db"
_SOCKET: Final = "unix:///"
_DRIVER: Final = re.compile(r"(?:sqlite|postgres|postgresql)(\+\w+)://")
TOKEN_VARIABLE: Final = "OJSTER_TOKEN"  # noqa: S105  (a name)


def known_url(url: str) -> str:
    """Return a URL; raise ``InvalidRequest`` if it is that of neither a database nor a server, or is malformed."""
    if url.startswith(("http://", "https://")):
        _check_server(url)
    elif url.startswith(_SOCKET):
        if not url.removeprefix(_SOCKET).strip("/"):
            raise InvalidRequest(
                f"The URL {url!r} names no socket. Write its path as in unix:///run/ojster.sock; if it comes from a "
                "variable, check that it is set."
            )
    elif not names_a_database(url):
        driver = _DRIVER.match(url)
        raise InvalidRequest(
            f"The URL {without_password(url)!r} is neither a database (sqlite:///…, postgresql://…) nor a "
            "server (http://…, unix:///…)." + (f" Leave out '{driver[1]}', a driver of SQLAlchemy." if driver else "")
        )
    if url.startswith(SQLITE):
        sqlite_path(url)
    return url


def _check_server(url: str) -> None:
    problem = "has no host, or the port 0"
    try:
        parts = urlsplit(url)
        if parts.hostname and parts.port != 0:
            return
    except ValueError as error:
        problem = f"is malformed: {error}"
    raise InvalidRequest(
        f"The URL {without_password(url)!r} {problem}. Write that of a server as in http://127.0.0.1:8080."
    )


def refuse_other(url: str) -> None:
    """Raise ``InvalidRequest`` if the environment names another database or server than ``url`` in the program."""
    named = os.environ.get(URL_VARIABLE)
    if named and not are_same(named, url):
        raise InvalidRequest(
            f"The program names {without_password(url)}, and ${URL_VARIABLE} names {without_password(named)}: "
            "programs, workers and other commands would use different ones. Write App(), without a URL in a "
            "configuration, to use the variable, or unset it. For one worker or command, --url or --database chooses."
        )


def left_behind(url: str) -> BackendUnavailable:
    """Return the error of a forked child whose parent has the jobs in its memory."""
    return BackendUnavailable(
        f"The jobs of {url} are in the memory of the process that was forked, where a child cannot add any. "
        "Use a file, such as sqlite:///jobs.db."
    )


@contextmanager
def url_in_environment(url: str | None) -> Iterator[None]:
    """Let modules that are imported in the block find ``url`` in the environment; ``None``: leave it as it is."""
    before = os.environ.get(URL_VARIABLE)
    if url is not None:
        os.environ[URL_VARIABLE] = url
    try:
        yield
    finally:
        if before is not None:
            os.environ[URL_VARIABLE] = before
        elif url is not None:
            os.environ.pop(URL_VARIABLE, None)
