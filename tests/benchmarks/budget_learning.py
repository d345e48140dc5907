"""Do stored successes and groups of other sizes help? Against plain GRPO, at equal generated tokens.

`python tests/benchmarks/budget_learning.py --out FILE [--arms plain rescue]`: all arms play one set of tasks of the
template in one order from the same seeds until they have sampled as many tokens, in turns; each differs from the first
in one option of `sampling`. Compared is the share of held-out tasks solved, as the mean of evaluations along the way
(area) and of the last ones (end), with the bootstrap interval of the mean difference over seeds. What is stored, taken
and counted is decided by the functions that runs use (`flexmarl.algorithms.rescue`, `.member_counts`), and an injected
row has the log-probabilities of the weights that sampled it. `seeded` is `rescue` whose pool begins with the newest
success of each task of the plain arm of its seed, as `begins_with` lets a run begin with the export of an earlier one:
that run's tokens are not counted.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from flexmarl.algorithms.rescue import StoredSuccess, episode_of, expire, store, success_of, usable
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.algorithms.task_sampler import PlayedTask, all_alike
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.store.data.groups import SettledGroup
from tests.benchmarks.task_choice_learning import compared
from tests.support.local_training import LocalTraining
from workers.rollout.episode import EpisodeAttempt
from workers.rollout.turn_limits import TRUNCATED
from workers.training.wire import TrainRow

IN_ORDER = {"type": "greso", "least_easy": 1.0, "least_hard": 1.0}
"""Plays the set in its order and begins anew after the last task."""
IMITATION = {"batch_size": 256, "learning_rate": 0.003, "max_seconds": 60.0}
ARMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rescue": {"replay": {"type": "rescue", "max_age": 32, "max_uses": 8}},
    "seeded": {"replay": {"type": "rescue", "max_age": 32, "max_uses": 8}},
    "limited": {"turn_limit": {"type": "past_successes", "least": 1}},
    "fewer_when_solved": {"members": {"type": "fewer_when_solved"}},
    "mixed_outcomes": {"members": {"type": "mixed_outcomes"}},
}
LAST = 3
Successes = tuple[dict[int, StoredSuccess], dict[tuple[str, int], list[TrainRow]]]
"""Stored successes by task, and their rows by policy and task."""
FIGURES = ("area", "end", "training_score", "failed_groups", "alike_groups")


class Watched(LocalTraining):
    """Plays groups of the sizes that the specification counts, and counts those that nobody solved or all alike."""

    failed = 0
    alike = 0
    played = 0
    """Episodes."""
    cut_off = 0
    """Episodes that ended at a limit of turns."""

    def __init__(self, spec: ExperimentSpec, home: str, device: str = "cpu") -> None:
        super().__init__(spec, home, device)
        self.rates = TaskBelief()
        self._members: dict[int, int] = {}

    def _chosen(self, draws: range) -> dict[int, int]:
        chosen, counter = super()._chosen(draws), self.plan.tasks.counter
        counted = counter.counts(self.rates, list(chosen.values()), self.spec.batch.episodes_per_task)
        self._members = dict(zip(chosen, counted, strict=True))
        return chosen

    def members_of(self, draw: int, members: int) -> int:
        return self._members.get(draw, members)

    def _observe(self, draw: int, settled: SettledGroup) -> None:
        episodes, tasks = settled.event.episodes, self.plan.tasks
        self.played += len(episodes)
        self.failed += not any(episode.solved for episode in episodes)
        self.alike += all_alike(episodes)
        if draw in self._task_of:
            shares = tuple(episode.team_score / tasks.best_score for episode in episodes)
            played = PlayedTask(tasks.chosen_from, self._task_of[draw], self.steps_done, shares)
            tasks.counter.observe(self.rates, played)
        super()._observe(draw, settled)


class Limited(Watched):
    """Ends episodes after as many turns as the longest success of their task had, as `sampling.turn_limit` says."""

    def __init__(self, spec: ExperimentSpec, home: str, device: str = "cpu") -> None:
        super().__init__(spec, home, device)
        self._longest: dict[int, int] = {}

    def turns_of(self, draw: int) -> int:
        longest = self._longest.get(self._task_of[draw])
        return 0 if longest is None else max(longest, self.spec.sampling.turn_limit.least)

    def _observe(self, draw: int, settled: SettledGroup) -> None:
        super()._observe(draw, settled)
        episodes, task = settled.event.episodes, self._task_of[draw]
        self.cut_off += sum(episode.facts.get(TRUNCATED, 0.0) == 1.0 for episode in episodes)
        solved = [len(episode.samples) for episode in episodes if episode.solved]
        if solved:
            self._longest[task] = max(self._longest.get(task, 0), *solved)


class Rescuing(Watched):
    """Injects a stored success into groups that failed, as `sampling.replay: {type: rescue}` says."""

    def __init__(self, spec: ExperimentSpec, home: str, device: str = "cpu") -> None:
        super().__init__(spec, home, device)
        self.rescued = 0
        self._pool: dict[int, StoredSuccess] = {}
        self._kept: dict[tuple[str, int], list[TrainRow]] = {}
        """(policy, task) -> rows of the stored success, as they were trained."""
        self._left_out: dict[int, int] = {}
        """Draw of the step -> member that made room."""
        self._injected: dict[str, list[list[TrainRow]]] = {}
        self._given: dict[int, StoredSuccess] = {}
        """Task -> success that a group of the step gives."""

    @property
    def pool(self) -> Successes:
        """Return the stored successes with their rows."""
        return self._pool, self._kept

    def begin_with(self, earlier: Successes) -> None:
        """Let the pool begin with the successes of an earlier run, as old as version 0."""
        pool, kept = earlier
        for number, (task, one) in enumerate(sorted(pool.items()), start=1):
            mine = {"draw": -number, "last": -1, "uses": 0, "oldest": dict.fromkeys(one.oldest, 0)}
            self._pool[task] = msgspec.structs.replace(one, **mine)
        for key, rows in kept.items():
            self._kept[key] = [msgspec.structs.replace(row, segments=[-1, len(row.response) // 4]) for row in rows]

    def _judged(self, group: list[EpisodeAttempt]) -> tuple[SettledGroup, list[list[float]]]:
        settled, values = super()._judged(group)
        draw, episodes, rule = group[0].order.draw, settled.event.episodes, self.spec.sampling.replay
        task = self._task_of[draw]
        success = success_of(episodes, draw, self.steps_done)
        if success is not None:
            self._given[task] = success
            return settled, values
        stored, versions = self._pool.get(task), dict.fromkeys(self.plan.trainable, self.steps_done)
        if stored is None or not usable(stored, self.steps_done, versions, rule.max_age, rule.max_uses):
            return settled, values
        settlement, fresh, saved = self.plan.settlement, episodes[1:], episode_of(stored, 0)
        everyone = [*fresh, saved]
        rewards = [settlement.rewards(one) for one in everyone]
        *others, of_success = settlement.advantage.estimate(settlement.group_key, everyone, rewards)
        stored.uses, stored.last, self._left_out[draw] = stored.uses + 1, self.steps_done, 0
        self.rescued += 1
        given = {(one.role, one.turn): value for one, value in zip(saved.samples, of_success, strict=True)}
        for policy in stored.oldest:
            rows = [self._again(row, given) for row in self._kept[policy, task]]
            self._injected.setdefault(policy, []).append(rows)
        return settled, [[0.0] * len(episodes[0].samples), *others]

    def _again(self, row: TrainRow, given: dict[tuple[str, int], float]) -> TrainRow:
        role = row.pair.partition(":")[2]
        values = [given[role, row.turn + place] for place in range(len(row.advantages))]
        return msgspec.structs.replace(row, advantages=values, weight=self.spec.sampling.replay.weight)

    def _rows(self, settled: SettledGroup, advantages: list[list[float]]) -> dict[str, list[TrainRow]]:
        rows = super()._rows(settled, advantages)
        gone = self._left_out.pop(settled.event.draw, None)
        return {policy: [row for row in own if row.member != gone] for policy, own in rows.items()}

    def _train(self, policy: str, groups: list[list[TrainRow]], step: int) -> None:
        super()._train(policy, [*groups, *self._injected.pop(policy, [])], step)
        of_draw = {int(rows[0].pair.partition(":")[0]): rows for rows in groups if rows}
        for task, success in self._given.items():
            own = [row for row in of_draw.get(success.draw, ()) if row.member == success.member]
            if own:
                store(self._pool, task, success, policy, step)
                self._kept[policy, task] = own
        if policy == self.plan.trainable[-1]:
            self._given.clear()
            self._expire(step)

    def _expire(self, step: int) -> None:
        rule = self.spec.sampling.replay
        versions = dict.fromkeys(self.plan.trainable, step + 1)
        expire(self._pool, versions, rule.max_age, rule.max_uses)


class Collecting(Rescuing):
    """A plain run that keeps the newest success of each task for ever, and injects none."""

    def _judged(self, group: list[EpisodeAttempt]) -> tuple[SettledGroup, list[list[float]]]:
        settled, values = LocalTraining._judged(self, group)
        draw = group[0].order.draw
        if (success := success_of(settled.event.episodes, draw, self.steps_done)) is not None:
            self._given[self._task_of[draw]] = success
        return settled, values

    def _expire(self, step: int) -> None:
        """Keep all."""


KINDS: dict[str, type[Watched]] = {"plain": Collecting, "rescue": Rescuing, "seeded": Rescuing, "limited": Limited}


def played(arm: str, seed: int, given: argparse.Namespace, earlier: dict[int, Successes]) -> dict[str, Any]:
    """Train until so many tokens are sampled, and evaluate on the way. `earlier`: what plain runs solved, by seed."""
    changes: dict[str, Any] = {
        "seed": seed,
        "algorithm": {"loss": {"type": "ppo_clip"}},
        "batch": {"tasks_per_step": given.groups, "micro_batch_groups": given.groups, "rollout_groups": given.groups,
                  "episodes_per_task": given.members},
        "sampling": {"task_sampler": IN_ORDER | {"tasks": given.tasks}, **ARMS[arm]},
    }  # fmt: skip
    if given.imitation is not None:
        roles = resolve({}, template=given.task).spec.policies
        changes["policies"] = {name: {"warmup": IMITATION | {"steps": given.imitation}} for name in roles}
    began = time.process_time()
    with tempfile.TemporaryDirectory() as home:
        training = KINDS.get(arm, Watched).of_template(given.task, home, changes)
        if arm == "seeded" and isinstance(training, Rescuing):
            training.begin_with(earlier[seed])
        training.train(given.tokens, given.evaluations)
        if isinstance(training, Collecting):
            earlier[seed] = training.pool
        scores = [one.solved for one in training.evaluations]
        return {
            "arm": arm, "seed": seed, "steps": training.steps_done, "tokens": training.tokens, "solved": scores,
            "area": statistics.mean(scores), "end": statistics.mean(scores[-LAST:]),
            "training_score": statistics.mean(training.rewards),
            "failed_groups": training.failed / (training.steps_done * given.groups),
            "alike_groups": training.alike / (training.steps_done * given.groups),
            "rescued": training.rescued if isinstance(training, Rescuing) else 0,
            "solved_tasks": len(earlier.get(seed, ({}, {}))[0]),
            "episodes": training.played, "cut_off": training.cut_off / training.played,
            "cpu_s": round(time.process_time() - began, 1),
        }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--task", default="arithmetic", help="a template of factory models")
    asked.add_argument("--imitation", type=int, help="steps before the first one that is compared; the template's")
    asked.add_argument("--tasks", type=int, default=64)
    asked.add_argument("--groups", type=int, default=8, help="of a step of both arms")
    asked.add_argument("--members", type=int, default=8)
    asked.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="the first is the base")
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--tokens", type=int, default=20_000)
    asked.add_argument("--evaluations", type=int, default=8)
    given = asked.parse_args()
    base, *others = given.arms
    if "seeded" in given.arms and base != "plain":
        asked.error("--arms: seeded begins with what the plain arm solved, so plain comes first")
    rows: list[dict[str, Any]] = []
    earlier: dict[int, Successes] = {}
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in given.arms:
            rows.append(played(arm, seed, given, earlier))
            print(rows[-1], flush=True)
        document: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(given).items()}, "rows": rows}
        document["compared"] = {
            f"{other}: {figure}": compared(rows, figure, base, other) for other in others for figure in FIGURES
        }
        given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["compared"], indent=1))


if __name__ == "__main__":
    main()
