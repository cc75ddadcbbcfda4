"""The page `/docs`: Swagger UI, whose files are built with the dashboard. The page asks no other host for anything."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from ojster.server.answer import Answer

_FOLDER: Final = files("ojster") / "dashboard" / "assets" / "docs"

FILES: Final = {
    "swagger-ui.css": b"text/css; charset=utf-8",
    "swagger-ui-bundle.js": b"text/javascript; charset=utf-8",
}
"""Files of Swagger UI that the page needs, and their content types."""

START: Final = b"""SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#api", deepLinking: true, docExpansion: "none", validatorUrl: null,
});
"""
"""The script that shows the OpenAPI document. Without a validator URL, Swagger UI asks no other host to check it."""

_PAGE: Final = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Ojster API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<div id="api"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</html>
"""

_MISSING: Final = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Ojster API</title>
<p>The API is described in <a href="/openapi.json">openapi.json</a>. To read it here, build the dashboard in the clone
of the repository from which the server runs, with <code>make dashboard</code>, and start the server again.
</html>
"""


def has_viewer() -> bool:
    """Whether the files of Swagger UI were built; packages contain them."""
    return all((_FOLDER / name).is_file() for name in FILES)


def page() -> Answer:
    """Return the page, or a page that says how to build the viewer."""
    return Answer(_PAGE if has_viewer() else _MISSING, content_type=b"text/html; charset=utf-8")


def start_script() -> Answer:
    """Return the script that shows the OpenAPI document."""
    return Answer(START, content_type=b"text/javascript; charset=utf-8")


@cache
def asset(name: str) -> Answer:
    """Return one of ``FILES``. Only call it if ``has_viewer()``."""
    return Answer((_FOLDER / name).read_bytes(), content_type=FILES[name])
