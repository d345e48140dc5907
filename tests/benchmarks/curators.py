"""What the choice of members, prefixes, stored successes and limits of turns costs per group, in ms of the processor.

`python tests/benchmarks/curators.py --json FILE`: groups of 16 members, of which 8 play from the start where others
continue them, 12 turns each, replies of 256 tokens where they are continued at one; fits and what is thrown away of a
pool of 10,000 successes count as shares of a step of 64 groups. The functions are those that runs call, each method's
added up: median, quickest and slowest of the repetitions, methods in turns.
"""

import random
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from flexmarl.algorithms import prefix_predictor, rescue, token_branching
from flexmarl.algorithms.branching import BRANCH_CONTROLLERS
from flexmarl.algorithms.selection import max_variance, widest_pairs
from flexmarl.contracts.wire import Branch, EpisodeOutcome, EpisodeStatus, Prefix, SampleRef
from flexmarl.orchestrator.cohorts.turn_limits import limit_turns, note_turns
from tests.benchmarks.harness import interleave, start
from tests.unit.orchestrator.fake_cluster import make_spec
from workers.rollout.continuing import Tree, starts

MEMBERS, ROOTS, TURNS, TOKENS = 16, 8, 12, 256
GROUPS = 64
POOL = 10_000
IN_ORDER = {"type": "greso", "tasks": POOL, "least_easy": 1.0, "least_hard": 1.0}
RNG = random.Random(3)


def episode(member: int, branch: Branch | None = None) -> EpisodeOutcome:
    return EpisodeOutcome(
        member=member, attempt=1, status=EpisodeStatus.FINISHED, team_score=RNG.random(), solved=RNG.random() < 0.5,
        samples=tuple(SampleRef(role="speaker", turn=turn, tokens=TOKENS, reward=0.1) for turn in range(TURNS)),
        branch=branch,
    )  # fmt: skip


def pairs() -> Callable[[], object]:
    group = [episode(member) for member in range(MEMBERS)]
    return lambda: widest_pairs(group, MEMBERS // 2)


def variance() -> Callable[[], object]:
    group = [episode(member) for member in range(MEMBERS)]
    return lambda: max_variance(group, MEMBERS // 2)


def trace() -> Callable[[], object]:
    spec: Any = make_spec(sampling__branch_controller="trace", batch__episodes_per_task=MEMBERS)
    prefixes = tuple(Prefix(turns=turn, logprob=-RNG.random()) for turn in range(1, TURNS))
    roots = [episode(member, Branch(prefixes=prefixes)) for member in range(ROOTS)]
    others = [episode(ROOTS + n, Branch(root=n, turns=1 + n % 4)) for n in range(MEMBERS - ROOTS)]
    order: Any = SimpleNamespace(predictor=(0.1, 1.0, -0.2, 0.3, 0.5), sampling_seed=1)
    tree, rows = Tree(0, range(ROOTS), range(ROOTS, MEMBERS)), prefix_predictor.examples_of(roots, 1.0)

    def group() -> None:
        starts(spec, tree, roots, order)
        prefix_predictor.examples_of([*roots, *others], 1.0)

    def step() -> None:
        belief = prefix_predictor.PrefixBelief(waiting={0: dict.fromkeys(range(GROUPS), rows)})
        prefix_predictor.learn(belief, 0)

    return _with_share_of_a_step(group, step)


def echo() -> Callable[[], object]:
    spec: Any = make_spec(sampling__branch_controller="echo", batch__episodes_per_task=MEMBERS)
    options, known = spec.sampling.branch_controller, (9.0, 0.5, 0.7, 0.2)  # no reply is in doubt: all are read
    said = [[RNG.random() for _ in range(3 * TOKENS)] for _ in range(ROOTS)]
    told = token_branching.spread(np.array([[RNG.random()] * 3 for _ in range(TOKENS)]))
    roots = [episode(member, Branch(signals=told)) for member in range(ROOTS)]
    rows = token_branching.seen_in(roots)

    def group() -> None:
        controller = BRANCH_CONTROLLERS.make(options)
        for reply in said:
            controller.doubted(token_branching.signals_of(reply, 5), known)
            token_branching.spread(token_branching.signals_of(reply, 5))  # once more, where an attempt is told of
        token_branching.seen_in(roots)

    def step() -> None:
        belief = prefix_predictor.PrefixBelief(waiting={0: dict.fromkeys(range(GROUPS), rows)})
        token_branching.learn_thresholds(belief, 0, options)

    return _with_share_of_a_step(group, step)


def rescued() -> Callable[[], object]:
    won = [episode(member).model_copy(update={"solved": member == 3}) for member in range(MEMBERS)]
    pool: dict[int, rescue.StoredSuccess] = {}
    for task in range(POOL):
        success = rescue.success_of(won, task, 0)
        assert success is not None
        rescue.store(pool, task, success, "speaker", 5)

    def group() -> None:
        success = rescue.success_of(won, POOL + 1, 1)
        assert success is not None
        rescue.store(pool, 7, success, "speaker", 5)
        assert rescue.usable(pool[8], 3, {"speaker": 6}, 8, 4)
        rescue.episode_of(pool[8], 0)

    return _with_share_of_a_step(group, lambda: rescue.expire(pool, {"speaker": 6}, 8, 4))


def limits() -> Callable[[], object]:
    limit = {"type": "past_successes", "least": 3}
    spec = make_spec(sampling__task_sampler=IN_ORDER, sampling__turn_limit=limit)
    turns = SimpleNamespace(longest={}, of_draw={})
    choice = SimpleNamespace(turns=turns, of_draw={0: 0})
    ctx: Any = SimpleNamespace(
        plan=SimpleNamespace(spec=spec), state=SimpleNamespace(choice=choice), rule=lambda *said, **more: None
    )
    cohort: Any = SimpleNamespace(no=1, tasks={})
    group = [episode(member) for member in range(MEMBERS)]

    def limited() -> None:
        note_turns(ctx, 0, group)
        limit_turns(ctx, cohort, [0])

    return limited


def _with_share_of_a_step(group: Callable[[], object], step: Callable[[], object]) -> Callable[[], object]:
    """Return what does a group's part, and every 64th time a step's: the mean of 64 calls is the cost of a group."""
    calls = 0

    def both() -> None:
        nonlocal calls
        calls += 1
        group()
        if calls % GROUPS == 0:
            step()

    return both


def main() -> None:
    report = start("curators", __doc__ or "")
    made = {"pairs": pairs, "variance": variance, "trace": trace, "echo": echo, "rescue": rescued, "turn_limit": limits}

    def timed(work: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            began = time.thread_time()
            for _ in range(GROUPS):
                work()
            return (time.thread_time() - began) * 1e3 / GROUPS

        return run

    taken = interleave({name: timed(make()) for name, make in made.items()}, 3 if report.quick else 30)
    for name, values in taken.items():
        report.figures[f"{name}_ms"] = statistics.median(values)
        report.figures[f"{name}_quickest_ms"] = min(values)
        report.figures[f"{name}_slowest_ms"] = max(values)
    report.finish()


if __name__ == "__main__":
    main()
