"""Confinement by the operating system: hostile code cannot escape, even with unrestricted Python."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from ojster.sandbox.sandbox import CodeFailed, NotConfined, Sandbox, SandboxRequest
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux confines code"),
]

MODULES = ("os", "socket", "ctypes", "fcntl", "subprocess", "threading", "signal", "gc", "time", "resource", "mmap")


def sandbox(*without: str, **more: Any) -> Sandbox:
    """Return a sandbox with unrestricted Python, without the confinements in `without`."""
    made = Sandbox(MODULES, restricted=False, **more)
    made.without = without
    return made


async def run(body: str, *args: Any, where: Sandbox | None = None, timeout: float = 20.0) -> Any:
    end = await (where or sandbox()).run(SandboxRequest(body, args=args), timeout=timeout)
    if end.error is not None:
        return end.error["type"]
    return end.result


async def test_the_walls_stand_and_are_tried_before_anything_is_run() -> None:
    means = await Sandbox().check()
    assert "seccomp" in means
    assert {"landlock", "chroot"} & set(means)


@pytest.mark.parametrize("without", [(), ("chroot",), ("landlock",), ("namespaces",)])
async def test_no_file_is_read_listed_or_written_outside_of_the_scratch_directory(
    without: tuple[str, ...], tmp_path: Path
) -> None:
    if not set(await sandbox().check()) & {"landlock", "chroot"} - set(without):
        pytest.skip("this system has no other means")
    secret = tmp_path / "secret.txt"
    secret.write_text("treasure")
    os.chmod(secret, 0o666)
    os.chmod(tmp_path, 0o777)
    body = """
import os
def body(job, secret, directory):
    got = []
    for action in (
        lambda: open(secret).read(),
        lambda: open(secret, "w").write("gone"),
        lambda: open(directory + "/new", "w").write("x"),
        lambda: os.listdir(directory),
        lambda: os.listdir("/"),
        lambda: open("/etc/passwd").read(),
        lambda: open("../" * 20 + "etc/passwd").read(),
        lambda: open("/proc/self/environ", "rb").read(),
        lambda: open("/proc/self/maps").read(),
        lambda: open("/proc/1/cmdline").read(),
        lambda: os.listdir("/proc"),
        lambda: open("/dev/mem", "rb"),
        lambda: os.symlink(secret, "link"),
        lambda: os.link(secret, "link"),
        lambda: os.unlink(secret),
        lambda: os.rename(secret, "mine"),
        lambda: os.mkfifo("pipe"),
        lambda: os.chroot("."),
        lambda: os.chmod(secret, 0),
        lambda: os.truncate(secret, 0),
        lambda: os.open(secret, 3 | os.O_TRUNC),
        lambda: os.open(".", os.O_TMPFILE | os.O_RDWR),
        lambda: os.mkdir("inner"),
    ):
        try:
            found = action()
        except OSError:
            continue
        if found != []:
            got.append(repr(found))
    open("own", "w").write("fine")
    return [got, open("own").read(), sorted(os.listdir("."))]
"""
    found = await run(body, str(secret), str(tmp_path), where=sandbox(*without))
    assert found == [[], "fine", ["own"]]
    assert secret.read_text() == "treasure"
    assert sorted(os.listdir(tmp_path)) == ["secret.txt"]


async def test_without_any_wall_around_files_nothing_is_run() -> None:
    with pytest.raises(CodeFailed, match="cannot be confined"):
        await run("def body(job): return 1", where=sandbox("chroot", "landlock"))


async def test_there_is_no_network_no_process_no_program_no_signal_and_no_thread() -> None:
    body = """
