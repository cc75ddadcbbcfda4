"""Where a server listens: what is in use or wrong is told before the database is opened."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.server.port import check_port
from ojster.server.run import serve


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("localhost", socket.AF_INET)])
def test_a_port_in_use_is_refused_and_nothing_is_made(tmp_path: Path, host: str, family: int) -> None:
    with socket.socket(family) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            BackendUnavailable, match=f"The port {port} of {host} is in use by another program. Stop it"
        ):
            serve(f"sqlite:///{tmp_path}/jobs.db", host=host, port=port)
    assert list(tmp_path.iterdir()) == []
    check_port(host, port)


def test_a_server_with_tokens_is_open_to_no_pages_of_all_origins(tmp_path: Path) -> None:
    """Spec: ojs-http-binding 20.3"""
    with pytest.raises(InvalidRequest, match="does not let pages of all origins call it"):
        serve(f"sqlite:///{tmp_path}/jobs.db", guarded=True, cors_origins=("https://shop.example", "*"))
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_is_not_here_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"192\.0\.2\.1 is none of this machine"):
        check_port("192.0.2.1", 8080)
    with pytest.raises(InvalidRequest, match="The host 'no such host' is unknown"):
        check_port("no such host", 8080)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use any port")
def test_a_port_of_the_system_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match="may not listen at port 80"):
        check_port("127.0.0.1", 80)
