"""The page `/docs`: Swagger UI, from a package that holds its files. The page asks no other host for anything."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Final

from ojster.server.answer import Answer

_PACKAGE: Final = "drf_spectacular_sidecar"
_FOLDER: Final = "static/drf_spectacular_sidecar/swagger-ui-dist"

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
<p>The API is described in <a href="/openapi.json">openapi.json</a>. To read it here, install the viewer on the server:
<code>pip install 'ojster[docs]'</code>.
</html>
"""


def has_viewer() -> bool:
    """Whether the package with the files of Swagger UI is installed."""
    return find_spec(_PACKAGE) is not None


def page() -> Answer:
    """Return the page, or a page that says how to install the viewer."""
    return Answer(_PAGE if has_viewer() else _MISSING, content_type=b"text/html; charset=utf-8")


def start_script() -> Answer:
    """Return the script that shows the OpenAPI document."""
    return Answer(START, content_type=b"text/javascript; charset=utf-8")


@cache
def asset(name: str) -> Answer:
    """Return one of ``FILES``. Only call it if ``has_viewer()``."""
    return Answer((files(_PACKAGE) / _FOLDER / name).read_bytes(), content_type=FILES[name])
