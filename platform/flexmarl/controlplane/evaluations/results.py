"""What an evaluation came to: a table of models by parts of the suite, and the leaderboard of a suite.

Invariant: figures are made of the stored episodes at every read, so they say the same as the trajectories behind them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flexmarl.algorithms.pass_rates import Rate, difference_p, holm, mean_of, pass_at_k, pass_rate
from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import TERMINAL, RunStatus, shown_status
from flexmarl.contracts.suites import SuiteContent
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.evaluations import queries
from flexmarl.controlplane.evaluations.models import EvaluationCell, ModelEvaluation, SuiteVersion
from flexmarl.store.reads.evaluation_rows import TaskRow, task_rows

SIGNIFICANT = 0.05


def ks_of(attempts: int) -> list[int]:
    """List the k of pass@k that are shown: powers of two up to the attempts of a task, and these."""
    return sorted({2**power for power in range(attempts.bit_length()) if 2**power <= attempts} | {attempts})


def played(content: SuiteContent, cells: Iterable[EvaluationCell]) -> dict[int, list[TaskRow]]:
    """Read what the runs of cells have played: number of the run -> its tasks."""
    tasks = {cell.run.no: content.parts[cell.part].tasks for cell in cells if cell.run is not None}
    found: dict[int, list[TaskRow]] = {no: [] for no in tasks}
    for row in task_rows(store_connection(), tasks):
        found[row.run_id].append(row)
    return found


def detail(made: ModelEvaluation) -> dict[str, Any]:
    """Return an evaluation with its table."""
    content = SuiteContent.model_validate(made.suite_version.content)
    cells = queries.cells(made)
    tasks = played(content, cells)
    table = [cell_row(content, cell, tasks.get(cell.run.no if cell.run else -1, [])) for cell in cells]
    rows = [
        {"entry": place, "label": entry["label"], "model": entry["model"], "external": entry["external"],
         "cells": [cell for cell in table if cell["entry"] == place]}
        for place, entry in enumerate(made.entries)
    ]  # fmt: skip
    return {
        **queries.evaluation_row(made),
        "state": state_of([cell["state"] for cell in table]),
        "parts": [part.name for part in content.parts],
        "attempts": content.attempts,
        "greedy": content.greedy,
        "seed": content.seed,
        "ks": ks_of(content.attempts),
        "table": rows,
        "allowed_actions": allowed(table),
    }


def state_of(states: Sequence[str]) -> str:
    """Return the state of an evaluation from those of its cells."""
    for state in ("running", "waiting", "stopped", "failed"):
        if state in states:
            return state
    return "done"


def allowed(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """List what may be asked of an evaluation, as far as the states of its cells say."""
    states = {cell["state"] for cell in table}
    found = ["stop"] if states & {"running", "waiting"} else []
    found += ["resume"] if "stopped" in states else []
    return found + (["retry"] if "failed" in states else [])


def cell_row(content: SuiteContent, cell: EvaluationCell, tasks: Sequence[TaskRow]) -> dict[str, Any]:
    """Return a cell with its figures as far as it is played."""
    part, run = content.parts[cell.part], cell.run
    state, reason, next_step = _state(cell, tasks)
    finished = [row for row in tasks if row.attempts]
    return {
        "entry": cell.entry,
        "part": part.name,
        "state": state,
        "reason": reason,
        "next_step": next_step,
        "run": None if run is None else run.key,
        "web_url": None if run is None else f"/runs/{run.key}",
        "trajectories_url": None if run is None else f"/runs/{run.key}/trajectories?origin=eval",
        "tasks": part.tasks,
        "tasks_played": len(tasks),
        "attempts": sum(row.attempts for row in tasks),
        "attempts_failed": sum(row.failed for row in tasks),
        "solved": sum(row.solved for row in tasks),
        "pass_at": {
            str(k): _rate(
                pass_rate([(row.attempts, row.solved) for row in tasks if row.attempts >= k], k, content.seed)
            )
            for k in ks_of(content.attempts)
        },
        "score": _rate(mean_of([row.score / row.attempts for row in finished], content.seed) if finished else None),
        "seats": _seats(finished),
        "tokens": sum(row.tokens for row in tasks),
        "attempt_seconds": _mean_seconds(tasks),
    }


def _mean_seconds(rows: Sequence[TaskRow]) -> float:
    """Return how long an attempt took; attempts are played at the same time, so their sum would be nobody's wait."""
    return sum(row.seconds for row in rows) / max(1, sum(row.attempts for row in rows))


def _seats(finished: Sequence[TaskRow]) -> dict[str, float]:
    """Return the mean reward of each seat over attempts that finished."""
    count = sum(row.attempts for row in finished)
    names = sorted({name for row in finished for name in row.seats})
    return {name: sum(row.seats.get(name, 0.0) for row in finished) / count for name in names}


