"""A lease says of which pool its device was when it was granted, and prices of pools are kept over time."""

from django.db import migrations

# A new database has all of it already.
ADD = """
ALTER TABLE store.lease ADD COLUMN IF NOT EXISTS pool text NOT NULL DEFAULT '';
UPDATE store.lease l SET pool = d.pool FROM store.device d WHERE d.id = l.device_id AND l.pool = '';
CREATE OR REPLACE FUNCTION store.lease_of_pool() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  SELECT pool INTO NEW.pool FROM store.device WHERE id = NEW.device_id;
  NEW.pool := coalesce(NEW.pool, '');
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER lease_pool BEFORE INSERT ON store.lease
  FOR EACH ROW EXECUTE FUNCTION store.lease_of_pool();
CREATE TABLE IF NOT EXISTS store.pool_price (
  pool  text NOT NULL,
  since timestamptz NOT NULL DEFAULT clock_timestamp(),
  price double precision CHECK (price >= 0),
  PRIMARY KEY (pool, since)
);
INSERT INTO store.pool_price (pool, since, price)
  SELECT name, to_timestamp(0), device_hour_price FROM inventory_pool p
  WHERE device_hour_price IS NOT NULL AND NOT EXISTS (SELECT 1 FROM store.pool_price known WHERE known.pool = p.name);
"""


class Migration(migrations.Migration):
    dependencies = [("common", "0003_seats_without_extra_engines"), ("inventory", "0004_preemptible")]

    operations = [migrations.RunSQL(ADD, migrations.RunSQL.noop)]
