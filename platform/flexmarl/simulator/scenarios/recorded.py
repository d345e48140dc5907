"""What a run recorded, as a workload: the same prompts, replies, waits and scores, whatever else is changed.

Invariants: a draw's script is what was recorded of one draw of the run, member by member; draws beyond the record play
it again from its first draw, members beyond a group's play it again from the first. Another seed begins elsewhere.
Two simulations of one record and seed play the same episodes, so what differs between them was changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ConfigDict

from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.draws import Asked, Draws, Script, Scripts
from flexmarl.simulator.scenarios.scenario import Spread, Workload

_APART = 5
"""Seeds begin that part of the record after one another."""


class RecordedTurn(NamedTuple):
    """A row of the store."""

    draw: int
    member: int
    role: str
    turn: int
    prompt: int
    reply: int
    latency_s: float


class RecordedEpisode(NamedTuple):
    """The attempt at a member of a group that counted."""

    draw: int
    member: int
    step: int
    """Train step it was played for."""
    began: float
    ended: float
    score: float
    order: tuple[tuple[str, int], ...]
    """(role, turn) in the order in which they were played."""


class Lot(NamedTuple):
    """An episode, ready to be played again."""

    asked: tuple[Asked, ...]
    widths: tuple[int, ...]
    """How many of them are asked beside each other, stage by stage."""
    waits: tuple[float, ...]
    score: float


class RecordedWaits(NamedTuple):
    """What episodes wait for beside what their environment takes."""

    turn_s: float = 0.0
    """Every turn, beside its engine's work."""
    starts: bool = False
    """How much later than the first of its step an episode began is a part of it: the rollout worker's own time. Right
    where all episodes of a step are asked for at once."""


NO_MORE = RecordedWaits()


class EpisodeRecord(NamedTuple):
    groups: tuple[tuple[Lot, ...], ...]
    """By draw, in the order in which they were drawn."""
    failure: float
    """Share of attempts that broke off."""
    own_wait_s: float
    """What every turn waits beside the engine's work: the platform, and what the model of the engine leaves out."""


class RecordedWorkload(Workload):
    """A record as a workload; its other fields only say who opens an episode."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    record: EpisodeRecord


class RecordedDraws:
    """The scripts of a run that was recorded; the same verbs as `Draws`."""

    def __init__(self, record: EpisodeRecord, seed: int) -> None:
        self._groups = record.groups
        self._first = seed * max(1, len(record.groups) // _APART)
        self._drawn: dict[int, int] = {}
        """Task -> the draw that played it first."""

    def script(self, draw: int, member: int, members: int, attempt: int, task: int) -> Script:
        """Return what happened in a member of a group; a task that was played before goes as it did then."""
        draw = self._drawn.setdefault(task, draw)
        group = self._groups[(self._first + draw) % len(self._groups)]
        lot = group[member % len(group)]
        key = chance.mixed(chance.mixed(chance.mixed(self._first, draw), member), attempt)
        return Script(key, iter(lot.asked), list(lot.waits), 0.0, lot.score, lot.widths)

    def beside(self, script: Any) -> Script:
        """Return a script for a second environment: what is said is the same, what machines take is another's."""
        key = chance.mixed(script.key, 1)
        group = self._groups[key % len(self._groups)]
        other = group[key // len(self._groups) % len(group)].waits
        waits = [other[place % len(other)] for place in range(len(script.waits))]
        return Script(key, script.turns, waits, 0.0, script.score, script.widths)


def scripts_of(workload: Workload, roles: dict[str, int], seed: int) -> Draws[Script] | RecordedDraws:
    """Return what happens in the episodes of a workload."""
    if isinstance(workload, RecordedWorkload):
        return RecordedDraws(workload.record, seed)
    return Scripts(workload, roles, seed)


def record_of(
    episodes: Sequence[RecordedEpisode],
    turns: Iterable[RecordedTurn],
    together: Iterable[frozenset[str]],
    failure: float = 0.0,
    waits: RecordedWaits | None = NO_MORE,
) -> EpisodeRecord:
    """Make a record of rows. `together` are the roles that the environment asks beside each other.

    With `waits`, what an episode's turns do not explain of its length is waited for; None where all of that is the
    rollout workers' own time, which the machines' delays have.
    """
    first: dict[int, float] = {}
    for one in episodes:
        first[one.step] = min(one.began, first.get(one.step, one.began))
    by_episode: dict[tuple[int, int], dict[tuple[str, int], RecordedTurn]] = {}
    for turn in turns:
        by_episode.setdefault((turn.draw, turn.member), {})[turn.role, turn.turn] = turn
    beside = tuple(together)
    groups: dict[int, dict[int, Lot]] = {}
    for one in episodes:
        own = by_episode.get((one.draw, one.member))
        if own:
            late = one.began - first[one.step] if waits is not None and waits.starts else 0.0
            groups.setdefault(one.draw, {})[one.member] = _lot(one, own, beside, waits, late)
    lots = tuple(tuple(groups[draw][member] for member in sorted(groups[draw])) for draw in sorted(groups))
    return EpisodeRecord(lots, min(0.9, failure), waits.turn_s if waits is not None else 0.0)


def workload_of_record(record: EpisodeRecord) -> RecordedWorkload:
    """Return the workload that plays a record. Raises ValueError for an empty one."""
    if not record.groups:
        raise ValueError("the record holds no episode")
    lot = record.groups[0][0]
    opening = tuple(role for role, _, _, _ in lot.asked[: lot.widths[0]])
    return RecordedWorkload(stages=(opening,), record=record, failure=record.failure, environment=Spread())


def _lot(
    episode: RecordedEpisode,
    own: Mapping[tuple[str, int], RecordedTurn],
    together: Sequence[frozenset[str]],
    waits: RecordedWaits | None,
    late: float,
) -> Lot:
    """Cut an episode into stages; what its turns do not explain of its length is what the environment took.

    What it began late by is waited for behind its first stage: there is no wait before one.
    """
    order = [own[name] for name in episode.order if name in own]
    order += [own[name] for name in sorted(own) if name not in episode.order]
    stages: list[list[RecordedTurn]] = []
    for turn in order:
        if stages and _beside(stages[-1], turn.role, together):
            stages[-1].append(turn)
        else:
            stages.append([turn])
    spoken = sum(max(turn.latency_s for turn in stage) for stage in stages)
    unexplained = max(0.0, episode.ended - episode.began - spoken) / len(stages)
    wait = 0.0 if waits is None else unexplained + waits.turn_s
    asked = tuple((turn.role, turn.turn, float(turn.prompt), max(1, turn.reply)) for stage in stages for turn in stage)
    behind = (wait + late, *(wait,) * (len(stages) - 1))
    return Lot(asked, tuple(len(stage) for stage in stages), behind, episode.score)


def _beside(stage: Sequence[RecordedTurn], role: str, together: Sequence[frozenset[str]]) -> bool:
    names = {turn.role for turn in stage}
    return role not in names and any(names | {role} <= some for some in together)
