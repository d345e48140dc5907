"""What choosing tasks and counting members costs: of a step's groups from large sets, and of a group that ended.

`python tests/benchmarks/task_choice.py --out FILE`: for `vade` every rate sampled and the window around 1/3, in turn,
on the same beliefs; for `greso` and `filter_solved` the beliefs that cost most, for `near_success` and numbers of
members sets of which all tasks were played; the median and the slowest of each.
"""

import argparse
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

GROUPS, MEMBERS = 64, 8
SAMPLER = TASK_SAMPLERS.make(TASK_SAMPLER.options("vade"))


def beliefs(tasks: int) -> dict[str, TaskBelief]:
    """Nothing known; some played lately, as in a run; all played, each with a pass rate and an age of its own."""
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
    """Return milliseconds of the processor, which other work does not lengthen: the median and the slowest."""
    found = []
    for number in range(repeats):
        began = time.thread_time()
        work(number)
        found.append((time.thread_time() - began) * 1e3)
    return {"median_ms": round(statistics.median(found), 4), "slowest_ms": round(max(found), 4)}


def measured(tasks: int, repeats: int) -> dict[str, object]:
    few = vade.FEW_TASKS
    found: dict[str, object] = {}
    for name, belief in beliefs(tasks).items():

        def draw(number: int, belief: TaskBelief = belief) -> list[int]:
            return SAMPLER.choose(belief, Wanted(3, number, 1000, tasks, GROUPS, MEMBERS, frozenset(range(GROUPS))))

        rows = {}
        for way, limit in (("window", few), ("every rate", tasks)) * 2:
            vade.FEW_TASKS = limit
            rows.setdefault(way, []).append(timed(draw, repeats))
        vade.FEW_TASKS = few
        found[name] = {way: {key: max(one[key] for one in own) for key in own[0]} for way, own in rows.items()}
    belief = beliefs(tasks)["all played"]
    played = [PlayedTask(tasks, task, 1000, (1.0, 0.0) * (MEMBERS // 2)) for task in range(200)]
    found["a group that ended"] = timed(lambda number: SAMPLER.observe(belief, played[number]), 200)
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--repeats", type=int, default=20)
    given = asked.parse_args()
    document = {
        "groups": GROUPS,
        "members": MEMBERS,
        "numpy": np.__version__,
        "walks": {tasks: walks(tasks, given.repeats) for tasks in (1_000, 1_000_000)},
        "sizes": {tasks: sizes(tasks, given.repeats) for tasks in (1_000, 1_000_000)},
        "sets": {tasks: measured(tasks, given.repeats) for tasks in (1_000, 100_000, 1_000_000)},
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
