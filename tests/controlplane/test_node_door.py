"""What a node may do with its token: everything of its own exactly as with a connection, and nothing else."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from flexmarl.contracts.commands import Accumulate, BindPolicy, HostLease, RequestDevices, WriteCheckpoint
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.wire import PolicyPin
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.database import NODE_OPERATIONS
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.problems import Conflict
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import node_door, node_tokens
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.node_door import NodeAnswer
from flexmarl.controlplane.inventory.node_tokens import TokenRefused
from flexmarl.store import node_wire
from flexmarl.store.control import (
    checkpoint_rows,
    commands,
    engines,
    leases,
    node_beats,
    nodes,
    process_heartbeats,
    program_sessions,
    runs,
)
from flexmarl.store.control.process_heartbeats import ProcessFacts
from flexmarl.store.control.program_sessions import SessionMeter, SessionOffer
from flexmarl.store.data import (
    checkpoints,
    groups,
    micro_batches,
    ready_commands,
    rewards,
    steps,
    tokenizers,
    tool_listings,
)
from flexmarl.store.errors import LeaseLost, Refused, TokenLost
from flexmarl.store.node_operations import OPERATIONS
from flexmarl.store.telemetry import intervals, load_reports, logs
from flexmarl.store.telemetry.intervals import BusyInterval
from tests.support.store_story import TTL_S, Story, digest
from workers.door.address import DoorAddress
from workers.door.client import Door, NotItsOwn
from workers.errors import NotAdmitted

pytestmark = pytest.mark.django_db


class ClientDoor(Door):
    """A door whose operations are done here, in the test's transaction."""

    def __init__(self, token: str) -> None:
        super().__init__(DoorAddress("http://test", token))
        self.authorization = f"Bearer {token}"

    def _asked(self, path: str, body: bytes) -> tuple[int, bytes]:
        answer = operated(self.authorization, path.removeprefix(NODE_OPERATIONS), body)
        return answer.status, answer.body


def operated(header: str, name: str, body: bytes) -> NodeAnswer:
    (admitted,) = node_tokens.check_all([header])
    if isinstance(admitted, TokenRefused):
        return node_door.refused(node_door.REFUSED, "not_admitted", str(admitted))
    return node_door.operate(store_connection(), admitted, name, body)


def made(node: str, pool: str) -> Any:
    """Make a node's token; return the door that it opens, in the place of a connection."""
    return ClientDoor(node_tokens.create(Actor.system(), node, pool)[1])


@pytest.fixture
def story() -> Story:
    return Story(store_connection(), node="far-1").start()


@pytest.fixture
def door() -> Any:
    return made("far-1", "default")


def registered(door: Any, node: str = "far-1", pool: str = "default") -> list[leases.DeviceFacts]:
    devices = [leases.DeviceFacts(f"{node}.cpu{i}", "cpu", i, pool=pool, facts={"cores": 1.0}) for i in range(2)]
    leases.register_node(door, leases.NodeFacts(node, "", "life-1", "0", {"cpus": 2}), devices)
    return devices


def granted(story: Story, devices: list[leases.DeviceFacts]) -> dict[DeviceUse, int]:
    assert story.lease is not None
    no = story.issue(RequestDevices(pool="default", engines=1, trainers=1))
    wanted = [(devices[0].id, DeviceUse.ENGINE), (devices[1].id, DeviceUse.TRAINER)]
    found = leases.grant(story.conn, story.lease, no, wanted)
    assert found is not None
    return {one.use: one.lease_id for one in found}


def hosted(story: Story, door: Any, lease_id: int, use: DeviceUse, incarnation: str) -> leases.LeaseHold:
    device = "far-1.cpu0" if use is DeviceUse.ENGINE else "far-1.cpu1"
    no = story.issue(HostLease(lease_id=lease_id, device_id=device, use=use))
    taken = commands.take(door, story.run_id, no, TTL_S, "node:far-1/a/device")
    assert taken is not None
    assert isinstance(taken.command, HostLease)
    hosting = leases.take_hosting(door, taken, TTL_S)
    assert hosting is not None
    leases.child_started(door, hosting, 123, 4.5)
    leases.child_ready(door, hosting, incarnation, "http://127.0.0.1:9", "secret")
    return hosting


