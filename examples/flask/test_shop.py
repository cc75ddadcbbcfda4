"""Tests of the shop."""

from shop import PASSWORD, create_app, jobs, ship

from ojster.testing import JobTester

app = create_app()


def test_a_placed_order_is_shipped_in_the_context_of_the_application() -> None:
    with JobTester(jobs) as tester:
        answer = app.test_client().post("/orders/7")
        assert answer.status_code == 202
        tester.assert_enqueued(ship, 7)
        tester.drain()
        assert jobs.find(answer.get_json()["job"]).result() == "the shop ships 7"


def test_operators_see_the_dashboard_and_others_do_not() -> None:
    with JobTester(jobs):
        client = app.test_client()
        order = client.post("/orders/7").get_json()["job"]
        assert client.get("/ops/dashboard/").status_code == 401
        assert client.delete(f"/ops/ojs/v1/jobs/{order}").status_code == 401
        operator = {"auth": ("ada", PASSWORD)}
        page = client.get("/ops/dashboard/jobs/x", **operator)
        assert (page.status_code, page.mimetype) == (200, "text/html")
        assert client.get("/ops/ojs/v1/jobs", **operator).get_json()["jobs"][0]["id"] == order
        assert client.get("/ops/ojs/v1/events/changes", **operator).status_code == 422
        foreign = client.delete(f"/ops/ojs/v1/jobs/{order}", headers={"Origin": "http://evil.example"}, **operator)
        assert foreign.status_code == 403
        done = client.delete(f"/ops/ojs/v1/jobs/{order}", **operator)
        assert done.get_json()["job"]["state"] == "cancelled"
