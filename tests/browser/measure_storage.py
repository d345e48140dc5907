"""Writes what a storage pass measured into the database that DATABASE_URL names, for the runs that RUNS names."""

import os

from tests.browser import preloaded

if __name__ == "__main__":
    preloaded.begin()
    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.controlplane.runs.models import Run
    from flexmarl.store.reads import storage
    from flexmarl.store.reads.storage import Pass, Use

    kinds = ("samples", "episodes", "events", "log", "series", "checkpoints")
    numbers = Run.objects.filter(key__in=os.environ["RUNS"].split()).values_list("no", flat=True)
    uses = [Use(no, kind, 1000, 50_000_000) for no in numbers for kind in kinds]
    storage.save(store_connection(), uses, Pass(1000.0, 1002.0, "atlas", {"database": 10**8, "free": 10**10}, []))