def test_a_run_is_hosted_played_and_trained_over_the_door(story: Story, door: Any) -> None:
    held = granted(story, registered(door))
    hosting = hosted(story, door, held[DeviceUse.TRAINER], DeviceUse.TRAINER, "t1.1.1")
    hosted(story, door, held[DeviceUse.ENGINE], DeviceUse.ENGINE, "e1.1.1")
    lease_id = held[DeviceUse.TRAINER]
    assert leases.renew(door, hosting, TTL_S) == leases.Renewal(True, False, "t1.1.1")
    told = node_beats.beat(door, "far-1", "life-1")
    assert told.alive
    assert [child.lease_id for child in told.children] == sorted(held.values())
    assert told.children == [leases.endpoint(door, child.lease_id) for child in told.children]
    assert set(told.waiting) == {lease for _, _, lease in commands.open_on_node(door, "far-1")}
    assert told.processes == [(child.device_id, 123) for child in told.children]
    assert (told.orphans, told.chores) == ([], ["models"])
    assert not node_beats.beat(door, "far-1", "former life").alive
    assert runs.load_spec(door, story.run_id) == {"name": "story"}

    story.issue(BindPolicy(lease_id=lease_id, policy="solver", version=None))
    taken = ready_commands.take_next(door, lease_id, TTL_S, 0, "lane:1").taken
    bound = steps.BoundState(lease_id, "t1.1.1", "solver", 0, digest(0), "state-0", True, b'{"a": 1}', facts={"x": 0.1})
    steps.commit_bind(door, taken, bound)
    assert tokenizers.load(door, story.run_id) == {"solver": b'{"a": 1}'}
    assert [route.lease_id for route in engines.routes(door, story.run_id)] == [held[DeviceUse.ENGINE]]
    tools = '[{"name": "é", "description": "", "parameters": {"zz": 1, "a": 2}}]'
    assert tool_listings.pin(door, story.run_id, 0, tools) == tools, "to the letter: prompts hold it in this order"
    assert tool_listings.pin(story.conn, story.run_id, 0, "[]") == tools, "the first is kept"
    assert tool_listings.pin(door, story.run_id, 1, "[]") == "[]"

    played = ready_commands.take(door, story.run_id, story.play(1, 2), TTL_S).taken
    assert commands.extend(door, [played], TTL_S) == [commands.ClaimStatus.GOES_ON]
    settled = [story.group(draw, played) for draw in (1, 2)]
    assert groups.put_groups(door, played, settled) == 2
    assert groups.put_groups(door, played, settled) == 0, "what was written before its answer was lost"
    commands.reopen(door, played)
    again = ready_commands.take(door, story.run_id, played.no, TTL_S)
    played = again.taken
    assert again.settled == {1: {0, 1}, 2: {0, 1}}
    assert groups.put_groups(door, played, settled[:1], last=True) == 0
    with pytest.raises(TokenLost) as lost:
        commands.finish(door, played)
    assert (lost.value.run_id, lost.value.no, lost.value.code) == (story.run_id, played.no, "token_lost")

    story.cut(1, 1, 2)
    order = {"micro_batch": 1, "accumulator": "1:t1.1.1", "entropy_coef": 0.0}
    story.issue(Accumulate(lease_id=lease_id, policy="solver", **order))
    ready = ready_commands.take_next(door, lease_id, TTL_S)
    assert ready is not None
    assert ready.batch == micro_batches.read(story.conn, story.run_id, "solver", 1)
    commands.finish(door, ready.taken)
    story.accumulate(lease_id, 1, "1:t1.1.1")
    stepping = story.take_step(lease_id, "1:t1.1.1", (1,), 1)
    steps.commit_step(door, stepping, story.step_of(lease_id, "1:t1.1.1", (1,), 1))
    assert steps.version_of(door, story.run_id, "solver", 1).parent == 0
    with pytest.raises(Refused) as refused:
        steps.version_of(door, story.run_id, "solver", 9)
    assert refused.value.code


