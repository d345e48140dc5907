"""Models and checkpoints of others: every road of a member of another project, and the one that is open to readers."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from django.db.models import QuerySet

from flexmarl.contracts.folder_roots import NOT_ALLOWED, SETTING
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.models import Membership, Project
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import origin_grants
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.data import lineage
from flexmarl.store.errors import Refused
from flexmarl.store.server_paths import without_paths
from tests.controlplane.test_checkpoints import keep
from tests.support.controlplane import SPEC, key, make_person

pytestmark = pytest.mark.django_db

STEP = 4


@pytest.fixture
def theirs(editor, make_run) -> Run:
    """A run of the default project, with a checkpoint."""
    run = make_run(editor, RunStatus.RUNNING)
    keep(run, STEP)
    return run


@pytest.fixture
def attacker(client_of) -> Any:
    """An editor of another project."""
    return client_of(make_person("mallory", "editor", "other"))


def beginning(run: object, step: object = STEP, **more: object) -> dict[str, Any]:
    model = {"type": "checkpoint", "run": run, "step": step, **more}
    return {**SPEC, "policies": {role: {"model": model} for role in SPEC["agents"]}}


def send(api, path: str, body: dict[str, Any]):
    return api.post(f"/api/v1/{path}", body, format="json", HTTP_IDEMPOTENCY_KEY=key())


def submit(api, spec: dict[str, Any], project: str = "default"):
    return send(api, "runs", {"spec": spec, "project": project})


def member(user: Any, project: str = "default") -> QuerySet[Membership]:
    """The part that a person has in a project."""
    return Membership.objects.filter(user=user, project__name=project)


def let_read(user: Any) -> None:
    Membership.objects.create(project=Project.objects.get(name="default"), user=user, role="viewer")


def refusals(answer) -> list[tuple[str, str, str, str]]:
    assert answer.status_code == 400, answer.content
    return [(e["pointer"], e["code"], e["detail"], e["hint"]) for e in answer.json()["errors"]]


def planned(api, spec: dict[str, Any], project: str = "default") -> list[tuple[str, str, str, str]]:
    answer = send(api, "runs/plan", {"spec": spec, "project": project})
    assert answer.status_code == 200, answer.content
    return [(e["pointer"], e["code"], e["detail"], e["hint"]) for e in answer.json()["errors"]]


# The road that is open --------------------------------------------------------------------------------------------


def test_a_reader_begins_with_a_checkpoint_that_is_pinned_by_digest(api, theirs) -> None:
    answer = submit(api, beginning(theirs.key))
    assert answer.status_code == 201, answer.content
    body = answer.json()
    model = body["spec"]["policies"]["speaker"]["model"]
    assert (model["type"], model["run"], model["step"]) == ("checkpoint", theirs.key, STEP)
    assert model["source"]["type"] == "factory"
    made = Run.objects.get(pk=body["id"])
    origins = lineage.origins(store_connection(), made.no)
    assert {(one.policy, one.from_run, one.from_step, one.checkpoint, one.digest) for one in origins.values()} == {
        (role, theirs.no, STEP, True, f"{STEP:064x}") for role in SPEC["agents"]
    }
    told = api.get(f"/api/v1/runs/{made.id}/lineage").json()["origins"]
    assert {(one["policy"], one["run"]["key"], one["step"]) for one in told} == {
        (role, theirs.key, STEP) for role in SPEC["agents"]
    }
    assert planned(api, beginning(str(theirs.id))) == []


def test_policies_may_take_those_of_others_names_and_a_clone_begins_alike(api, theirs) -> None:
    spec = beginning(theirs.key, policy="listener")
    made = submit(api, spec).json()
    again = send(api, f"runs/{made['id']}/actions/clone", {"overrides": {"seed": 9}})
    assert again.status_code == 201, again.content
    for one in (made, again.json()):
        no = Run.objects.get(pk=one["id"]).no
        assert {o.from_policy for o in lineage.origins(store_connection(), no).values()} == {"listener"}


def test_a_fork_of_such_a_run_begins_with_its_own_weights(api, theirs) -> None:
    made = Run.objects.get(pk=submit(api, beginning(theirs.key)).json()["id"])
    keep(made, 7)
    fork = send(api, f"runs/{made.id}/actions/fork", {"checkpoint": 7})
    assert fork.status_code == 201, fork.content
    assert fork.json()["spec"]["policies"]["speaker"]["model"]["type"] == "factory"
    no = Run.objects.get(pk=fork.json()["id"]).no
    assert {(o.from_run, o.from_step) for o in lineage.origins(store_connection(), no).values()} == {(made.no, 7)}


def test_what_a_checkpoint_is_of_is_never_the_submitter_s_word(api, theirs) -> None:
    lie = beginning(theirs.key, source={"type": "folder", "path": "/etc"})
    assert submit(api, lie).json()["spec"]["policies"]["speaker"]["model"]["source"]["type"] == "factory"


@pytest.mark.parametrize(
    ("spec", "pointer", "legal"),
    [
        (lambda run: beginning(run.key, 5), "/policies/speaker/model/step", f"after {STEP}"),
        (lambda run: beginning(run.key, 10**30), "/policies/speaker/model/step", f"after {STEP}"),
        (lambda run: beginning(run.key, policy="judge"), "/policies/speaker/model/policy", "listener, speaker"),
        (lambda run: beginning(run.key, "4"), "/policies/speaker/model/step", "Write it like 300"),
        (lambda run: beginning(17), "/policies/speaker/model/run", "Write"),
        (lambda run: beginning("a b"), "/policies/speaker/model/run", "Use the key or id"),
        (lambda run: beginning(run.key, more=1), "/policies/speaker/model/more", ""),
    ],
)
def test_what_names_no_checkpoint_is_refused_by_field(api, theirs, spec, pointer: str, legal: str) -> None:
    found = {where: hint for where, _, _, hint in refusals(submit(api, spec(theirs)))}
    assert legal in found[pointer]


def test_what_does_not_fit_the_weights_is_refused(api, theirs) -> None:
    spec = beginning(theirs.key)
    spec["policies"]["speaker"]["tuning"] = {"type": "lora", "adapter": "/models/x"}
    codes = {(where, code) for where, code, _, _ in refusals(submit(api, spec))}
    assert ("/policies/speaker/tuning/adapter", "folder_not_allowed") in codes
    spec["policies"]["speaker"]["tuning"] = "lora"
    assert refusals(submit(api, spec))[0][:2] == ("/policies/speaker/tuning/type", "incompatible")


# Every other road -------------------------------------------------------------------------------------------------


def test_another_project_s_checkpoint_is_one_that_does_not_exist(attacker, theirs) -> None:
    before = Run.objects.count()
    answers = set()
    for run in (theirs.key, str(theirs.id), "quiet-otter-0000", "0190a5a0-0000-7000-8000-000000000000"):
        for step in (STEP, STEP + 1):
            spec = beginning(run, step)
            answers.add(tuple(refusals(submit(attacker, spec, "other"))))
            answers.add(tuple(planned(attacker, spec, "other")))
            measured = send(attacker, "runs/measure", {"spec": spec, "project": "other"})
            if measured.status_code != 404:
                answers.add(tuple(refusals(measured)))
    assert len(answers) == 1, answers
    assert {code for _, code, _, _ in answers.pop()} == {"unknown_run"}
    assert Run.objects.count() == before


def test_its_other_doors_do_not_exist_either(attacker, theirs) -> None:
    own = submit(attacker, SPEC, "other").json()["id"]
    for method, path, body in (
        ("get", f"runs/{theirs.id}/checkpoints", {}),
        ("get", f"runs/{theirs.id}/checkpoints/{STEP}", {}),
        ("get", f"runs/{theirs.id}/checkpoints/{STEP}/archive", {}),
        ("get", f"runs/{theirs.key}/lineage", {}),
        ("post", f"runs/{theirs.id}/checkpoints/{STEP}/actions/pin", {}),
        ("post", f"runs/{theirs.id}/checkpoints/{STEP}/actions/promote", {"name": "mine", "policy": "speaker"}),
        ("post", f"runs/{theirs.id}/actions/fork", {"checkpoint": STEP, "project": "other"}),
        ("post", f"runs/{theirs.id}/actions/clone", {"project": "other"}),
    ):
        answer = attacker.get(f"/api/v1/{path}") if method == "get" else send(attacker, path, body)
        assert answer.status_code == 404, (path, answer.content)
    overrides = {"overrides": {"policies": beginning(theirs.key)["policies"]}}
    cloned = send(attacker, f"runs/{own}/actions/clone", overrides)
    assert {code for _, code, _, _ in refusals(cloned)} == {"unknown_run"}


def test_a_clone_of_a_run_does_not_inherit_its_maker_s_rights(api, client_of, theirs, editor) -> None:
    both = make_person("bea", "editor", "other")
    let_read(both)
    made = submit(client_of(both), beginning(theirs.key), "other")
    assert made.status_code == 201, made.content
    stranger = client_of(make_person("mel", "editor", "other"))
    cloned = send(stranger, f"runs/{made.json()['id']}/actions/clone", {})
    assert {code for _, code, _, _ in refusals(cloned)} == {"unknown_run"}
    told = stranger.get(f"/api/v1/runs/{made.json()['id']}/lineage").json()["origins"]
    assert {one["run"] for one in told} == {None}


def folders(path: str) -> list[dict[str, Any]]:
    lora = {"type": "lora", "adapter": path}
    return [
        {**SPEC, "policies": {"speaker": {"model": {"type": "folder", "path": path}}}},
        {**SPEC, "policies": {"speaker": {"tuning": lora}}},
        {**SPEC, "policies": {"speaker": {"model": {"type": "folder", "path": path}, "tuning": lora}}},
    ]


def test_no_folder_may_be_named_by_default(attacker, settings) -> None:
    assert tuple(settings.MODEL_ROOTS) == ()
    for spec in folders("/models/x"):
        for found in (refusals(submit(attacker, spec, "other")), planned(attacker, spec, "other")):
            assert {(code, detail) for _, code, detail, _ in found} == {("folder_not_allowed", NOT_ALLOWED)}
            assert all(SETTING in hint for _, _, _, hint in found)


def test_outside_the_roots_all_answers_are_equal_whatever_lies_there(attacker, settings, tmp_path: Path) -> None:
    root, home = tmp_path / "models", tmp_path / "home"
    there = home / "checkpoints/run-1/step-4/speaker"
    there.mkdir(parents=True)
    (root / "mine").mkdir(parents=True)
    (root / "link").symlink_to(there)
    os.mkfifo(tmp_path / "pipe")
    settings.MODEL_ROOTS, settings.HOME = (str(root),), home
    outside = (
        there, home, home / "nowhere", tmp_path / "pipe", "/etc/passwd", "/nowhere", f"{root}/../home/checkpoints",
        f"{root}/mine/../../home", "relative",
    )  # fmt: skip
    answers = {
        (e[1], e[2], e[3])
        for path in outside[:-1]
        for spec in folders(str(path))
        for e in planned(attacker, spec, "other")
    }
    assert len(answers) == 1, answers
    settings.MODEL_ROOTS = (str(tmp_path),)  # a root that contains this installation's own data
    for path in (there, home, home / "nowhere"):
        codes = {code for spec in folders(str(path)) for _, code, _, _ in refusals(submit(attacker, spec, "other"))}
        assert codes == {"folder_not_allowed"}, path


def test_below_a_root_a_folder_may_be_named_and_a_link_is_warned_of(api, settings, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    settings.MODEL_ROOTS = (str(tmp_path),)
    for name, warned in (("mine", set()), ("link", {"folder_not_seen"}), ("later", {"folder_not_seen"})):
        spec = folders(str(tmp_path / name))[0]
        answer = send(api, "runs/plan", {"spec": spec, "project": "default"}).json()
        assert answer["errors"] == []
        assert {e["code"] for e in answer["warnings"] if e["pointer"].endswith("/path")} == warned
        assert submit(api, spec).status_code == 201


# Rights that are lost between submit and start ---------------------------------------------------------------------


@pytest.fixture
def borrowed(client_of, theirs) -> tuple[Any, Any, Run]:
    """A run of somebody who may read the other project for now."""
    both = make_person("bea", "editor", "other")
    let_read(both)
    client = client_of(both)
    return both, client, Run.objects.get(pk=submit(client, beginning(theirs.key), "other").json()["id"])


def readable(run: Run) -> str:
    try:
        lineage.readable(store_connection(), run.no, "speaker")
    except Refused as refused:
        return refused.code
    return "readable"


def test_a_right_that_was_lost_keeps_the_run_from_starting(borrowed) -> None:
    both, client, run = borrowed
    member(both).delete()
    refused = send(client, f"runs/{run.id}/actions/start", {})
    assert refused.status_code == 403, refused.content
    assert "can no longer read the run" in refused.json()["detail"]


def test_a_right_that_is_lost_after_the_start_keeps_the_bytes_from_being_read(borrowed) -> None:
    both, client, run = borrowed
    assert send(client, f"runs/{run.id}/actions/start", {}).status_code == 202
    conn = store_connection()
    conn.execute("UPDATE store.run_state SET status = 'queued' WHERE run_id = %s", [run.no])
    assert readable(run) == "readable"
    conn.execute("UPDATE store.lineage SET granted_at = granted_at - interval '1 hour' WHERE run_id = %s", [run.no])
    assert readable(run) == "origin_unchecked"
    origin_grants.renew()
    assert readable(run) == "readable"
    member(both).delete()
    origin_grants.renew()
    assert readable(run) == "origin_forbidden"
    let_read(both)
    origin_grants.renew()
    assert readable(run) == "readable"
    both.is_active = False
    both.save()
    origin_grants.renew()
    assert readable(run) == "origin_forbidden"


# No path of a server ------------------------------------------------------------------------------------------------

PATHS = re.compile(r"(?<![\w.:])/(?:" + "|".join(re.escape(name) for name in os.listdir("/")) + r")/[\w.-]+")
PAGES = ("", "checkpoints", "logs", "events", "config", "agents", "attempts")


def test_no_answer_and_no_page_of_a_run_names_a_path_of_the_server(admin_api, browser, theirs) -> None:
    conn = store_connection()
    conn.execute(
        "UPDATE store.checkpoint SET state = 'damaged', state_text = '/home/x/flexmarl.json is missing' "
        "WHERE run_id = %s",
        [theirs.no],
    )
    body = {"kind": "checkpoint_written", "label": "last", "step": STEP, "path": "/home/checkpoints/step-4", "bytes": 1}
    conn.execute(
        "INSERT INTO store.event (run_id, seq, at, kind, body) VALUES (%s, 1, now(), 'checkpoint_written', %s)",
        [theirs.no, json.dumps(body)],
    )
    document = admin_api.get("/api/v1/openapi.json?format=json").json()
    looked = 0
    for template, methods in document["paths"].items():
        if "get" not in methods or "{run_id}" not in template or template.endswith(("/follow", "/archive")):
            continue
        path = template.replace("{run_id}", str(theirs.id)).replace("{step}", str(STEP))
        if "{" in path:
            continue
        query = "?expand=body" if path.endswith("/events") else ""
        answer = admin_api.get(path + query)
        if answer.status_code == 200 and not answer.streaming:
            found = PATHS.search(answer.content.decode(errors="replace"))
            assert found is None, (path, found)
            looked += 1
    assert looked > 15
    for page in PAGES:
        answer = browser.get(f"/runs/{theirs.key}/{page}", follow=True)
        text = re.sub(r'(?:href|src|action|content)="[^"]*"', "", answer.content.decode())
        found = PATHS.search(text)
        assert found is None, (page, found)
    row = admin_api.get(f"/api/v1/runs/{theirs.id}/checkpoints").json()["results"][0]
    assert row["source"] == {"type": "checkpoint", "run": theirs.key, "step": STEP}
    assert "path" not in row


def test_a_path_becomes_its_last_name_and_an_address_stays() -> None:
    assert without_paths("cannot open /tmp/a b") == "cannot open .../a b"
    assert without_paths("'/usr/lib/python3/x.py', line 3") == "'.../x.py', line 3"
    assert without_paths("file:///home/x/step-4/: gone") == "file://.../step-4: gone"
    for kept in ("/api/v1/runs", "http://host:80/home/x", "a/tmp/b", "bind /v1/completions", "1 / 2"):
        assert without_paths(kept) == kept
