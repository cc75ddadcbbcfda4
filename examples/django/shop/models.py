"""What the shop stores."""

from django.db import models


class Order(models.Model):
    """An order."""

    number = models.IntegerField(unique=True)
    shipped_at = models.DateTimeField(null=True)
