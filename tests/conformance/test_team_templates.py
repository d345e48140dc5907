"""Templates of teams in words play and train: each seat by its own adapter, in the order of its graph.

Everything that computes is real, in one process; the models are small Llamas of random weights with a byte tokenizer.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.resolve import load_templates, resolve
from flexmarl.contracts.wire import Origin
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.chat_templates import small_chat_model
from tests.support.local_training import LocalTraining
from workers.models.opening import allow

pytestmark = pytest.mark.slow

TEAMS = sorted(name for name, one in load_templates().items() if {"graph", "assistant"} & set(one.spec["environment"]))


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    allow(ModelRoots((str(tmp_path),)))
    yield small_chat_model(tmp_path / "model")
    allow(ModelRoots())


def policy_of(model: Path) -> dict[str, Any]:
    tuning = {"type": "lora", "rank": 4, "alpha": 8}
    return {"model": {"type": "folder", "path": str(model)}, "tuning": tuning, "precision": "fp32"}


def training(template: str, home: Path, policies: dict[str, dict[str, Any]]) -> LocalTraining:
    changes = {
        "policies": policies,
        "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 2},
        # Random weights hardly ever give a right answer: what moves them is the bonus.
        "algorithm": {"entropy": {"start": 0.05}},
    }
    return LocalTraining(resolve(changes, template=template).spec, str(home))


@pytest.mark.parametrize("template", TEAMS)
def test_a_team_of_a_template_plays_its_graph_and_takes_a_step(template: str, model: Path, tmp_path: Path) -> None:
    environment = load_templates()[template].spec["environment"]["type"]
    if environment == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    roles = list(load_templates()[template].spec["agents"])
    team = training(template, tmp_path / "home", dict.fromkeys(roles, policy_of(model)))
    facts = team.spec.environment.facts()
    ((attempt,),) = team.play(range(1), Origin.EVAL, 1)
    turns = [turn.role for turn in attempt.turns]
    for role in facts.roles:
        assert role.min_turns <= turns.count(role.name) <= role.max_turns
    assert set(turns[: len(facts.stages[0])]) == set(facts.stages[0])
    before = {name: pin.digest for name, pin in team._pins.items()}
    team.step()
    assert all(team._pins[role].digest != before[role] for role in set(turns)), "who spoke has learned"


def test_two_seats_of_different_models_play_and_learn(model: Path, tmp_path: Path) -> None:
    wide = small_chat_model(tmp_path / "wide", seed=1, width=96)
    team = training("at_grpo", tmp_path / "home", {"planner": policy_of(model), "solver": policy_of(wide)})
    before = {name: pin.digest for name, pin in team._pins.items()}
    team.step()
    assert {name: pin.version for name, pin in team._pins.items()} == {"planner": 1, "solver": 1}
    assert all(team._pins[name].digest != digest for name, digest in before.items())
    ((attempt,),) = team.play(range(1), Origin.EVAL, 1)
    assert [turn.role for turn in attempt.turns] == ["planner", "solver"]
