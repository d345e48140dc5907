"""A dataset to look at, in two versions."""

from typing import Any
from uuid import UUID

DATASET = UUID("01900000-0000-7000-8000-00000000000d")


def datasets(owner: Any) -> None:
    """Import sums twice, the second time with more of them."""
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.datasets.models import Dataset
    from tests.support.controlplane import make_dataset

    Dataset.objects.create(id=DATASET, project_id="default", name="school_sums")
    for rows in (40, 120):
        make_dataset(actor_of_user(owner), name="school_sums", rows=rows)