def test_reports_cross_the_wire_with_every_bit(story: Story, door: Any) -> None:
    held = granted(story, registered(door))[DeviceUse.TRAINER]
    row = BusyInterval(0, "train", "solver", 0.1, 0.30000000000000004, 7, cpu=1e-9)
    intervals.put(door, story.run_id, held, "far-1.cpu1", incarnation="t1", rows=[row])
    assert intervals.newest_ord(door, held, "t1") == 0
    read = store_connection().execute("SELECT t1, cpu FROM store.interval").fetchone()
    assert read == (0.30000000000000004, 1e-9)
    report = load_reports.TurnReport({}, 2, [], {("left", "e1"): 3}, {"solver": (1, 2)})
    load_reports.put_asked(door, story.run_id, "w", report)
    logs.put(door, story.run_id, [logs.LogLine(story.run_id, 1.0, "info", "rollout", "hello", fields={"a": [1]})])
    process_heartbeats.put(door, ProcessFacts("rollout", "far-1", "", 7, 1.5), "", 0.0)
    assert process_heartbeats.pids_of(door, "rollout", "far-1") == [7]
    many = list(range(10**6, 10**6 + 700_000))
    assert len(node_wire.encode(many)) > 2_621_440, "more than a body of the API may have"
    logs.put(door, story.run_id, [logs.LogLine(story.run_id, 1.0, "info", "rollout", "much", fields={"a": many})])


def refused(door: Any, call: Any) -> str:
    with pytest.raises(NotItsOwn) as error:
        call(door)
    return str(error.value)


def test_a_node_reaches_nothing_of_another(story: Story, door: Any) -> None:
    held = granted(story, registered(door))
    hosting = hosted(story, door, held[DeviceUse.TRAINER], DeviceUse.TRAINER, "t1.1.1")
    played = ready_commands.take(door, story.run_id, story.play(1), TTL_S).taken
    other = made("other", "elsewhere")
    own = leases.DeviceFacts("other.cpu0", "cpu", 0, pool="elsewhere")
    leases.register_node(other, leases.NodeFacts("other", "", "life-1", "0"), [own])
    node = leases.NodeFacts("other", "", "life-1", "0")
    for call in (
        lambda conn: runs.load_spec(conn, story.run_id),
        lambda conn: engines.routes(conn, story.run_id),
        lambda conn: node_beats.beat(conn, "far-1", "life-1"),
        lambda conn: leases.endpoint(conn, hosting.lease_id),
        lambda conn: leases.renew(conn, hosting, TTL_S),
        lambda conn: leases.child_lost(conn, hosting, "t1.1.1", "because"),
        lambda conn: commands.take(conn, story.run_id, played.no, TTL_S),
        lambda conn: ready_commands.take(conn, story.run_id, played.no, TTL_S),
        lambda conn: commands.finish(conn, played),
        lambda conn: groups.put_groups(conn, played, [story.group(1, played)]),
        lambda conn: commands.reopen_of(conn, "node:far-1/a/device"),
        lambda conn: commands.reopen_on_node(conn, "far-1"),
        lambda conn: leases.register_node(conn, replace(node, name="far-1"), [own]),
        lambda conn: leases.register_node(conn, node, [replace(own, id="far-1.cpu0")]),
        lambda conn: leases.register_node(conn, node, [replace(own, pool="default")]),
        lambda conn: leases.register_node(conn, replace(node, address="10.0.0.1:7100"), [own]),
        lambda conn: logs.put(conn, story.run_id, [logs.LogLine(story.run_id, 1.0, "info", "x", "y")]),
        lambda conn: rewards.collect(conn, story.run_id, [1]),
        lambda conn: tool_listings.pin(conn, story.run_id, 0, "[]"),
        lambda conn: intervals.put(conn, 1, hosting.lease_id, "other.cpu0", incarnation="t", rows=[]),
    ):
        assert "may not do" in refused(other, call)
    assert story.count("episode") == 0
    assert commands.extend(door, [played], TTL_S) == [commands.ClaimStatus.GOES_ON], "its taker still has it"


