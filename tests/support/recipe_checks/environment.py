"""The new environment is listed, has a template, keeps the contract of every environment, and is trained."""

import tempfile
from pathlib import Path

from flexmarl.contracts.resolve import load_templates
from flexmarl.contracts.specification.environment import ENVIRONMENT

assert "larger_number" in {manifest.name for manifest in ENVIRONMENT.manifests()}, "not listed"
assert "| `larger_number` |" in Path("docs/environments.md").read_text(), "not documented"
assert load_templates()["larger_number"].spec["environment"]["type"] == "larger_number"

from tests.conformance.environment_kit import check_family  # noqa: E402
from workers.rollout.environments.registry import family_of  # noqa: E402

options = ENVIRONMENT.options("larger_number")
check_family(family_of(options), options.facts(), episodes=50)

from tests.conformance.test_environments import DEFAULTS  # noqa: E402

assert "larger_number" in {spec.type for spec in DEFAULTS}, "not among the environments that are tested"

import torch  # noqa: E402

from tests.support.local_training import LocalTraining  # noqa: E402

SMALL = {"batch": {"tasks_per_step": 2, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 1}}

torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as home:
    training = LocalTraining.of_template("larger_number", home, SMALL)
    training.step()
    assert 0.0 <= training.rewards[0] <= 1.0
