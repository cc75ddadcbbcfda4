"""Bulk operations of commands: the preview, the confirmation, and the outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import click

from ojster.cli.options import ask, confirm, done
from ojster.cli.output import print_json
from ojster.client.interface import Client
from ojster.core.timestamps import format_timestamp
from ojster.jobs.sweeps import Sweep

MAX_PRINTED_ITEMS: Final = 20
"""Maximum number of items that a bulk operation prints: refused ones with the reason, or the sample of a dry run."""


class SweepAction(Protocol):
    """An action of a bulk operation."""

    @property
    def past(self) -> str:
        """The past participle."""

    def capitalize(self) -> str:
        """Return the action as the first word of a sentence."""


def sweep(
    action: SweepAction,
    noun: str,
    url: str,
    call: Callable[[Client, bool], Awaitable[Sweep]],
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Ask for confirmation, apply an action to all selected items, and print the outcome; return the exit status.

    Parameters
    ----------
    noun:
        What one item is called.
    call:
        Makes the call; its second argument says whether it is a dry run.
    dry_run:
        Only print what would be done.
    """
    if dry_run or not yes:
        foreseen = ask(url, lambda client: call(client, True))
        if dry_run:
            _print(f"{foreseen.succeeded} of {foreseen.matched} {noun}s would be {action.past}.", foreseen, as_json)
            return 0
        refused = f" {foreseen.failed} others match and cannot be {action.past}." if foreseen.failed else ""
        some = f"1 {noun}" if foreseen.succeeded == 1 else f"{foreseen.succeeded} {noun}s"
        confirm(f"{action.capitalize()} {some}?{refused}")
    swept = ask(url, lambda client: call(client, False))
    _print(f"{swept.succeeded} of {swept.matched} {noun}s are {action.past}.", swept, as_json)
    return 1 if swept.failed else 0


def _print(message: str, swept: Sweep, as_json: bool) -> None:
    shown: dict[str, Any] = {"matched": swept.matched, "succeeded": swept.succeeded, "failed": swept.failed}
    if swept.as_of is not None:
        shown["dry_run"], shown["as_of"] = True, format_timestamp(swept.as_of)
        shown["ids"] = [id for id, refusal in swept.items if refusal is None]
    if as_json:
        print_json(shown)
        return
    done(message, as_json, shown)
    if swept.as_of is not None:
        for id in shown["ids"][:MAX_PRINTED_ITEMS]:
            click.echo(f"  {id}")
    for id, refusal in [(id, refusal) for id, refusal in swept.items if refusal is not None][:MAX_PRINTED_ITEMS]:
        click.echo(f"  {id}: {refusal.message}", err=True)
