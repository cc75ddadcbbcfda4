"""Every argument, option and environment variable of every command changes what the command asks for, or is refused.

The walk takes the parameters from the commands themselves, and makes a value for each from its type. A command does not
reach a database: what it calls first is recorded. Tests of the calls show what they do.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, NamedTuple, NoReturn

import click
import msgspec
import pytest
from click.testing import CliRunner

from ojster import App, Worker
from ojster.cli.declared import OrNone, Seconds
from ojster.cli.main import cli
from ojster.cli.server_processes import SharedPort
from ojster.core.errors import OjsterError
from ojster.sandbox.sandbox import Sandbox
from ojster.worker.identity import Identity
from tests.options.scenes import ShownBy
from tests.options.test_members_of_requests import functions_of

SERVER: Final = "http://127.0.0.1:1"
ID: Final = "01900000-0000-7000-8000-000000000001"
OTHER_ID: Final = "01900000-0000-7000-8000-000000000002"


class Asked(Exception):
    """The first call that a command makes."""


class Recorder:
    """Stands for a client, and raises the first call that is made."""

    def __init__(self, path: str = "client") -> None:
        self._path = path

    def __getattr__(self, name: str) -> Recorder:
        return Recorder(f"{self._path}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self._path in ANSWERED:
            return _answer(Recorder(described((self._path, args))))
        variable = os.environ.get("OJSTER_DATABASE_URL") if self._path.startswith("ojster.cli.run") else None
        raise Asked(described((self._path, args, options, variable)))


ANSWERED: Final = frozenset({"client.files.find"})
"""Calls after which a command makes the one that counts."""


async def _answer(value: Recorder) -> Recorder:
    return value


def _follow(url: str, load: Callable[[Any], Awaitable[Any]], **options: Any) -> NoReturn:
    """Stands for the loop that follows a workflow."""
    try:
        load(Recorder()).send(None)  # type: ignore[attr-defined]
    except Asked as call:
        raise Asked(f"{url} {call} {options}") from None
    raise AssertionError


_VARIES: Final = re.compile(
    r"(?!01900000)[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{22}|\b(?!189[34])\d{16}\b|whsec_[\w+/=-]+|/tmp/ojster-\w+"
)
"""Ids, secrets, and times but those of 2030: they are made anew each time."""


def described(value: object) -> str:
    return _VARIES.sub("…", msgspec.json.encode(value, enc_hook=_shown).decode())


def _shown(value: object) -> Any:
    if isinstance(value, Recorder):
        return value._path
    if callable(value):
        return getattr(value, "__qualname__", "a callable")
    if isinstance(value, Worker):
        ours = ("queues", "concurrency", "grace", "lease", "labels", "sharing", "pool", "capabilities", "children")
        app = value.app
        assert isinstance(app, App)
        mine = [app.url, app.tenant, app.migrate, sorted(app.handlers), value._held._most, value.code, value._identity]
        return [getattr(value, name) for name in ours] + mine
    if isinstance(value, App):
        return [value.url, sorted(value.handlers)]
    if isinstance(value, Sandbox | Identity | SharedPort):
        return {name: repr(member) for name, member in vars(value).items()} if hasattr(value, "__dict__") else None
    return repr(value)


def all_commands(group: click.Group, context: click.Context, *path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from all_commands(command, context, *path, name)
        else:
            yield " ".join((*path, name)), command


COMMANDS: Final = dict(all_commands(cli, click.Context(cli)))

DATABASE: Final = "postgresql://127.0.0.1:1/x"

CALLED: Final = (
    "ojster.cli.backup.back_up",
    "ojster.cli.backup.restore_archive",
    "ojster.cli.maintenance.migrate_database",
    "ojster.cli.bench._measure",
    "ojster.cli.demo._server",
    "ojster.server.run.serve",
    "ojster.cli.server_processes._supervise",
    "ojster.cli.worker.run_worker",
    "ojster.cli.worker_processes._supervise",
    "ojster.cli.run.Supervisor",
    "watchfiles.watch",
    "ojster.cli.mcp.assistant",
    "ojster.cli.commands.tokens._revoke",
    "ojster.cli.commands.tokens._rotate",
    "ojster.cli.commands.files.download",
)
"""What commands call that reach no client: it raises its arguments."""

NOTED: Final = (
    "ojster.cli.serve.wait_for_database",
    "ojster.cli.worker.wait_for_database",
    "ojster.cli.serve.log_to_console",
    "ojster.cli.worker_processes.log_to_console",
    "ojster.cli.run.log_to_console",
    "ojster.cli.server_processes.log_to_console",
    "ojster.cli.dev._stop_process",
)
"""What commands call before: its arguments are noted."""

SHOP: Final = """
from ojster import App, Gzip, Orchestrator
app = App("sqlite:///shop.db", codecs=[Gzip()])
other = App("sqlite:///other.db")
anywhere = App()

