"""Where jobs are declared: classes, several applications in one, discovery, and mistakes."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from ojster import App, Depends, Gzip, InvalidRequest, Orchestrator, Worker, current_job
from ojster.core.values import to_millis
from ojster.handlers.job_class import type_of_class
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
def app(shared_url: str) -> Iterator[App]:
    with App(shared_url) as made:
        yield made


class Greeting:
    """Greets."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def run(self, name: str, by: Annotated[str, Depends(lambda: "Ada")] = "") -> str:
        self.told.append(name)
        return f"{by} greets {self.told} in attempt {current_job().attempt}"


class AsyncGreeting:
    async def run(self, name: str) -> str:
        return f"hello {name}"


async def test_a_class_is_a_handler_with_a_new_object_for_each_job(app: App) -> None:
    greet = app.job(Greeting)
    later = app.job("greet.later", queue="slow")(AsyncGreeting)
    assert (greet.type, greet.__doc__, later.type) == ("greeting", "Greets.", "greet.later")
    handles = [await greet.aenqueue("one"), await greet.aenqueue(name="two"), await later.aenqueue("three")]
    await Worker(app).run(until_empty=True)
    assert [await handle.aresult() for handle in handles] == [
        "Ada greets ['one'] in attempt 1",
        "Ada greets ['two'] in attempt 1",
        "hello three",
    ]
    with pytest.raises(TypeError, match="Expected `str`, got `int` - at `name`"):
        await greet.aenqueue(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "type"),
    [("SendEmail", "send_email"), ("HTTPCall", "http_call"), ("Report2", "report2"), ("X", "x"), ("lower", "lower")],
)
def test_the_name_of_a_class_becomes_a_job_type(name: str, type: str) -> None:
    assert type_of_class(types.new_class(name)) == type


def test_a_class_that_cannot_be_a_handler_is_refused(app: App) -> None:
    class NoRun: ...

    class Needs:
        def __init__(self, what: str) -> None: ...

        def run(self) -> None: ...

    with pytest.raises(TypeError, match=r"NoRun has no method run\(self, …\)"):
        app.job(NoRun)
    with pytest.raises(TypeError, match="created for each job without arguments, but: missing a required argument"):
        app.job(Needs)


async def test_an_application_takes_over_what_others_declare(app: App) -> None:
    said: list[str] = []
    mail, texts = App(), App()

    @mail.job("mail.send", queue="mail")
    def send(to: str) -> str:
        return f"sent to {to}"

    urgent = send.using(priority=9)

    @texts.lifespan
    async def hooks(given: App) -> Any:
        said.append("begins" if given is texts else "?")
        yield
        said.append("ends")

    @mail.cron("@daily", "ada")
    @mail.job("mail.digest")
    async def digest(to: str) -> None: ...

    @texts.orchestrator()
    class Layout(Orchestrator): ...

    texts.include(mail)
    app.include(texts)
    handles = [await send.aenqueue("ada"), await urgent.aenqueue("grace"), *await send.aenqueue_many([("joan",)])]
    assert urgent.app is mail
    assert [cron.name for cron in app.crons] == ["mail.digest"]
    assert list(app.orchestrators) == ["layout"]
    await Worker(app).run(until_empty=True)
    assert [await handle.aresult() for handle in handles] == ["sent to ada", "sent to grace", "sent to joan"]
    assert said == ["begins", "ends"]


