"""A session says in which image its command ran."""

from django.db import migrations

ADD = "ALTER TABLE store.program_session ADD COLUMN IF NOT EXISTS image text NOT NULL DEFAULT ''"


class Migration(migrations.Migration):
    dependencies = [("common", "0004_prices_of_leases")]

    operations = [migrations.RunSQL(ADD, migrations.RunSQL.noop)]
