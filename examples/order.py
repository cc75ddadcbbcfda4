"""A workflow that checks, approves, charges, packs and ships an order, and refunds the payment if a later step fails.

python examples/order.py          # runs the workflow with its own worker and prints the result
"""

import asyncio
import tempfile

from ojster import App, JobContext, Worker, chain, each, element, gate, group, param, result_of, saga

app = App()


@app.job("order.check")
async def check(order: int) -> dict[str, object]:
    return {"order": order, "cents": 12_500, "parcels": ["books", "lamp"]}


@app.job("payment.charge")
async def charge(cents: int) -> str:
    return f"paid {cents}"


@app.job("payment.refund")
async def refund(cents: int) -> str:
    return f"gave back {cents}"


@app.job("parcel.pack")
async def pack(parcel: str) -> str:
    return f"packed {parcel}"


@app.job("order.ship")
async def ship(context: JobContext) -> str:
    # The results of all predecessor steps, by index: the check, the approval, the payment, and the parcels.
    return f"shipped {len(context.parent_results['3'])} parcels"


@app.job("order.tell")
async def tell(order: int, channel: str) -> str:
    return f"told by {channel} of order {order}"


cents = result_of("check")["cents"]
order = chain(
    saga(
        check.s(param("order")).set(id="check"),
        gate("approval", display_name="Review of the order"),
        charge.s(cents).set(id="charge", compensate=refund.s(cents)),
        each(result_of("check")["parcels"], pack.s(element())),
        ship.s(),
    ),
    group(tell.s(param("order"), "mail"), tell.s(param("order"), "sms").set(allow_failure=True)),
    name="order",
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app.url = f"sqlite:///{folder}/jobs.db"
        run = await app.astart(order, params={"order": 42}, timeout=3600)
        worker = Worker(app)
        working = asyncio.create_task(worker.run())
        async for info in run.awatch():
            print(info.state, [f"{step.label}: {step.state}" for step in info.walk() if step.state == "active"])
            for step in info.walk():
                if step.state == "blocked":
                    await run.aapprove(step.path, "looks good", author="ada")
        print(await run.aresult())
        print(run.draw())
        worker.stop()
        await working
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
