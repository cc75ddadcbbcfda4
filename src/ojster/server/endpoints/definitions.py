"""Endpoints for workflow definitions."""

from __future__ import annotations

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.wire import DeletedAnswer
from ojster.server.answer import Answer, encode
from ojster.server.pages import flag, object_of, offset_page_of, offset_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, PAGE, Route, location
from ojster.workflows.answer_wire import DefinitionAnswer, DefinitionsAnswer, show_definition
from ojster.workflows.definition import Definition, has_metadata
from ojster.workflows.definitions import DefinitionDeletion, Named
from ojster.workflows.wire import DefinitionBody


async def create_definition(request: HttpRequest) -> Answer:
    """Create a workflow definition: a name, and the members that all its workflows share."""
    members = await request.members()
    if "name" not in members:
        raise InvalidRequest("The definition has no 'name'. Add one.", field="name", validation="required")
    try:
        name = msgspec.json.decode(members["name"], type=str)
    except msgspec.ValidationError:
        raise InvalidRequest("The 'name' of a definition must be a string.", field="name") from None
    made = await request.service.definitions.create(name, members)
    return _answer(made, 201, (location("definitions", made.name),))


async def list_definitions(request: HttpRequest) -> Answer:
    """List the latest version of each definition, sorted by name, or only of the one called ``name``.

    With ``metadata``, a JSON object, only those whose metadata has its members.
    """
    limit, offset = offset_page_of(request.query)
    definitions = await request.service.definitions.all()
    if (name := request.query.get("name")) is not None:
        definitions = [definition for definition in definitions if definition.name == name]
    if wanted := object_of(request.query, "metadata"):
        definitions = [definition for definition in definitions if has_metadata(definition, wanted)]
    shown = [show_definition(definition) for definition in definitions[offset : offset + limit]]
    return Answer(encode(DefinitionsAnswer(shown, offset_pagination(len(definitions), limit, offset))))


async def show_latest(request: HttpRequest) -> Answer:
    """Show the latest version of a definition."""
    return _answer(await request.service.definitions.find(Named(request.path["name"])))


async def show_version(request: HttpRequest) -> Answer:
    """Show one version of a definition."""
    version = request.path["version"]
    if not (version.isascii() and version.isdigit() and len(version) < 10):
        raise InvalidRequest("The version in the path is not a number. Use digits.", field="version")
    return _answer(await request.service.definitions.find(Named(request.path["name"], int(version))))


async def update_definition(request: HttpRequest) -> Answer:
    """Add a new version to a definition, unless it equals the latest version."""
    return _answer(await request.service.definitions.update(request.path["name"], await request.members()))


async def delete_definition(request: HttpRequest) -> Answer:
    """Delete a definition; with ``force=true`` even if it has unfinished workflows, which continue to run."""
    name = request.path["name"]
    await request.service.definitions.delete(DefinitionDeletion(name, flag(request.query, "force")))
    return Answer(encode(DeletedAnswer(name)))


def _answer(definition: Definition, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    return Answer(encode(DefinitionAnswer(show_definition(definition))), status, headers)


_PATH = f"{BASE}/definitions/{{name}}"

ROUTES = (
    Route(
        "POST",
        f"{BASE}/definitions",
        create_definition,
        "Definitions",
        DefinitionBody,
        DefinitionAnswer,
        status=201,
        large=True,
    ),
    Route(
        "GET",
        f"{BASE}/definitions",
        list_definitions,
        "Definitions",
        answer=DefinitionsAnswer,
        query=("name", "metadata", *PAGE),
    ),
    Route("GET", _PATH, show_latest, "Definitions", answer=DefinitionAnswer),
    Route("PUT", _PATH, update_definition, "Definitions", DefinitionBody, DefinitionAnswer, large=True),
    Route("DELETE", _PATH, delete_definition, "Definitions", answer=DeletedAnswer, query=("force",)),
    Route("GET", f"{_PATH}/versions/{{version}}", show_version, "Definitions", answer=DefinitionAnswer),
)
