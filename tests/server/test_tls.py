"""TLS: certificates of the server and of its clients, and their renewal while the server runs."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ojster import App, BackendUnavailable, InvalidRequest
from ojster.client import transport
from ojster.server.tls import TlsFiles, TlsRenewal
from tests import forked
from tests.postgres import free_port
from tests.waiting import PATIENCE, until


class Authority:
    """A certificate authority for a test."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.name, self.key.public_key(), None)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, file: str | None = None) -> tuple[Path, Path]:
        """Return the files with a certificate and with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), "localhost")
        paths = self.folder / f"{file or name}.crt", self.folder / f"{file or name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        paths[1].write_bytes(private)
        return paths

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, host: str | None) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self.key, hashes.SHA256())


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


class Server:
    """A server process with TLS."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.log = folder / "log"
        command = [sys.executable, "-m", "ojster", "serve", "--port", str(self.port)]
        command += ["--database", f"sqlite:///{folder}/jobs.db", *options]
        with self.log.open("wb") as log:
            self.process = forked.Popen(command, stderr=log)
        self.url = f"https://localhost:{self.port}"
        self.until(lambda: "running on" in self.log.read_text())

    def until(self, condition: Callable[[], object]) -> None:
        until(lambda: self.process.poll() is not None or condition(), self.log.read_text)
        assert self.process.poll() is None, self.log.read_text()

    def shown_name(self) -> str:
        """Return the name in the certificate that the server shows."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", self.port)) as plain, context.wrap_socket(plain) as secured:
            shown = secured.getpeercert(binary_form=True)
        assert shown is not None
        (name,) = x509.load_der_x509_certificate(shown).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(name.value)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made: list[Server] = []
    yield made
    for server in made:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0


def push(url: str) -> str:
    with closing(App(url)) as app:
        app.job("a")(print)
        return app.handlers["a"].enqueue("x").id


def test_clients_that_know_the_authority_are_served(
    ours: Authority, tmp_path: Path, servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = ours.issue("first")
    servers.append(Server(tmp_path, "--tls-cert", str(certificate), "--tls-key", str(key)))
    (server,) = servers
    with (
        closing(App(server.url)) as app,
        pytest.raises(BackendUnavailable, match=r"verify failed.*OJSTER_TLS_CA\."),
    ):
        app._event_loop_thread.call(_once(app))
    probe = forked.run([sys.executable, "-m", "ojster", "healthy", server.url], env=os.environ)
    assert (probe.returncode, "certificate verify failed" in probe.stderr) == (1, True)
    monkeypatch.setenv(transport.AUTHORITY_VARIABLE, str(ours.path))
    assert push(server.url)
    probe = forked.run([sys.executable, "-m", "ojster", "healthy", server.url], env=os.environ)
    assert (probe.returncode, '"ready"' in probe.stdout) == (0, True)


def test_a_new_certificate_is_used_without_a_restart(ours: Authority, tmp_path: Path, servers: list[Server]) -> None:
    certificate, key = ours.issue("first", file="server")
    servers.append(Server(tmp_path, "--tls-cert", str(certificate), "--tls-key", str(key)))
    (server,) = servers
    assert server.shown_name() == "first"
    new = ours.issue("second")
    os.replace(new[0], certificate)  # for a moment, the key does not belong to it
    server.until(lambda: "stays in use" in server.log.read_text())
    assert server.shown_name() == "first"
    os.replace(new[1], key)
    server.until(lambda: server.shown_name() == "second")


def test_clients_without_a_certificate_of_the_authority_are_refused(
    ours: Authority, tmp_path: Path, servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = ours.issue("server")
    options = ["--tls-cert", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(ours.path)]
    servers.append(Server(tmp_path, *options))
    (server,) = servers
    monkeypatch.setenv(transport.AUTHORITY_VARIABLE, str(ours.path))
    (tmp_path / "theirs").mkdir()
    stranger = Authority(tmp_path / "theirs", "theirs").issue("stranger")
    for files, is_served in ((None, False), (stranger, False), (ours.issue("client"), True)):
        for variable, path in zip((transport.CERTIFICATE_VARIABLE, transport.KEY_VARIABLE), files or (), strict=False):
            monkeypatch.setenv(variable, str(path))
        if is_served:
            assert push(server.url)
        else:
            with closing(App(server.url)) as app, pytest.raises(BackendUnavailable):
                app._event_loop_thread.call(_once(app))


async def _once(app: App) -> None:
    client = app.client()
    client._connection.patience = 0.0  # type: ignore[attr-defined]
    await client.queues.all()


def test_files_that_do_not_fit_are_refused(ours: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = ours.issue("one")
    _, other = ours.issue("other")
    for files in (
        TlsFiles(certificate, other),
        TlsFiles(certificate),
        TlsFiles(tmp_path / "nowhere.pem", key),
        TlsFiles(certificate, key, key),
    ):
        with pytest.raises(InvalidRequest, match="cannot be used"):
            files.context()
    monkeypatch.setenv(transport.CERTIFICATE_VARIABLE, str(certificate))
    with closing(App("https://localhost:1")) as app, pytest.raises(InvalidRequest, match="OJSTER_TLS_CERT"):
        app._event_loop_thread.call(_once(app))


def test_files_that_have_not_changed_are_not_read_again(ours: Authority) -> None:
    certificate, key = ours.issue("one")
    files = TlsFiles(certificate, key)
    renewal = TlsRenewal(files, files.context())
    assert not renewal.check()
    ours.issue("two", file="one")
    assert renewal.check()
    assert not renewal.check()
    certificate.unlink()
    assert not renewal.check()
    ours.issue("three", file="one")
    assert renewal.check()


def test_a_key_without_a_certificate_is_wrong_usage(tmp_path: Path, ours: Authority) -> None:
    _, key = ours.issue("one")
    command = [sys.executable, "-m", "ojster", "serve", "--tls-key", str(key)]
    done = forked.run(command)
    assert done.returncode == 2
    assert "has no effect without --tls-cert" in done.stderr
