"""A session says who took it and whose report stands."""

from django.db import migrations

ADD = """
ALTER TABLE store.program_session ADD COLUMN IF NOT EXISTS taken_by text NOT NULL DEFAULT '',
  ADD COLUMN IF NOT EXISTS reported_by text NOT NULL DEFAULT ''
"""


class Migration(migrations.Migration):
    dependencies = [("common", "0001_initial")]

    operations = [migrations.RunSQL(ADD, migrations.RunSQL.noop)]
