"""The sample distribution with plug-ins: installed into an environment of its own, it is offered, checked and trained.

The environment is new and sees the packages of this one; only the sample is installed into it.
"""

import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forms import FULL, form
from tests.support.system import ApiError, System

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    "environment": "same_word",
    "loss": "smooth_clip",
    "advantage": "median_baseline",
    "router": "round_robin",
    "mover": "longest_queue",
    "reward": "scaled_scores",
}
pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]


def environment_with_sample(folder: Path) -> Path:
    """Make an environment, install the sample distribution into it and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    others = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
    (packages / "others.pth").write_text(f"import site; {others}\n")
    shutil.copytree(ROOT / "examples" / "plugins", folder / "plugins")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", str(folder / "plugins")]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    return python


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("plugins")
    folder.chmod(0o711)
    python = environment_with_sample(folder)
    with System(folder / "home", python=str(python), environment={"FLEXMARL_CPU_SHARES": "3"}) as running:
        yield running


def spec(**loss: Any) -> dict[str, Any]:
    return {
        "algorithm": {
            "loss": {"type": "smooth_clip", "width": 0.3, **loss},
            "advantage": {"type": "median_baseline", "bound": 0.5},
        },
        "mechanisms": {
            "router": {"type": "round_robin", "requests": 2},
            "mover": {"type": "longest_queue", "turns": 4},
        },
        "reward": {"type": "scaled_scores", "factor": 3.0},
        "resources": {"rollout_devices": 2},
        "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
        "budget": {"train_steps": 3, "target": None},
        "evaluation": {"every_steps": 3, "tasks": 4},
    }


def test_no_file_of_the_product_names_them() -> None:
    for folder in ("platform", "workers", "webui"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in {".py", ".html", ".js", ".yaml", ".sql"}:
                text = path.read_text(encoding="utf-8")
                assert not [name for name in (*NAMES.values(), "sample_plugins") if name in text], path


def test_they_are_offered_with_their_settings(system: System) -> None:
    rows = {(row["kind"], row["name"]): row for row in system.api().get("/plugins")["results"]}
    for kind, name in NAMES.items():
        row = rows[kind, name]
        assert (row["distribution"], row["version"], row["problem"]) == ("flexmarl-sample-plugins", "1.0.0", "")
        assert row["summary"]
    assert rows["loss", "smooth_clip"]["options"]["properties"]["width"]["default"] == 0.2
    schema = system.api().get("/config-schema")
    assert "SmoothClipOptions" in schema["$defs"]
    browser = system.signed_in()
    options = browser.open(f"{system.url}/help/plugins").read().decode()
    form = browser.open(f"{system.url}/runs/new?template=reference_game").read().decode()
    for kind, name in NAMES.items():
        assert f">{name}<" in options
        assert kind == "environment" or f'<option value="{name}"' in form
    assert "Maximum distance of the ratio from 1." in options
    assert "Maximum distance of the ratio from 1." in form
    assert 'data-pointer="/algorithm/loss/width"' in form
    assert 'data-label="Bound"' in form, "not the label of another field of that name"


def test_wrong_settings_are_refused_with_field_rule_and_legal_value(system: System) -> None:
    with pytest.raises(ApiError) as refused:
        system.api().create_run(name="wrong", template="reference_game", spec=spec(width=0, clip_low=0.1))
    found = {
        error["pointer"]: (error["code"], error["detail"], error["hint"]) for error in refused.value.problem["errors"]
    }
    code, detail, hint = found["/algorithm/loss/width"]
    assert (code, detail) == ("out_of_range", "width must be greater than 0.0; it is 0.")
    assert hint == "Set a value greater than 0.0."
    assert found["/algorithm/loss/clip_low"][0] == "not_read"


def test_its_environment_is_a_template_with_a_form(system: System) -> None:
    template = system.api().get("/templates/same_word")
    assert (template["title"], template["roles"]) == ("Same word", ["left", "right"])
    browser = system.signed_in()
    assert "Same word" in browser.open(f"{system.url}/runs/new").read().decode()
    form = browser.open(f"{system.url}/runs/new?template=same_word").read().decode()
    for name in ("words", "offered", "setup_timeout_s", "step_timeout_s"):
        assert f'data-pointer="/environment/{name}"' in form
    with pytest.raises(ApiError) as refused:
        system.api().create_run(name="wrong", template="same_word", spec={"environment": {"words": 9}})
    (error,) = refused.value.problem["errors"]
    assert (error["pointer"], error["code"], error["hint"]) == ("/environment/words", "out_of_range", "Set 8.")


def test_its_environment_is_trained_in_processes_of_its_own(system: System) -> None:
    api = system.api()
    spec = {
        "environment": {"words": 4, "offered": 2},
        "batch": {
            "tasks_per_step": form(short=16, full=32),
            "episodes_per_task": 8,
            "micro_batch_groups": 16,
            "rollout_groups": 8,
        },
        "policies": {role: {"optimizer": {"learning_rate": 0.003}} for role in ("left", "right")},
        "budget": form(short={"train_steps": 3, "target": None}, full={"train_steps": 40, "target": {"value": 0.9}}),
        "evaluation": {"every_steps": 4, "tasks": 32},
    }
    run_id = api.create_run(name="same word", template="same_word", spec=spec)["id"]
    run = api.finish(run_id, 400)
    assert run["status"] == "completed", run["reason_text"]
    _, scores = api.series(run_id, "eval/team_score")["eval/team_score", "", "mean"]
    assert scores[0] < 0.75, "two that know nothing of each other agree by chance"
    assert max(scores) >= 0.9 or not FULL, "it is learned"
    assert api.consistency(run_id)["ok"]


def test_a_run_with_all_others_trains(system: System) -> None:
    api = system.api()
    run_id = api.create_run(name="sample", template="reference_game", spec=spec())["id"]
    run = api.finish(run_id, 300)
    assert (run["status"], run["step"]) == ("completed", 3), run["reason_text"]
    chosen = run["spec"]
    assert chosen["algorithm"]["loss"]["type"] == "smooth_clip"
    assert chosen["mechanisms"]["router"] == {"type": "round_robin", "requests": 2}
    assert chosen["mechanisms"]["mover"] == {"type": "longest_queue", "turns": 4}
    assert api.consistency(run_id)["ok"]
    rows = api.get(f"/runs/{run_id}/trajectories?origin=train&limit=100")["results"]
    assert max(row["team_score"] for row in rows) == 3.0, "the environment gives 1 at most"
    advantages = {
        turn["advantage"]
        for row in rows[:20]
        for turn in api.get(f"/runs/{run_id}/trajectories/{row['id']}")["turns"]
        if turn["advantage"] is not None
    }
    assert advantages
    assert all(-0.5 <= value <= 0.5 for value in advantages)
    lines = api.get(f"/runs/{run_id}/logs?limit=1000")["results"]
    assert any("own_rule" in str(line) for line in lines)
