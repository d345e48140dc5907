"""Imported rows that a run's archive of replay, or its pool of successes, begins with.

Invariants: which rows these are follows from the specification and the digest that it pins, so a run that is created
again has the same; they are written with the run's first verb, in its transaction, and only while their rows are not
archived. A row comes with the log-probabilities and advantages that it was trained with, or not at all. Of an archive
come the newest groups, as many as steps can draw before all are too old; of a pool the newest success of each task.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from flexmarl.algorithms.replay import replayed_groups
from flexmarl.contracts.imported_rows import ImportedGroup, ImportedRowRef, ImportedSuccess, RowsImported
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.row_files import ImportedRow, RowLine
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.wire import UNKNOWN_LOGPROB, EpisodeOutcome, EpisodeStatus, SampleRef
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments.plans import as_field_error
from flexmarl.controlplane.runs.models import RowSet, Run
from flexmarl.controlplane.runs.row_sets import naming
from flexmarl.orchestrator.plan import Plan, make_plan
from flexmarl.store.data import dataset_contents, imported_rows
from flexmarl.store.data.groups import SampleRow
from flexmarl.store.data.spans import Span

WHERE = "/sampling/replay/begins_with"
NAMED = f"{WHERE}/name"
MOST_ROWS, MOST_BYTES = 20_000, 128 * 2**20
"""Of a run's archive when it begins."""
_kept = msgspec.msgpack.Decoder(ImportedRow)
_said = msgspec.json.Decoder(RowLine)


@dataclass(frozen=True, slots=True)
class BeginningRows:
    """What a run begins with, for the store and for its log."""

    samples: list[SampleRow]
    event: RowsImported


@dataclass(frozen=True, slots=True)
class _Row:
    line: RowLine
    row: ImportedRow

    @property
    def turns(self) -> list[int]:
        """Return which turns of its role the row has."""
        return [self.line.turn + offset for offset in self.line.offsets or range(len(self.line.advantages))]


def completed(actor: Actor, project: str, sampling: object) -> dict[str, Any] | Problem | None:
    """Return `sampling` whose archive says the digest of the rows that it begins with, or the refusal; None where it
    stays as it is."""
    replay = sampling.get("replay") if isinstance(sampling, Mapping) else None
    named = replay.get("begins_with") if isinstance(replay, Mapping) else None
    if named is None:
        return None
    found = naming.pinned(actor, project, WHERE, {"name": named} if isinstance(named, str) else named)
    if found is None or isinstance(found, Problem):
        return found
    assert isinstance(sampling, Mapping)
    assert isinstance(replay, Mapping)
    return {**sampling, "replay": {**replay, "begins_with": found}}


def refusals(actor: Actor, spec: ExperimentSpec) -> Iterator[Problem]:
    """Refuse rows that are gone, of another game or of other roles than are trained; for a pool, of other tasks."""
    replay = spec.sampling.replay
    if replay.begins_with is None or not replay.on:
        return
    roles = sorted(make_plan(spec).trained_roles)
    found = naming.there(actor, spec, WHERE, replay.begins_with, roles, "the roles that are trained")
    if isinstance(found, Problem):
        yield found
    elif replay.rescues and not _same(found.environment, spec.environment):
        yield Problem(
            pointer=NAMED,
            code="other_tasks",
            detail=f"{found.name} was played with other options of {spec.environment.type}, so its tasks are others.",
            hint="Name rows of a run with the same environment, or set replay: archive.",
        )


def _same(theirs: Mapping[str, Any], mine: EnvironmentSpec) -> bool:
    """Tell whether an environment of some release is the one of a run."""
    try:
        return type(mine).model_validate(theirs) == mine
    except ValidationError:
        return False


def chosen(spec: ExperimentSpec) -> BeginningRows | None:
    """Return what the archive of a run begins with; None where it begins empty. Raises ValidationProblem."""
    replay = spec.sampling.replay
    if replay.begins_with is None or not replay.on:
        return None
    plan, name = make_plan(spec), replay.begins_with.name
    lines = dataset_contents.lines(store_connection(), replay.begins_with.digest)
    rows = [one for one in map(_read, lines) if one.line.role in plan.trained_roles]
    tasks = _tasks(plan, (one.line.task_seed for one in rows)) if replay.rescues else {}
    found = list(_successes(plan, rows, tasks) if replay.rescues else _groups(plan, rows))
    of = {_key(one): number for number, own in found for one in own}
    rows = [one for _, own in found for one in own]
    for problem in (*_of_blocks(plan, rows, name), *_wrong(rows, of, name)):
        raise _refused(problem)
    samples = [_sample(one, of[_key(one)], plan.policy_of[one.line.role]) for one in rows]
    if replay.rescues:
        successes = tuple(
            ImportedSuccess(draw=number, task=tasks[own[0].line.task_seed], episode=_episode(own))
            for number, own in found
        )
        return BeginningRows(samples, RowsImported(name=name, rows=len(samples), successes=successes))
    groups = tuple(ImportedGroup(draw=number, rows=_by_policy(plan, own)) for number, own in found)
    return BeginningRows(samples, RowsImported(name=name, rows=len(samples), groups=groups))


