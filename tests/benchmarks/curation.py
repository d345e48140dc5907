"""Do M2PO, Shuffle-R1 and a clip by confidence help? Each against GRPO at equal sampled tokens, in memory.

`python tests/benchmarks/curation.py --out FILE [--studies stale members doubt]`: the real core decides, two tables of
logits learn a code of four words, and facts arrive in an order that the seed gives, so the machine's load changes no
figure.
Both arms of a comparison differ in the method alone and sample as many tokens: as many steps of as many members.
`stale` takes every step on rows up to `--bound` versions old; `members` trains on half of the members of each group,
and since the kept half has the larger advantages, all members are tried with steps half as large again as well;
shuffled, pairs are drawn again by the size of their advantages. `doubt` is `stale` with a clip range for each row.
Compared is the chance that the listener understands the speaker, as the mean over all versions (area) and of the last
(end), with the bootstrap interval of the mean difference over seeds.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.task_choice_learning import compared
from tests.conformance.test_learning_seeds import STEPS, played

STUDIES = ("stale", "members", "doubt")
GRPO = {"divide_by_std": True}
CLIPPED = {"loss": {"type": "ppo_clip"}, "advantage": GRPO}
WIDE = {"loss": {"type": "ppo_clip", "clip_low": 1.0, "clip_high": 10.0}, "advantage": GRPO}


BESIDE = {"members": [("pairs", "pairs_shuffled"), ("pairs_faster", "pairs_shuffled"), ("all_faster", "all_shuffled")]}
"""Study -> arms that are compared beside those with its first one."""
PAIRS = {"keep_members": 4, "keep_rule": "pairs"}


def both(width: float) -> dict[str, float]:
    return {"clip_low": width, "clip_high": width}


def studies(given: argparse.Namespace) -> dict[str, dict[str, dict[str, Any]]]:
    """Study -> arm -> preset and changes; the first arm is what the others are compared with."""
    stale: dict[str, Any] = {"preset": "bounded_async", "mechanisms": {"lag_policy": {"bound": given.bound}}}
    second = {"type": "second_moment", "moment_limit": given.moment_limit}
    members = {"preset": "sync", "algorithm": CLIPPED}
    return {
        "stale": {
            "clipped": {**stale, "algorithm": CLIPPED},
            "unclipped": {**stale, "algorithm": WIDE},
            "m2po": {**stale, "algorithm": {**WIDE, "correction": second}},
        },
        "members": {
            "all": members,
            "all_faster": {**members, "rate": 9.0},
            "variance": {**members, "sampling": {"keep_members": 4}},
            "pairs": {**members, "sampling": PAIRS},
            "pairs_faster": {**members, "sampling": PAIRS, "rate": 9.0},
            "all_shuffled": {**members, "sampling": {"arranger": "advantage_shuffle"}},
            "pairs_shuffled": {**members, "sampling": {**PAIRS, "arranger": "advantage_shuffle"}},
        },
        "doubt": {
            "clipped_middle": {**stale, "algorithm": {**CLIPPED, "loss": {"type": "ppo_clip", **both(0.125)}}},
            "clipped_widest": {**stale, "algorithm": CLIPPED},
            "by_confidence": {**stale, "algorithm": {**CLIPPED, "loss": {"type": "confidence_clip"}}},
        },
    }


def learned(arm: str, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    began = time.process_time()
    cluster = played(seed, **settings)
    scores = [cluster.expected(version) for version in range(STEPS + 1)]
    return {
        "arm": arm, "seed": seed, "area": statistics.mean(scores), "end": scores[-1], "rows": len(cluster.trained),
        "own_lag": max(cluster.lags), "corrected": statistics.mean(cluster.corrected),
        "clipped": statistics.mean(cluster.clipped),
        "cpu_s": round(time.process_time() - began, 1),
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    asked.add_argument("--bound", type=int, default=8, help="versions that a row may be old, in `stale`")
    asked.add_argument("--moment-limit", type=float, default=0.04)
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--first-seed", type=int, default=1)
    given = asked.parse_args()
    document: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(given).items()}, "studies": {}}
    for study in given.studies:
        arms, rows = studies(given)[study], []
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            for arm, settings in arms.items():
                rows.append(learned(arm, seed, settings))
                print(study, rows[-1], flush=True)
        plain, *others = arms
        pairs = [(plain, arm) for arm in others] + BESIDE.get(study, [])
        found = {
            f"{arm} from {base}, {figure}": compared(rows, figure, base, arm)
            for base, arm in pairs
            for figure in ("area", "end")
        }
        document["studies"][study] = {"rows": rows, "compared": found}
        print(json.dumps(found, indent=1), flush=True)
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
