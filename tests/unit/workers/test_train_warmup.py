"""Supervised warm-up teaches what the environment shows, within its limits, and leaves a fresh optimizer."""

from pathlib import Path

import pytest
import torch

from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers.child import IntervalLog
from workers.training.errors import TrainerRefusal
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import BindReply, BindRequest
from workers.transfer import LocalTier

ROLES = ("planner", "solver", "verifier")


def _bind(home: Path, policy: str = "planner", environment: str = "arithmetic", **warmup: object) -> BindReply:
    roles = ROLES if environment == "arithmetic" else ("speaker", "listener")
    spec = ExperimentSpec.model_validate(
        {
            "agents": {role: {} for role in roles},
            "environment": {"type": environment},
            "policies": {policy: {"warmup": warmup} if warmup else {}},
        }
    )
    return Trainer(spec, 1, "a", str(home), "cpu", IntervalLog()).bind(BindRequest(policy, CREATE))


def test_warmed_up_weights_become_version_0(tmp_path: Path):
    plain = _bind(tmp_path)
    warm = _bind(tmp_path, steps=3, batch_size=32)
    assert (warm.version, warm.created, warm.facts["warmup_steps"]) == (0, True, 3)
    assert 0 < warm.facts["warmup_seconds"] < 60
    assert "warmup_steps" not in plain.facts
    assert warm.digest != plain.digest
    assert _bind(tmp_path / "again", steps=3, batch_size=32).digest == warm.digest
    state = LocalTier(tmp_path, "reader").get(warm.state)
    assert int(state["steps"]) == 0
    assert not torch.count_nonzero(state["first"])


def test_time_ends_a_warm_up_after_its_first_step(tmp_path: Path):
    assert _bind(tmp_path, steps=1000, batch_size=8, max_seconds=1e-6).facts["warmup_steps"] == 1


def test_an_environment_without_demonstrations_is_refused(tmp_path: Path):
    with pytest.raises(TrainerRefusal, match="no_demonstrations"):
        _bind(tmp_path, "speaker", "reference_game", steps=1)
