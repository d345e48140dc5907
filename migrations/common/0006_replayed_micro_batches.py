"""Micro-batches say whether their rows come from the archive of replay."""

from django.db import migrations

# A new database has it already.
ADD = "ALTER TABLE store.micro_batch ADD COLUMN IF NOT EXISTS replayed boolean NOT NULL DEFAULT false;"


class Migration(migrations.Migration):
    dependencies = [("common", "0005_images_of_sessions")]

    operations = [migrations.RunSQL(ADD, migrations.RunSQL.noop)]
