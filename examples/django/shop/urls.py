"""The pages of the shop."""

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt

from shop.models import Order
from shop.tasks import ship


@csrf_exempt
@transaction.atomic
def place(request: HttpRequest, number: int) -> JsonResponse:
    """Place an order. If that fails, nothing is shipped."""
    Order.objects.create(number=number)
    return JsonResponse({"task": ship.enqueue(number).id}, status=202)


urlpatterns = [
    path("orders/<int:number>", place),
    path("admin/", admin.site.urls),
    path("ops/", include("ojster.django.urls")),  # the dashboard, for superusers
]
