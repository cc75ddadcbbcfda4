"""The files of the dashboard, served below any prefix and compressed ahead of time. They ask no other host."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from ojster.core.errors import NotFound
from ojster.server.answer import Answer, Header
from ojster.server.request import HttpRequest

_TYPES: Final = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "json": b"application/json",
    "svg": b"image/svg+xml",
    "woff2": b"font/woff2",
}

_SECURITY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    b"connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS: Final[tuple[Header, ...]] = (
    (b"content-security-policy", _SECURITY),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
_FILE_HEADERS: Final[tuple[Header, ...]] = (
    # A shared worker has the policy of its own file: it calls this server alone.
    (b"content-security-policy", b"default-src 'none'; connect-src 'self'; frame-ancestors 'none'"),
    (b"cache-control", b"public, max-age=31536000, immutable"),
    (b"vary", b"Accept-Encoding"),
)
"""Headers of files whose names have a hash of their content."""

_BASE: Final = b'<base href="./">'
"""What the built page has in its head, and is replaced by the way from a page to the dashboard's root."""

_MISSING: Final = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Ojster dashboard</title>
<p>The dashboard was not built. In a clone of the repository, build it with <code>make dashboard</code>, and start the
server again. The packages on PyPI have it.
</html>
"""


def _folder() -> Traversable:
    return files("ojster") / "dashboard" / "assets"


@cache
def _page() -> bytes | None:
    """Return the built page; ``None``: it was not built."""
    page = _folder() / "index.html"
    return page.read_bytes() if page.is_file() else None


@cache
def _files() -> dict[str, bytes]:
    """Return the built files by name, with their compressed forms beside them."""
    folder = _folder() / "assets"
    return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.is_dir() else {}


def is_built() -> bool:
    """Whether the dashboard was built."""
    return _page() is not None


async def show_dashboard(request: HttpRequest) -> Answer:
    """Show a file of the dashboard, or its page: every address below ``/dashboard`` is one of its pages."""
    path = request.path.get("path")
    if path is None:
        return Answer(status=307, headers=[(b"location", b"dashboard/")], content_type=b"text/plain")
    if path.startswith("assets/"):
        return _asset(path.removeprefix("assets/"), request.header(b"accept-encoding") or "")
    page = _page()
    if page is None:
        return Answer(_MISSING, 503, content_type=b"text/html; charset=utf-8")
    way_up = b"../" * path.count("/") or b"./"
    shown = page.replace(_BASE, b'<base href="%b">' % way_up)
    return Answer(shown, headers=_PAGE_HEADERS, content_type=_TYPES["html"])


def _asset(name: str, accepted: str) -> Answer:
    kind = _TYPES.get(name.rpartition(".")[2])
    plain = _files().get(name)
    if kind is None or plain is None:
        raise NotFound(f"The dashboard has no file {name[:80]!r}. Reload the page.", resource_type="file")
    codings = {part.partition(";")[0].strip() for part in accepted.split(",") if not part.rstrip().endswith(";q=0")}
    for coding, ending in (("br", ".br"), ("gzip", ".gz")):
        if coding in codings and (packed := _files().get(name + ending)) is not None:
            return Answer(packed, headers=[*_FILE_HEADERS, (b"content-encoding", coding.encode())], content_type=kind)
    return Answer(plain, headers=_FILE_HEADERS, content_type=kind)


async def show_root(request: HttpRequest) -> Answer:
    """Lead browsers to the dashboard, and others to the description of the API."""
    wants_page = "text/html" in (request.header(b"accept") or "")
    target = b"dashboard/" if wants_page and is_built() else b"docs"
    return Answer(status=307, headers=[(b"location", target)], content_type=b"text/plain")
