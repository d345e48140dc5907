"""What replies of trained agents were held to, each text once in a run."""

from django.db import migrations

# A new database has it already.
ADD = """
CREATE TABLE IF NOT EXISTS store.reply_grammar (
  run_id bigint NOT NULL, digest text NOT NULL, body text NOT NULL,
  PRIMARY KEY (run_id, digest)
);
"""


class Migration(migrations.Migration):
    dependencies = [("common", "0007_sharing")]

    operations = [migrations.RunSQL(ADD, migrations.RunSQL.noop)]
