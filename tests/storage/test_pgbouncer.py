"""PostgreSQL behind a real PgBouncer in transaction mode, with TLS and a password.

The tests are skipped without ``pgbouncer`` and ``openssl``.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ojster import App, Flow, Worker
from ojster.core.errors import BackendUnavailable
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.service import Service
from ojster.storage.database import LISTEN_VARIABLE
from ojster.storage.open import open_database
from ojster.storage.postgres.url import parse_postgres_url
from tests.conftest import SERVER_VARIABLE, request
from tests.flows.test_steps_in_transactions import table_in_postgres
from tests.postgres import free_port
from tests.waiting import LONG_WAIT, PATIENCE, until

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(PGBOUNCER is None or shutil.which("openssl") is None, reason="needs pgbouncer and openssl"),
]

SETTINGS = """
[databases]
postgres = host={host} port={server_port} dbname=postgres user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 2
server_idle_timeout = 1
client_tls_sslmode = require
client_tls_key_file = {folder}/key
client_tls_cert_file = {folder}/certificate
"""


@pytest.fixture
def pooled_url(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[str]:
    """URL of the test database through a pooler that shares two server connections."""
    assert PGBOUNCER is not None
    folder = Path("/tmp") / f"ojster-bouncer-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir(mode=0o755)
    port = free_port()
    where = psycopg.conninfo.conninfo_to_dict(os.environ[SERVER_VARIABLE])
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", f"{folder}/key", "-out", f"{folder}/certificate"]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "users").write_text('"ada" "s3cret"\n')
    (folder / "settings").write_text(
        SETTINGS.format(host=where["host"], server_port=where["port"], port=port, folder=folder)
    )
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        for file in folder.iterdir():
            os.chown(file, nobody.pw_uid, nobody.pw_gid)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([PGBOUNCER, folder / "settings"], stdout=log, stderr=log, **user)
    schema = parse_postgres_url(postgres_url).schema
    url = f"postgresql://ada:s3cret@localhost:{port}/postgres?sslmode=verify-full&sslrootcert={folder}/certificate"
    until(lambda: connects(url), (folder / "log").read_text)
    yield f"{url}&schema={schema}&pooler=transaction"
    process.terminate()
    process.wait()
    shutil.rmtree(folder)


def connects(url: str) -> bool:
    try:
        psycopg.connect(parse_postgres_url(url).conninfo).close()
    except psycopg.OperationalError:
        return False
    return True


async def test_many_work_through_few_connections(
    pooled_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LISTEN_VARIABLE, postgres_url)
    engines = [Service(open_database(pooled_url)) for _ in range(3)]
    done: list[str] = []

    async def work(service: Service) -> None:
        while len(done) < 200:
            jobs = await service.jobs.fetch(Claim(("default",), 5, "w"), wait=1)
            await service.jobs.acknowledge([Acknowledgement(job.id, b"1", "w", job.attempt) for job in jobs])
            done.extend(job.id for job in jobs)

    working = [asyncio.create_task(work(service)) for service in engines for _ in range(4)]
    for _ in range(20):
        await engines[0].jobs.enqueue([request() for _ in range(10)])
    await asyncio.gather(*working)
    assert len(done) == len(set(done)) == 200
    counts = (await engines[1].jobs.count())["default"]
    assert {state: n for state, n in counts.items() if n} == {"completed": 200}
    waiting = asyncio.create_task(engines[2].jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await asyncio.sleep(0.3)
    await engines[0].jobs.enqueue([request()])
    assert len(await asyncio.wait_for(waiting, PATIENCE)) == 1
    await asyncio.gather(*(service.close() for service in engines))


async def test_steps_in_transactions_write_much_through_few_connections(
    pooled_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LISTEN_VARIABLE, postgres_url)
    app = App(pooled_url)

    def write(connection: Any, to: int) -> None:
        for number in range(10):
            connection.execute("INSERT INTO pooled_ledger (what) VALUES (%s)", (f"{to} {number}",))

    async def write_later(connection: Any, to: int) -> None:
        for number in range(10):
            await connection.execute("INSERT INTO pooled_ledger (what) VALUES (%s)", (f"{to} {number}",))

    @app.flow("write")
    async def writes(flow: Flow) -> int:
        for to in range(3):
            await flow.step("write", write, to, in_transaction=True)
            await flow.step("write later", write_later, to + 3, in_transaction=True)
        return 60

    with table_in_postgres("pooled_ledger") as rows:
        run = await writes.astart()
        await Worker(app).run(until_empty=True)
        assert await run.aresult() == len(rows()) == 60
    await app.aclose()


def test_bad_credentials_are_rejected_without_showing_a_password(pooled_url: str, tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable) as refused:
        open_database(pooled_url.replace("s3cret", "gu3ssed"))
    assert "gu3ssed" not in str(refused.value)
    other = tmp_path / "other"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other", "-keyout", "/dev/null"]
    subprocess.run([*command, "-out", other], check=True, capture_output=True)
    own = psycopg.conninfo.conninfo_to_dict(parse_postgres_url(pooled_url).conninfo)["sslrootcert"]
    with pytest.raises(BackendUnavailable, match="certificate") as refused:
        open_database(pooled_url.replace(str(own), str(other)))
    assert "s3cret" not in str(refused.value)
