"""Do other ways to train reach the same at equal samples? Each arm of a study plays as many steps on the same seeds.

`async`: schedules that train on older rows, or overlap cohorts, against the synchronous preset.
`scales`: a team whose roles are paid in unlike units, each agent compared with itself (Dr. MAS) and all with all.
`branches`: groups whose members answer the turns of one episode (AT-GRPO) against episodes of their own.
`losses`: dynamic sampling, preferences and a learned baseline against GRPO.

Through all real services, arms in turns within a seed, so that whatever else the machine does meets all of them. What
is compared is counted in samples, not in seconds, so a busy machine changes nothing but which rows are how old.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, Report, start

from tests.support.system import Api, System

LIMIT_S = 900.0
LAST = 3
"""Evaluations whose mean is what an arm has reached."""
SCORER = '''"""Pays each role in a unit of its own."""

from typing import ClassVar, Literal

from flexmarl.contracts.specification.reward import QueuedReward


class InUnits(QueuedReward):
    """The environment's scores, each role's times a factor of its own."""

    type: Literal["in_units"] = "in_units"
    factors: dict[str, float] = {}
    implementation: ClassVar[str] = "in_units:score"


def score(played, settings):
    return {
        "scores": {role: settings["factors"].get(role, 1.0) * value for role, value in played["scores"].items()},
        "team_score": played["team_score"],
    }
'''
PAID = {"type": "in_units", "factors": {"guesser": 1.0, "hinter": 20.0}}
CLIPPED = {"algorithm": {"loss": {"type": "ppo_clip"}}}

BRANCHES = {
    "algorithm": {"group_key": "agent_turn"},
    "sampling": {"branch_controller": {"type": "at_grpo_tree", "score": "played_out"}},
}


@dataclass(frozen=True, slots=True)
class Arm:
    preset: str = "flexmarl"
    spec: Mapping[str, Any] | None = None


def bounded(**lag: object) -> dict[str, Any]:
    return {**CLIPPED, "mechanisms": {"lag_policy": {"bound": 2, **lag}}}


def in_units(**algorithm: Any) -> dict[str, Any]:
    advantage = {"type": "grpo", "divide_by_std": True, "team_share": 0.0}
    return {"reward": PAID, "algorithm": {"advantage": advantage, **algorithm}}


STUDIES: dict[str, tuple[str, dict[str, Arm]]] = {
    "async": (
        "sync",
        {
            "sync": Arm("sync"),
            "micro_batch": Arm("flexmarl"),
            "wavefront": Arm("wavefront"),
            "one_step_off": Arm("one_step_off"),
            "delayed": Arm(
                "flexmarl", {**CLIPPED, "mechanisms": {"publication": "delayed", "lag_policy": {"bound": 1}}}
            ),
            "bounded_async": Arm("bounded_async"),
            "continue": Arm("flexmarl", bounded(in_flight="continue")),
            "active_partial": Arm("active_partial"),
        },
    ),
    "scales": (
        "each_with_itself",
        {
            "each_with_itself": Arm(spec=in_units(group_key="episode_group")),
            "all_with_all": Arm(spec=in_units(group_key="team")),
        },
    ),
    "losses": (
        "grpo",
        {
            "grpo": Arm(),
            "dynamic_sampling": Arm(spec={"sampling": {"group_filter": {"type": "dynamic_sampling", "draw_limit": 4}}}),
            "critic": Arm(
                spec={
                    "algorithm": {
                        "loss": {"type": "ppo_clip"},
                        "advantage": {"type": "gae", "divide_by_std": False, "critic_rate": 0.03},
                    }
                }
            ),
            "online_dpo": Arm(
                spec={
                    "algorithm": {
                        "loss": {"type": "online_dpo"},
                        "advantage": {"type": "best_worst", "divide_by_std": False},
                        "entropy": {"start": 0.0},
                    }
                }
            ),
        },
    ),
    "branches": (
        "grpo",
        {
            "grpo": Arm(),
            "branches": Arm(spec=BRANCHES),
        },
    ),
}
"""Study -> the arm that the others are compared with, and all arms."""


@dataclass(frozen=True, slots=True)
class Reached:
    score: float
    """Mean team score of the last evaluations on held-out tasks."""
    area: float
    """Mean over all evaluations: who learns sooner has more."""
    solved: float
    rows: int
    """Rows trained."""
    own_lag: float


def common(steps: int) -> dict[str, Any]:
    return {
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 2, "tasks": 128},
        "checkpoints": {"every_steps": 1000},
    }


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for name, value in above.items():
        inner = found.get(name)
        found[name] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return found


def play(api: Api, name: str, arm: Arm, template: str, seed: int, steps: int) -> Reached:
    spec = merged(merged({"seed": seed}, common(steps)), arm.spec or {})
    run = api.create_run(name=f"{name} {seed}", template=template, preset=arm.preset, spec=spec)
    done = api.finish(run["id"], LIMIT_S)
    if done["status"] != "completed":
        raise RuntimeError(f"{name} seed {seed}: {done['status']}, {done['reason_text']}")
    found = api.series(run["id"], "eval/team_score", "eval/solved", "staleness/own_max")
    score, solved = (found[name, "", "mean"][1] for name in ("eval/team_score", "eval/solved"))
    lags = [max(values) for (name, _, _), (_, values) in found.items() if name == "staleness/own_max"]
    return Reached(
        statistics.mean(score[-LAST:]),
        statistics.mean(score),
        statistics.mean(solved[-LAST:]),
        int(done["progress"]["samples_trained"]),
        max(lags, default=0.0),
    )


def tell(report: Report, study: str, base: str, reached: Mapping[str, Sequence[Reached]]) -> None:
    for name, own in reached.items():
        key = f"{study}_{name}"
        report.figures[f"{key}_score"] = statistics.mean(each.score for each in own)
        report.figures[f"{key}_score_min"] = min(each.score for each in own)
        report.figures[f"{key}_area"] = statistics.mean(each.area for each in own)
        report.figures[f"{key}_solved"] = statistics.mean(each.solved for each in own)
        report.figures[f"{key}_rows"] = statistics.mean(each.rows for each in own)
        report.figures[f"{key}_own_lag"] = max(each.own_lag for each in own)
        if name != base:
            shares = [mine.score / theirs.score for mine, theirs in zip(own, reached[base], strict=True)]
            report.figures[f"{key}_share_of_{base}"] = statistics.median(shares)
            report.figures[f"{key}_share_of_{base}_min"] = min(shares)


def install_scorer(folder: Path) -> dict[str, str]:
    """Lay down a package with the reward function; returns what makes processes find it."""
    (folder / "in_units.py").write_text(SCORER)
    info = folder / "in_units-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: in-units\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[flexmarl.reward]\nin_units = in_units:InUnits\n")
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, ROOT / "platform")))}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--studies", default=",".join(STUDIES), help="comma-separated")
    parser.add_argument("--template", default="hot_cold")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="to go on where an earlier call was cut off")
    parser.add_argument("--steps", type=int, default=30)


def main() -> None:
    report = start("learning_compared", "what other ways to train reach at equal samples", options)
    studies = ["scales"] if report.quick else str(report.settings["studies"]).split(",")
    seeds, steps = (1, 6) if report.quick else (int(str(report.settings[name])) for name in ("seeds", "steps"))
    first = int(str(report.settings["first_seed"]))
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder:
        Path(folder).chmod(0o755)
        environment = install_scorer(Path(folder))
        with System(Path(folder) / "home", environment=environment) as system:
            api = system.api()
            for study in studies:
                base, arms = STUDIES[study]
                reached: dict[str, list[Reached]] = {name: [] for name in arms}
                for seed in range(first, first + seeds):
                    for name in arms if seed % 2 == 0 else reversed(arms):
                        reached[name].append(play(api, name, arms[name], str(report.settings["template"]), seed, steps))
                        print(study, seed, name, reached[name][-1], flush=True)
                tell(report, study, base, reached)
    report.finish()


if __name__ == "__main__":
    main()
