"""What `manage.py simulate`, `reproduce`, `search`, `place` and `replay` refuse, by option or field."""

import json
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from django.core.management import CommandError, call_command

from flexmarl.contracts.specification.mechanisms import Mechanisms
from flexmarl.controlplane.simulations.management.commands import reproduce, search
from flexmarl.simulator.published import PublishedTable, ReproducedCell, Reproduction, load_tables
from flexmarl.simulator.scenarios.library import compose

FILES = {
    "no_yaml.yaml": b"a: [1, 2",
    "bytes.yaml": b"\xff\xfe\x00\x81",
    "a_list.yaml": b"- 1",
    "odd.yaml": b"scenario: {spec: 3}",
    "unknown.yaml": b"scenario: {spce: {}}",
    "pool_types.yaml": b"devices: {default: 2}\nruns: [{name: a, workload: 3}]",
    "pool_preset.yaml": b"devices: {default: 2}\nruns: [{name: a, preset: [sync]}]",
    "pool_changes.yaml": b"devices: {default: 2}\nruns: [{name: a, changes: 3}]",
    "pool_runs.yaml": b"devices: {default: 2}\nruns: 4",
    "pool_empty.yaml": b"devices: {default: 2}\nruns: []",
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)


def refusal(line: str, *more: str) -> str:
    """Return what a command says of a line that it refuses."""
    with pytest.raises(CommandError) as refused:
        call_command(*line.split(), *more, stdout=StringIO())
    return str(refused.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("simulate nobody", ("/preset: nobody does not exist", "Known: active_partial")),
        ("simulate snc", ("/preset: snc does not exist", "Did you mean sync?")),
        ("simulate sync --workload hubb", ("--workload hubb", "Known: hub, long_tail")),
        ("simulate sync --workload none.yaml", ("--workload none.yaml cannot be read", "No such file")),
        ("simulate sync --workload folder.yaml", ("--workload folder.yaml cannot be read", "Is a directory")),
        ("simulate sync --workload no_yaml.yaml", ("--workload no_yaml.yaml cannot be read as YAML", "line 1")),
        ("simulate sync --workload bytes.yaml", ("--workload bytes.yaml cannot be read", "utf-8")),
        ("simulate sync --workload a_list.yaml", ("--workload a_list.yaml has no mapping `scenario`",)),
        ("simulate sync --workload odd.yaml", ("/spec/agents: agents is required", "/workload")),
        ("simulate sync --workload unknown.yaml", ("/spce: spce is not a known field. Did you mean spec?",)),
        ("simulate sync --steps many", ("--steps", "invalid int")),
        ("simulate sync --steps 0", ("--steps and --seeds are whole numbers from 1",)),
        ("simulate sync --seeds -1", ("--steps and --seeds are whole numbers from 1",)),
        ("simulate sync --set steps", ("--set steps is not of the form PATH=VALUE", "spec.batch.tasks_per_step=32")),
        ("simulate sync --set =3", ("--set =3 is not of the form PATH=VALUE",)),
        ("simulate sync --set spec..batch=3", ("--set spec..batch=3 is not of the form PATH=VALUE",)),
        ("simulate sync --set spec.batch=[1", ("--set spec.batch: [1 is not a YAML value", "[1, 2]")),
        ("simulate sync --set spec=3", ("/spec: spec must be a mapping of fields; it is 3.", "Its fields: agents")),
        ("simulate sync --set workload=3", ("/workload: workload must be a mapping", "Its fields: stages")),
        ("simulate sync --set spec.batch.tasks=3", ("/spec/batch/tasks: tasks is not a known field", "tasks_per_step")),
        ("simulate sync --set seed=4", ("Use --seeds instead of --set seed: --seeds 3 uses",)),
        ("simulate sync --set steps=0", ("/steps: steps must be at least 1; it is 0. Set 1.",)),
        ("simulate sync --set granularity=weeks", ("/granularity: ", "Legal values: 'turn' or 'episode'")),
        ("simulate sync --set workload.stages=[[nobody]]", ("/workload/stages: nobody is not in the team, which has",)),
        ("simulate sync --set workload.roles.nobody={}", ("/workload/roles: nobody is not in the team",)),
        ("simulate sync --set machine.scale.nobody=2", ("/machine/scale: nobody is not in the team",)),
        ("simulate sync --set granularity=episode --set machine.delays.turn=1", ("/granularity: workload.lasts and",)),
        ("simulate sync --set machine.engine.token=0", ("/machine/engine/token: ", "greater than 0.0")),
        ("simulate sync --set faults.nodes=[{at:1}]", ("/faults/nodes/0",)),
        ("simulate sync --json none/a.json", ("--json none/a.json cannot be written", "an existing folder")),
        ("simulate sync --timeline folder.yaml", ("--timeline folder.yaml cannot be written",)),
        ("simulate --pool none.yaml", ("--pool none.yaml cannot be read", "No such file")),
        ("simulate --pool no_yaml.yaml", ("--pool no_yaml.yaml cannot be read as YAML",)),
        ("simulate --pool bytes.yaml", ("--pool bytes.yaml cannot be read", "utf-8")),
        ("simulate --pool a_list.yaml", ("--pool a_list.yaml holds no mapping with `devices` and `runs`",)),
        ("simulate --pool pool_types.yaml", ("/runs/0/workload: 3 is not a name. Known: hub",)),
        ("simulate --pool pool_preset.yaml", ("/runs/0/preset: ['sync'] is not a name. Known: active",)),
        ("simulate --pool pool_changes.yaml", ("/runs/0/changes: 3 is not a mapping", "{steps: 4")),
        ("simulate --pool pool_runs.yaml", ("/runs: It is a list of mappings with name",)),
        ("simulate --pool pool_empty.yaml", ("/runs: runs: ", "at least 1 item")),
        ("simulate sync --pool pool_empty.yaml", ("remove presets, --workload and --set",)),
        ("simulate --pool pool_empty.yaml --set steps=3", ("remove presets, --workload and --set",)),
        ("reproduce nothing", ("nothing: unknown table. Known: april",)),
        ("reproduce lag --rounds 0", ("--rounds is a whole number from 1; it is 0",)),
        ("reproduce lag --rounds few", ("--rounds", "invalid int")),
        ("reproduce lag --json none/a.json", ("--json none/a.json cannot be written",)),
        ("reproduce --fit", ("Name a table, or all: april",)),
        ("search nothing", ("nothing is not a workload or table. Known: hub",)),
        ("search hub --over nobody", ("/preset: nobody does not exist",)),
        ("search hub --bound 99", ("--bound one from 0 to 64",)),
        ("search hub --trials 0", ("--trials and --processes are whole numbers from 1",)),
        ("search hub --seed -1", ("--seed one from 0",)),
        ("search hub --json folder.yaml", ("--json folder.yaml cannot be written",)),
        ("place few", ("devices", "invalid int")),
        ("place 0", ("0 devices", "at least 1 device")),
        ("place 4 --preset nobody", ("/preset: nobody does not exist",)),
        ("place 4 --workload nowhere", ("/workload: nowhere does not exist. Known: hub",)),
        ("place 4 --workload bytes.yaml", ("--workload bytes.yaml cannot be read",)),
        ("place 4 --set a", ("--set a is not of the form PATH=VALUE",)),
        ("place 4 --json none/a.json", ("--json none/a.json cannot be written",)),
    ],
)
def test_what_is_asked_wrongly_is_refused_by_name_rule_and_legal_value(line: str, says: tuple[str, ...]):
    told = refusal(line)
    assert [words for words in says if words not in told] == [], told


