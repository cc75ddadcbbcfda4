"""Examples of the documentation, run as programs."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ojster.core.json_objects import read_members
from ojster.workflows.node import Kind
from ojster.workflows.plan.request import read_workflow
from tests.waiting import PATIENCE

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("example", "last_words"),
    [
        ("hello.py", "Hello, Ada!"),
        ("order.py", "['told by mail of order 42', 'told by sms of order 42']"),
        ("release.py", "done again, or at last: ['build-arm64', 'check', 'publish']\nrelease-2.0 {\"files\":"),
        ("orchestrate.py", "'test-docs-0', 'judge', 'report']\nfailed: test-core-1"),
        pytest.param(
            "gist.py",
            "['gist 1 is created', 'gist 1 is starred', 'Somebody without a token answered the step \\'confirm\\' with "
            "{\"by\":\"ada\"}'] {'composed': True, 'gist_id': '1'}\n[True]",
            marks=pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux confines code"),
        ),
    ],
)
def test_an_example_runs(example: str, last_words: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / example)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr
    assert last_words in ran.stdout


def test_the_workflow_in_the_guide_is_accepted() -> None:
    text = (ROOT / "docs" / "workflows.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    members = read_members(msgspec.json.encode(msgspec.yaml.decode(shown)))
    workflow = read_workflow(members, 0, largest=1 << 20)
    jobs = [node.name for node in workflow.plan.nodes if node.kind == Kind.JOB]
    assert jobs == ["orders", "prices", "report", "publish", "on_error"]
