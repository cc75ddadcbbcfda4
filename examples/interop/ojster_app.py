"""The jobs of the Ojster worker that shares a queue with workers of the official SDKs.

ojster worker ojster_app:app --url http://127.0.0.1:8080 --queues interop
"""

from typing import Any

from ojster import App

app = App()


@app.job("ojster.greet")
async def greet(given: dict[str, Any]) -> dict[str, Any]:
    return {"by": "ojster", "greeting": f"Hello, {given['name']}!"}


@app.job("interop.echo")
async def echo(given: dict[str, Any]) -> dict[str, Any]:
    return {"by": "ojster", "echo": given}