import os, socket, subprocess, threading, signal, ctypes, fcntl, mmap
def body(job, parent):
    got = []
    def thread():
        got.append("a thread ran")
    libc = ctypes.CDLL(None, use_errno=True)
    for action in (
        lambda: socket.socket(),
        lambda: socket.socket(socket.AF_UNIX),
        lambda: socket.socketpair(),
        lambda: socket.create_connection(("127.0.0.1", 80)),
        lambda: os.fork() or os._exit(0),
        lambda: os.execv("/bin/true", ["true"]),
        lambda: subprocess.run(["true"]),
        lambda: os.system("true") == 0 or (_ for _ in ()).throw(OSError()),
        lambda: threading.Thread(target=thread).start(),
        lambda: os.kill(parent, signal.SIGKILL),
        lambda: os.kill(-1, signal.SIGKILL),
        lambda: os.killpg(0, signal.SIGKILL),
        lambda: os.setuid(0),
        lambda: os.nice(-5),
        lambda: os.sched_setaffinity(0, {0}),
        lambda: os.memfd_create("x"),
        lambda: fcntl.fcntl(1, fcntl.F_SETOWN, parent),
        lambda: fcntl.fcntl(1, 10, 9),
        lambda: fcntl.fcntl(1, fcntl.F_SETFL, os.O_ASYNC),
        lambda: fcntl.fcntl(1, fcntl.F_SETLEASE, 0),
        lambda: os.openpty(),
        lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC),
    ):
        try:
            got.append(repr(action()))
        except (OSError, RuntimeError, ValueError):
            continue
    # ptrace, mount, unshare, setns, bpf, io_uring_setup, clone3, pidfd_getfd
    for number in (101, 165, 272, 308, 321, 425, 435, 438):
        if libc.syscall(number, 0, 0, 0, 0, 0) != -1:
            got.append(f"system call {number}")
    return got
"""
    assert await run(body, os.getpid()) == []


async def test_the_environment_is_empty_and_nothing_of_the_worker_is_there() -> None:
    os.environ["OJSTER_TEST_SECRET"] = "treasure"
    try:
        body = """
import os, gc, sys
def body(job):
    files = []
    for number in range(3, 256):
        try:
            os.fstat(number)
            files.append(number)
        except OSError:
            pass
    return [sorted(os.environ), files, [name for name in sys.modules if name.startswith("ojster")], sys.argv[1:]]
"""
        environment, files, modules, arguments = await run(body)
    finally:
        del os.environ["OJSTER_TEST_SECRET"]
    assert set(environment) <= {"LANG", "LC_CTYPE"}
    assert (files, modules, arguments) == ([], [], [])


async def test_a_fork_bomb_makes_nothing() -> None:
    body = """
import os
def body(job):
    made = 0
    for _ in range(1000):
        try:
            if os.fork() == 0:
                while True: pass
            made += 1
        except OSError:
            pass
    return made
"""
    assert await run(body) == 0
    assert _left() == []


def _left() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "/child.py" in " ".join(_command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_a_memory_bomb_raises_memory_error() -> None:
    body = "def body(job):\n    hoard = []\n    while True:\n        hoard.append(bytearray(10_000_000))"
    assert await run(body, where=sandbox(memory=200 * 2**20)) == "MemoryError"


STUBBORN = """
import signal
def body(job):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            while True: pass
        except BaseException: pass
"""


async def test_code_is_killed_when_its_time_is_up_whatever_it_does() -> None:
    for body in (
        "def body(job):\n    while True: pass",
        "import time\ndef body(job):\n    time.sleep(100)",
        STUBBORN,
    ):
        started = time.monotonic()
        with pytest.raises(CodeFailed, match=r"longer than 0\.5 seconds") as failed:
            await run(body, timeout=0.5)
        assert failed.value.failure.code == "timeout"
        assert time.monotonic() - started < PATIENCE


async def test_the_processor_time_is_bounded_too() -> None:
    body = """
import resource
def body(job):
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
    except (OSError, ValueError):
        return resource.getrlimit
    return "it could"
"""
    assert await run(body) in ("TypeError", "PermissionError")


async def test_a_file_and_the_scratch_directory_have_bounds() -> None:
    large = (
        "def body(job):\n    with open('f', 'wb') as file:\n        for _ in range(100): file.write(bytes(1_000_000))"
    )
    assert await _end_of(large) in ("OSError", "killed")
    many = """
import time
def body(job):
    for number in range(100_000):
        with open(str(number), "wb") as file:
            file.write(bytes(100_000))
    return "filled"