def test_a_fault_of_a_device_that_is_not_there_is_refused_by_its_field():
    told = refusal("simulate sync", "--set", "faults.children=[{at: 1, device: 99}]")
    assert told.startswith("/faults/children: there is no device 99; the last one is 11")


def test_presets_that_all_come_to_no_end_are_an_error():
    whole = ("--set", "granularity=episode", "--set", "machine.engine.mixed=2")
    assert refusal("simulate sync", *whole) == "No preset finished; see the reason in each line above."


@pytest.mark.django_db
@pytest.mark.parametrize("run", ["nobody", "0", "²", "9" * 30])
def test_a_run_that_is_not_there_is_refused_with_how_runs_are_named(run: str):
    assert refusal("replay", run).startswith(f"there is no run {run}: give a key")


def test_a_row_that_is_missed_is_shown_with_its_sign_and_ends_in_an_error(monkeypatch: pytest.MonkeyPatch):
    table = load_tables()["flexmarl_ma"]
    name, row = next((name, row) for name, row in table.rows.items() if row.published is not None and not row.over)
    own = table.model_copy(update={"rows": {name: row}, "parameters": {}, "ratios_over": ""})
    cell = ReproducedCell(row.published, row.published * 1.5, "failed")
    monkeypatch.setattr(reproduce, "load_tables", lambda: {"flexmarl_ma": own})
    monkeypatch.setattr(reproduce, "reproduce", lambda table, values: Reproduction({name: cell}, {name: ({},)}))
    out = StringIO()
    with pytest.raises(CommandError, match="Not within tolerance: flexmarl_ma: "):
        call_command("reproduce", "flexmarl_ma", stdout=out)
    assert "+50.0%  failed" in out.getvalue()


