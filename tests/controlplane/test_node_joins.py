"""Hosts that have only the address: what they may ask, who decides, and that nobody else hears or keeps their token."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core import serializers
from django.test import Client
from django.utils import timezone

from flexmarl.contracts.node_joining import MOST_BYTES, confirmation_code
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.inventory import join_door, node_joins, node_tokens
from flexmarl.controlplane.inventory.models import NodeJoin, NodeToken
from tests.support.node_joins import make_node_join, request
from workers.door import token_file
from workers.door.address import DoorAddress
from workers.door.joining import join, new_token
from workers.errors import JoinRefused

pytestmark = pytest.mark.django_db
JOIN = "/nodes/join"


@pytest.fixture
def admin_api(person: Any, client_of: Any) -> Any:
    return client_of(person("cluster_admin", "ada"))


@pytest.fixture
def page(person: Any) -> Client:
    client = Client()
    client.force_login(person("cluster_admin", "grace"))
    return client


def asked(token: str, body: Any = None, address: str = "203.0.113.7", **more: Any) -> Any:
    text = request().model_dump_json() if body is None else body if isinstance(body, str) else json.dumps(body)
    bearer = f"Bearer {token}"
    return Client(REMOTE_ADDR=address).post(
        JOIN, text, content_type="application/json", headers={"Authorization": bearer}, **more
    )


def looked(token: str) -> Any:
    return Client().get(JOIN, headers={"Authorization": f"Bearer {token}"})


class LocalConnection:
    """An HTTP connection that ends in this test's transaction."""

    def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> None:
        kind = headers.pop("Content-Type", "application/json")
        self._answer = Client().generic(method, path, body or b"", kind, headers=headers)

    def getresponse(self) -> Any:
        self.status = self._answer.status_code
        return self

    def read(self) -> bytes:
        return bytes(self._answer.content)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DoorAddress, "connect", lambda self: LocalConnection())


@pytest.mark.usefixtures("here")
def test_a_host_asks_is_approved_under_other_names_and_is_a_node(admin_api: Any, tmp_path: Path) -> None:
    codes: list[str] = []

    def approve(_: float) -> None:
        (waiting,) = admin_api.get("/api/v1/node-joins?state=waiting").json()["results"]
        assert codes == [waiting["code"]], "the page shows what the host shows"
        assert (waiting["node"], waiting["host_name"], len(waiting["devices"])) == ("far-1", "far-1.example.org", 3)
        mode = (tmp_path / token_file.WAITING_FILE).stat().st_mode & 0o777
        assert mode == 0o600
        named = {"node": "trainer-1", "pool": "trainers"}
        assert admin_api.post(f"{waiting['url']}/actions/approve", named).json()["state"] == "approved"

    answer = join(tmp_path, "http://testserver", request(), codes.append, approve)
    assert (answer.node, answer.pool) == ("trainer-1", "trainers")
    kept = token_file.read_token(tmp_path)
    assert kept is not None
    assert kept.url == "http://testserver"
    assert (tmp_path / token_file.TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / token_file.WAITING_FILE).exists()
    hello = Client(headers={"Authorization": f"Bearer {kept.token}"}).get("/nodes/hello").json()
    assert (hello["node"], hello["pool"]) == ("trainer-1", "trainers")
    row = AuditEntry.objects.get(action="node_join.approve")
    assert (row.actor_name, row.target_name, row.detail["asked"]) == (
        "ada",
        "trainer-1",
        {"node": "far-1", "pool": "far-1"},
    )
    secret = kept.token.partition(".")[2]
    stored = serializers.serialize("json", [*NodeJoin.objects.all(), *NodeToken.objects.all()])
    assert secret not in stored
    assert secret not in json.dumps(list(AuditEntry.objects.values("detail", "before", "after")), default=str)


