"""A run's figures over REST and as pages: agents, what it holds, configuration beside another run's."""

import re

import pytest

from flexmarl.contracts.decisions import Metric
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.configuration import config_diff
from flexmarl.controlplane.runs.queries import attempts
from flexmarl.controlplane.telemetry import queries as telemetry
from flexmarl.store.control.decisions import _write_metrics
from tests.support.markup import markup
from tests.support.played import play
from tests.support.statements import at_most

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(editor, make_run):
    run = make_run(editor, RunStatus.RUNNING, agents={"speaker": {"policy": "solver"}, "listener": {}})
    play(run)
    points = [(1.0, Metric("train/entropy", 3, 0.7, "solver")), (1.0, Metric("throughput/tokens", 3, 42.0))]
    points.append((1.0, Metric("throughput/tokens", 3, 40.0, "speaker")))
    _write_metrics(store_connection(), run.no, points)
    return run


def test_agents_tell_their_last_figures_and_their_devices(api, run) -> None:
    rows = api.get(f"/api/v1/runs/{run.key}/agents").json()["results"]
    assert [row["role"] for row in rows] == ["speaker", "listener"]
    speaker, listener = rows
    assert (speaker["policy"], speaker["reward"], speaker["entropy"], speaker["tokens_per_s"]) == (
        "solver", 0.25, 0.7, 40.0,
    )  # fmt: skip
    assert (speaker["version"], len(speaker["digest"])) == (1, 64)
    assert len(speaker["engines"]) == 1
    assert len(speaker["trainers"]) == 1
    assert speaker["engines"] != speaker["trainers"]
    assert (listener["reward"], listener["version"], listener["engines"]) == (None, None, [])
    one = api.get(speaker["url"]).json()
    assert [version["version"] for version in one["versions"]] == [1, 0]
    missing = api.get(f"/api/v1/runs/{run.key}/agents/nobody")
    assert missing.status_code == 404
    assert "speaker, listener" in missing.json()["detail"]


def test_pages_tell_which_versions_are_durable(browser, run) -> None:
    store_connection().execute(
        "UPDATE store.policy_version SET state = CASE version WHEN 0 THEN digest ELSE '' END WHERE run_id = %s",
        [run.no],
    )
    marks = []
    for page in ("metrics/agents/speaker", "checkpoints"):
        text = markup(browser.get(f"/runs/{run.key}/{page}"))
        marks.append(re.findall(r"<td[^>]*>(?:<span[^>]*>)?(durable|not stored)", text))
    assert marks == [["not stored", "durable"], ["not stored"]]


def test_device_time_is_the_time_of_leases(run) -> None:
    leases = telemetry.leases(run)
    held = telemetry.held(leases)
    assert (held["leases"], len(held["devices"]), held["pools"]) == (2, 2, ["default"])
    assert held["device_s"] == pytest.approx(sum(leases.now - one.since for one in leases.spans), abs=0.1)
    assert held["device_s"] >= 80
    query = "UPDATE store.lease SET state = 'ended', ended_at = now() - interval '10 seconds' WHERE run_id = %s"
    store_connection().execute(query, [run.no])
    ended = telemetry.held(telemetry.leases(run))
    assert ended["device_s"] == pytest.approx(60, abs=0.1)
    assert ended["devices"] == []


def test_marks_are_checkpoints_and_later_attempts(run) -> None:
    store_connection().execute("DELETE FROM store.attempt WHERE run_id = %s", [run.no])
    for no, first in ((1, 0), (2, 2)):
        store_connection().execute(
            "INSERT INTO store.attempt (run_id, no, epoch, verb, began_at, first_step) "
            "VALUES (%s, %s, 1, 'x', now(), %s)",
            [run.no, no, first],
        )
    found = telemetry.marks(run, attempts(run))
    assert found["checkpoints"] == [{"step": 3, "labels": ["best"]}]
    assert found["attempts"] == [{"no": 2, "step": 2, "verb": "x"}]


def test_configurations_are_compared_value_by_value(api, editor, make_run, run) -> None:
    other = make_run(editor, RunStatus.RUNNING, budget={"train_steps": 7})
    answer = api.get(f"/api/v1/runs/{run.key}/config-diff", {"against": other.key}).json()
    rows = {row["pointer"]: row for row in answer["results"]}
    steps = rows["/budget/train_steps"]
    assert (steps["other_value"], steps["other_source"], steps["source"]) == (7, "user", "default")
    assert rows["/agents/speaker/policy"]["value"] == "solver"
    assert answer["different"] == len(rows)
    everything = api.get(f"/api/v1/runs/{run.key}/config-diff", {"against": other.key, "equal": "true"}).json()
    assert len(everything["results"]) == answer["different"] + answer["equal"]
    assert sum(row["equal"] for row in everything["results"]) == answer["equal"]
    same = config_diff(run, run)
    assert (same["different"], same["equal"]) == (0, len(same["results"]))
    assert api.get(f"/api/v1/runs/{run.key}/config-diff").json()["errors"][0]["pointer"] == "against"