def test_a_fit_is_what_rows_are_played_with_and_each_row_is_left_out_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    table, fits, plays = load_tables()["flexmarl_ca"], [], []

    def fitted(table: PublishedTable, rounds: int, without: str = "") -> dict[str, float]:
        fits.append((rounds, without))
        return {"reply": 5.0 + len(fits)}

    def reproduced(table: PublishedTable, values: dict[str, float]) -> Reproduction:
        plays.append(values)
        rows = {name: row for name, row in table.rows.items() if row.published}
        cells = {name: ReproducedCell(row.published, row.published * 1.1, "reached") for name, row in rows.items()}
        return Reproduction(cells, dict.fromkeys(rows, ({"step_s": 1.0},)))

    monkeypatch.setattr(reproduce, "fit", fitted)
    monkeypatch.setattr(reproduce, "reproduce", reproduced)
    out, file = StringIO(), tmp_path / "table.json"
    command = "reproduce flexmarl_ca --fit --leave-one-out --rounds 7 --json"
    call_command(*command.split(), str(file), stdout=out)
    left_out = sorted(table.fitted())
    assert fits == [(7, ""), *((7, name) for name in left_out)]
    assert plays == [{"reply": 6.0 + n} for n in range(1 + len(left_out))]
    assert "  reply = 6, fitted on flexmarl, no_balancing, no_async, distrl: median reply" in out.getvalue()
    assert f"  fitted without {table.rows['distrl'].title}: 143, +10.0%" in out.getvalue()
    assert "8 figures: 1 fitted, 3 taken over, 1 chosen knowing them, 6 free. " in out.getvalue()
    written = json.loads(file.read_text())["flexmarl_ca"]
    assert written["parameters"]["reply"]["fitted_on"] == ["flexmarl", "no_balancing", "no_async", "distrl"]
    assert written["leave_one_out"] == pytest.approx(dict.fromkeys(left_out, 0.1))
    assert written["rows"]["mas_rl"]["error"] == pytest.approx(0.1)
    assert written["rows"]["mas_rl"]["figures"] == [{"step_s": 1.0}]


def test_what_a_search_found_is_shown_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Small and in this process: what is simulated is what is printed."""
    spec = {
        "agents": {"solver": {}}, "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 1},
        "resources": {"rollout_devices": 2, "training_devices": 1},
    }  # fmt: skip
    load = {"stages": [["solver"]], "each": {"prompt": 8, "reply": {"median": 100, "sigma": 1.0}}}
    monkeypatch.setattr(search, "_document", lambda name: {"spec": spec, "workload": load})
    monkeypatch.setattr(search, "load_presets", lambda: ["flexmarl", "sync", "group_stream"])
    monkeypatch.setattr(search, "ProcessPoolExecutor", ThreadPoolExecutor)
    out, file = StringIO(), tmp_path / "found.json"
    options = ["--over", "sync", "--trials", "3", "--list", "--json", str(file)]
    call_command("search", "hub", *options, stdout=out)
    written, shown = json.loads(file.read_text()), out.getvalue()
    best, over = written["found"][0], fmean(figures["step_s"] for figures in written["over"])
    assert best["gain"] == pytest.approx(over / best["step_s"], rel=1e-4)
    assert best["gain"] > 1.0
    assert f"sync         {over:9.2f} s per step, mean of 3 seeds" in shown
    assert f"number 1     {best['step_s']:9.2f} s per step, {best['gain']:.2f} x (" in shown
    assert f"{written['unseen']['step_s']:.2f} s per step, {written['unseen']['gain']:.2f} x" in shown
    assert f"{written['least']['step_s']:7.2f} s ({over / written['least']['step_s']:.2f} x)" in shown
    tried = [one["step_s"] for one in written["trials"]]
    assert [one["number"] for one in written["trials"]] == [1, 2, 3]
    assert f"publication cohort: 3 trials, the best one {min(tried):.2f} s per step" in shown
    assert shown.count("trial  ") == 3
    preset = yaml.safe_load(shown[shown.index("title: Found by search") :])
    again = compose({"spec": spec, "workload": load}, best["preset"], best["changes"]).spec
    assert Mechanisms.model_validate(preset["spec"]["mechanisms"]) == again.mechanisms


@pytest.mark.parametrize("asked", ["2 --workload long_tail", "4 --workload hub"], ids=["apart", "in_turns"])
def test_the_better_placement_comes_first(asked: str):
    out = StringIO()
    call_command("place", *asked.split(), stdout=out)
    kinds = [line.split() for line in out.getvalue().splitlines() if line.startswith(("temporal", "spatial"))]
    assert len(kinds) == 2
    assert float(kinds[0][1]) <= float(kinds[1][1])


def test_seeds_are_others_and_their_spread_is_shown():
    small = "--set spec.batch.tasks_per_step=4 --set spec.batch.episodes_per_task=2 --steps 1 --seeds 2"
    out = StringIO()
    call_command("simulate", "sync", "--workload", "long_tail", *small.split(), stdout=out)
    assert float(out.getvalue().splitlines()[1].partition("±")[2].split()[0]) > 0.0