@pytest.mark.usefixtures("here")
def test_a_rejected_host_is_told_and_forgets_its_token(admin_api: Any, tmp_path: Path) -> None:
    def reject(_: float) -> None:
        assert admin_api.post(f"/api/v1/node-joins/{NodeJoin.objects.get().id}/actions/reject").status_code == 200

    with pytest.raises(JoinRefused, match="rejected far-1"):
        join(tmp_path, "http://testserver", request(), lambda code: None, reject)
    assert list(tmp_path.iterdir()) == []
    assert NodeToken.objects.count() == 0
    assert AuditEntry.objects.filter(action="node_join.reject").count() == 1


@pytest.mark.usefixtures("here")
def test_a_host_that_starts_again_goes_on_with_its_request(admin_api: Any, tmp_path: Path) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    shown: list[str] = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            join(tmp_path, "http://testserver", request(), shown.append, stop)
    assert shown[0] == shown[1]
    waiting = NodeJoin.objects.get()
    admin_api.post(f"/api/v1/node-joins/{waiting.id}/actions/approve", {})
    assert join(tmp_path, "http://testserver", request(), shown.append, stop).state == "approved"


def test_only_the_bearer_of_the_token_hears_how_its_request_stands() -> None:
    token = new_token()
    assert asked(token).json()["state"] == "waiting"
    assert looked(token).json()["state"] == "waiting"
    other = f"{token.partition('.')[0]}.{new_token().partition('.')[2]}"
    unknown = looked(new_token())
    assert (unknown.status_code, unknown.json()["code"]) == (404, "join_unknown")
    assert looked(other).content == unknown.content, "a wrong secret is told from no request"
    assert asked(other).json()["code"] == "join_key_taken"
    assert looked("").status_code == looked("fmx_" + token[4:]).status_code == 401
    assert Client().get("/nodes/hello", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_the_key_of_a_token_that_exists_is_not_taken_again() -> None:
    token = new_token()
    make_node_join(token=token)
    node_joins.approve(Actor.system(), NodeJoin.objects.get().id)
    NodeJoin.objects.all().delete()
    assert asked(token).json()["code"] == "join_key_taken"


@pytest.mark.parametrize(
    ("member", "value", "told"),
    [
        ("node", "Far 1", "'Far 1' is not a name"),
        ("pool", "../x", "'../x' is not a name"),
        ("host_name", "a\u202eb", "host_name: "),
        ("host_name", "a\x00b", "host_name: "),
        ("agent_version", "x" * 200, "agent_version: "),
        ("devices", [{"kind": "CPU 1", "name": "", "memory_bytes": 1}], "devices/0/kind: "),
        ("devices", [{"kind": "cpu", "name": "", "memory_bytes": -1}], "devices/0/memory_bytes: "),
        ("extra", 1, "extra: "),
    ],
)
def test_what_is_no_request_is_refused_by_its_member(member: str, value: Any, told: str) -> None:
    answer = asked(new_token(), {**request().model_dump(), member: value})
    assert (answer.status_code, answer.json()["code"]) == (422, "join_invalid")
    assert told in answer.json()["detail"]
    assert NodeJoin.objects.count() == 0


@pytest.mark.parametrize("body", ["", "[]", "\x00", '{"node": "\\ud800"}', "[" * 5000])
def test_a_body_that_is_no_request_is_refused(body: str) -> None:
    assert asked(new_token(), body).json()["code"] == "join_invalid"


def test_a_large_body_is_refused_unread() -> None:
    answer = asked(new_token(), "x" * (MOST_BYTES + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "join_too_large")


def test_requests_are_bounded_in_number_from_one_address_and_from_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_joins, "MOST_OF_ADDRESS", 2)
    monkeypatch.setattr(node_joins, "MOST_WAITING", 3)
    first = new_token()
    assert [asked(one).status_code for one in (first, new_token(), new_token())] == [200, 200, 503]
    assert [asked(new_token(), address=f"203.0.113.{n}").status_code for n in (8, 9)] == [200, 503]
    assert asked(first).status_code == 200, "who waits already asks again"
    NodeJoin.objects.update(created_at=timezone.now() - timedelta(hours=2))
    assert asked(new_token()).status_code == 200, "those that ran out make room"
    assert NodeJoin.objects.count() == 1


def test_requests_are_bounded_by_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_door, "ASKED_A_MINUTE", 2)
    monkeypatch.setattr(join_door, "LOOKED_A_MINUTE", 2)
    answers = [asked("none").status_code for _ in range(3)]
    assert answers == [401, 401, 429]
    assert asked("none", address="203.0.113.8").status_code == 401
    assert [looked("none").status_code for _ in range(3)] == [401, 401, 429]


