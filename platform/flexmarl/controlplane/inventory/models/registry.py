"""Read-only views of the store's registry. The tables belong to `flexmarl.store`: no migration touches them."""

from django.db import models


class Ruled(models.Model):
    """What an administrator decided about a node or device, and what its agent measured."""

    note = models.TextField()
    drain_mode = models.TextField()
    drain_deadline = models.DateTimeField(null=True)
    drain_by = models.TextField()
    drain_since = models.DateTimeField(null=True)
    ruled = models.IntegerField()
    load = models.JSONField()

    class Meta:
        abstract = True


class Node(Ruled):
    name = models.TextField(primary_key=True)
    address = models.TextField()
    incarnation = models.TextField()
    version = models.TextField()
    facts = models.JSONField()
    state = models.TextField()
    registered_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = 'store"."node'
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Device(Ruled):
    id = models.TextField(primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.DO_NOTHING, db_column="node", related_name="devices")
    kind = models.TextField()
    ordinal = models.IntegerField()
    name = models.TextField()
    memory_bytes = models.BigIntegerField()
    pool = models.TextField()
    state = models.TextField()
    facts = models.JSONField()

    class Meta:
        managed = False
        db_table = 'store"."device'
        ordering = ["node", "kind", "ordinal"]

    def __str__(self) -> str:
        return self.id


class Lease(models.Model):
    id = models.BigIntegerField(primary_key=True)
    device = models.ForeignKey(Device, on_delete=models.DO_NOTHING, related_name="leases")
    run_id = models.BigIntegerField()
    """Number of the run (`Run.no`)."""
    use = models.TextField()
    state = models.TextField()
    fence = models.BigIntegerField()
    incarnation = models.TextField()
    endpoint = models.TextField()
    expires_at = models.DateTimeField()
    granted_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    reason = models.TextField()
    leader = models.ForeignKey(
        "self", on_delete=models.DO_NOTHING, null=True, db_column="leader", related_name="further"
    )
    """Of a further device of an engine: the lease that its child serves."""
    rank = models.IntegerField()
    """Place of the device among those of an engine."""

    class Meta:
        managed = False
        db_table = 'store"."lease'
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.device_id} for run {self.run_id} ({self.state})"


class Interval(models.Model):
    """A closed busy interval of a device, in the node's clock."""

    pk = models.CompositePrimaryKey("lease_id", "incarnation", "ord")
    lease_id = models.BigIntegerField()
    incarnation = models.TextField()
    ord = models.BigIntegerField()
    run_id = models.BigIntegerField()
    device_id = models.TextField()
    phase = models.TextField()
    policy = models.TextField()
    t0 = models.FloatField()
    t1 = models.FloatField()
    tokens = models.BigIntegerField()
    bytes = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = 'store"."interval'

    def __str__(self) -> str:
        return f"{self.device_id} {self.phase}"
