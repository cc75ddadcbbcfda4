"""Environment variables that Ojster reads, and warnings of those that look like one of them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from typing import Final

PREFIX: Final = "OJSTER_"

VARIABLES: Final[Mapping[str, str]] = {
    "OJSTER_DATABASE_URL": "database or server of applications and commands that name none",
    "OJSTER_EAGER": "`1`: applications run their jobs themselves, in memory, for development",
    "OJSTER_LISTEN_URL": "PostgreSQL without the pooler, for wake-ups",
    "OJSTER_MIGRATE": "`--migrate` of servers and workers",
    "OJSTER_FILES": "storage of files and large results, `--files` of servers",
    "OJSTER_TENANT_FILE": "`--tenant-file` of servers",
    "OJSTER_TRIGGER_FILE": "`--trigger-file` of servers",
    "OJSTER_SMTP": "`--smtp` of servers",
    "OJSTER_OIDC_CLIENT_SECRET": "`--oidc-client-secret` of servers",
    "OJSTER_TOKEN": "token of applications and commands that call a server",
    "OJSTER_PUSH_SECRET": "secret of a push endpoint that `ojster endpoints set` creates or changes",
    "OJSTER_CHANNEL_SECRET": "secret of a webhook that `ojster channels webhook` creates",
    "OJSTER_TLS_CA": "authority of servers' certificates, beside those of the system, for their clients",
    "OJSTER_TLS_CERT": "certificate of clients",
    "OJSTER_TLS_KEY": "private key of that certificate",
}
"""The variables that people set, with what each is."""

INTERNAL: Final = frozenset(
    {
        "OJSTER_URL_IS_CHOSEN",
        "OJSTER_SOCKETS",
        "OJSTER_COUNTS",
        "OJSTER_START_QUIET",
        "OJSTER_PROCESS_NUMBER",
    }
)
"""The variables that a process sets for those that it starts."""

_LIKENESS: Final = 0.8
"""How alike two names must be, from 0 to 1, for one to be a misspelling of the other."""

_told: set[str] = set()


def warn_of_unknown_variables(tell: Callable[[str], object]) -> None:
    """Tell, once in this process, of each variable that nobody reads and that looks like one that somebody does.

    Others may have the prefix for reasons of their own: Kubernetes sets some for each service named ``ojster``.
    """
    for name in os.environ.keys() - VARIABLES.keys() - INTERNAL - _told:
        if name.startswith(PREFIX) and (meant := _meant_by(name)) is not None:
            _told.add(name)
            tell(f"The environment variable {name} is unknown and has no effect; did you mean {meant}?")


def _meant_by(name: str) -> str | None:
    """Return the variable that a name may stand for: one with all its words, or one that is spelt like it."""
    words = set(name.removeprefix(PREFIX).split("_"))
    longer = [known for known in VARIABLES if words <= set(known.removeprefix(PREFIX).split("_"))]
    alike = difflib.get_close_matches(name, VARIABLES, 1, _LIKENESS)
    return next(iter([*alike, *longer]), None)
