"""Tests of the shop."""

from shop import create_app, jobs, ship

from ojster.testing import JobTester

app = create_app()


def test_a_placed_order_is_shipped_in_the_context_of_the_application() -> None:
    with JobTester(jobs) as tester:
        answer = app.test_client().post("/orders/7")
        assert answer.status_code == 202
        tester.assert_enqueued(ship, 7)
        tester.drain()
        assert jobs.find(answer.get_json()["job"]).result() == "the shop ships 7"
