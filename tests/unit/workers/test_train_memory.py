"""What the trainer takes of memory: bytes per weight, and nothing that grows with the number of steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW
from tests.support.trained import make_learner
from tests.support.training_rows import rows_of
from workers.training import learner as learning
from workers.training.blocks import blocks_of
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.layout import ROUND, Layout, filled_up
from workers.training.packing import pack

ROOT = Path(__file__).resolve().parents[3]


def measured(*asked: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.support.trainer_memory", *asked]
    told = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def test_a_policy_in_bf16_takes_eighteen_bytes_per_weight() -> None:
    """Weights 2, masters 4, moments 8, gradient 4; the rest is compiled kernels, and activations of a step."""
    found = measured("weights", "full")
    assert 18.0 <= found["rest"] <= 18.7
    assert found["most"] <= 22.5


def test_an_adapter_takes_little_beside_its_base() -> None:
    found = measured("weights", "lora")
    own = 18.0 * found["trained"] / found["weights"]
    assert 2.0 + own <= found["rest"] <= 2.0 + own + 0.7
    assert found["most"] <= 5.0


def test_packs_of_every_length_do_not_make_a_process_grow() -> None:
    assert measured("growth")["last"] < 30.0, "megabytes by the last 40 packs"
