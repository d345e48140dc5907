"""Whether rows of a dataset are tasks of NeMo Gym: looked at when a run of them is submitted."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.nemo_gym import NemoGymUrl
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.datasets import naming, queries
from flexmarl.language.dataset_rows import from_line
from flexmarl.language.gym_rows import REQUEST, NotOfGym, task_of

LOOKED_AT = 100
"""Rows that have to be tasks; of one behind them its episodes fail, with the same reason."""


def refusals(actor: Actor, environment: NemoGymUrl) -> Iterator[Problem]:
    """Refuse rows that are no tasks of NeMo Gym. The dataset is a pinned one."""
    dataset = environment.dataset
    version = queries.usable(actor, dataset.project, dataset.name).filter(number=dataset.version or 0).first()
    if version is None:
        yield naming.gone(dataset)
        return
    for row in queries.rows(version)[:LOOKED_AT]:
        try:
            task_of(from_line(bytes(row.line)))
        except NotOfGym as error:
            yield Problem(
                pointer=f"{naming.WHERE}/name",
                code="not_of_gym",
                detail=f"Row {row.place} of {dataset.name} {dataset.version} is no task of NeMo Gym: {error}.",
                hint=f"Import the data of the environment unchanged, with {REQUEST} as the column of the request.",
            )
            return
