"""What raw times of a run tell about one thing each: least squares, queues, medians; nothing is declared.

What shares a host's cores slows each other down. How much, and when, is read off the processor's time of engines and
trainers; all estimates are of what things take that have a core for themselves.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from flexmarl.contracts.base import Strict
from flexmarl.contracts.timings import CohortRollout, CommandDelay, Commanded, Decoded, RunRows, Settled

SIDES = {"platform.playing": (True, False), "platform.training": (False, True), "platform.both": (True, True)}
"""Figure -> whether episodes were played, and whether trainers had commands."""
MOSTLY = 0.5
"""Share of a stretch in which either went on, from which on it counts as beside it."""
WAITED = 1.05
"""How many times as long as its work something took at least, to say that cores were wanting."""
FEW = 8
"""Gradients of about one size, from which on more of them count no more."""
ALIKE = 0.1
"""Gradients whose tokens differ by no more than this share tell nothing of what a token takes."""
SIZES = 8
"""Sizes of micro-batches that are told apart."""
QUEUED = 20
"""Facts that must have waited behind others, to tell how long the driver works on one."""
USUAL, TRIED = 0.97, 21
"""Share of the waits that is looked at for that, the longest left out, and how many answers are tried."""


class Gradients(Strict):
    """Equal gradients: what they had to learn and took in the mean."""

    count: int
    tokens: float
    seconds: float


def decoding(rows: Sequence[Decoded]) -> dict[str, float]:
    """Fit the seconds of decode steps to their number, the tokens they made and the prompts before them.

    Each row's error counts by how large it is beside the row, so that small batches count as much as large ones; then
    all is scaled to what the rows took together.
    """
    rows = [row for row in rows if row.seconds > 0.0]
    if len(rows) < 3:
        return {}
    given = np.array([[row.steps, row.tokens, row.prompts] for row in rows], dtype=float)
    seconds = np.array([row.seconds for row in rows])
    found = np.array(_least_squares(given / seconds[:, None], np.ones(len(rows))))
    step, token, prompt = (found * seconds.sum() / max(1e-9, float((given @ found).sum()))).tolist()
    return {"engine.token": step + token, "engine.row": token, "engine.prompt": prompt}


def sizes(rows: Sequence[Commanded]) -> list[Gradients]:
    """Put gradients together that have about as many tokens."""
    ordered = sorted(rows, key=lambda row: row.tokens)
    parts = [part for part in np.array_split(np.arange(len(ordered)), SIZES) if len(part)]
    return [
        Gradients(
            count=len(part),
            tokens=fmean(ordered[at].tokens for at in part),
            seconds=fmean(ordered[at].seconds / ordered[at].slow for at in part),
        )
        for part in parts
    ]


def line(told: Sequence[Gradients]) -> dict[str, float]:
    """Fit the seconds of gradients to their number and their tokens; of equal ones half is taken for each.

    Errors count by how large they are beside the gradient. Each power of two of tokens counts the same from `FEW` on,
    so that a few small ones say what is fixed however many large ones there are; then all is scaled to what was taken
    together.
    """
    counts = np.array([one.count for one in told], dtype=float)
    if counts.sum() < 3:
        return {}
    tokens, seconds = np.array([one.tokens for one in told]), np.array([one.seconds for one in told])
    if not tell_tokens(told):
        half = float(np.average(seconds, weights=counts)) / 2.0
        return {"trainer.micro_batch": half, "trainer.token": half / float(np.average(tokens, weights=counts))}
    _, size = np.unique(np.floor(np.log2(np.maximum(1.0, tokens))), return_inverse=True)
    alike = np.bincount(size, weights=counts)[size]
    weights = np.sqrt(counts / alike * np.minimum(alike, FEW))
    given = np.stack([np.ones_like(tokens), tokens], axis=1)
    found = np.array(_least_squares(given * (weights / seconds)[:, None], weights))
    fixed, token = (found * float(counts @ seconds) / max(1e-12, float(counts @ (given @ found)))).tolist()
    return {"trainer.micro_batch": fixed, "trainer.token": token}


def tell_tokens(told: Sequence[Gradients]) -> bool:
    """Tell whether gradients differ enough in size to say what a token takes."""
    counts, tokens = [one.count for one in told], [one.tokens for one in told]
    mean = float(np.average(tokens, weights=counts))
    variance = float(np.average((np.array(tokens) - mean) ** 2, weights=counts))
    return sqrt(variance) >= ALIKE * mean


def others(rows: RunRows) -> dict[str, float]:
    """Return how many wanted a core beside engines and trainers at work: where one side of the run went on, and both.

    In the mean, so many as explain what part of a core those at work had; none where these hardly had to wait.
    """
    sides = [
        _spans([(began, ended, 1.0) for began, ended in side]) for side in (rows.open, _carried_out(rows.commanded))
    ]
    at_work = _spans([(one.began, one.ended, 1.0) for one in rows.worked], together=True)
    found = {}
    for name, going_on in SIDES.items():
        own = [
            o for o in rows.worked
            if o.cpu and tuple(side.mean(o.began, o.ended) >= MOSTLY for side in sides) == going_on
        ]  # fmt: skip
        took, cpu = sum(o.ended - o.began for o in own), sum(o.cpu for o in own)
        if rows.cores and len(own) >= FEW and took >= WAITED * cpu:
            beside = sum(at_work.mean(o.began, o.ended) * (o.ended - o.began) for o in own) / took
            found[name] = max(0.0, rows.cores * took / cpu - beside)
    return found


def _carried_out(commanded: Sequence[Commanded]) -> Iterator[tuple[float, float]]:
    """List when each command was on its way or worked on, by its node or its trainer: both take of the host."""
    before: dict[int, float] = {}
    for row in sorted(commanded, key=lambda row: row.done):
        yield max(row.created, before.get(row.lease_id, 0.0)), row.done
        before[row.lease_id] = row.done


def alone(rows: RunRows) -> RunRows:
    """Return rows that say how much slower each thing was for what went on beside it on its host.

    That is what engines and trainers tell that were at work at the time: how much longer they took than their work
    took of the processor. Where none was at work, nothing was slower.
    """
    told = [one for one in rows.worked if one.cpu]
    waited = _spans([(o.began, o.ended, max(0.0, (o.ended - o.began) / o.cpu - 1.0)) for o in told])

    def slow(began: float, ended: float) -> float:
        return 1.0 + waited.mean(began, ended)

    def taken(own: Sequence[CommandDelay]) -> list[CommandDelay]:
        return [CommandDelay(row.created, row.seconds / slow(row.created, row.created + row.seconds)) for row in own]

    return replace(
        rows,
        commanded=[replace(row, slow=slow(row.done - row.seconds, row.done)) for row in rows.commanded],
        decoded=[replace(row, seconds=row.cpu or row.seconds) for row in rows.decoded],
        played=[replace(one, slow=slow(one.began, one.ended)) for one in rows.played],
        settled=[replace(one, slow=slow(one.finished, one.handled)) for one in rows.settled],
        hops=taken(rows.hops),
        picked_up=taken(rows.picked_up),
    )


class Spans(NamedTuple):
    """A number over time."""

    edges: np.ndarray
    sums: np.ndarray
    """Its sum over the time until each edge."""

    def mean(self, began: float, ended: float) -> float:
        """Return its mean over a time."""
        if ended <= began or not len(self.edges):
            return 0.0
        first, last = np.interp([began, ended], self.edges, self.sums)
        return float(last - first) / (ended - began)


def _spans(stretches: Sequence[tuple[float, float, float]], *, together: bool = False) -> Spans:
    """Return the mean, or the sum, of the numbers of stretches that lie beside each other; 0 where there is none."""
    edges = np.array(sorted({edge for began, ended, _ in stretches for edge in (began, ended)}))
    total, count = np.zeros(len(edges)), np.zeros(len(edges))
    for began, ended, number in stretches:
        inside = slice(np.searchsorted(edges, began), np.searchsorted(edges, ended))
        total[inside] += number
        count[inside] += 1
    between = (total if together else total / np.maximum(1.0, count))[:-1]
    return Spans(edges, np.concatenate([[0.0], np.cumsum(between * np.diff(edges))]) if len(edges) else edges)


def driver(settled: Sequence[Settled], report: float | None = None) -> dict[str, float]:
    """Split what a settled group waits for the driver: until it is written, on the way, and behind other facts.

    The last is a queue with one server. What the driver takes for a fact is what explains the most of why some waited
    longer than others: between nothing, since many facts that come together may be decided on together, and what
    passes between two of which the later one waited. The rest of the waits is the first two, of which `report` is the
    way of a fact that needs no writing.
    """
    ordered = sorted(settled, key=lambda row: row.finished)
    finished = np.array([row.finished for row in ordered])
    waits = np.array([(row.handled - row.finished) / row.slow for row in ordered])
    told, decide = dict[str, float](), 0.0
    worked = _between(settled)
    if len(worked) >= QUEUED:
        usual = waits <= np.quantile(waits, USUAL)
        tried = np.linspace(0.0, fmean(worked), TRIED)
        decide = float(min(tried, key=lambda each: float(np.var((waits - _queued(finished, each))[usual]))))
        told = {"platform.decide": decide}
    way = max(0.0, fmean(_trimmed((waits - _queued(finished, decide)).tolist())))
    if report is None:
        return told | {"platform.report": way}
    return told | {"platform.report": min(report, way), "platform.settle": max(0.0, way - report)}


def _between(settled: Sequence[Settled]) -> list[float]:
    """Return what passed between two facts of which the later one waited for the driver."""
    waits = sorted(row.handled - row.finished for row in settled)
    luckiest = max(0.0, waits[len(waits) // 10])
    worked, before = [], 0.0
    for row in settled:
        if row.finished + luckiest < before:
            worked.append(max(0.0, row.handled - before))
        before = max(before, row.handled)
    return worked


def _queued(came: np.ndarray, each: float) -> np.ndarray:
    """Return how long each waits for those before it, in order of coming, when the driver takes so long for each."""
    places = each * np.arange(len(came))
    waits: np.ndarray = np.maximum.accumulate(came - places) + places - came
    return waits


def carrying(commanded: Sequence[Commanded], hop: float) -> dict[str, float]:
    """Return what a node takes around a trainer's commands, each behind the one before it: gradients, and steps.

    A node reads what is next while its trainer is at work, so the rows of a micro-batch take the trainer's time only
    where it stands idle for them: `platform.fetch`, which none tells that never, or always, does.
    """
    behind, idle, steps = list[float](), list[float](), list[float]()
    for lease in {row.lease_id for row in commanded}:
        before = 0.0
        for row in sorted((r for r in commanded if r.lease_id == lease), key=lambda r: r.done):
            reached = row.created + hop
            around = (row.done - max(reached, before) - row.seconds) / row.slow
            (steps if row.kind == "optimizer_step" else behind if reached < before else idle).append(around)
            before = row.done
    carry, waited, commit = (max(0.0, fmean(_trimmed(own))) if own else None for own in (behind, idle, steps))
    told = {} if carry is None or waited is None else {"platform.fetch": max(0.0, waited - carry)}
    carry = waited if carry is None else carry
    told |= {} if carry is None else {"platform.carry": carry}
    return told if commit is None else told | {"platform.commit": max(0.0, commit - (carry or 0.0))}


def turns(played: Sequence[CohortRollout], generated: Sequence[tuple[float, float]]) -> float | None:
    """Return what the rollout workers take for a turn: a cohort's rollout without its generation, over its turns."""
    found = []
    for cohort in played:
        inside = sum(max(0.0, min(t1, cohort.ended) - max(t0, cohort.began)) for t0, t1 in generated)
        if cohort.turns:
            found.append(max(0.0, cohort.ended - cohort.began - inside) / cohort.turns / cohort.slow)
    return median(found) if found else None


def _trimmed(values: Iterable[float]) -> list[float]:
    ordered = sorted(values)
    cut = len(ordered) // 20
    return ordered[cut : len(ordered) - cut]


def _least_squares(given: np.ndarray, wanted: np.ndarray) -> list[float]:
    """Return the coefficients, none below 0, that come closest: of all subsets of columns the best legal one.

    `scipy.optimize.nnls` does the same, but what answers requests loads this module, and it would cost each
    such process 0.4 s and 36 MB; of the two or three columns here there are seven subsets at most.
    """
    count = given.shape[1]
    best, least = [0.0] * count, float(wanted @ wanted)
    for size in range(1, count + 1):
        for columns in combinations(range(count), size):
            part = given[:, columns]
            found, *_ = np.linalg.lstsq(part, wanted, rcond=None)
            left = wanted - part @ found
            if (found >= 0.0).all() and float(left @ left) < least:
                least = float(left @ left)
                best = [0.0] * count
                for column, value in zip(columns, found, strict=True):
                    best[column] = float(value)
    return best