@app.job("mail", queue="mail")
def mail(to: str) -> None: ...

@other.job("mail", queue="letters")
def letter(to: str) -> None: ...

def plugin(service): ...

@other.orchestrator("o")
class Layout(Orchestrator): ...
"""


_OF_QUEUE: Final = {"queue": "mail"}
_OF_NAME: Final = {"name": "nightly"}
_ONE: Final = {"workflow_id": ID}

_FILE: Final = {"url": "sqlite:///jobs.db"}

BASES: Final[dict[str, dict[str, Any]]] = {
    "cron backfill": {"until": "2030-01-05T00:00:00Z"},
    "backup": _FILE,
    "restore": _FILE,
    "worker": {"app": "shop:app"},
    "collections items": {"collection": "c"},
    "collections set": {"description": "d"},
    "cron add": {"type": "t"},
    "dead-letter retry": {"job_ids": [ID]},
    "jobs cancel": _OF_QUEUE,
    "jobs delete": _OF_QUEUE,
    "jobs retry": _OF_QUEUE,
    "prune": {"url": DATABASE, "yes": True},
    "workers configure": {"reason": "r"},
    **{f"workflows {action}": _OF_NAME for action in ("cancel", "delete", "fork", "hold", "release", "retry")},
    "workflows draw": _ONE,
}
"""Parameters that a command needs beside the required ones, to make a call."""

_ASKS: Final = {"yes": None}
_PROVIDER: Final = {"oidc_issuer": "https://login.test", "oidc_audience": "jobs"}
_LOGIN: Final = _PROVIDER | {"oidc_client_id": "c", "public_url": "https://jobs.test"}
CERTIFICATE: Final = "certificate.pem"
_SURE: Final = {"yes": True}
_NO_NAME: Final = {"name": None}

OPTION_BASES: Final[dict[str, dict[str, Any]]] = {
    **{f"queues set {parameter}": {"max_size": "9"} for parameter in ("name", "url")},
    "cron prune url": {"app": "shop:anywhere"},
    "cron add flow_args": {"type": None, "flow": "f"},
    "cron add params": {"type": None, "definition": "d"},
    "cron add target": {"type": None, "definition": "d"},
    **{f"dead-letter retry {name}": {"job_ids": None, "retry_all": True} for name in ("queue", "type", "error_type")},
    **{f"{command} yes": {"yes": None} for command in ("prune",)},
    **{f"jobs {action} dry_run": _SURE for action in ("cancel", "delete", "retry")},
    **{f"workflows {action} dry_run": _SURE for action in ("cancel", "delete", "fork", "hold", "release", "retry")},
    **{f"prune {name}": _ASKS for name in ("completed", "cancelled", "discarded", "dead_letter", "audit")},
    "flows pin dry_run": _SURE,
    "workflows fork app": _NO_NAME | _ONE | {"args": "[7]"},
    "workflows cancel step": _NO_NAME | _ONE,
    "workflows retry step": _NO_NAME | _ONE,
    "workflows fork args": _NO_NAME | _ONE,
    "workflows fork result": _NO_NAME | _ONE,
    **{f"worker {name}": {"code_tasks": "weak"} for name in ("code_modules", "code_values")},
    "serve include": {"app": "shop:app"},
    **{f"serve {name}": {"tls_cert": CERTIFICATE} for name in ("tls_key", "tls_client_ca")},
    **{f"serve {name}": _PROVIDER for name in ("oidc_audience", "oidc_roles_claim", "oidc_groups", "oidc_client_id")},
    **{f"serve {name}": _LOGIN for name in ("oidc_client_secret", "oidc_scope", "public_url")},
}
"""What the command line has with and without an option, beside the parameters in ``BASES``."""

VALUES: Final[dict[str, Any]] = {
    "cron add expression": ("@daily", "@hourly"),
    "cron add timezone": "Asia/Tokyo",
    "cron add flow_args": "[7]",
    "cron backfill since": ("2030-01-01T00:00:00Z", "2030-01-02T00:00:00Z"),
    "cron backfill until": ("2030-01-03T00:00:00Z", "2030-01-04T00:00:00Z"),
    "collections set keep_removed": "P1D",
    "workflows fork args": "[7]",
    "definitions apply files": ("first.json", "second.json"),
    **{
        f"{command} app": ("shop:app", "shop:other")
        for command in ("serve", "run", "dev", "worker", "flows check", "cron prune")
    },
    "serve app": "shop:other",
    **{f"flows {command} app": "shop:app" for command in ("send", "broadcast", "update")},
    **{f"{command} app": "shop:app" for command in ("push", "cron add", "workflows fork")},
    **{f"{command} include": "more" for command in ("run", "dev", "worker", "flows check", "cron prune")},
    **{f"{command} database": (DATABASE, f"{DATABASE}2") for command in ("run", "dev", "serve", "bench", "migrate")},
    **{f"queues {command} {rate}": "5/PT1S" for command in ("create", "set") for rate in ("rate_limit", "throttle")},
    **{f"{command} url": DATABASE for command in ("worker", "cron prune")},
    "worker queues": "a=2,b",
    "worker capabilities": '{"memory_gb": 8}',
    "worker tenant": "acme",
    "worker health_file": "healthy",
    "audit list since": "-PT1H",
    "audit list until": "-PT1H",
    "audit export since": "-PT1H",
    "audit export until": "-PT1H",
    "serve default_tenant": "acme",
    "serve tenant_file": "tenants.json",
    "serve trigger_file": "triggers.json",
    "serve smtp": "smtp://127.0.0.1:25",
    "serve plugins": "shop:plugin",
    "serve oidc_groups": "staff=viewer",
    "serve oidc_issuer": "https://login.test",
    "serve public_url": ("https://jobs.test", "https://others.test"),
    "serve tls_cert": CERTIFICATE,
    "healthy file": ("old", "none"),
}
"""Values of parameters whose type does not say what they take; two, if one is required."""

_CRON: Final = "test_cron_jobs_are_added_switched_and_removed"
_BACKFILL: Final = "test_a_cron_job_is_backfilled_for_a_time_that_has_passed"
_CODECS: Final = "test_commands_encode_and_decode_as_the_application_does"
_FOLLOWS: Final = "test_it_follows_until_it_is_interrupted"
_SHELL: Final = "test_streams_are_followed_in_the_shell"
_STEERED: Final = "test_a_workflow_is_started_from_a_file_and_steered"

SHOWN: Final[dict[str, ShownBy]] = {
    **{f"cron backfill {name}": ShownBy("cli/test_commands.py", _BACKFILL) for name in ("dry_run", "yes")},
    **{f"flows {command} app": ShownBy("flows/test_encoded_flows.py", _CODECS) for command in ("published", "stream")},
    "cron show occurrences": ShownBy("cli/test_commands.py", _CRON),
    "completion shell": ShownBy("cli/test_completion.py", "test_an_unknown_shell_is_refused"),
    "completion install": ShownBy("cli/test_completion.py", "test_it_is_installed_where_the_shell_looks"),
    "flows stream numbers": ShownBy("flows/test_streams.py", _SHELL),
    "jobs logs follow": ShownBy("jobs/test_job_commands.py", "test_the_log_of_a_job_is_followed_until_it_has_finished"),
    "queues set dry_run": ShownBy("cli/test_commands.py", "test_a_queue_is_configured_after_a_look_at_what_that_means"),
    "top interval": ShownBy("cli/test_top.py", _FOLLOWS),
    "top once": ShownBy("cli/test_top.py", "test_it_looks_once_if_it_is_told_to"),
    "workflows draw svg": ShownBy("workflows/test_workflow_commands.py", _STEERED),
}
"""Options that have an effect after the first call, and tests that show it."""


def value_of(command: str, parameter: click.Parameter, folder: Path, *, other: bool = False) -> Any:
    """Return a value of a parameter that is not its default, or another one."""
    name = f"{command} {parameter.name}"
    if name in VALUES:
        return VALUES[name][other] if isinstance(VALUES[name], tuple) else VALUES[name]
    kind = parameter.type.kind if isinstance(parameter.type, OrNone) else parameter.type
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return True
    if isinstance(kind, click.Choice):
        choices = [choice for choice in kind.choices if choice != parameter.default]
        return choices[-1 if other else 0]
    if isinstance(kind, click.IntRange):
        least = int(kind.min or 0)
        return str(least + (3 if other else 2))
    if isinstance(kind, click.FloatRange):
        return "3.5" if other else "2.5"
    if kind.name == "duration":
        return "PT2H" if other else "PT1H"
    if isinstance(kind, click.Path):
        file = folder / ("other.json" if other else "one.json")
        file.write_text('{"type": "chain", "steps": [{"type": "%s", "args": []}]}' % ("b" if other else "a"))
        return str(file)
    if (parameter.name or "").endswith("_id"):
        return OTHER_ID if other else ID
    if "=" in (parameter.make_metavar(click.Context(COMMANDS[command])) or ""):
        return "p=2" if other else "p=1"
    return "other" if other else "one"


def written(command: str, values: Mapping[str, Any]) -> list[str]:
    """Return a command line with parameters."""
    line, arguments = command.split(), []
    for parameter in COMMANDS[command].params:
        value = values.get(parameter.name or "")
        if value is None or value is False:
            continue
        words = [str(word) for word in (value if isinstance(value, list) else [value])]
        if isinstance(parameter, click.Argument):
            arguments += words
        elif value is True:
            line.append(parameter.opts[-1])
        else:
            for word in words:
                line += [parameter.opts[-1], word]
    return [*line, "--", *arguments]


MORE: Final = """
import time
import shop