"""
    assert await _end_of(many) == "killed"


async def _end_of(body: str) -> str:
    try:
        return str(await run(body))
    except CodeFailed:
        return "killed"


async def test_a_flood_of_words_is_stopped() -> None:
    with pytest.raises(CodeFailed, match="bytes at once"):
        await run("def body(job):\n    return 'x' * 5_000_000")
    with pytest.raises(CodeFailed, match="notes"):
        await run("def body(job):\n    for n in range(5000): info(n)")
    for body in (
        "import os\ndef body(job):\n    os.write(1, b'\\0\\0\\0\\2no')\n    return 1",
        "import os\ndef body(job):\n    os.write(1, b'\\0\\0\\1\\0')\n    os._exit(0)",
        "import os\ndef body(job):\n    os._exit(7)",
        "import ctypes\ndef body(job):\n    ctypes.string_at(0)",
    ):
        with pytest.raises(CodeFailed):
            await run(body)


async def test_a_platform_that_cannot_confine_code_refuses_it_unless_that_is_accepted() -> None:
    open_ = sandbox("chroot", "landlock")
    with pytest.raises(NotConfined, match="neither Landlock"):
        await open_.check()
    weak = Sandbox(weak=True)
    assert await weak.check() == ()
    end = await weak.run(SandboxRequest("def body(job): return 2"), timeout=20)
    assert (end.result, end.means) == (2, ())


async def test_a_cancelled_task_leaves_no_process_behind() -> None:
    running = asyncio.create_task(run("def body(job):\n    while True: pass"))
    await asyncio.sleep(0.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert _left() == []


async def test_code_cannot_map_unlink_or_rename_files() -> None:
    body = """
import mmap, os
def body(job):
    got = []
    with open("f", "wb") as file:
        file.write(bytes(4096))
    with open("f", "r+b") as file:
        for action in (
            lambda: mmap.mmap(file.fileno(), 4096),
            lambda: mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE),
            lambda: os.unlink("f"),
            lambda: os.rename("f", "g"),
        ):
            try:
                got.append(repr(action()))
            except OSError:
                continue
    return got
"""
    assert await run(body) == []


async def test_code_dies_with_its_worker(tmp_path: Path) -> None:
    program = """
import asyncio
from ojster.sandbox.sandbox import SandboxRequest, Sandbox
body = "import time\\ndef body(job):\\n    info(1)\\n    time.sleep(100)"
async def note(_):
    print("runs", flush=True)
asyncio.run(Sandbox().run(SandboxRequest(body), timeout=100, on_note=note))
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"runs\n"
    children = psutil.Process(worker.pid).children()
    assert len(children) == 1
    worker.kill()
    await worker.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, timeout=10)
    assert alive == []


FRAMES = {
    "a note that is no text": rb'{"note":"\xff\xfe"}',
    "a note that is no number": b'{"note":1e999}',
    "a large note": b'{"note":"' + b"x" * 20_000 + b'"}',
    "a result that is no text": rb'{"result":"\xff"}',
    "a result that is nested too deeply": b'{"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a backtrace that is a number": b'{"error":{"backtrace":7,"type":[],"details":3}}',
    "an error that is large": b'{"error":{"type":"'
    + b"x" * 1_000_000
    + b'","details":{"x":"'
    + b"x" * 900_000
    + b'"}}}',
    "a release that is strange": b'{"release":{"then":[],"delay":1e300,"timeout":"soon"}}',
    "members that nobody knows": b'{"results":1}',
}


@pytest.mark.parametrize("what", FRAMES)
async def test_the_worker_believes_no_frame(what: str) -> None:
    raw = FRAMES[what].replace(b"\\xff", b"\xff").replace(b"\\xfe", b"\xfe")
    body = "import os\ndef body(job, raw):\n    raw = bytes.fromhex(raw)\n    raw = len(raw).to_bytes(4, 'big') + raw\n"
    body += "    while raw: raw = raw[os.write(1, raw):]\n    os._exit(0)"
    notes: list[bytes] = []

    async def hear(note: bytes) -> None:
        notes.append(note)

    try:
        end = await sandbox().run(SandboxRequest(body, args=(raw.hex(),)), timeout=20, on_note=hear)
    except CodeFailed as failed:
        assert len(failed.failure.message) < 1_000
    else:
        failure = end.failure
        assert failure is None or len(msgspec.json.encode(failure)) < 40_000
    assert notes == []


async def test_a_flood_of_frames_leaves_the_worker_time_for_others() -> None:
    body = """
import os
def body(job):
    raw = b'{"note":1,"result":[' + b"[]," * 500_000 + b"[]]}"
    raw = len(raw).to_bytes(4, "big") + raw
    while True:
        os.write(1, raw)
"""
    with pytest.raises(CodeFailed, match="bytes at once"):
        await run(body)
