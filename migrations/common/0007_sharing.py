"""What runs exchange with other installations: reports of rollout workers, and the contents that were used."""

from django.db import migrations

# A new database has them already.
ADD = """
CREATE TABLE IF NOT EXISTS store.sharing (
  run_id bigint NOT NULL, worker text NOT NULL, at timestamptz NOT NULL, state text NOT NULL, reason text NOT NULL,
  published bigint NOT NULL, received bigint NOT NULL, used bigint NOT NULL, refused jsonb NOT NULL,
  PRIMARY KEY (run_id, worker)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS store.shared_rollout (
  run_id bigint NOT NULL, digest text NOT NULL,
  PRIMARY KEY (run_id, digest)
);
"""


class Migration(migrations.Migration):
    dependencies = [("common", "0006_replayed_micro_batches")]

    operations = [migrations.RunSQL(ADD, migrations.RunSQL.noop)]