@shop.app.flow("clock")
async def clock(flow):
    return time.time()
"""

_DEFINITION: Final = '{"name": "%s", "type": "chain", "steps": [{"type": "a", "args": []}]}'

FILES: Final = {
    "old": "",
    CERTIFICATE: "",
    "tenants.json": '{"acme": {}}',
    "triggers.json": '{"type_prefix": "com."}',
    "first.json": _DEFINITION % "first",
    "second.json": _DEFINITION % "second",
}
"""Files of the folder in which commands run; ``old`` is of 20 seconds ago."""


class Outcome(NamedTuple):
    """What a command did: its exit code, what it printed, its first call, and what it noted before."""

    code: int
    said: str
    asked: str
    noted: tuple[str, ...]


class Stage:
    """A folder with an application, in which commands run without reaching anything."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._noted: list[str] = []
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("HOME", str(folder))
        for variable in ("OJSTER_DATABASE_URL", "OJSTER_URL_IS_CHOSEN"):  # commands set them for their processes
            monkeypatch.setenv(variable, "")

        def client(app: App) -> Recorder:
            self._noted.append(described([app.url, app.settings]))
            return Recorder()

        monkeypatch.setattr(App, "client", client)
        for place in CALLED:
            monkeypatch.setattr(place, Recorder(place))
        for place in NOTED:
            monkeypatch.setattr(place, self._note(place))
        monkeypatch.setattr("ojster.cli.commands.cron.leftover_crons", self._leftovers)
        started = SimpleNamespace(Popen=self._note("Popen"), PIPE=-1)
        monkeypatch.setattr("ojster.cli.dev.subprocess", started)
        handled = SimpleNamespace(signal=lambda number, handler: None, SIGINT=2, SIGTERM=15)
        monkeypatch.setattr("ojster.cli.dev.signal", handled)
        monkeypatch.setattr("ojster.cli.bench.trial_store", nullcontext)
        monkeypatch.setattr("ojster.cli.commands.workflows.follow", _follow)
        (folder / "shop.py").write_text(SHOP)
        for name, text in FILES.items():
            (folder / name).write_text(text)
        os.utime(folder / "old", (time.time() - 20,) * 2)
        (folder / "more.py").write_text(MORE)

    async def _leftovers(self, client: Recorder, app: App) -> list[Any]:
        self._noted.append(described(app))
        return [SimpleNamespace(name="c", expression="@daily", starts="a")]

    def _note(self, place: str) -> Callable[..., None]:
        return lambda *args, **options: self._noted.append(described((place, args)))

    def run(
        self, command: str, values: Mapping[str, Any], environment: Mapping[str, str] = MappingProxyType({})
    ) -> Outcome:
        self._noted.clear()
        for module in ("shop", "more"):
            sys.modules.pop(module, None)
        result = CliRunner().invoke(
            cli, written(command, values), env={"OJSTER_DATABASE_URL": None} | dict(environment)
        )
        asked = str(result.exception) if isinstance(result.exception, Asked) else repr(result.exception)
        assert isinstance(result.exception, Asked | SystemExit | OjsterError | None), result.exc_info
        return Outcome(result.exit_code, _VARIES.sub("…", result.output), asked, tuple(self._noted))

    def values(self, command: str, parameter: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters of a command without one and with it, or with one and with another value of it."""
        by_name = {option.name or "": option for option in COMMANDS[command].params}
        base = {"url": SERVER} if "url" in by_name and parameter != "url" else {}
        base |= {name: value_of(command, option, self.folder) for name, option in by_name.items() if option.required}
        base |= BASES.get(command, {}) | OPTION_BASES.get(f"{command} {parameter}", {})
        is_other = base.get(parameter) is not None
        return base, base | {parameter: value_of(command, by_name[parameter], self.folder, other=is_other)}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def tried(command: str) -> list[str]:
    return [
        option.name or ""
        for option in COMMANDS[command].params
        if f"{command} {option.name}" not in SHOWN and not getattr(option, "hidden", False) and option.name != "as_json"
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_parameter_changes_what_a_command_asks_for_or_is_refused(command: str, stage: Stage) -> None:
    for parameter in tried(command):
        base, more = stage.values(command, parameter)
        plain, with_it = stage.run(command, base), stage.run(command, more)
        assert plain.code != 2 or with_it.code != 2, f"{' '.join(written(command, more))}: {with_it.said}"
        assert with_it != plain, f"{' '.join(written(command, more))} does what it does without {parameter}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_variable_does_what_its_option_does(command: str, stage: Stage) -> None:
    for option in COMMANDS[command].params:
        if not isinstance(option, click.Option) or option.envvar is None:
            continue
        base, more = stage.values(command, option.name or "")
        text = "1" if option.is_flag else str(more[option.name or ""])
        by_variable = stage.run(command, base | {option.name: None}, {str(option.envvar): text})
        assert by_variable == stage.run(command, more), option.envvar


def test_each_command_takes_its_database_as_url() -> None:
    names = {
        name: parameter.opts
        for name, command in COMMANDS.items()
        for parameter in command.params
        if parameter.name in ("database", "url") and isinstance(parameter, click.Option)
    }
    assert len(names) > 80
    assert not [name for name, options in names.items() if "--url" not in options]


def test_the_tables_name_parameters_that_exist_and_tests_that_are_there() -> None:
    known = {f"{command} {option.name}" for command, found in COMMANDS.items() for option in found.params}
    assert (SHOWN.keys() | OPTION_BASES.keys() | VALUES.keys()) <= known
    assert BASES.keys() <= COMMANDS.keys()
    for name, shown in SHOWN.items():
        command, _, parameter = name.rpartition(" ")
        (option,) = [option for option in COMMANDS[command].params if option.name == parameter]
        source = functions_of(shown.file)[shown.test]
        assert isinstance(option, click.Argument) or option.opts[-1] in source, name


REFUSED: Final[list[tuple[str, str]]] = [
    (f"jobs cancel {ID} --dry-run", "--dry-run has no effect with JOB_ID"),
    (f"jobs retry {ID} --queue mail", "--queue has no effect with JOB_ID"),
    ("jobs cancel --queue mail --older-than never", "--older-than"),
    ("workflows cancel --name nightly --older-than never", "--older-than"),
    (f"dead-letter retry {ID} --type mail", "--type has no effect with JOB_IDS"),
    ("backup jobs.tar --files there --no-files", "--files has no effect with --no-files"),
    ("restore jobs.tar --files there --no-files", "--files has no effect with --no-files"),
    ("serve --socket jobs.sock --port 8080", "--port has no effect with --socket"),
    ("serve --socket jobs.sock --port 0", "--port has no effect with --socket"),
    ("serve --socket jobs.sock --allowed-host jobs", "--allowed-host has no effect with --socket"),
    ("serve --tls-key certificate.pem", "--tls-key has no effect without --tls-cert"),
    ("serve --oidc-audience jobs", "--oidc-audience has no effect without --oidc-issuer"),
    (
        "serve --oidc-issuer https://login.test --oidc-scope openid",
        "--oidc-scope has no effect without --oidc-client-id",
    ),
    ("serve --oidc-issuer https://login.test --oidc-audience jobs --auth off", "--auth off asks for none"),
    ("serve --default-timeout PT0S", "PT0S is no limit"),
    ("serve --default-lease never", "--default-lease"),
    ("serve --default-lease PT0.0009S", "PT0.0009S is no limit. Use at least 0.001 seconds"),
    ("serve --max-job-bytes 10", "--max-job-bytes"),
    ("top --once --interval 5", "--interval has no effect with --once"),
    ("healthy http://127.0.0.1:1 --max-age 60", "--max-age has no effect on a server"),
    (f"prune --url {SERVER} --keep-completed P1D", "A server uses its own retention"),
    (f"prune --url {SERVER} --keep-completed never", "A server uses its own retention"),
    (f"prune --url {SERVER} --keep-discarded PT0S", "A server uses its own retention"),
    (f"prune --url {SERVER} --most-dead-letters 0", "A server uses its own retention"),
    ("workers configure w --allow a --deny b", "--deny has no effect with --allow"),
    (f"workflows cancel {ID} --step a --active", "--active has no effect with --step"),
    (f"workflows fork {ID} --from-step a --args [1] --result 1", "--args has no effect with --result"),
    (f"workflows draw --file first.json --url {SERVER}", "--url has no effect with --file"),
    *[
        (f"serve --cors {origin}", f"'{origin}' is no origin. Write it as browsers do")
        for origin in (
            "shop.example",
            "https://shop.example/",
            "https://shop.example/app",
            "https://Shop.example",
            "*.a",
        )
    ],
    *[
        (f"serve --allowed-host {host}", f"'{host}' is no name. Write it without scheme and port")
        for host in ("http://x", "jobs.example:8080", "10.0.0.7:8080", "[::1]:8080", "*.example", "jobs.example/", "*")
    ],
    ("worker shop:app --provide a=1 --provide a=2", "'a' is given twice"),
    ("worker shop:app --code-tasks weak --code-value a=1 --code-value a=2", "'a' is given twice"),
    ("workers configure w --provide a=1 --provide a=2", "'a' is given twice"),
    ("workflows start gist --param a=1 --param a=2", "'a' is given twice"),
    ("workflows cancel --param a=1 --param a=2", "'a' is given twice"),
    ("cron add nightly @daily --definition d --param a=1 --param a=2", "'a' is given twice"),
    (f"workflows properties {ID} --set a=1 --set a=2", "'a' is given twice"),
    ("""worker shop:app --capabilities {"gpu":{"count":-1}}""", "The capability gpu_count is '-1'"),
    ("serve --include more", "--include has no effect without --app. Add it."),
    ("worker --include more", "--include has no effect without APP"),
    ("worker shop:app --code-value a=1", "--code-value has no effect without --code-tasks"),
    (f"worker shop:app --url {SERVER} --wait-for-database 5", "--wait-for-database has no effect on a server"),
    ("worker shop:app --grace -1", "-1.0 is not in the range x>=0"),
    ("worker shop:app --grace nan", "nan is no number of seconds"),
    ("worker shop:app --lease 0", "--lease"),
    ("run shop:app --port 99999", "--port"),
    ("tokens rotate t --grace never", "--grace"),
    ("tokens create t --role viewer --expires PT0S", "PT0S is no limit"),
    ("push mail --priority 101", "101 is not in the range -100<=x<=100"),
    ("push mail --delay -1", "--delay"),
    ("push mail --wait inf", "inf is no number of seconds"),
    ("push mail --delay 1e12", "1e12 seconds are more than a hundred years"),
    ("serve --max-batch 1000000000000", "1000000000000 is not in the range 100<=x<=1000000"),
    ("serve --max-job-bytes 1000000000000", "is not in the range 1024<=x<=1000000000"),
    ("serve --most-dead-letters 1000000000000", "is not in the range 0<=x<=1000000000"),
    ("queues set q --concurrency 1000000000000", "is not in the range 0<=x<=1000000000"),
    ("serve --processes 1000000000000", "1000000000000 is not in the range 1<=x<=1000"),
    ("worker shop:app --concurrency 1000000000000", "is not in the range 1<=x<=1000000"),
    ("worker shop:app --max-memory 1000000000000", "is not in the range 1<=x<=8589934591"),
    ("audit list --outcome sucess", "'sucess' is not one of 'success', 'failure'"),
]
"""Command lines with an option that means nothing, or nothing beside the others, and what is said of it."""


@pytest.mark.parametrize(("line", "said"), REFUSED, ids=[line[:60] for line, _ in REFUSED])
def test_an_option_that_means_nothing_is_refused_and_named(line: str, said: str, stage: Stage) -> None:
    result = CliRunner().invoke(cli, line.split())
    assert (result.exit_code, said in " ".join(result.output.split())) == (2, True), result.output
    assert isinstance(result.exception, SystemExit), "nothing is asked for"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_number_has_an_upper_bound(command: str) -> None:
    for parameter in COMMANDS[command].params:
        kind = parameter.type.kind if isinstance(parameter.type, OrNone) else parameter.type
        assert kind not in (click.INT, click.FLOAT), parameter.name
        if isinstance(kind, click.IntRange | click.FloatRange) and not isinstance(kind, Seconds):
            assert kind.max is not None, parameter.name


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--cors", ("https://shop.example", "http://localhost:3000", "http://[::1]:5173", "*", "null")),
        ("--allowed-host", ("jobs", "jobs.example", "10.0.0.7", "::1", "[fe80::1]", "::ffff:10.0.0.7")),
    ],
)
def test_origins_and_names_are_accepted_as_browsers_write_them(
    option: str, values: Sequence[str], stage: Stage
) -> None:
    result = CliRunner().invoke(cli, ["serve", *(word for value in values for word in (option, value))])
    assert isinstance(result.exception, Asked), result.output
