"""Two policies that live side by side: whatever one of them is trained on changes no bit of the other.

Over every registered plug-in: those of the trainer by two live learners in one trainer, those of the control plane by
what the core cuts. A new plug-in is checked as soon as it is registered.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.aggregation import AGGREGATIONS
from flexmarl.algorithms.filters import GROUP_FILTERS
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.shaping import SHAPERS
from flexmarl.contracts.plugins import Readiness
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from tests.unit.orchestrator.test_cohorts import quiet, settle
from tests.unit.workers.test_train_trainer import accumulate, create, make_trainer, step
from workers.training.blocks import blocks_of
from workers.training.losses import CORRECTIONS, KL_ESTIMATORS, LOSSES
from workers.training.objective import token_scores
from workers.training.packing import pack
from workers.training.trainer import Trainer
from workers.training.wire import TrainRow

MINE, OTHER = "listener", "speaker"


def beside(loss: str, **algorithm: Any) -> dict[str, Any]:
    advantage = {"type": "best_worst"} if LOSSES.get(loss).Options.paired else {}
    return {"loss": {"type": loss}, "advantage": advantage, **algorithm}


VARIANTS: dict[str, dict[str, Any]] = {
    **{f"loss-{name}": {"algorithm": beside(name)} for name in LOSSES.names()},
    **{
        f"correction-{name}": {
            "algorithm": beside(
                "policy_gradient" if CORRECTIONS.get(name).Options.weighs else "ppo_clip", correction=name
            )
        }
        for name in CORRECTIONS.names()
    },
    **{
        f"average-{name}": {"algorithm": {"loss": {"type": "ppo_clip", "aggregation": name}}}
        for name in sorted(AGGREGATIONS)
    },
    **{
        f"penalty-{name}": {"algorithm": beside("ppo_clip", kl={"coefficient": 0.3, "estimator": name})}
        for name in sorted(KL_ESTIMATORS)
    },
    "adapters-online_dpo": {
        "algorithm": beside("online_dpo"),
        "policies": {name: {"tuning": {"type": "lora", "rank": 2}} for name in (MINE, OTHER)},
    },
}


def rows_of(seed: int) -> list[TrainRow]:
    """Rows of all signs, old and new; each two neighbours are a pair."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(12):
        length = int(rng.integers(1, 5))
        made.append(
            TrainRow(
                prompt=rng.integers(1, 20, int(rng.integers(1, 6))).astype("<i4").tobytes(),
                response=rng.integers(1, 20, length).astype("<i4").tobytes(),
                logprobs=(-3.0 + rng.standard_normal(length)).astype("<f4").tobytes(),
                allowed=b"",
                temperature=1.0,
                advantages=[float((0.1 + abs(rng.standard_normal())) * (-1.0) ** number)],
                weight=1.0,
                segments=[0, length],
                pair=str(number // 2),
            )
        )
    return made


def bits(trainer: Trainer, policy: str) -> list[torch.Tensor]:
    """Everything that is held of a policy: weights, moments, gradient; and what it answers."""
    learner = trainer._held[policy].learner
    assert learner is not None
    held = [learner.parameters.master, learner.accumulator.total, *learner.training_state().values()]
    vocabulary = learner.decoder.vocabulary
    with torch.no_grad():
        for batch in pack(blocks_of(rows_of(7), lambda tokens: (1.0, 1.0), vocabulary), vocabulary, 4096):
            held += token_scores(learner.decoder, batch)
    return [tensor.clone() for tensor in held]


@dataclass
class Life:
    """A policy's steps in a trainer, one call at a time."""

    trainer: Trainer
    policy: str
    seed: int
    version: int = 0

    def begin(self) -> str:
        return create(self.trainer, self.policy).digest

    def gather(self, number: int) -> None:
        accumulate(self.trainer, number, rows_of(self.seed + number), f"{self.version}:a", self.policy)

    def close(self, numbers: list[int]) -> tuple[str, str]:
        reply = step(self.trainer, numbers, self.version + 1, f"{self.version}:a", self.policy)
        self.version += 1
        return reply.digest, reply.state


def lived(life: Life, between: Any) -> list[object]:
    """Two steps of a policy, with something in between at every turn."""
    found: list[object] = [life.begin()]
    for first in (0, 2):
        between()
        life.gather(first)
        between()
        life.gather(first + 1)
        between()
        found.append(life.close([first, first + 1]))
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.slow
def test_training_one_policy_changes_no_bit_of_another(variant: str, tmp_path: Path):
    alone = lived(Life(make_trainer(tmp_path / "alone", **VARIANTS[variant]), MINE, 100), lambda: None)
    trainer = make_trainer(tmp_path / "both", **VARIANTS[variant])
    other, turns = Life(trainer, OTHER, 900), iter(range(100))
    first = other.begin()

    def the_other_trains() -> None:
        before, turn = bits(trainer, MINE), next(turns)
        other.gather(turn)
        digest, _ = other.close([turn])
        assert digest != first, "the other one does learn"
        after = bits(trainer, MINE)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    assert lived(Life(trainer, MINE, 100), the_other_trains) == alone


def outcome(member: int, scale: float) -> EpisodeOutcome:
    """One member; what the other role earns, says and how often it speaks is scaled and lengthened."""
    rng = np.random.default_rng(member)
    own, others = rng.standard_normal(2)
    mine = [SampleRef(role=MINE, turn=turn, tokens=3, reward=float(own) + turn) for turn in range(1 + member % 2)]
    longer = 2 if scale == 1.0 else 3
    theirs = [SampleRef(role=OTHER, turn=t, tokens=longer, reward=float(others) * scale) for t in range(longer)]
    return EpisodeOutcome(
        member=member,
        attempt=1,
        status=EpisodeStatus.FINISHED,
        team_score=float(member),
        scores={MINE: float(own), OTHER: float(others) * scale},
        samples=(*mine, *theirs),
    )


@pytest.mark.parametrize("group_filter", GROUP_FILTERS.names())
@pytest.mark.parametrize("shaper", SHAPERS.names())
@pytest.mark.parametrize("key", [name for name in sorted(GROUP_KEYS) if name != "team"])
@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_what_one_policy_earns_changes_no_advantage_of_another(name: str, key: str, shaper: str, group_filter: str):
    """`team` is left out on purpose: there the roles are compared with each other."""

    def cut(scale: float) -> list[Any]:
        of_turns = shaper in ("marti", "maporl")
        cluster = quiet(
            algorithm__advantage={"type": name, "team_share": 0.0, "per_turn": of_turns},
            algorithm__group_key=key,
            algorithm__shaping={"type": shaper, **({"history": "role"} if shaper == "marti" else {})},
            sampling__group_filter=group_filter,
            mechanisms__trainer_protocol="batch"
            if ADVANTAGE.variants()[name].needs is Readiness.BATCH
            else "micro_batch",
        )
        for draw in range(6):
            settle(
                cluster,
                draw,
                [
                    outcome(3 * draw + member, scale).model_copy(update={"member": member, "answer": "112"[member]})
                    for member in range(3)
                ],
            )
        return [
            [(s.draw, s.member, s.turn, s.advantages[0]) for s in found.samples]
            for found in cluster.commands("cut_micro_batch")
            if found.ref.policy == MINE
        ]

    quietly, loudly = cut(1.0), cut(50.0)
    assert any(row[-1] for part in quietly for row in part)
    if shaper != "maporl":  # whose reward of a turn holds what the team scores later
        assert loudly == quietly