def test_two_handlers_of_a_type_are_refused_with_both_places(app: App) -> None:
    other = App()

    @app.job("mail.send")
    def send() -> None: ...

    @other.job("mail.other")
    def first() -> None: ...

    @other.job("mail.send")
    def second() -> None: ...

    file = Path(__file__).name
    message = rf"'mail.send' already has a handler, .*send \(.*{file}:\d+\), so that .*second \(.*{file}:\d+\) cannot"
    with pytest.raises(ValueError, match=message):
        app.include(other)
    assert "mail.other" not in app.handlers


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with jobs in several places."""
    folder = tmp_path / "shop_of_test"
    for path in (".", "mail", "stock", "stock/deep"):
        (folder / path).mkdir(parents=True, exist_ok=True)
        (folder / path / "__init__.py").touch()
    (folder / "jobs.py").write_text("from ojster import App\napp = App('sqlite:///:memory:')\n")
    for path, type in ((".", "of.shop"), ("mail", "of.mail"), ("stock/deep", "of.stock")):
        text = f"from shop_of_test.jobs import app\n@app.job({type!r})\ndef handler(): ...\n"
        (folder / path / "tasks.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith("shop_of_test")]:
        del sys.modules[name]


def test_modules_with_jobs_are_found_in_all_packages_of_a_package(shop: Path) -> None:
    from shop_of_test.jobs import app  # type: ignore[import-not-found]

    app.discover("shop_of_test")
    assert sorted(app.handlers) == ["of.mail", "of.shop", "of.stock"]


def test_what_cannot_be_imported_is_no_silence(shop: Path) -> None:
    from shop_of_test.jobs import app

    with pytest.raises(ImportError, match=r"'shop_of_test\.jobs' is a module, not a package"):
        app.discover("shop_of_test.jobs")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        app.discover("no_such_package")
    (shop / "stock" / "__init__.py").write_text("import no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        app.discover("shop_of_test")


async def test_a_blocking_call_in_a_coroutine_warns_at_its_line(app: App) -> None:
    @app.job("one")
    def one() -> None: ...

    with pytest.warns(RuntimeWarning, match="holds up the event loop.* such as aenqueue") as seen:
        one.enqueue()
    assert seen[0].filename == __file__


async def test_an_included_application_has_the_codecs_of_the_outermost(shared_url: str) -> None:
    inner, middle = App(), App()

    @inner.job("inner.secret")
    def secret(word: str) -> str:
        return word

    middle.include(inner)
    async with App(shared_url, codecs=[Gzip()]) as outer:
        outer.include(middle)
        handle = await secret.aenqueue("password" * 50)
        assert "password" not in str(handle.job.args)
        await Worker(outer).run(until_empty=True)
        assert await handle.aresult(PATIENCE) == "password" * 50


def test_an_application_is_included_once_and_not_in_itself(app: App) -> None:
    other, third = App(), App()
    app.include(other)
    for one, given in ((app, app), (app, other), (third, other), (other, app)):
        with pytest.raises(ValueError, match="included once, and not in itself"):
            one.include(given)


def test_two_cron_jobs_of_a_name_are_refused(app: App) -> None:
    other = App()

    @app.cron("@daily", name="nightly")
    @app.job("one")
    def one() -> None: ...

    @other.cron("@hourly", name="nightly")
    @other.job("two")
    def two() -> None: ...

    with pytest.raises(ValueError, match="The cron job 'nightly' is already declared"):
        app.include(other)
    assert "two" not in app.handlers


async def test_a_job_type_is_found_by_its_name_whoever_has_the_handler(shared_url: str) -> None:
    producer, consumer = App(shared_url), App(shared_url)

    @consumer.job("order.ship", queue="ships")
    async def ship(order: int) -> dict[str, int]:
        return {"shipped": order}

    handle = await producer.job_type("order.ship", queue="ships").aenqueue(7)
    await Worker(consumer).run(until_empty=True)
    assert await handle.aresult(PATIENCE) == {"shipped": 7}
    assert consumer.job_type("order.ship").options.queue == "ships"
    with pytest.raises(InvalidRequest, match="'Order Ship' is invalid"):
        producer.job_type("Order Ship")
    for app in (producer, consumer):
        await app.aclose()


@pytest.mark.parametrize("wrong", ["10", True, None, [1]])
def test_a_duration_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a duration must be a number of seconds or a timedelta"):
        to_millis(wrong)
