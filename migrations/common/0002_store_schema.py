"""Create the experience store and the registry (schema `store`). Their SQL belongs to `flexmarl.store`."""

from django.db import migrations

from flexmarl.controlplane.common.store import store_connection
from flexmarl.store import schema


def apply(apps, editor):
    schema.apply(store_connection())


class Migration(migrations.Migration):
    dependencies = [("common", "0001_initial")]

    operations = [migrations.RunPython(apply, migrations.RunPython.noop)]
