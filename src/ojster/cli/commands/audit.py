"""Commands for the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import click

from ojster.audit.entries import AuditCheck, AuditEntry, AuditQuery
from ojster.audit.wire import AUDIT_COLUMNS, row_of, show_check, show_entry
from ojster.cli.declared import PointInTime, together
from ojster.cli.export import LineFormat, with_format, write_rows
from ojster.cli.options import ask, examples, moment_at, with_json, with_url
from ojster.cli.output import ago, print_json, print_list
from ojster.client.interface import Client
from ojster.core.csv_text import Row
from ojster.core.timestamps import parse_timestamp

_PAGE = 1_000


@click.group(
    epilog=examples(
        "ojster audit list --principal ada --since -P1D",
        "ojster audit list --object 0198c0de-0000-7000-8000-000000000000",
        "ojster audit export --since 2026-11-01T00:00:00Z --format csv > audit.csv",
        "ojster audit verify",
    )
)
def audit() -> None:
    """Show, export and check the audit log: who did what, to what, from where, and how it ended.

    It has an entry for each cancellation, deletion and change of the configuration that a server was asked for, and for
    each request that it refused because of a missing token or role.
    """


_with_filters: Final = together(
    click.option("--principal", help="The name of a token."),
    click.option("--operation", help="The name of the endpoint, such as cancel_job; cancel_* for several."),
    click.option("--object", help="What it was done to, such as the id of a job or a workflow."),
    click.option("--outcome", type=click.Choice(["success", "failure"]), help="Entries with this outcome."),
    click.option(
        "--since",
        type=PointInTime(),
        help="Entries from this time on: RFC 3339, or a duration such as -PT1H.",
    ),
    click.option("--until", type=PointInTime(), help="Entries before this time."),
)


def _wanted(url: str, filters: dict[str, Any]) -> dict[str, Any]:
    """Return the conditions that the options describe."""
    wanted = {name: value for name, value in filters.items() if value is not None}
    return wanted | {name: moment_at(url, wanted[name]) for name in ("since", "until") if name in wanted}


def _query(wanted: dict[str, Any], limit: int, before: int | None = None) -> AuditQuery:
    return AuditQuery(**wanted, limit=limit, before=before)


@audit.command("list", epilog=examples("ojster audit list --principal ada", "ojster audit list --outcome failure"))
@_with_filters
@click.option("--limit", type=click.IntRange(1, _PAGE), default=50, show_default=True, help="Maximum number.")
@with_url
@with_json
def list_entries(url: str, as_json: bool, limit: int, **filters: Any) -> None:
    """List entries, the newest first."""
    wanted = _wanted(url, filters)
    entries = ask(url, lambda client: client.audit.select(_query(wanted, limit)))
    rows = [_row(entry) for entry in entries]
    print_list(
        as_json,
        {"entries": [show_entry(entry) for entry in entries]},
        ("when", "who", "what", "outcome", "from"),
        rows,
        "There are no such entries.",
    )


def _row(entry: AuditEntry) -> tuple[Any, ...]:
    shown = show_entry(entry)
    outcome = shown.outcome if not shown.refusal else f"{shown.outcome}: {shown.refusal}"
    at = ago(parse_timestamp(shown.timestamp))
    detail = shown.detail or {}
    what = detail.get("summary") or f"{shown.operation} {shown.object}".rstrip()
    return at, shown.principal, what, outcome, shown.source_ip


@audit.command(
    "export",
    epilog=examples(
        "ojster audit export > audit.jsonl", "ojster audit export --format csv --principal ada --since -P1D > ada.csv"
    ),
)
@_with_filters
@with_format
@with_url
def export(url: str, format: LineFormat, **filters: Any) -> None:
    """Print all entries, the newest first: as lines of JSON, or as CSV."""
    wanted = _wanted(url, filters)

    async def pages(client: Client) -> AsyncIterator[list[Row]]:
        before = None
        while page := await client.audit.select(_query(wanted, _PAGE, before)):
            yield [row_of(entry) for entry in page]
            before = page[-1].number

    ask(url, lambda client: write_rows(format, AUDIT_COLUMNS, pages(client)))


@audit.command("verify", epilog=examples("ojster audit verify", "ojster audit verify --after 17:9f86d081884c7d65…"))
@click.option(
    "--after", default=None, metavar="NUMBER:HASH", help="A place that an earlier check has printed; begin there."
)
@with_url
@with_json
def verify(url: str, after: str | None, as_json: bool) -> None:
    """Check that no entry is missing and none was changed. Exit with 1 if one is.

    Keep the place that it prints where nobody can change it: whoever can write to the database can also compute new
    hashes, but not make the kept one come out.
    """
    check: AuditCheck = ask(url, lambda client: client.audit.verify(after))
    if as_json:
        print_json({"verified": show_check(check)})
    elif check.problem is None:
        click.echo(f"The audit log is intact. Its last entry is {check.last}")
    else:
        click.echo(f"{check.problem} The last entry that is right is {check.last.number}.", err=True)
    if check.problem is not None:
        raise SystemExit(1)