def begin(run: Run) -> None:
    """Write what the archive of a run begins with, in the caller's transaction. Raises ValidationProblem where its rows
    were archived since the run was created."""
    replay = ExperimentSpec.model_validate(run.spec).sampling.replay
    named = replay.begins_with
    if named is None or not replay.on:
        return
    if not RowSet.objects.filter(digest=named.digest, project_id=named.project, archived_at__isnull=True).exists():
        detail = f"The imported rows {named.name} were archived since the run was created."
        raise _refused(Problem(pointer=NAMED, code="unknown_rows", detail=detail, hint="Restore them, or name others."))
    found = chosen(ExperimentSpec.model_validate(run.spec))
    if found is not None and found.samples:
        imported_rows.put(store_connection(), run.no, found.samples, found.event)


def _read(kept: tuple[bool, bytes]) -> _Row:
    row = _kept.decode(kept[1])
    return _Row(_said.decode(row.line), row)


def _key(one: _Row) -> tuple[object, ...]:
    line = one.line
    return line.draw, line.member, line.attempt, line.role, line.turn


def _groups(plan: Plan, rows: list[_Row]) -> Iterator[tuple[int, list[_Row]]]:
    """Yield the newest groups that something can be learned from, each with its number, the oldest first."""
    replay = plan.spec.sampling.replay
    most = (replay.max_age + 1) * replayed_groups(plan.cohort.groups, replay.share)
    by_draw = [list(own) for _, own in groupby(sorted(rows, key=_key), key=lambda one: one.line.draw)]
    groups = [own for own in by_draw if any(any(one.line.advantages) for one in own)]
    groups.sort(key=lambda own: (own[0].line.step, own[0].line.draw))
    newest = groups[-most:] if most else []
    if not newest and most:
        detail = f"No group of {_name(plan)} has an advantage other than 0, so nothing can be learned from it."
        raise _refused(Problem(pointer=NAMED, code="no_rows", detail=detail, hint="Name others."))
    yield from enumerate(newest, start=-len(newest))


def _successes(plan: Plan, rows: list[_Row], tasks: Mapping[int | None, int]) -> Iterator[tuple[int, list[_Row]]]:
    """Yield the newest success of each task, each with its number: of a group the best, the lowest of equals. `tasks`
    has the number of each seed's task."""
    lacking = next((one for one in rows if one.line.task_seed is None or not one.line.rewards), None)
    if lacking is not None:
        detail = f"{_name(plan)} has no column task_seed, as exports of format 2: nobody knows which tasks were solved."
        hint = "Export the run once more."
        raise _refused(Problem(pointer=NAMED, code="missing_task_seed", detail=detail, hint=hint))
    solved = [one for one in rows if one.line.solved and one.line.task_seed in tasks]
    episodes = [list(own) for _, own in groupby(sorted(solved, key=_key), key=lambda one: _key(one)[:3])]
    newest: dict[int, list[_Row]] = {}
    for own in sorted(episodes, key=_rank):
        newest[tasks[own[0].line.task_seed]] = own
    if not newest:
        detail = f"No row of {_name(plan)} is of an episode that solved a task of this run."
        hint = "Name rows of a run with the same seed and sampling.task_sampler, or of a set of listed tasks."
        raise _refused(Problem(pointer=NAMED, code="no_rows", detail=detail, hint=hint))
    yield from enumerate((newest[task] for task in sorted(newest)), start=-len(newest))


def _rank(own: list[_Row]) -> tuple[float, ...]:
    line = own[0].line
    return line.step, line.draw, line.team_score, -line.member


def _tasks(plan: Plan, seeds: Iterable[int | None]) -> dict[int | None, int]:
    """Return the number that each seed's task has in the set that the run chooses from; other tasks are left out."""
    wanted = set(seeds)
    numbers = range(plan.tasks.chosen_from)
    return {seed: number for number in numbers if (seed := plan.training_seed(number)) in wanted}


def _of_blocks(plan: Plan, rows: list[_Row], name: str) -> Iterator[Problem]:
    """Yield why block diffusion, by which rows or their policies make replies, goes with none of an archive's."""
    policies = plan.spec.policies
    if any(one.line.steps or policies[plan.policy_of[one.line.role]].denoises for one in rows):
        detail = f"{name}: rows that block diffusion made, and those of policies that decode by it, are not taken."
        hint = "Name rows of policies that decode from left to right, for such policies."
        yield Problem(pointer=NAMED, code="not_with_block_diffusion", detail=detail, hint=hint)


