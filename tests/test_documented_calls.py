"""Every call with curl in the documentation, made to a real server as it is printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.postgres import free_port
from tests.waiting import PATIENCE, answers, until

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
HOST = "localhost:8080"


def calls() -> Iterator[tuple[str, str]]:
    """Yield each documented call with its page."""
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            for command in re.split(r"(?m)^\s*\$ ", block)[1:]:
                lines = iter(command.splitlines())
                text = next(lines)
                while text.count("'") % 2 or text.endswith("\\"):  # it goes on in the next line
                    text += "\n" + next(lines)
                if text.startswith("curl") and HOST in text:
                    yield page.name, text


CALLS = list(calls())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server, as 'ojster serve' starts it."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    folder = tmp_path_factory.mktemp("documented")
    port = free_port()
    command = [sys.executable, "-m", "ojster", "serve", "--database", "sqlite:///jobs.db", "--port", str(port)]
    process = forked.Popen([*command, "--trust-webhooks"], cwd=folder, stderr=subprocess.DEVNULL)
    address = f"localhost:{port}"
    until(lambda: answers(f"http://{address}/ojs/v1/health"))
    yield address
    process.terminate()
    process.wait(PATIENCE)


def test_the_documentation_has_calls() -> None:
    assert len(CALLS) >= 20


@pytest.mark.parametrize(("page", "call"), CALLS, ids=[f"{page}-{number}" for number, (page, _) in enumerate(CALLS)])
def test_a_documented_call_is_accepted(server: str, page: str, call: str) -> None:
    made = call.replace(HOST, server).replace("https://example.com/", "http://127.0.0.1:9/")
    options = "--max-time 1" if call.startswith("curl -N") else "--max-time 20"
    words = ["bash", "-c", made.replace("curl ", f"curl {options} --write-out '\\n%{{http_code}}' ", 1)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})
    _, _, status = done.stdout.rpartition("\n")
    allowed = ("200", "404") if "…" in call else ("200", "201", "202", "204")  # the reader puts in an id
    assert status in allowed, done.stdout
