"""A check of every answer that a server gives in the tests: its JSON is of the type that its route declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ojster.core.wire import ErrorAnswer
from ojster.server.answer import MEDIA_TYPE, Answer
from ojster.server.endpoint import Endpoint
from ojster.server.endpoints import routes_of
from ojster.server.request import HttpRequest
from ojster.server.route import Route

BY_HANDLER: dict[Callable[..., Any], Route] = {route.handler: route for route in routes_of()}


def check_answer(handler: Callable[..., Any], answer: Answer) -> None:
    """Fail if an answer is not of the type that the route of its handler declares."""
    if answer.stream is not None or answer.content_type != MEDIA_TYPE or not answer.body:
        return
    route = BY_HANDLER.get(inspect.unwrap(handler))
    if route is None:
        return
    failed = answer.status >= 400 and b'"error"' in answer.body[:10]
    kind = ErrorAnswer if failed else route.answer
    assert kind is not None, f"the route of {handler.__name__} declares no type of answer"
    try:
        msgspec.json.decode(answer.body, type=kind)
    except msgspec.ValidationError as error:
        if "out of range" in str(error):  # an argument or a result: any JSON number
            return
        pytest.fail(f"{handler.__name__} does not answer as its route declares: {error}\n{answer.body[:2000]!r}")


def check_all_answers(patch: pytest.MonkeyPatch) -> None:
    """Check every answer of every server in this process."""
    answer_of = Endpoint._answer

    async def checked(self: Endpoint, request: HttpRequest) -> Answer:
        answer = await answer_of(self, request)
        check_answer(self._handler, answer)
        return answer

    patch.setattr(Endpoint, "_answer", checked)