def _wrong(rows: list[_Row], of: Mapping[tuple[object, ...], int], name: str) -> Iterator[Problem]:
    """Yield why rows cannot be trained again."""
    if len(of) != len(rows):
        detail = f"{name} has a row twice: of the same draw, member, attempt, role and turn."
        yield Problem(pointer=NAMED, code="bad_row", detail=detail, hint="Export the run once more, and import that.")
    bytes_of = sum(len(one.row.ids) + len(one.row.logprobs) + len(one.row.allowed) for one in rows)
    if len(rows) > MOST_ROWS or bytes_of > MOST_BYTES:
        detail = f"{len(rows)} rows of {bytes_of} bytes would be taken; {MOST_ROWS} and {MOST_BYTES} are legal."
        yield Problem(pointer=NAMED, code="too_many_rows", detail=detail, hint="Lower share or max_age.")
    for one in rows:
        line = one.line
        who = f"{name}, draw {line.draw}, member {line.member}, {line.role} {line.turn}:"
        if max(line.member, line.attempt, line.turn) >= 2**15 or min(line.member, line.attempt, line.turn) < 0:
            detail, hint = f"{who} member, attempt and turn are 0 to 32767.", "Export the run once more."
            yield Problem(pointer=NAMED, code="bad_row", detail=detail, hint=hint)
        elif (_floats(one.row.logprobs) == UNKNOWN_LOGPROB).any():
            detail = f"{who} the column logprobs does not know how probable its tokens were: nothing can correct them."
            hint = "Name rows of a run without sampling.sharing."
            yield Problem(pointer=NAMED, code="missing_logprobs", detail=detail, hint=hint)
        elif any(line.grammars):
            detail = f"{who} its replies were held to a grammar, whose text is not kept with imported rows."
            yield Problem(pointer=NAMED, code="held_replies", detail=detail, hint="Name rows of free replies.")


def _sample(one: _Row, draw: int, policy: str) -> SampleRow:
    line, row = one.line, one.row
    ids, sampled = np.frombuffer(row.ids, "<i4"), np.frombuffer(row.mask, np.uint8) == 1
    first = one.turns[0]
    rewards = line.rewards or [0.0] * len(line.advantages)
    turns = zip(line.spans[::2], line.spans[1::2], rewards, one.turns, strict=True)
    return SampleRow(
        draw=draw, member=line.member, attempt=line.attempt, role=line.role, turn=line.turn, policy=policy,
        version=imported_rows.ANOTHERS, segments=[imported_rows.ANOTHERS, int(sampled.sum())],
        prompt=ids[~sampled], response=ids[sampled], logprobs=_floats(row.logprobs)[sampled],
        allowed=np.frombuffer(row.allowed, "<i4"), temperature=line.temperature,
        spans=[Span(read, said, "", reward, offset=turn - first) for read, said, reward, turn in turns],
    )  # fmt: skip


def _by_policy(plan: Plan, rows: list[_Row]) -> dict[str, tuple[ImportedRowRef, ...]]:
    found: dict[str, tuple[ImportedRowRef, ...]] = {}
    for one in rows:
        line, policy = one.line, plan.policy_of[one.line.role]
        ref = ImportedRowRef(
            member=line.member, attempt=line.attempt, role=line.role, turn=line.turn,
            advantages=tuple(line.advantages), weight=line.weight, tokens=sum(line.spans[1::2]),
        )  # fmt: skip
        found[policy] = (*found.get(policy, ()), ref)
    return found


def _episode(rows: list[_Row]) -> EpisodeOutcome:
    """Return the episode of some rows as a member of a group: what its rows' roles said, turn by turn."""
    line = rows[0].line
    samples = [
        SampleRef(role=one.line.role, turn=turn, tokens=tokens, reward=reward, follows=turn - one.line.turn)
        for one in rows
        for turn, tokens, reward in zip(one.turns, one.line.spans[1::2], one.line.rewards, strict=True)
    ]
    return EpisodeOutcome(
        member=line.member, attempt=line.attempt, status=EpisodeStatus.FINISHED, scores=line.scores,
        team_score=line.team_score, solved=True, samples=tuple(samples),
    )  # fmt: skip


def _floats(raw: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(raw, "<f4")


def _name(plan: Plan) -> str:
    named = plan.spec.sampling.replay.begins_with
    assert named is not None
    return named.name


def _refused(problem: Problem) -> ValidationProblem:
    error = as_field_error(problem)
    return ValidationProblem(problem.detail, errors=[error])