def test_a_request_ends_by_itself(admin_api: Any, page: Client) -> None:
    token = new_token()
    waiting = make_node_join(token=token)
    assert f"join-{waiting.id}" in page.get("/cluster").content.decode()
    NodeJoin.objects.update(created_at=timezone.now() - timedelta(hours=1))
    assert looked(token).json()["code"] == "join_unknown"
    assert admin_api.post(f"/api/v1/node-joins/{waiting.id}/actions/approve", {}).status_code == 404
    assert admin_api.get(f"/api/v1/node-joins/{waiting.id}").status_code == 404
    assert f"join-{waiting.id}" not in page.get("/cluster").content.decode()
    assert "waits no longer" in page.get(f"/cluster?join={waiting.id}").content.decode()
    assert "waits no longer" in page.get("/cluster?join=nothing").content.decode()


def test_names_that_tokens_may_not_have_are_refused_and_the_host_goes_on_waiting(admin_api: Any) -> None:
    node_tokens.create(Actor.system(), "far-1", "far-1")
    approve = f"/api/v1/node-joins/{make_node_join().id}/actions/approve"
    taken = admin_api.post(approve, {})
    assert (taken.status_code, taken.json()["code"]) == (409, "conflict")
    wrong = admin_api.post(approve, {"node": "Far 2", "pool": "far-2"})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (400, "/node")
    assert NodeJoin.objects.get().state == "waiting"
    assert admin_api.post(approve, {"node": "far-2", "pool": "far-2"}, headers={"If-Match": 'W/"7"'}).status_code == 412
    assert admin_api.post(approve, {"node": "far-2", "pool": "far-2"}, headers={"If-Match": 'W/"1"'}).status_code == 200
    assert admin_api.post(approve, {"node": "far-3", "pool": "far-3"}).status_code == 409
    assert admin_api.post(approve.replace("approve", "reject")).status_code == 409
    assert admin_api.post(f"/api/v1/node-joins/{uuid4()}/actions/reject").status_code == 404


def test_the_page_shows_what_waits_to_administrators_alone(page: Client, person: Any) -> None:
    member = Client()
    member.force_login(person("editor"))
    empty = page.get("/cluster?add=node").content.decode()
    assert "No host waits to join" in empty
    assert "python -m workers.join http://testserver" in empty
    assert 'id="joins"' not in empty
    waiting = make_node_join()
    review = page.get(f"/cluster?join={waiting.id}").content.decode()
    for part in (waiting.code, "203.0.113.7", "far-1.example.org", "2 × NVIDIA H200, 1 CPU share", "/actions/reject"):
        assert part in review, part
    for address in ("/cluster", f"/cluster?join={waiting.id}"):
        assert waiting.code not in member.get(address).content.decode()
    node_joins.approve(Actor.system(), waiting.id)
    assert "Approved as far-1 in far-1" in page.get(f"/cluster?join={waiting.id}").content.decode()


def test_the_code_is_of_the_token_and_tells_nothing_else_apart() -> None:
    token = new_token()
    assert make_node_join(token=token).code == confirmation_code(token)
    assert len({confirmation_code(new_token()) for _ in range(200)}) == 200