def _rate(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else asdict(rate)


_RESTS = {RunStatus.PAUSED, RunStatus.PAUSING, RunStatus.CANCELLED, RunStatus.KILLED, RunStatus.DRAFT}
_GOING_ON = {Verb.START, Verb.RESUME, Verb.RETRY}
_WAITS = {RunStatus.QUEUED, RunStatus.STARTING, RunStatus.RESUMING}


def _state(cell: EvaluationCell, tasks: Sequence[TaskRow]) -> tuple[str, str, str]:
    """Return the state of a cell, why, and what to do next."""
    if cell.run is None:
        return "failed", "Its run was deleted.", "Evaluate the model again."
    row = cell.run.state
    status, text = RunStatus(row.status), row.reason_text
    if row.pending_verb in _GOING_ON:
        return "waiting", "Waiting for devices.", ""
    if status is RunStatus.FAILED:
        why = next((one.reason for one in tasks if one.reason), "")
        return "failed", text or why or "The run failed.", "Fix the reported cause, then retry."
    if status in _RESTS:
        return "stopped", text or f"The run is {shown_status(row.status, row.reason)}.", "Resume it to play the rest."
    if status in _WAITS:
        return "waiting", text or "Waiting for devices.", ""
    if status not in TERMINAL:
        return "running", text, ""
    return "done", "", ""


def leaderboard(version: SuiteVersion) -> dict[str, Any]:
    """Return the models that played all of a version, best first, and whether each differs from the best one.

    A model that was evaluated several times stands with its newest evaluation that is done.
    """
    content = SuiteContent.model_validate(version.content)
    cells = queries.cells_of_version(version)
    tasks = played(content, cells)
    rows: dict[str, dict[str, Any]] = {}
    for group in _whole(cells):
        label = group[0].evaluation.entries[group[0].entry]["label"]
        own = [tasks[cell.run.no] for cell in group if cell.run is not None]
        if (
            label in rows
            or not any(row.attempts for rows_of in own for row in rows_of)
            or len(own) < len(content.parts)
            or _unplayed(content, own)
        ):
            continue
        rows[label] = _standing(content, group, own, label)
    best_first = sorted(rows.values(), key=lambda row: (-row["pass_at_1"]["value"], row["label"]))
    _compare(best_first, content.seed)
    for row in best_first:
        del row["values"]
    return {**queries.version_row(version), "ks": ks_of(content.attempts), "rows": best_first}


def _whole(cells: Sequence[EvaluationCell]) -> Iterable[list[EvaluationCell]]:
    """Yield the cells of each model of each evaluation, if all of them are done."""
    groups: dict[tuple[Any, int], list[EvaluationCell]] = {}
    for cell in cells:
        groups.setdefault((cell.evaluation_id, cell.entry), []).append(cell)
    for group in groups.values():
        if all(cell.run is not None and cell.run.state.status == RunStatus.COMPLETED for cell in group):
            yield group


def _unplayed(content: SuiteContent, own: Sequence[Sequence[TaskRow]]) -> bool:
    return any(len(rows) < part.tasks for rows, part in zip(own, content.parts, strict=True))


def _standing(
    content: SuiteContent, group: Sequence[EvaluationCell], own: Sequence[Sequence[TaskRow]], label: str
) -> dict[str, Any]:
    flat = [row for rows in own for row in rows]
    counted = [(row.attempts, row.solved) for row in flat if row.attempts]
    parts = {
        part.name: cell_row(content, cell, rows) for part, cell, rows in zip(content.parts, group, own, strict=True)
    }
    rates = {
        str(k): pass_rate([one for one in counted if one[0] >= k], k, content.seed) for k in ks_of(content.attempts)
    }
    return {
        "label": label,
        "evaluation": str(group[0].evaluation_id),
        "web_url": f"/evaluations/{group[0].evaluation_id}",
        "pass_at_1": _rate(rates["1"]),
        "pass_at": {k: _rate(rate) for k, rate in rates.items()},
        "parts": {name: cell["pass_at"]["1"] for name, cell in parts.items()},
        "score": sum(row.score for row in flat) / max(1, sum(row.attempts for row in flat)),
        "tokens": sum(row.tokens for row in flat),
        "attempt_seconds": _mean_seconds(flat),
        "values": {
            (place, row.task): pass_at_k(row.attempts, row.solved, 1)
            for place, rows in enumerate(own) for row in rows if row.attempts
        },
    }  # fmt: skip


def _compare(rows: Sequence[dict[str, Any]], seed: int) -> None:
    """Say of each model behind the first whether it is worse, on the tasks that both played."""
    if not rows:
        return
    best, chances = rows[0]["values"], []
    for row in rows[1:]:
        both = sorted(best.keys() & row["values"].keys())
        one, other = [best[task] for task in both], [row["values"][task] for task in both]
        chances.append(difference_p(one, other, seed) if both else 1.0)
    rows[0] |= {"behind_best": 0.0, "p": None, "significant": None}
    for row, p in zip(rows[1:], holm(chances), strict=True):
        gap = rows[0]["pass_at_1"]["value"] - row["pass_at_1"]["value"]
        row |= {"behind_best": gap, "p": p, "significant": p < SIGNIFICANT}
