"""The new loss is listed, documented, tested, and trains a step."""

import tempfile
from pathlib import Path

from flexmarl.contracts.specification.losses import LOSS

assert "spo" in {manifest.name for manifest in LOSS.manifests()}, "not listed"
assert "| `spo` |" in Path("docs/learning.md").read_text(), "not documented"
assert "def test_spo" in Path("tests/unit/workers/test_losses.py").read_text(), "no test of its own"

from workers.training.losses import LOSSES  # noqa: E402

assert "spo" in LOSSES.names(), "no code"

import torch  # noqa: E402

from tests.support.local_training import LocalTraining  # noqa: E402
from tests.unit.workers import test_losses  # noqa: E402

CHANGES = {
    "algorithm": {"loss": {"type": "spo", "width": 0.3}},
    "batch": {"tasks_per_step": 2, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 1},
}

torch.set_num_threads(1)
for advantage in (-2.0, 0.0, 1.5):
    test_losses.test_every_loss_is_the_policy_gradient_on_policy("spo", advantage)
test_losses.test_spo_leads_back_from_beyond_its_width()
with tempfile.TemporaryDirectory() as home:
    training = LocalTraining.of_template("hot_cold", home, CHANGES)
    training.step()
    assert training.steps_done == 1
