"""Runs whose workers start commands: pinned to a build and to rows, refused by name; files that changed are shown."""

import uuid
from typing import Any

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import leases, package_rows, program_sessions
from flexmarl.store.control.program_sessions import SessionOffer
from tests.support.controlplane import PROGRAM, make_dataset

pytestmark = pytest.mark.django_db

RUNNER = {"type": "command", "command": ["fix", "answer.py", "{prompt}"], "package": "fix-bugs@1.0.0"}
MANIFEST = {
    "version": 1, "python": "3.11.7", "sandbox": "namespaces", "commands": [{"name": "fix"}], "left_out": [],
}  # fmt: skip
IMAGE = "ghcr.io/acme/agent:1@sha256:" + "a" * 64
CHANGES = {
    "files": [
        {"path": "answer.py", "change": "changed", "size": 32, "before": 33, "shown": True},
        {"path": "<b>.bin", "change": "added", "size": 2048, "before": None, "shown": False},
    ],
    "count": 5, "diff": "--- a/answer.py\n+++ b/answer.py\n@@ -1 +1 @@\n-return a < b\n+return a > b\n", "cut": True,
}  # fmt: skip


@pytest.fixture
def operator(person) -> Any:
    return person("operator", "olga")


@pytest.fixture
def built(client_of, operator) -> dict[str, Any]:
    """A package that was built."""
    source = {"type": "requirement", "requirement": "fix-bugs==1.0.0"}
    made = client_of(operator).post("/api/v1/packages", {"source": source}, format="json").json()
    conn = store_connection()
    taken = package_rows.take(conn, "n1", 20.0)
    said = {"digest": "d" * 64, "lock": [{"name": "fix-bugs", "version": "1.0.0", "sha256": "a" * 64}]}
    assert package_rows.ready(conn, taken, {**said, "manifest": MANIFEST}, "installed")
    return made


def planned(api: Any, runner: dict[str, Any], **environment: Any) -> Any:
    spec = {**PROGRAM, "environment": {"type": "program", "seats": ["solver", "reviser"], **environment}}
    spec["environment"]["runner"] = {**RUNNER, **runner}
    return api.post("/api/v1/runs/plan", {"spec": spec}, format="json")


def test_a_run_is_pinned_to_the_build_whose_command_it_starts(client_of, operator, built) -> None:
    answer = planned(client_of(operator), {"pinned": {"digest": "e" * 64}})
    assert answer.status_code == 200, answer.json()
    pinned = answer.json()["spec"]["environment"]["runner"]["pinned"]
    assert pinned == {"id": built["id"], "digest": "d" * 64, "entry": ""}
    bare = planned(client_of(operator), {"package": "", "pinned": {"digest": "e" * 64}})
    assert bare.json()["spec"]["environment"]["runner"]["pinned"]["digest"] == "", "nobody pins by hand"


@pytest.mark.parametrize(
    ("runner", "pointer", "code"),
    [
        ({"package": "fix-bugs@1.0.1"}, "/environment/runner/package", "unknown_package"),
        ({"command": []}, "/environment/runner/command", "required"),
        ({"command": "fix {prompt}"}, "/environment/runner/command", "not_in_a_line"),
        ({"evaluator": {"type": "scores"}}, "/environment/runner/evaluator/file", "required"),
        ({"evaluator": {"type": "score"}}, "/environment/runner/evaluator/type", "unknown_value"),
        ({"workspace": {"folder": "../x"}}, "/environment/runner/workspace/folder", "invalid"),
    ],
    ids=str,
)
def test_what_cannot_be_started_is_refused_where_it_stands(
    client_of, operator, built, runner: dict[str, Any], pointer: str, code: str
) -> None:
    errors = planned(client_of(operator), runner).json()["errors"]
    assert (pointer, code) in {(one["pointer"], one["code"]) for one in errors}, errors


def test_a_command_needs_the_right_of_whoever_adds_packages(client_of, operator, editor, built) -> None:
    answer = planned(client_of(editor), {})
    assert [(one["pointer"], one["code"]) for one in answer.json()["errors"]] == [
        ("/environment/runner/type", "command_forbidden")
    ]
    assert planned(client_of(operator), {}).status_code == 200


def test_a_container_needs_a_host_that_starts_them(client_of, operator, built) -> None:
    container, api, conn = {"container": {"image": "ghcr.io/acme/agent:1"}}, client_of(operator), store_connection()
    assert not planned(api, container).json().get("errors"), "hosts may come"
    missing = [("/environment/runner/container", "no_containers")]
    for name, said, refused in (
        ("n1", {"containers": ""}, missing), ("n2", {"containers": "podman 5.4"}, []),
        ("n2", {"containers": ""}, missing), ("n2", {}, []),
    ):  # fmt: skip
        device = leases.DeviceFacts(f"{name}.cpu0", "cpu", 0, "CPU", 2**30, "default", {})
        leases.register_node(conn, leases.NodeFacts(name, "127.0.0.1:1", "life-1", "0", said), [device])
        errors = planned(api, container).json().get("errors") or []
        assert [(one["pointer"], one["code"]) for one in errors if one["code"] == "no_containers"] == refused, name
        assert all("Install podman" in one["hint"] for one in errors)
        assert not planned(api, {}).json().get("errors")


