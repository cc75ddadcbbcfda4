"""What operators set is described once: requests, commands, Python and pages say what the declaration says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Final, get_overloads

import click
import pytest
from msgspec import UNSET

from ojster.cli.declared import OrNone
from ojster.collections.named import Collection
from ojster.collections.wire import CollectionBody
from ojster.core.access import Token
from ojster.core.declared_options import Option, bounds_of, descriptions_of, options_of
from ojster.events.channel import Channel
from ojster.events.subscription import Subscription
from ojster.events.wire import ChannelBody, SubscriptionBody
from ojster.fleet.wire import WorkerRuleBody
from ojster.fleet.worker_rule import WorkerRule
from ojster.handlers.register import HandlerRegister
from ojster.queues.pool import Pool
from ojster.queues.rules import Bound
from ojster.queues.wire import BackpressureBody, PoolBody, QueueConfigBody
from ojster.schedules.cron import Cron
from ojster.schedules.wire import CronBody
from ojster.tenancy.tenant import Tenant
from ojster.tenancy.wire import TenantBody, TokenBody
from tests.options.test_options_of_commands import COMMANDS

DOCS: Final = Path(__file__).parent.parent.parent / "docs"
NOT_SET: Final = (UNSET, None, inspect.Parameter.empty)
OF_DECORATOR: Final = {"self", "expression", "args"}
"""Parameters of ``App.cron`` that are passed by position."""


def rows_under(page: str, heading: str) -> dict[str, list[str]]:
    """Return the cells of the first table under a heading, by the setting in its first column."""
    section = (DOCS / page).read_text().split(f" {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    lines = [[cell.strip() for cell in line.strip("|").split(" |")] for line in table[0].splitlines()[2:]]
    return {name.strip("`"): cells for name, *cells in lines}


def as_shown(option: Option) -> str:
    """Return what the declaration of an option says of it, as Markdown."""
    return option.description.replace("``None``", "null").replace("``", "`")


def option_of_command(command: str, member: str) -> click.Option | None:
    options = [option for option in COMMANDS[command].params if isinstance(option, click.Option)]
    return next((option for option in options if option.name == member), None)


NAMES: Final = {"name", "method"}
"""Members that say what they are."""

PAIRS: Final = [
    (Bound, BackpressureBody),
    (Channel, ChannelBody),
    (Collection, CollectionBody),
    (Cron, CronBody),
    (Pool, PoolBody),
    (Subscription, SubscriptionBody),
    (Tenant, TenantBody),
    (Token, TokenBody),
    (WorkerRule, WorkerRuleBody),
]
"""Declarations, and requests that set what they declare."""


@pytest.mark.parametrize(("declaration", "body"), PAIRS, ids=[body.__name__ for _, body in PAIRS])
def test_a_request_has_the_defaults_and_the_texts_of_the_declaration(declaration: type, body: type) -> None:
    declared, sent = options_of(declaration), options_of(body)
    for name in declared.keys() & sent.keys():
        assert sent[name].text or name in NAMES, name
        if isinstance(sent[name].default, str | int | float):
            assert sent[name].default == declared[name].default, name


def test_the_page_of_queues_says_of_each_setting_what_its_declaration_says() -> None:
    rows = rows_under("monitoring.md", "Settings of a queue")
    declared = options_of(QueueConfigBody)
    assert rows.keys() == declared.keys()
    for name, (meaning, flag) in rows.items():
        assert meaning.startswith(as_shown(declared[name]).rstrip(".")), name
        option = option_of_command("queues set", name)
        assert flag == (f"`{option.opts[0]}`" if option else "")


@pytest.mark.parametrize("command", ["queues set", "queues create"])
def test_commands_check_settings_of_queues_by_the_bounds_of_the_declaration(command: str) -> None:
    for name in ("concurrency", "max_size"):
        option = option_of_command(command, name)
        assert option is not None
        assert isinstance(option.type, OrNone)
        assert isinstance(option.type.kind, click.IntRange)
        assert option.type.kind.min == bounds_of(options_of(QueueConfigBody)[name].kind)["ge"]


def test_the_page_of_cron_jobs_says_of_each_setting_what_its_declaration_says() -> None:
    declared = options_of(Cron)
    rows = rows_under("guide.md", "Cron jobs")
    assert rows.keys() == inspect.signature(get_overloads(HandlerRegister.cron)[-1]).parameters.keys() - OF_DECORATOR
    for name, (default, meaning) in rows.items():
        assert default == f"`{declared[name].default}`" or declared[name].default in NOT_SET
        assert meaning == re.sub(r" \(the default\)|; `?\w+`? by default", "", as_shown(declared[name])).rstrip(".")


def test_python_declares_cron_jobs_with_the_texts_and_the_defaults_of_the_declaration() -> None:
    declared, texts = options_of(Cron), descriptions_of(HandlerRegister.cron)
    for name, parameter in inspect.signature(get_overloads(HandlerRegister.cron)[-1]).parameters.items():
        if name not in OF_DECORATOR - {"expression"}:
            assert parameter.default in (*NOT_SET, declared[name].default)
            assert texts[name] == declared[name].description or name == "name"
