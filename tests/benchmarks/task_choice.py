"""What choosing tasks and counting members costs: of a step's groups from large sets, and of a group that ended.

`python tests/benchmarks/task_choice.py --out FILE [--parts walks sizes sets]`: for `vade` (`sets`) every rate sampled
and the window around 1/3, in turns, on the same beliefs, with the median of paired ratios and the lower end of its 90 %
interval; for `greso` and `filter_solved` the beliefs that cost most, for `near_success` and numbers of
members sets of which all tasks were played; the median and the slowest of each.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flexmarl.algorithms import vade
from flexmarl.algorithms.member_counts import MEMBER_COUNTS
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.algorithms.task_sampler import TASK_SAMPLERS, PlayedTask, Wanted
from flexmarl.contracts.specification.member_counts import MEMBER_COUNT
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER
from tests.benchmarks.harness import interleave, median_and_lower_end, paired_ratios

GROUPS, MEMBERS = 64, 8
SAMPLER = TASK_SAMPLERS.make(TASK_SAMPLER.options("vade"))


def beliefs(tasks: int) -> dict[str, TaskBelief]:
    """Nothing known; some played lately, as in a run; all played, each with a pass rate and an age of its own.

    Then those where hardly a task is believed to be near 1/3: all solved lately, always; one in 300 of them solved by
    a third.
    """
    rng = np.random.default_rng(1)
    made = {"nothing known": TaskBelief()}
    for name, share in (("a twentieth played", 0.05), ("all played", 1.0)):
        belief = TaskBelief()
        belief.put(tasks, 0, 0.0, 0.0, 0)
        played = rng.random(tasks) < share
        solved = played * rng.binomial(MEMBERS, rng.random(tasks))
        belief.solved = bytearray(solved.astype("<f4").tobytes())
        belief.missed = bytearray((played * MEMBERS - solved).astype("<f4").tobytes())
        belief.as_of = bytearray(rng.integers(0, 1000, tasks).astype("<i4").tobytes())
        made[name] = belief
    for name, share in (("all solved", 0.0), ("one in 300 solved by a third", 1.0 / 300.0)):
        belief, good = TaskBelief(), rng.random(tasks) < share
        belief.solved = bytearray(np.where(good, 3.3, 10.0).astype("<f4").tobytes())
        belief.missed = bytearray(np.where(good, 6.7, 0.0).astype("<f4").tobytes())
        belief.as_of = bytearray(rng.integers(950, 1000, tasks).astype("<i4").tobytes())
        made[name] = belief
    return made


def of_walks(tasks: int) -> dict[str, tuple[str, TaskBelief]]:
    """Return sampler and belief by name: nothing known, all passed over by chance, all left out, all played."""
    rng = np.random.default_rng(2)
    streaks, gone = TaskBelief(), TaskBelief()
    for belief, value in ((streaks, 10_000.0), (gone, 0.99)):
        belief.put(tasks, 0, 0.0, 0.0, 0)
        belief.solved = bytearray(np.full(tasks, value, "<f4").tobytes())
        belief.as_of = bytearray(rng.integers(0, 1000, tasks).astype("<i4").tobytes())
    gone.missed = bytearray(gone.as_of)
    played = TaskBelief()
    played.put(tasks, 0, 0.0, 0.0, 0)
    played.solved, played.missed = (bytearray(rng.random(tasks).astype("<f4").tobytes()) for _ in range(2))
    played.as_of = bytearray((1 + np.arange(tasks) // GROUPS).astype("<i4").tobytes())
    found = {f"{name}, nothing known": (name, TaskBelief()) for name in ("greso", "filter_solved", "near_success")}
    return found | {
        "greso, long streaks": ("greso", streaks),
        "filter_solved, all left out": ("filter_solved", gone),
        "near_success, all played": ("near_success", played),
    }


def walks(tasks: int, repeats: int) -> dict[str, object]:
    """Measure the samplers that go through a set in its order."""
    found: dict[str, object] = {}
    for title, (name, belief) in of_walks(tasks).items():
        floors = {"least_easy": 0.0, "least_hard": 0.0} if name == "greso" else {}
        sampler = TASK_SAMPLERS.make(TASK_SAMPLER.options(name, **floors))

        def draw(number: int, sampler: Any = sampler, belief: TaskBelief = belief) -> list[int]:
            wanted = Wanted(3, number, 1000 + number, tasks, GROUPS, MEMBERS, frozenset(range(GROUPS)))
            return list(sampler.choose(belief, wanted))

        def ended(number: int, sampler: Any = sampler, belief: TaskBelief = belief) -> None:
            sampler.observe(belief, PlayedTask(tasks, number, 1000, (1.0,) * MEMBERS, True))

        found[title] = {
            "draw": timed(draw, repeats),
            "its words": timed(lambda _, sampler=sampler, belief=belief: sampler.of_set(belief, tasks), repeats),
            "a group that ended": timed(ended, 200),
        }
    return found


def sizes(tasks: int, repeats: int) -> dict[str, object]:
    """Measure what counts the members of groups."""
    rng, found = np.random.default_rng(3), dict[str, object]()
    for name in MEMBER_COUNTS.names()[1:]:
        counter, belief = MEMBER_COUNTS.make(MEMBER_COUNT.options(name)), TaskBelief()
        belief.put(tasks, 0, 0.0, 0.0, 0)
        belief.solved, belief.missed = (bytearray(rng.random(tasks).astype("<f4").tobytes()) for _ in range(2))
        belief.as_of = bytearray((1 + np.arange(tasks) // GROUPS).astype("<i4").tobytes())

        def count(_: int, counter: Any = counter, belief: TaskBelief = belief) -> list[int]:
            return list(counter.counts(belief, range(GROUPS), MEMBERS))

        def ended(number: int, counter: Any = counter, belief: TaskBelief = belief) -> None:
            counter.observe(belief, PlayedTask(tasks, number, 1000, (1.0, 0.0) * (MEMBERS // 2)))

        found[name] = {"members of 64 groups": timed(count, repeats), "a group that ended": timed(ended, 200)}
    return found


def timed(work: Callable[[int], object], repeats: int) -> dict[str, float]:
    """Return milliseconds of the processor, in which other work is not counted: median, quickest and slowest."""
    return figures_of([once(work, number) for number in range(repeats)])


def once(work: Callable[[int], object], number: int) -> float:
    began = time.thread_time()
    work(number)
    return (time.thread_time() - began) * 1e3


def numbered(work: Callable[[int], object]) -> Callable[[], float]:
    numbers = itertools.count()
    return lambda: once(work, next(numbers))


def figures_of(taken: list[float]) -> dict[str, float]:
    return {
        "median_ms": round(statistics.median(taken), 4),
        "quickest_ms": round(min(taken), 4),
        "slowest_ms": round(max(taken), 4),
    }


def measured(tasks: int, repeats: int) -> dict[str, object]:
    limits = vade.FEW_TASKS, vade.MANY_TASKS
    found: dict[str, object] = {}
    for name, belief in beliefs(tasks).items():

        def draw(number: int, belief: TaskBelief = belief) -> list[int]:
            return SAMPLER.choose(belief, Wanted(3, number, 1000, tasks, GROUPS, MEMBERS, frozenset(range(GROUPS))))

        def every(number: int, belief: TaskBelief = belief) -> None:
            vade.FEW_TASKS = vade.MANY_TASKS = tasks
            draw(number, belief)
            vade.FEW_TASKS, vade.MANY_TASKS = limits

        ways = {way: numbered(work) for way, work in (("window", draw), ("every rate", every))}
        taken = interleave(ways, repeats)
        median, lower = median_and_lower_end(paired_ratios(taken["every rate"], taken["window"]))
        figures = {way: figures_of(own) for way, own in taken.items()}
        found[name] = {**figures, "ratio": round(median, 3), "ratio_lower": round(lower, 3)}
    belief = beliefs(tasks)["all played"]
    played = [PlayedTask(tasks, task, 1000, (1.0, 0.0) * (MEMBERS // 2)) for task in range(200)]
    found["a group that ended"] = timed(lambda number: SAMPLER.observe(belief, played[number]), 200)
    return found


PARTS = {
    "walks": (walks, (1_000, 1_000_000)),
    "sizes": (sizes, (1_000, 1_000_000)),
    "sets": (measured, (1_000, 100_000, 1_000_000)),
}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--repeats", type=int, default=20)
    asked.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = asked.parse_args()
    document: dict[str, object] = {"groups": GROUPS, "members": MEMBERS, "numpy": np.__version__}
    for part in given.parts:
        measure, sets = PARTS[part]
        document[part] = {tasks: measure(tasks, given.repeats) for tasks in sets}
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
