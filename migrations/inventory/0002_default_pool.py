"""Describe the pool that devices join unless their node says otherwise."""

from django.db import migrations


def create(apps, editor):
    apps.get_model("inventory", "Pool").objects.get_or_create(
        name="default", defaults={"description": "Devices join it unless their node names another pool."}
    )


class Migration(migrations.Migration):
    dependencies = [("common", "0002_store_schema"), ("inventory", "0001_initial")]

    operations = [migrations.RunPython(create, migrations.RunPython.noop)]
