"""Where nodes with tokens of one pool read contents from each other."""

from django.db import migrations

# A new database has them already.
ADD = """
ALTER TABLE store.node ADD COLUMN IF NOT EXISTS peer_address text NOT NULL DEFAULT '';
ALTER TABLE store.node ADD COLUMN IF NOT EXISTS peer_key text NOT NULL DEFAULT '';
"""


class Migration(migrations.Migration):
    dependencies = [("common", "0008_reply_grammars")]

    operations = [migrations.RunSQL(ADD, migrations.RunSQL.noop)]
