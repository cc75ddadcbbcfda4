"""Create the table of the orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first migration."""

    initial = True
    operations = [
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("number", models.IntegerField(unique=True)),
                ("shipped_at", models.DateTimeField(null=True)),
            ],
        )
    ]