def test_a_checkpoint_is_kept_by_a_node_that_others_reach(story: Story, door: Any) -> None:
    held = granted(story, registered(door))
    hosted(story, door, held[DeviceUse.TRAINER], DeviceUse.TRAINER, "t1.1.1")
    assert runs.content_elsewhere(door, story.run_id) == "", "engines and trainers are of one pool"
    apart = {"resources": {"rollout_pool": "default", "training_pool": "far"}}
    story.conn.execute(
        "UPDATE store.run_state SET spec = %s::jsonb WHERE run_id = %s", [json.dumps(apart), story.run_id]
    )
    assert runs.content_elsewhere(door, story.run_id) == "auto"
    place = f"/home/checkpoints/run-{story.run_id}/step-1"
    pins = {"solver": PolicyPin(version=0, digest=digest(0))}
    story.issue(WriteCheckpoint(lease_id=held[DeviceUse.TRAINER], label="last", step=1, pins=pins))
    taken = ready_commands.take_next(door, held[DeviceUse.TRAINER], TTL_S).taken
    leases.register_node(story.conn, leases.NodeFacts("box", "10.0.0.1:7100", "i", "0"), [])

    def written(keeper: str, path: str) -> None:
        row = checkpoints.CheckpointRow("last", 1, {"solver": 0}, path, 9, kept_on=keeper)
        checkpoints.written(door, taken, row)

    for keeper, path in (("far-1", place), ("nobody", place), ("box", "/etc"), ("box", f"{place}/../step-2")):
        with pytest.raises(Refused) as refused_:
            written(keeper, path)
        assert refused_.value.code == "not_kept"
    written("box", place)
    assert nodes.keepers(story.conn, story.run_id) == [("box", "10.0.0.1:7100")]
    assert checkpoint_rows.kept_elsewhere(door, "far-1", [(story.run_id, 1), (story.run_id, 2)]) == [(story.run_id, 1)]
    assert checkpoint_rows.on_node(door, "far-1") == [], "it is no longer this node's"
    [folder] = checkpoint_rows.on_node(story.conn, "box")
    assert "may not do" in refused(door, lambda conn: checkpoint_rows.found(conn, folder, "missing", ""))


def test_sessions_are_those_of_runs_with_work_for_the_node(story: Story, door: Any) -> None:
    registered(door)
    assert commands.take(door, story.run_id, story.play(1), TTL_S) is not None
    offer = SessionOffer(uuid4(), "http://10.0.0.1:9", False, 3, (1, 0, 1), "digest of a key")
    program_sessions.open_session(door, story.run_id, offer)
    meter = SessionMeter(offer.id, 2, 30, 9.0)
    for call in (
        lambda conn: program_sessions.news(conn, [offer.id]),
        lambda conn: program_sessions.seen(conn, [meter]),
        lambda conn: program_sessions.wrote(conn, offer.id, "printed", {}),
        lambda conn: program_sessions.end_overdue(conn, offer.id, "late"),
        lambda conn: program_sessions.end(conn, offer.id, "over"),
    ):
        assert "may not do" in refused(made("other", "elsewhere"), call)
        NodeToken.objects.filter(node="other").delete()
        call(door)
    assert program_sessions.news(door, [uuid4()]) == [], "one that is not there concerns nobody"


def test_a_hold_is_what_its_row_says(story: Story, door: Any) -> None:
    """A node that speaks of an order of its own making writes nothing by it."""
    registered(door)
    played = commands.take(door, story.run_id, story.play(1), TTL_S)
    assert played is not None
    wider = replace(played, command=played.command.model_copy(update={"groups": (
        *played.command.groups, played.command.groups[0].model_copy(update={"draw": 5}))}))  # fmt: skip
    with pytest.raises(Refused):
        groups.put_groups(door, wider, [story.group(5, played)])
    hosting = leases.LeaseHold(1, "far-1.cpu0", 99, DeviceUse.ENGINE, 1, uuid4(), False, None, 0.0)
    assert "may not do" in refused(door, lambda conn: leases.child_lost(conn, hosting, "i", "r"))


def test_a_lost_lease_is_told_as_one(story: Story, door: Any) -> None:
    held = granted(story, registered(door))
    hosting = hosted(story, door, held[DeviceUse.TRAINER], DeviceUse.TRAINER, "t1.1.1")
    with pytest.raises(LeaseLost) as lost:
        leases.child_started(door, replace(hosting, token=uuid4()), 1, 1.0)
    assert lost.value.lease_id == hosting.lease_id
    assert "hosted by somebody else" in str(lost.value)


def test_only_declared_operations_with_legal_values_are_done(story: Story, door: Any) -> None:
    def post(name: str, body: bytes) -> NodeAnswer:
        return operated(door.authorization, name, body)

    assert post("runs.create_run", node_wire.encode({"run_id": 7})).status == 404
    assert post("runs.load_spec", b"\xc1").status == 422
    told = post("commands.take", node_wire.encode({"run_id": "x", "no": 1, "ttl_s": 1.0}))
    assert (told.status, json.loads(told.body)["detail"][:6]) == (422, "run_id")
    assert post("commands.take", node_wire.encode({"run_id": 1, "no": 1, "ttl_s": 1.0, "sql": ""})).status == 422
    assert post("groups.put_groups", node_wire.encode({"folder": "/"})).status == 422
    assert len(OPERATIONS) == len({one.function for one in OPERATIONS.values()})


