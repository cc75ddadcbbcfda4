"""A server without one capability: ``python -m tests.conformance.without CAPABILITY DATABASE PORT``."""

from __future__ import annotations

import sys

import uvicorn

from ojster.capabilities import CAPABILITIES, attribute_readers, extensions_of
from ojster.jobs.attributes import use_readers
from ojster.server.application import Application
from ojster.service import Service
from ojster.storage.open import open_database
from tests.conformance import hooks


def main() -> None:
    """Serve a database without a capability until SIGTERM."""
    left_out, database, port = sys.argv[1:]
    kept = [one for one in CAPABILITIES if one.name != left_out]
    assert len(kept) == len(CAPABILITIES) - 1, left_out
    use_readers(attribute_readers(kept))
    service = Service(open_database(database), extensions=extensions_of(kept))
    hooks.install(service)
    uvicorn.run(Application(service, capabilities=kept), port=int(port), log_level="error", access_log=False)


if __name__ == "__main__":
    main()
