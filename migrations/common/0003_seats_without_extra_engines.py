"""A request for an engine above a run's minimum holds no seat: nobody is kept waiting by it."""

from django.db import migrations

REPLACE = """
CREATE OR REPLACE VIEW store.seat AS
SELECT r.project, d.pool, 1 AS devices
  FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.run_state r USING (run_id)
  WHERE l.state <> 'ended' AND l.beside IS NULL AND NOT EXISTS (
    SELECT 1 FROM store.lease old
    WHERE old.id = l.replaces AND old.run_id = l.run_id AND old.state <> 'ended')
UNION ALL
SELECT r.project, wanted.pool, wanted.devices
  FROM store.command c JOIN store.run_state r USING (run_id)
    CROSS JOIN LATERAL (VALUES
      (c.body ->> 'pool', (c.body ->> 'engines')::int * coalesce((c.body ->> 'engine_devices')::int, 1)),
      (coalesce(nullif(c.body ->> 'trainer_pool', ''), c.body ->> 'pool'), (c.body ->> 'trainers')::int)
    ) AS wanted(pool, devices)
  WHERE c.kind = 'request_devices' AND c.status = 'open' AND coalesce((c.body ->> 'replaces')::bigint, 0) = 0
    AND NOT c.body ? 'extra'
    AND wanted.devices > 0
    AND r.status NOT IN ('completed', 'failed', 'cancelled', 'killed')
    AND EXISTS (SELECT 1 FROM store.lease l WHERE l.run_id = c.run_id AND l.state = 'held')
"""


class Migration(migrations.Migration):
    dependencies = [("common", "0002_session_actors")]

    operations = [migrations.RunSQL(REPLACE, migrations.RunSQL.noop)]