def test_nobody_compares_with_a_run_they_may_not_know(api, make_run, person, run) -> None:
    from flexmarl.controlplane.accounts.models import Project
    from flexmarl.controlplane.runs.models import Run

    other = make_run(person("editor"), RunStatus.RUNNING)
    Run.objects.filter(pk=other.pk).update(project=Project.objects.create(name="secret"))
    assert api.get(f"/api/v1/runs/{run.key}/config-diff", {"against": other.key}).status_code == 404
    assert api.post("/api/v1/series/data", {"runs": [run.key, other.key], "names": ["reward/team"]}).status_code == 404


def page(browser, path, status=200):
    answer = browser.get(path)
    assert answer.status_code == status, path
    return markup(answer)


def listed(text) -> set[str]:
    """Names of the series in the catalogue's table."""
    return {key.partition("|")[0] for key in re.findall(r'data-row="([^"]+)"', text)}


def test_the_catalogue_is_searched_by_words_and_by_expression(browser, run) -> None:
    base = f"/runs/{run.key}/metrics"
    assert "train/entropy" in page(browser, base)
    words = page(browser, f"{base}?q=reward+speaker")
    assert {"reward/agent"} == listed(words)
    found = page(browser, f"{base}?q=^(train|eval)/.*ent")
    assert listed(found) == {"train/entropy"}
    assert "Not a valid regular expression" in page(browser, f"{base}?q=train/(")
    assert "No series match" in page(browser, f"{base}?q=nothing-like-this")
    assert 'data-series="train/entropy|solver|mean"' in page(browser, f"{base}?open=train/entropy")
    assert "\x00" not in page(browser, f"{base}?q=%00")


def test_the_configuration_is_shown_compared_and_downloaded(browser, editor, make_run, run) -> None:
    other = make_run(editor, RunStatus.RUNNING, budget={"train_steps": 7})
    base = f"/runs/{run.key}/config"
    compared = page(browser, f"{base}?against={other.key}")
    assert "budget" in compared
    assert "train_steps" in compared
    assert "micro_batch_groups" not in compared
    assert "micro_batch_groups" in page(browser, f"{base}?against={other.key}&equal=1")
    assert "There is no run nobody." in page(browser, f"{base}?against=nobody")
    assert "train_steps" in page(browser, f"{base}?q=train_steps")
    assert "micro_batch_groups" not in page(browser, f"{base}?q=train_steps")
    assert "\nname: code words\n" in browser.get(f"{base}.yaml").content.decode()


def test_charts_follow_the_axis_and_the_smoothing_of_the_address(browser, run) -> None:
    base = f"/runs/{run.key}/figures"
    step, samples = browser.get(base).json(), browser.get(f"{base}?x=samples&smooth=0").json()
    assert step["figures"]["team_reward"]["data"][-1]["x"] == [1.0, 2.0, 3.0]
    assert samples["figures"]["team_reward"]["data"][-1]["x"] == [8.0, 16.0, 24.0]
    assert samples["axis"]["steps"] == [1.0, 2.0, 3.0]
    time = browser.get(f"{base}?x=time").json()
    assert time["axis"]["word"].startswith("time since the start")
    version = browser.get(f"{base}?x=version").json()
    assert version["figures"]["team_reward"]["data"][-1]["x"] == [1.0, 2.0, 3.0]
    assert version["matrices"]["learning"]["axis"] == "version"
    assert step["figures"]["tokens"]["meaning"]
    assert browser.get(f"{base}?x=colour").json()["axis"]["name"] == "step"


def test_pages_take_few_statements(browser, run) -> None:
    for path, most in {
        f"/runs/{run.key}": 17,  # one for who speaks now, one for its cost
        f"/runs/{run.key}/figures?x=time": 14,  # single steps and quantiles are read beside what is thinned
        f"/runs/{run.key}/parts/summary": 12,
        f"/runs/{run.key}/parts/header": 10,
        f"/runs/{run.key}/metrics": 15,
        f"/runs/{run.key}/metrics/agents": 17,
        f"/runs/{run.key}/metrics/agents/speaker": 23,  # two of them read the engines that serve it
        f"/runs/{run.key}/config": 12,
    }.items():
        browser.get(path)
        with at_most(most, path):
            assert browser.get(path).status_code == 200


def test_the_team_is_drawn_before_and_in_a_run(browser, run) -> None:
    page = browser.get(f"/runs/{run.key}/metrics/agents").content.decode()
    assert 'aria-label="listener hears speaker"' in page
    assert page.count('class="node"') == 2
    new = browser.get("/runs/new?template=marti_mixture").content.decode()
    assert "aggregator hears proposer_3" in new
    assert new.count('class="node"') == 4
    assert "environment/graph/layers" in new, "rounds of a graph are a setting of the form"
    assert 'data-pointer="/environment/graph/aggregator' not in new, "names of seats are those of agents"
