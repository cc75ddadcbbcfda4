"""The option ``--app`` of commands that use the database, the tenant and the codecs of an application."""

from __future__ import annotations

import functools
from typing import Any

import click
import msgspec

from ojster.api.app import App
from ojster.api.loading import load_app
from ojster.cli.declared import Command
from ojster.cli.option_rules import used_options
from ojster.cli.options import ask_as
from ojster.core.json_objects import Members
from ojster.handlers.codec import Codecs
from ojster.handlers.register import HandlerRegister


def refuse_eager(app: HandlerRegister) -> None:
    """Raise ``UsageError`` if an application is eager: none of its jobs is where a server or a worker could find it."""
    if app.is_eager:
        raise click.UsageError(
            "The application runs its jobs itself, where they are enqueued, and keeps them in memory (App(eager=True), "
            "or OJSTER_EAGER in the environment): servers, workers and other commands have none of them. Unset it."
        )


def database_of(app: App, url: str) -> str:
    """Return the database or server of a command that loads an application: the application's, unless it names one.

    Parameters
    ----------
    url:
        The value of ``--url``.

    Raises
    ------
    UsageError
        The application is eager.
    InvalidRequest
        The application and ``$OJSTER_DATABASE_URL`` name different ones.
    """
    refuse_eager(app)
    if used_options("url"):
        app.choose_url(url)
    app.check_url()
    return app.url


def with_codecs(command: Command) -> Command:
    """Add the option ``--app``, and pass the codecs of the application as the argument ``codecs``."""

    @click.option(
        "--app",
        metavar="MODULE:APP",
        help="Use the database, the tenant and the codecs of this application. Without it, what is sent is stored as "
        "plain JSON, and what codecs have encoded is shown as it is stored.",
    )
    @functools.wraps(command)
    def read(*args: Any, app: str | None, url: str, **more: Any) -> Any:
        loaded = None if app is None else load_app(app)
        if loaded is not None:
            url = database_of(loaded, url)
            ask_as(loaded.tenant)
        return command(*args, url=url, codecs=Codecs(()) if loaded is None else loaded.codecs, **more)

    return read


def encoded_request(request: Members, codecs: Codecs) -> Members:
    """Return the enqueue request of a job as an application with these codecs sends it."""
    if not codecs:
        return request
    meta, options = (msgspec.json.decode(request.get(name, b"{}")) for name in ("meta", "options"))
    type = msgspec.json.decode(request["type"], type=str)
    args, meta, options = codecs.encode(bytes(request["args"]), meta, options, type)
    changed = {"args": args, "meta": msgspec.json.encode(meta), "options": msgspec.json.encode(options)}
    return request | {name: msgspec.Raw(value) for name, value in changed.items()}
