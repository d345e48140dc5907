"""`manage.py simulate` as a person meets it."""

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from flexmarl.contracts.resolve import layered, load_presets
from flexmarl.controlplane.simulations.management.commands import place
from flexmarl.controlplane.simulations.management.commands import simulate as command
from flexmarl.simulator import simulate
from flexmarl.simulator.reporting.checks import SchedulingFault
from flexmarl.simulator.scenarios.library import compose, load_workloads

SMALL = ["--set", "spec.batch.tasks_per_step=4", "--set", "spec.batch.episodes_per_task=2", "--steps", "2"]


def told(*arguments: str) -> str:
    return said(*SMALL, *arguments)


def said(*arguments: str) -> str:
    out = StringIO()
    call_command("simulate", *arguments, stdout=out)
    return out.getvalue()


def test_presets_are_compared_and_written(tmp_path: Path):
    figures, page = tmp_path / "figures.json", tmp_path / "page.html"
    shown = told("flexmarl", "sync", "--workload", "long_tail", "--json", str(figures), "--timeline", str(page))
    assert [line.split()[0] for line in shown.splitlines()] == ["preset", "flexmarl", "sync"]
    assert [line.partition("alias of ")[2] for line in shown.splitlines()] == ["", "", "distrl"]
    written = json.loads(figures.read_text())["presets"]
    assert written["flexmarl"][0]["step_s"] <= written["sync"][0]["step_s"]
    assert f"{written['sync'][0]['step_s']:.4g}" in shown
    assert page.read_text().count("Plotly.newPlot(") == 2


