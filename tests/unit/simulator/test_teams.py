"""The workload of a specification: who is asked in turn, and what it declares to take."""

import pytest

from flexmarl.contracts.resolve import load_templates, resolve
from flexmarl.simulator.scenarios.scenario import Machine
from flexmarl.simulator.scenarios.teams import paced, workload_of


@pytest.mark.parametrize(
    ("template", "changes", "stages"),
    [
        ("reference_game", {}, "speaker listener"),
        ("arithmetic", {"operands": 4}, "planner solver verifier planner solver verifier solver verifier"),
        ("hot_cold", {"guesses": 3}, "guesser hinter guesser hinter guesser"),
        ("kitchen", {"cooks": 3, "turns": 8}, " ".join(["cook_1+cook_2+cook_3"] * 8)),
        ("tictactoe", {}, " ".join(["player_1"] * 5)),
        ("nim", {}, " ".join(["player_0"] * 6)),
        ("marti_debate", {}, " ".join(["debater_1+debater_2+debater_3"] * 2)),
        ("marti_mixture", {}, "proposer_1+proposer_2+proposer_3 aggregator"),
        ("dr_mas", {}, "solver verifier solver verifier"),
        ("pursuit", {}, " ".join(["pursuer_0+pursuer_1"] * 12)),
    ],
)
def test_turns_of_an_environment(template: str, changes: dict, stages: str):
    base = load_templates()[template].spec
    team = {f"cook_{i + 1}": {} for i in range(changes.get("cooks", 0))} or base["agents"]
    given = {"environment": {"type": base["environment"]["type"]} | changes, "agents": team, "policies": {}}
    workload = workload_of(resolve(given, template=template).spec)
    assert " ".join("+".join(stage) for stage in workload.stages) == stages
    assert set(workload.roles) == {role for stage in workload.stages for role in stage}


def test_declared_waits_and_times_are_taken_over():
    latency = {"shape": "normal", "scale_s": 2.0, "sigma": 0.5, "cap_s": 9.0, "slow_share": 0.1, "slow_s": 60.0}
    resources = {"pace": {"micro_batch_s": 0.1, "row_s": 0.02, "step_s": 0.3}}
    given = {"environment": {"latency": latency}, "resources": resources}
    spec = resolve(given, template="reference_game").spec
    workload, trainer = workload_of(spec), paced(spec, Machine()).trainer
    assert (workload.environment.mean, workload.environment.sigma, workload.environment.most) == (2.0, 0.5, 9.0)
    assert (workload.slow_start.slow_share, workload.slow_start.slow) == (0.1, 60.0)
    assert (trainer.row, trainer.token, trainer.micro_batch, trainer.step) == (0.02, 0.0, 0.1, 0.3)
