"""What the shop does in the background."""

from django.utils import timezone

from shop.models import Order

try:
    from django.tasks import TaskContext, task
except ImportError:  # Django 5.2 with the package django-tasks
    from django_tasks import TaskContext, task


class OutOfStock(Exception):
    """There is nothing to ship."""


@task
def ship(number: int) -> str:
    """Ship an order."""
    if number < 0:
        raise OutOfStock(f"order {number}")
    Order.objects.filter(number=number).update(shipped_at=timezone.now())
    return f"order {number} is shipped"


@task(queue_name="mail", priority=5, takes_context=True)
async def tell(context: TaskContext, number: int, *, name: str = "you") -> dict[str, int | str]:
    """Tell a customer about an order."""
    await Order.objects.aget(number=number)
    return {"told": name, "attempt": context.attempt}
