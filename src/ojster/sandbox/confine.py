"""Irrevocable confinement of a Linux process, so that it can only compute.

This module uses only the standard library and runs only in the child. It applies, in this order: resource limits;
namespaces and another root directory, where the system allows them; another user, if the process is root; Landlock; and
an allowlist of system calls (seccomp). Each of the last two alone keeps the process from files and networks.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
from collections.abc import Collection
from typing import Final

UNPRIVILEGED_ID: Final = 65_534
"""User and group id of the child if the worker runs as root."""

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWUTS: Final = 0x04000000
_CLONE_NEWIPC: Final = 0x08000000
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2

_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_ADD_RULE: Final = 445
_LANDLOCK_RESTRICT_SELF: Final = 446
_LANDLOCK_CREATE_RULESET_VERSION: Final = 1
_LANDLOCK_RULE_PATH_BENEATH: Final = 1
_FILE_ACCESS_RIGHTS: Final = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
"""File access rights that each Landlock ABI version can restrict, as bit masks."""
_SCRATCH_ACCESS_RIGHTS: Final = 0x1 << 1 | 0x1 << 2 | 0x1 << 3 | 0x1 << 8 | 0x1 << 14
"""Landlock rights in the scratch directory: write, read, list, create regular files, and truncate."""
_MIN_LANDLOCK_WITHOUT_CHROOT: Final = 3
"""Minimum Landlock ABI version without another root directory: the first that restricts truncation."""

_ALLOWED: Final = {
    # name: (x86_64, aarch64); None: the architecture has no such call
    "brk": (12, 214),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "close": (3, 57),
    "dup": (32, 23),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "fstat": (5, 80),
    "fsync": (74, 82),
    "ftruncate": (77, 46),
    "futex": (202, 98),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "getpid": (39, 172),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "lseek": (8, 62),
    "madvise": (28, 233),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "nanosleep": (35, 101),
    "newfstatat": (262, 79),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "read": (0, 63),
    "readv": (19, 65),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "sigaltstack": (131, 132),
    "stat": (4, None),
    "statx": (332, 291),
    "time": (201, None),
    "times": (100, 153),
    "write": (1, 64),
    "writev": (20, 66),
}
# Calls that are allowed only with harmless arguments; see ``_seccomp``.
_MMAP: Final = (9, 222)
_MPROTECT: Final = (10, 226)
_FCNTL: Final = (72, 25)
_OPEN: Final = (2, None)
_OPENAT: Final = (257, 56)

_FCNTL_COMMANDS: Final = (0, 1, 2, 3, 1030)
"""Allowed ``fcntl`` commands: duplicate a descriptor, read its flags, set close-on-exec. None sends signals."""
_MAP_ANONYMOUS: Final = 0x20
_PROT_EXEC: Final = 0x4
_O_ACCMODE: Final = 0x3
_O_TMPFILE: Final = 0x400000

_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | 1  # fail with EPERM
_KILL: Final = 0x80000000


class CannotConfine(Exception):
    """The system lacks a required means of confinement."""


def limit(*, memory: int, seconds: int, file: int) -> None:
    """Limit the process: ``memory`` in bytes, processor time in ``seconds``, and size of each ``file`` in bytes."""
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 16),
    ):
        resource.setrlimit(kind, (most, most))


def confine(scratch: str, parent: int, without: Collection[str] = ()) -> list[str]:
    """Confine the process to the directory ``scratch``, and return the means used.

    Parameters
    ----------
    parent:
        Id of the parent process. The process is killed when its parent dies.
    without:
        Means of confinement to leave out, for tests of the others.

    Raises
    ------
    CannotConfine
        The system lacks a required means of confinement.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise CannotConfine(f"architecture {machine or 'unknown'} is not supported; use x86_64 or aarch64")
    means: list[str] = []
    here = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(scratch)
    is_root = os.geteuid() == 0
    apart = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWNET
    if "namespaces" not in without and libc.unshare(apart if is_root else apart | _CLONE_NEWUSER) == 0:
        means.append("namespaces")
        if "chroot" not in without and libc.chroot(os.fsencode(scratch)) == 0:
            os.chdir("/")
            means.append("chroot")
    if is_root:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        os.setresuid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        means.append("nobody")
    die_with_parent(parent)
    _call(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")
    _call(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    version = 0 if "landlock" in without else _landlock(libc, here)
    if version:
        means.append("landlock")
    os.close(here)
    if "chroot" not in means and version < _MIN_LANDLOCK_WITHOUT_CHROOT:
        raise CannotConfine("neither Landlock (Linux 6.2 or newer) nor chroot is available; allow namespaces")
    _seccomp(libc, machine)
    return [*means, "seccomp"]


def die_with_parent(parent: int) -> None:
    """Kill this process when its parent dies, and raise `CannotConfine` if the parent is already dead."""
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "set the parent-death signal")
    if os.getppid() != parent:
        raise CannotConfine(f"the worker process {parent} has exited")


def _landlock(libc: ctypes.CDLL, scratch: int) -> int:
    """Allow access only to files beneath ``scratch``, and to no network. Return Landlock's ABI version, or 0."""
    version: int = libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    if version < 1:
        return 0
    files = _FILE_ACCESS_RIGHTS[min(version, max(_FILE_ACCESS_RIGHTS))]
    attributes = struct.pack("=QQQ", files, 0x3 if version >= 4 else 0, 0x3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, size, 0)
    if rules < 0:
        return 0
    beneath = struct.pack("=Qi", _SCRATCH_ACCESS_RIGHTS & files, scratch)
    added = libc.syscall(_LANDLOCK_ADD_RULE, rules, _LANDLOCK_RULE_PATH_BENEATH, beneath, 0)
    done = added == 0 and libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return version if done else 0


def _seccomp(libc: ctypes.CDLL, machine: str) -> None:
    """Allow only the listed system calls."""
    place, architecture = _ARCHITECTURES[machine]
    allowed = [number for numbers in _ALLOWED.values() if (number := numbers[place]) is not None]
    load, jump_equal, jump_set, keep, answer = 0x20, 0x15, 0x45, 0x54, 0x06
    refused, allowed_then = (answer, 0, 0, _REFUSE), (answer, 0, 0, _ALLOW)

    def argument(number: int) -> tuple[int, int, int, int]:
        return (load, 0, 0, 16 + 8 * number)

    no_execution = [argument(2), (jump_set, 0, 1, _PROT_EXEC), refused]
    conditions: list[tuple[int | None, list[tuple[int, int, int, int]]]] = [
        (_MPROTECT[place], no_execution),
        # Anonymous mappings only: a mapped file can take space that the check of the scratch directory misses.
        (_MMAP[place], [*no_execution, argument(3), (jump_set, 1, 0, _MAP_ANONYMOUS), refused]),
    ]
    for numbers, flags in ((_OPEN, 1), (_OPENAT, 2)):
        # Access mode 3 needs neither read nor write permission, and can truncate. O_TMPFILE creates unnamed files,
        # which the check of the scratch directory's size would miss.
        odd = [argument(flags), (jump_set, 0, 1, _O_TMPFILE), refused, (keep, 0, 0, _O_ACCMODE)]
        conditions.append((numbers[place], [*odd, (jump_equal, 0, 1, _O_ACCMODE), refused]))
    commands = [(jump_equal, len(_FCNTL_COMMANDS) - at, 0, command) for at, command in enumerate(_FCNTL_COMMANDS)]
    conditions.append((_FCNTL[place], [argument(1), *commands, refused]))
    program = [
        (load, 0, 0, 4),  # the architecture
        (jump_equal, 1, 0, architecture),
        (answer, 0, 0, _KILL),
        (load, 0, 0, 0),  # the number of the call
    ]
    for number in allowed:
        program += [(jump_equal, 0, 1, number), (answer, 0, 0, _ALLOW)]
    for call, condition in conditions:
        if call is not None:
            program += [(jump_equal, 0, len(condition) + 1, call), *condition, allowed_then]
    program.append(refused)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("=H6xQ", len(program), ctypes.addressof(buffer))
    _call(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")


def _call(result: int, what: str) -> None:
    if result != 0:
        raise CannotConfine(f"{what}: {os.strerror(ctypes.get_errno())}")