@pytest.mark.parametrize("workload", load_workloads())
@pytest.mark.parametrize("preset", load_presets())
def test_every_workload_goes_with_every_preset(workload: str, preset: str):
    assert compose(workload, preset).spec.agents


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--workload", "hubb"], "--workload hubb does not exist. Known: hub, long_tail"),
        (["nobody"], "/preset: nobody does not exist."),
        (["sync", "--set", "spec.batch.tasks_per_step=many"], "/spec/batch/tasks_per_step: .* valid integer"),
        (["bounded_async", "--set", "spec.mechanisms.ordered=true"], "/spec/mechanisms/lag_policy/bound: "),
        (["sync", "--set", "steps"], "--set steps is not of the form PATH=VALUE"),
        (["sync", "--seeds", "0"], "--steps and --seeds are whole numbers from 1"),
        (["sync", "--workload", "nowhere.yaml"], "--workload nowhere.yaml cannot be read"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(arguments: list[str], text: str):
    with pytest.raises(CommandError, match=text):
        told(*arguments)


POOL = """
devices: {default: 6}
runs:
  - {name: first, workload: long_tail, preset: sync, changes: &small {steps: 2, warm_up: 0, spec: {
      batch: {tasks_per_step: 4, episodes_per_task: 2}, resources: {rollout_devices: 3}}}}
  - {name: second, workload: long_tail, preset: flexmarl, at: 5, changes: *small}
"""


def test_runs_that_share_a_pool_are_shown_and_drawn(tmp_path: Path):
    file, figures, page = tmp_path / "pool.yaml", tmp_path / "figures.json", tmp_path / "page.html"
    file.write_text(POOL)
    shown = said("--pool", str(file), "--json", str(figures), "--timeline", str(page)).splitlines()
    assert [line.split()[0] for line in shown[:-1]] == ["run", "first", "second"]
    assert shown[-1].count("%") == 2
    written = json.loads(figures.read_text())
    assert written["runs"]["second"]["wait_s"] > 0.0
    assert written["runs"]["second"]["status"] == "completed"
    assert page.read_text().count("Plotly.newPlot(") == 1


def test_a_file_of_shared_pools_that_is_wrong_is_refused_by_field(tmp_path: Path):
    file = tmp_path / "pool.yaml"
    file.write_text(POOL.replace("preset: sync", "preset: snc"))
    with pytest.raises(CommandError, match=r"^/runs/0/preset: snc does not exist. Did you mean sync\?$"):
        said("--pool", str(file))


def test_a_placement_is_planned_and_played(tmp_path: Path):
    out, file = StringIO(), tmp_path / "plans.json"
    small = ["--set", "spec.batch.tasks_per_step=4", "--set", "spec.batch.episodes_per_task=2", "--set", "steps=2"]
    call_command("place", "5", *small, "--workload", "long_tail", "--check", "--json", str(file), stdout=out)
    plans = json.loads(file.read_text())
    assert set(plans) == {"temporal", "spatial"}
    assert plans["temporal"]["settings"]["mechanisms"]["allocation"] == {"type": "colocated"}
    devices = plans["spatial"]["settings"]["resources"]
    assert devices["rollout_devices"] + devices["training_devices"] == 5
    for kind in plans:
        changes = {"spec": layered({"batch": {"tasks_per_step": 4, "episodes_per_task": 2}}, plans[kind]["settings"])}
        again = simulate(compose("long_tail", "flexmarl", {"steps": 2} | changes))
        assert plans[kind]["simulated_s"] == pytest.approx(again.step_s)
        assert f"{plans[kind]['step_s']:.1f} s a step" in out.getvalue()
        assert f"{plans[kind]['simulated_s']:.1f} s simulated" in out.getvalue()


def test_a_device_more_is_advised_for_rollout_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked, file = [], tmp_path / "plans.json"
    monkeypatch.setattr(place, "one_more", lambda *given: asked.append(given) or True)
    call_command("place", "5", "--workload", "long_tail", "--json", str(file), stdout=StringIO())
    plans = json.loads(file.read_text())
    ((rollout, training, *devices),) = asked
    resources = plans["spatial"]["settings"]["resources"]
    assert devices == [resources["rollout_devices"], resources["training_devices"]]
    assert (rollout.least_s > 0.0, training.least_s) == (True, 0.0)
    assert "add one" in plans["spatial"]["advice"]
    assert not plans["temporal"]["advice"]


def test_what_a_check_found_stands_below_the_row_and_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    finding = SchedulingFault("ping_pong", 3.0, 9.0, "device 1 went to and fro", "let it stay")
    monkeypatch.setattr(command, "examine", lambda scenario: (simulate(scenario), [finding]))
    figures = tmp_path / "figures.json"
    shown = told("sync", "--workload", "long_tail", "--json", str(figures)).splitlines()
    assert shown[-1] == "  ping_pong, 3.0 s to 9.0 s: device 1 went to and fro. let it stay"
    assert json.loads(figures.read_text())["findings"]["sync"][0]["evidence"] == "device 1 went to and fro"


def test_what_cannot_be_placed_is_refused():
    with pytest.raises(CommandError, match="0 devices: at least 1 device is needed"):
        call_command("place", "0", "--workload", "long_tail")
    with pytest.raises(CommandError, match="/workload: nowhere does not exist"):
        call_command("place", "4", "--workload", "nowhere")


def test_what_faults_cost_stands_below_the_row(tmp_path: Path):
    figures = tmp_path / "figures.json"
    lost = ["--set", "faults.children=[{at: 30, device: 0}, {at: 90, device: 1}]"]
    shown = told("sync", "--workload", "long_tail", "--json", str(figures), *lost).splitlines()
    written = json.loads(figures.read_text())
    own = written["presets"]["sync"][0]
    assert own["lost_s"] > own["recovery_s"] + 0.1 > 0.1  # two are lost, one after the other
    lost, back = f"{own['lost_s']:.1f} s of devices lost", f"recovery {own['recovery_s']:.1f} s"
    assert shown[-1] == f"  faults: {lost}, {back}, {own['redone_tokens']:.0f} tokens trained again"
    assert own["events"] > own["handled"] > 0
    assert sum(own["idle"]["engine"].values()) + own["engine_busy"] == pytest.approx(1.0, abs=1e-5)
    assert written["findings"] == {"sync": []}