def test_rows_of_a_dataset_are_the_tasks_with_the_rights_of_whoever_submits(client_of, operator, built) -> None:
    make_dataset(actor_of_user(operator))
    api, evaluator = client_of(operator), {"type": "scores", "file": "answer.txt"}
    answer = planned(api, {"evaluator": evaluator}, dataset={"name": "sums", "digest": "e" * 64})
    assert answer.status_code == 200, answer.json()
    environment = answer.json()["spec"]["environment"]
    assert (environment["tasks"], environment["held_out"]) == (18, 2)
    assert environment["dataset"]["digest"] not in ("", "e" * 64)
    assert environment["runner"]["pinned"]["digest"] == "d" * 64
    for settings, pointer in (
        ({"dataset": {"name": "sum"}}, "/environment/dataset/name"),
        ({"dataset": {"name": "sums"}, "tasks": 19}, "/environment/tasks"),
    ):
        answer = planned(api, {"evaluator": evaluator}, **settings)
        assert pointer in {one["pointer"] for one in answer.json()["errors"]}


@pytest.fixture
def session(editor, make_run) -> tuple[Any, str]:
    """A session that a command has played, with files that it changed."""
    run = make_run(editor, RunStatus.RUNNING, **PROGRAM)
    run.spec = {**run.spec, "environment": {**run.spec["environment"], "runner": {**RUNNER, "package": ""}}}
    run.save(update_fields=["spec"])
    conn, id = store_connection(), uuid.uuid4()
    program_sessions.open_session(conn, run.no, SessionOffer(id, "http://a:1", False, 3, (3, 0, 1), "d" * 64))
    program_sessions.wrote(conn, id, "answer.py: <mended>", CHANGES, IMAGE)
    program_sessions.end(conn, id, "environment: program: exit code 3")
    return run, str(id)


def test_files_that_changed_are_read_with_a_session_and_not_with_a_list(api, session) -> None:
    run, id = session
    read = api.get(f"/api/v1/runs/{run.key}/sessions/{id}").json()
    assert (read["changes"], read["image"]) == (CHANGES, IMAGE)
    [listed] = api.get(f"/api/v1/runs/{run.key}/sessions").json()["results"]
    assert "changes" not in listed, "a list stays short"
    posted = api.post(f"/api/v1/runs/{run.key}/sessions", {}, format="json")
    assert posted.json()["code"] == "starts_programs"


def test_the_page_of_a_session_shows_files_differences_and_output(browser, session) -> None:
    run, id = session
    page = browser.get(f"/runs/{run.key}/trajectories/sessions/{id}").content.decode()
    for word in (
        "answer.py: &lt;mended&gt;", "environment: program: exit code 3", "&lt;b&gt;.bin", "3 more are not named.",
        'class="removed">-return a &lt; b', 'class="added">+return a &gt; b', "The differences are cut off", IMAGE,
    ):  # fmt: skip
        assert word in " ".join(page.split()), word
    listed = browser.get(f"/runs/{run.key}/trajectories/sessions").content.decode()
    assert f"/runs/{run.key}/trajectories/sessions/{id}" in listed
    assert browser.get(f"/runs/{run.key}/trajectories/sessions/{uuid.uuid4()}").status_code == 404


def test_pages_offer_the_commands_of_a_package_and_new_run_asks_what_they_take(
    client_of, operator, editor, built
) -> None:
    from django.test import Client

    browser = Client()
    browser.force_login(operator)
    page = browser.get(f"/packages/{built['id']}").content.decode()
    assert "package-commands" in page
    assert "runner: {type: command, package: &quot;fix-bugs@1.0.0&quot;, command: [&quot;fix&quot;]}" in page
    assert "New run of fix" in page
    browser.force_login(editor)
    assert "New run of fix" not in browser.get(f"/packages/{built['id']}").content.decode(), "an editor may not"
    browser.force_login(operator)
    page = browser.get(f"/runs/new?package={built['id']}&command=fix").content.decode()
    for name in (
        "command",
        "container",
        "env",
        "prompt",
        "workspace",
        "evaluator",
        "memory_mb",
        "disk_mb",
        "score_timeout_s",
    ):
        assert f'data-pointer="/environment/runner/{name}"' in page, name
