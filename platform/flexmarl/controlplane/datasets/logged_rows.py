"""Whether rows of a dataset hold conversations that can be replayed: looked at when a run of them is submitted."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification.logged import LoggedEpisodes
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.datasets import naming, queries
from flexmarl.language.dataset_rows import from_line
from flexmarl.language.logged import NotLogged, tools_of, turns_of

LOOKED_AT = 100
"""Rows that have to be conversations; of one behind them its episodes fail, with the same reason."""


def refusals(actor: Actor, environment: LoggedEpisodes) -> Iterator[Problem]:
    """Refuse columns that the rows do not have, and rows without a conversation. The dataset is a pinned one."""
    dataset = environment.dataset
    version = queries.usable(actor, dataset.project, dataset.name).filter(number=dataset.version or 0).first()
    if version is None:
        yield naming.gone(dataset)
        return
    unknown = [
        Problem(
            pointer=f"/environment/{field}",
            code="unknown_column",
            detail=f"{dataset.name} {dataset.version} has no column {column}.",
            hint=_hint(column, version.columns),
        )
        for field, column in (("column", environment.column), ("tools_column", environment.tools_column))
        if column and column not in version.columns
    ]
    yield from unknown
    if unknown:
        return
    for row in queries.rows(version)[:LOOKED_AT]:
        try:
            task = from_line(bytes(row.line))
            turns_of(task, environment.column, environment.most_turns)
            tools_of(task, environment.tools_column)
        except NotLogged as error:
            yield Problem(
                pointer=f"{naming.WHERE}/name",
                code="not_logged",
                detail=f"Row {row.place} of {dataset.name} {dataset.version} cannot be replayed: {error}.",
                hint="Import it without such rows, or name in environment.column the column with the conversation.",
            )
            return


def _hint(column: str, columns: list[str]) -> str:
    close = nearest(column, columns)
    has = ", ".join(columns[:10]) or "none beside prompt and answer"
    return f"Did you mean {close}?" if close else f"It has {has}."
