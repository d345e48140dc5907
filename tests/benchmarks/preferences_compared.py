"""Does MNPO help? Against GRPO and online IPO at equal samples, in games without a best answer and in one with.

`python tests/benchmarks/preferences_compared.py --out FILE [--studies games words]`.

`games`: matrices of preferences in a circle (each of `--answers` answers is preferred to half of the others, by random
margins), a table of logits as policy, two answers in a group, of which one is preferred by a draw from the matrix.
Compared is the duality gap max P(y > policy) - min P(policy > y), 0 at the Nash equilibrium, over all versions (area)
and the last tenth (end). What a version is compared with and how pairs weigh is decided by the functions that runs use.

`words`: a template of factory models whose answers are right or wrong, each arm until it has sampled as many tokens;
compared is the share of held-out tasks solved.

Both with the bootstrap interval of the mean difference over seeds.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from tests.benchmarks.task_choice_learning import compared
from tests.support.local_training import LocalTraining
from workers.training.pairs import weigh
from workers.training.wire import TrainRow

LAST = 3
PAIRS = {"advantage": {"type": "best_worst"}, "entropy": {"start": 0.0}}


def arms(beta: float, rounds: int) -> dict[str, dict[str, Any]]:
    """Arm -> what stands under `algorithm`; `past` is seen from its opponents alone."""
    ipo = {"type": "online_dpo", "form": "ipo", "beta": beta}
    renewed = {"kl": {"reference": {"type": "renewed", "every": rounds}}}
    mixed = {"type": "online_dpo", "form": "mnpo", "beta": beta, "round_steps": rounds}
    return {
        "grpo": {},
        "ipo": {**PAIRS, "loss": ipo},
        "ipo_renewed": {**PAIRS, "loss": ipo, **renewed},
        "past": {**PAIRS, "loss": {**mixed, "reference_share": 0.0}},
        "mnpo": {**PAIRS, "loss": mixed},
    }


def circle(answers: int, made: torch.Generator) -> torch.Tensor:
    """Return P [n, n], how often one answer is preferred to another: each is to the next half of a circle."""
    ahead = (torch.arange(answers)[None, :] - torch.arange(answers)[:, None]) % answers
    margins = 0.5 * torch.rand(answers, answers, generator=made, dtype=torch.float64)
    wins = torch.where((ahead > 0) & (ahead <= answers // 2), margins, 0.0)
    return 0.5 + wins - wins.T


def gap(preferred: torch.Tensor, logits: torch.Tensor) -> float:
    against = preferred @ logits.softmax(0)
    return float(against.max() - (1.0 - against).min())


def played_game(arm: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    preferred = circle(given.answers, made)
    algorithm = AlgorithmSpec.model_validate(arms(given.beta, given.round_steps)[arm])
    logits = torch.nn.Parameter(torch.randn(given.answers, generator=made, dtype=torch.float64))
    optimizer, tables, gaps = torch.optim.Adam([logits], given.rate), [logits.detach().clone()], []
    for version in range(given.steps):
        drawn = logits.detach().softmax(0).expand(given.pairs, -1).multinomial(2, True, generator=made)
        won = torch.rand(given.pairs, generator=made, dtype=torch.float64) < preferred[drawn[:, 0], drawn[:, 1]]
        better, worse = (torch.where(one, drawn[:, 0], drawn[:, 1]) for one in (won, ~won))
        said, scores = torch.cat((better, worse)), logits.log_softmax(0)
        if algorithm.loss.paired:
            seen = sum(
                weight * tables[number].log_softmax(0) for number, weight in algorithm.compared_with(version).items()
            )
            ratios = (scores.detach() - seen)[said].tolist()
            rows = [
                TrainRow(b"", b"", b"", b"", 1.0, [sign], 1.0, pair=str(number))
                for sign in (1.0, -1.0)
                for number in range(given.pairs)
            ]
            weights = torch.tensor([own for (own,) in weigh(rows, ratios, algorithm.loss).advantages])
        else:
            weights = torch.cat((torch.full((given.pairs,), 0.5), torch.full((given.pairs,), -0.5)))
        optimizer.zero_grad()
        (-(weights * scores[said]).sum() / given.pairs).backward()
        optimizer.step()
        tables.append(logits.detach().clone())
        gaps.append(gap(preferred, tables[-1]))
    return {
        "arm": arm, "seed": seed, "samples": 2 * given.pairs * given.steps, "first": gap(preferred, tables[0]),
        "area": statistics.mean(gaps), "end": statistics.mean(gaps[-len(gaps) // 10 :]),
    }  # fmt: skip


def played_words(arm: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train until so many tokens are sampled; evaluate every so many steps."""
    algorithm = arms(given.words_beta, given.words_round_steps)[arm]
    return {"arm": arm, "seed": seed} | learned(given.task, seed, algorithm, given)


def learned(template: str, seed: int, algorithm: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """Train a template until so many tokens are sampled; say what share of held-out tasks was solved meanwhile."""
    batch = dict.fromkeys(("tasks_per_step", "micro_batch_groups", "rollout_groups"), given.groups)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as home:
        training = LocalTraining.of_template(template, home, {"seed": seed, "batch": batch, "algorithm": algorithm})
        training.train(given.tokens, given.evaluations)
        scores = [one.solved for one in training.evaluations]
        return {
            "steps": training.steps_done, "tokens": training.tokens, "solved": scores,
            "area": statistics.mean(scores), "end": statistics.mean(scores[-LAST:]),
            "cpu_s": round(time.process_time() - began, 1),
        }  # fmt: skip


STUDIES = {"games": played_game, "words": played_words}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    asked.add_argument("--arms", nargs="+", choices=arms(1.0, 2), default=list(arms(1.0, 2)))
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--answers", type=int, default=7, help="of a game")
    asked.add_argument("--pairs", type=int, default=128, help="of a step of a game")
    asked.add_argument("--steps", type=int, default=2000, help="of a game")
    asked.add_argument("--rate", type=float, default=0.005, help="of Adam in a game")
    asked.add_argument("--beta", type=float, default=0.25, help="eta, of a game")
    asked.add_argument("--round-steps", type=int, default=100, help="of a game")
    asked.add_argument("--task", default="hot_cold", help="a template of factory models")
    asked.add_argument("--groups", type=int, default=8, help="of a step with words")
    asked.add_argument("--words-beta", type=float, default=0.1)
    asked.add_argument("--words-round-steps", type=int, default=10)
    asked.add_argument("--tokens", type=int, default=20_000)
    asked.add_argument("--evaluations", type=int, default=8)
    given = asked.parse_args()
    document: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(given).items()}, "studies": {}}
    for study in given.studies:
        rows: list[dict[str, Any]] = []
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            for arm in given.arms if seed % 2 == 0 else reversed(given.arms):
                rows.append(STUDIES[study](arm, seed, given))
                print(study, rows[-1], flush=True)
        found = {
            f"mnpo over {arm}, {figure}": compared(rows, figure, arm, "mnpo")
            for arm in given.arms
            if arm != "mnpo"
            for figure in ("area", "end")
        }
        document["studies"][study] = {"rows": rows, "compared": found}
        print(json.dumps(found, indent=1), flush=True)
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
