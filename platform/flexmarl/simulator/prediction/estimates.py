"""What raw times of a run tell about one thing each: least squares, queues, medians; nothing is declared.

Trainers slow down what is played beside them and the other way round, where they share a host. How much is read off
gradients, alone and beside the playing; all other estimates are of what things take alone.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean, median

import numpy as np

from flexmarl.contracts.base import Strict
from flexmarl.contracts.paces import Commanded, Decoded, Played, RunRows, Settled, Taken

ALONE, BESIDE = 0.1, 0.9
"""Share of a gradient's time in which episodes were played: at most, to count as alone; at least, as beside them."""
FEW = 8
"""Gradients of each kind that tell how much slower one is beside the playing."""
RARE = 0.2
"""Where so few are alone for each one beside the playing, those do not count as alone: they are its edges."""
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
    return float(np.average((np.array(tokens) - mean) ** 2, weights=counts)) ** 0.5 >= ALIKE * mean


def alone(rows: RunRows, known: float | None = None) -> tuple[RunRows, float | None]:
    """Return rows that say how much slower each thing was for what went on beside it, and how much that is at most.

    The second is None where too little was done beside the playing, or too little alone, to tell; then what other runs
    of the machine told is taken, which is `known`.
    """
    played, trained = _union(rows.open), _union(_carried_out(rows.commanded))
    shares = [_share(row.done - row.seconds, row.done, played) for row in rows.commanded]
    contention = slower(list(zip(rows.commanded, shares, strict=True)))
    more = (contention or known or 1.0) - 1.0

    def slow(began: float, ended: float) -> float:
        return 1.0 + more * _share(began, ended, trained)

    def taken(own: Sequence[Taken]) -> list[Taken]:
        return [Taken(row.created, row.seconds / slow(row.created, row.created + row.seconds)) for row in own]

    decoded = [replace(row, seconds=row.seconds / slow(row.began, row.began + row.seconds)) for row in rows.decoded]
    told = replace(
        rows,
        commanded=[replace(row, slow=1.0 + more * share) for row, share in zip(rows.commanded, shares, strict=True)],
        decoded=decoded,
        played=[replace(one, slow=slow(one.began, one.ended)) for one in rows.played],
        settled=[replace(one, slow=slow(one.finished, one.handled)) for one in rows.settled],
        hops=taken(rows.hops),
        picked_up=taken(rows.picked_up),
    )
    return told, contention


def _carried_out(commanded: Sequence[Commanded]) -> Iterator[tuple[float, float]]:
    """List when each command was on its way or worked on, by its node or its trainer: both take of the host."""
    before: dict[int, float] = {}
    for row in sorted(commanded, key=lambda row: row.done):
        yield max(row.created, before.get(row.lease_id, 0.0)), row.done
        before[row.lease_id] = row.done


def slower(commanded: Sequence[tuple[Commanded, float]]) -> float | None:
    """Return how many times as long gradients take while episodes are played, each beside its like."""
    took, would, count = 0.0, 0.0, 0
    for policy in {row.policy for row, _ in commanded}:
        own = [(row, share) for row, share in commanded if row.policy == policy and row.kind == "accumulate"]
        free = [row for row, share in own if share <= ALONE]
        beside = [row for row, share in own if share >= BESIDE]
        if len(free) < max(FEW, RARE * len(beside)) or not beside:
            continue
        told = line(sizes(free))
        took += sum(row.seconds for row in beside)
        would += sum(told["trainer.micro_batch"] + told["trainer.token"] * row.tokens for row in beside)
        count += len(beside)
    return max(1.0, took / would) if count >= FEW and would > 0.0 else None


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
    return np.maximum.accumulate(came - places) + places - came


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


def turns(played: Sequence[Played], generated: Sequence[tuple[float, float]]) -> float | None:
    """Return what the rollout workers take for a turn: a cohort's rollout without its generation, over its turns."""
    found = []
    for cohort in played:
        inside = sum(max(0.0, min(t1, cohort.ended) - max(t0, cohort.began)) for t0, t1 in generated)
        if cohort.turns:
            found.append(max(0.0, cohort.ended - cohort.began - inside) / cohort.turns / cohort.slow)
    return median(found) if found else None


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Put spans together that touch, in order."""
    found: list[tuple[float, float]] = []
    for began, ended in sorted(spans):
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found


def _share(began: float, ended: float, spans: Sequence[tuple[float, float]]) -> float:
    """Return the share of a time in which spans lie that are in order and apart."""
    inside, at = 0.0, max(0, bisect_left(spans, (began, began)) - 1)
    for since, until in spans[at:]:
        if since >= ended:
            break
        inside += max(0.0, min(ended, until) - max(began, since))
    return inside / (ended - began) if ended > began else 0.0


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
