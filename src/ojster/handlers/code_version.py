"""The version of an application's code, as its workers tell it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def code_version_of(functions: Iterable[Callable[..., Any]]) -> str | None:
    """Return a short digest of the files that have these functions; ``None`` if they are in no files.

    Another digest means that the code of handlers has changed. The names of files do not count: the same code may be in
    another folder on the next host.
    """
    codes = [getattr(inspect.unwrap(function), "__code__", None) for function in functions]
    files = {Path(code.co_filename) for code in codes if code is not None}
    digests = sorted(filter(None, map(_digest, files)))
    return hashlib.blake2b(b"".join(digests), digest_size=6).hexdigest() if digests else None


def _digest(file: Path) -> bytes | None:
    try:
        return hashlib.blake2b(file.read_bytes()).digest()
    except OSError:  # there is no file, as for code that was typed, or only its compiled form may be read
        return None