def test_a_token_opens_the_door_of_its_node_alone(door: Any, api: Any) -> None:
    bearer = Client(headers={"Authorization": door.authorization})
    assert bearer.get("/nodes/hello").json() == {"node": "far-1", "pool": "default", "peers": {}, "schema": "1"}
    for path in ("/api/v1/nodes", "/api/v1/runs", "/api/v1/me", "/v1/models", "/metrics"):
        assert bearer.get(path).status_code == 401, path
    assert bearer.get("/cluster").status_code == 302
    token = NodeToken.objects.get()
    assert token.last_used_at is not None
    text = door.authorization.removeprefix("Bearer ")
    for wrong in ("", text, f"Basic {text}", f"Bearer {text[:-1]}x", "Bearer fmx_abc", f"Bearer {text} "):
        assert Client(headers={"Authorization": wrong}).get("/nodes/hello").status_code == 401, wrong
        assert operated(wrong, "leases.devices_of", node_wire.encode({"node": "far-1"})).status == 401, wrong
    assert api.get("/nodes/hello").status_code == 401, "a person's credentials are none of a node"


def test_a_revoked_or_replaced_token_is_refused(door: Any) -> None:
    token = NodeToken.objects.get()
    leases.devices_of(door, "far-1")
    _, text = node_tokens.rotate(Actor.system(), token.id, overlap_minutes=5)
    leases.devices_of(door, "far-1")
    leases.devices_of(ClientDoor(text), "far-1")  # type: ignore[arg-type]
    NodeToken.objects.update(former_until=timezone.now() - timedelta(seconds=1))
    with pytest.raises(NotAdmitted, match="replaced"):
        leases.devices_of(door, "far-1")
    node_tokens.revoke(Actor.system(), token.id)
    node_tokens.revoke(Actor.system(), token.id)
    with pytest.raises(NotAdmitted, match="far-1 is revoked"):
        leases.devices_of(ClientDoor(text), "far-1")  # type: ignore[arg-type]
    assert list(AuditEntry.objects.order_by("id").values_list("action", flat=True)) == [
        "node_token.create", "node_token.rotate", "node_token.revoke",
    ]  # fmt: skip
    assert text.partition(".")[2] not in str(list(AuditEntry.objects.values())) + str(list(NodeToken.objects.values()))


def test_a_node_has_one_token_and_none_beside_the_secrets(door: Any, story: Story) -> None:
    actor = Actor.system()
    with pytest.raises(Conflict, match="far-1 has a token"):
        node_tokens.create(actor, "far-1", "third")
    story.node = "box"
    story.register()
    with pytest.raises(Conflict, match="box is a node with the installation's secrets"):
        node_tokens.create(actor, "box", "third")


def test_tokens_are_administered_over_rest(admin_api: Any, api: Any) -> None:
    assert api.post("/api/v1/node-tokens", {"node": "far-1", "pool": "far"}).status_code == 403
    answer = admin_api.post("/api/v1/node-tokens", {"node": "far-1", "pool": "far"})
    made = answer.json()
    assert (answer.status_code, made["state"], made["secret"][:4]) == (201, "active", "fmn_")
    [row] = admin_api.get("/api/v1/node-tokens?state=active").json()["results"]
    assert "secret" not in row
    rotated = admin_api.post(f"{made['url']}/actions/rotate", {"overlap_minutes": 0}).json()
    assert rotated["secret"] != made["secret"]
    assert Client(headers={"Authorization": f"Bearer {made['secret']}"}).get("/nodes/hello").status_code == 401
    assert Client(headers={"Authorization": f"Bearer {rotated['secret']}"}).get("/nodes/hello").status_code == 200
    wrong = admin_api.post("/api/v1/node-tokens", {"node": "Far 1", "pool": "other"})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (400, "/node")
    assert admin_api.delete(made["url"]).status_code == 204
    assert admin_api.get(made["url"]).json()["state"] == "revoked"


def test_the_page_has_the_command_to_paste_and_never_the_token(door: Any, person: Any) -> None:
    admin, member = Client(), Client()
    admin.force_login(person("cluster_admin"))
    member.force_login(person("editor"))
    shown = admin.get("/cluster?add=node").content.decode()
    for part in (
        "FLEXMARL_CONTROL_URL=http://testserver",
        "FLEXMARL_NODE_TOKEN=",
        "far-1",
        "/actions/rotate",
        "Revoke",
    ):
        assert part in shown, part
    assert door.authorization.partition(".")[2] not in shown
    assert "far-1" not in member.get("/cluster?add=node").content.decode()
