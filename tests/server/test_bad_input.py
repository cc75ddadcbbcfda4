"""Invalid input: the server rejects it with the error body of the specification, never with a 500."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojster.core.ids import new_id
from ojster.server.endpoints import routes_of
from ojster.server.route import Route
from tests.conftest import Http

ROUTES = routes_of()

pytestmark = pytest.mark.anyio

BODIES: list[bytes] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"1",
    b"{}",
    b"\xff\xfe",
    b'{"a":"\xff"}',
    b'{"a":NaN}',
    b'{"a":"\\ud800"}',
    b'{"a":1,"a":2}',
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"a":1e999999}',
    b'{"job_id":1,"queues":{},"worker_id":[],"name":{},"jobs":1,"acks":"x","nacks":null,"type":null,"args":1}',
    b'{"job_id":"\\u0000","queues":["\\u0000"],"worker_id":"\\u0000","name":"\\u0000","type":"\\u0000","args":[]}',
    b'{"job_id":"x","error":{"code":[]},"queues":[""],"count":-1,"worker_id":"","enabled":"yes","progress":"x"}',
    b'{"queues":["default"],"count":1000000000000000000000000,"worker_id":"w","job_id":"x","progress":1e999}',
]

TAGS = sorted({route.tag for route in ROUTES})
"""Tags of routes: those with the same are tried on one server, one after the other."""


def path_of(route: Route, value: str = "x") -> str:
    return re.sub(r"\{\w+\}", lambda _: value, route.path)


def assert_refused(response: Any) -> None:
    what = f"{response.request.method} {response.request.url}: {response.text}"
    assert 400 <= response.status_code < 500, what
    error = response.json()["error"]
    assert error["code"], what
    assert error["message"], what
    assert error["retryable"] is False, what
    assert error["request_id"] == response.headers["x-request-id"], what


@pytest.mark.parametrize("tag", TAGS)
async def test_no_bad_body_causes_a_failure_of_the_server(http: Http, tag: str) -> None:
    routes = [route for route in ROUTES if route.tag == tag and route.method in ("POST", "PUT", "PATCH")]
    for route, body in itertools.product(routes, BODIES):
        response = await http(route.method, path_of(route), body)
        assert response.status_code < 500, (route.method, route.path, body[:80], response.text)
        if response.status_code >= 400:
            assert_refused(response)


@pytest.mark.parametrize("tag", TAGS)
async def test_no_strange_path_causes_a_failure_of_the_server(http: Http, tag: str) -> None:
    routes = [route for route in ROUTES if route.tag == tag and "{" in route.path]
    values = ("x", "%00", "a%2Fb", "%F0%9F%92%A9", "x" * 3000, "..", "'%20OR%201=1")
    for route, value in itertools.product(routes, values):
        response = await http(route.method, path_of(route, value), b"{}" if route.method != "GET" else None)
        assert response.status_code < 500, (route.method, route.path, value, response.text)


async def test_a_body_over_the_limit_is_refused_by_its_length_alone(http: Http) -> None:
    response = await http("POST", "/ojs/v1/jobs", b"x" * 200_001)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "payload_too_large")
    assert response.json()["error"]["details"]["limit"] == 200_000


async def test_a_body_over_the_limit_in_pieces_is_refused_too(http: Http) -> None:
    async def pieces() -> Any:
        for _ in range(30):
            yield b"x" * 10_000

    response = await http.client.post("/ojs/v1/jobs", content=pieces())
    assert response.status_code == 413


async def test_a_body_in_pieces_is_put_together(http: Http) -> None:
    async def pieces() -> Any:
        for piece in (b'{"type":', b'"a",', b'"args":[1]}'):
            yield piece

    response = await http.client.post("/ojs/v1/jobs", content=pieces())
    assert response.json()["job"]["args"] == [1]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "multipart/form-data; boundary=x", "application/jsonp"]
)
async def test_another_content_type_is_refused(http: Http, kind: str) -> None:
    body = b'{"type":"a","args":[]}'
    response = await http("POST", "/ojs/v1/jobs", body, headers={"Content-Type": kind})
    assert response.status_code == 400
    assert kind.split(";")[0] in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "kind", ["application/json", "application/openjobspec+json", "application/json; charset=utf-8"]
)
async def test_json_content_types_are_accepted(http: Http, kind: str) -> None:
    body = b'{"type":"a","args":[]}'
    assert (await http("POST", "/ojs/v1/jobs", body, headers={"Content-Type": kind})).status_code == 201


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def test_json_is_accepted_with_the_content_type_that_curl_sends(http: Http) -> None:
    body = b'{"type":"a","args":[]}'
    assert (await http("POST", "/ojs/v1/jobs", body, headers=FORM)).status_code == 201


@pytest.mark.parametrize("header", ["Origin", "Referer", "Sec-Fetch-Site"])
async def test_a_form_of_a_web_page_is_refused_and_told_what_to_send(http: Http, header: str) -> None:
    value = "same-origin" if header.startswith("Sec") else str(http.client.base_url).rstrip("/")
    response = await http("POST", "/ojs/v1/jobs", b'{"type":"a","args":[]}', headers=FORM | {header: value})
    assert response.status_code == 400
    assert "Send JSON with the header Content-Type: application/json" in response.json()["error"]["message"]


async def test_strings_with_nul_and_any_script_come_back_as_they_were(http: Http) -> None:
    strange = ["\u0000", "a\u0000b", "\U0001f4a9", "\u202e", "\ufeff", "\u2028", "", " ", "'; DROP TABLE jobs; --"]
    job = await http.push(args=strange, meta={text or "empty": text for text in strange}, x_own=strange)
    found = (await http("GET", f"/ojs/v1/jobs/{job['id']}")).json()["job"]
    assert found["args"] == found["x_own"] == strange
    assert list(found["meta"].values()) == strange


async def test_a_worker_may_have_any_name_without_nul(http: Http) -> None:
    refused = await http("POST", "/ojs/v1/workers/fetch", {"queues": ["default"], "worker_id": "a\u0000b"})
    assert refused.status_code == 400
    for name in ('"quoted"', "\U0001f600", "a\\b"):
        await http.push()
        (job,) = await http.fetch(worker_id=name)
        assert job["worker_id"] == name
        beat = await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": name, "active_jobs": [job["id"]]})
        assert beat.json()["jobs_extended"] == [job["id"]]


@given(body=st.dictionaries(st.text(max_size=8), st.text() | st.integers() | st.none() | st.lists(st.text())))
@settings(max_examples=50)
async def test_unknown_attributes_come_back(http: Http, body: dict[str, Any]) -> None:
    own = {f"x_{name}": value for name, value in body.items()}
    try:
        content = json.dumps({"type": "a", "args": []} | own).encode()
        json.dumps(own, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    response = await http("POST", "/ojs/v1/jobs", content)
    assert response.status_code == 201
    job = response.json()["job"]
    assert {name: job[name] for name in own} == own


async def test_ids_that_are_none_are_not_found(http: Http) -> None:
    for id in (new_id(), "x", "%20"):
        response = await http("GET", f"/ojs/v1/jobs/{id}")
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["code"], error["retryable"]) == ("not_found", False)
        assert error["hint"]
        assert error["docs_url"]


@pytest.mark.parametrize("separator", [",", ", "])
async def test_a_great_many_members_cost_no_more_than_reading_them(http: Http, separator: str) -> None:
    names = separator.join(f'"k{number}":1' for number in range(10_000))
    response = await http("POST", "/ojs/v1/jobs", f'{{"type":"a","args":[],{names}}}'.encode())
    assert response.status_code == 201
    repeated = await http("POST", "/ojs/v1/jobs", f'{{"type":"a","args":[],{names},"k7":2}}'.encode())
    assert "'k7' twice" in repeated.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        '{"type":"a","args":["meta k"],"meta":{"k":1,"k":2}}',
        '{"type":"a","args":[],"meta": {"k": 1, "k": 2}}',
        '{"type":"a","args":[],"options":{"queue":"a","queue":"b"}}',
        '{"type":"a","args":[],"options":{"retry":{"max_attempts":1,"max_attempts":2}}}',
        '{"type":"a","args":[],"x/y":1,"x\\/y":2}',
        '{"type":"a","args":[],"x":1,"\\u0078":2}',
    ],
)
async def test_a_member_that_stands_twice_is_refused_wherever_the_server_looks(http: Http, body: str) -> None:
    response = await http("POST", "/ojs/v1/jobs", body.encode())
    assert_refused(response)
    assert "twice" in response.json()["error"]["message"]


async def test_the_deepest_nesting_that_is_allowed_is_exact(http: Http) -> None:
    for depth, status in ((63, 201), (64, 400)):  # args and the job itself add two levels
        args = "[" * depth + "]" * depth + "," + ",".join(["[]"] * 200)
        response = await http("POST", "/ojs/v1/jobs", f'{{"type":"a","args":[{args}]}}'.encode())
        assert response.status_code == status, response.text


async def test_numbers_beyond_all_bounds_are_kept_or_refused(http: Http) -> None:
    escaped = b'{"type":"a","args":["\\ud83d\\ude00",' + b"9" * 5000 + b"]}"
    assert (await http("POST", "/ojs/v1/jobs", escaped)).status_code == 201
    for change in ({"pid": 10**30}, {"pid": -1}, {"concurrency": 10**30}, {"concurrency": 0}):
        assert_refused(await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"} | change))


async def test_a_wrong_method_is_told_the_right_ones(http: Http) -> None:
    one = {"GET", "HEAD", "PATCH", "DELETE"}
    for path, methods in (("/ojs/v1/jobs", {"GET", "HEAD", "POST"}), ("/ojs/v1/jobs/x", one)):
        response = await http("PUT", path)
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == methods


@pytest.mark.parametrize("path", ["/ojs/v1/jobs/", "/nothing", "/ojs/v1/workflows/x"])
async def test_a_path_that_is_not_served_is_refused_like_everything_else(http: Http, path: str) -> None:
    response = await http("GET", path)
    assert_refused(response)
    assert response.headers["ojs-version"] == "1.0"
    assert response.status_code == 404
