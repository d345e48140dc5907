"""The bridge to Ray against a made-up Ray: a host is one placement group and one actor, whatever was interrupted."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from flexmarl.controlplane.inventory.providers import ray_bridge
from flexmarl.controlplane.inventory.providers.ray_bridge import Hosts

NAME = "flexmarl-1"
ASKED = {
    "command": ["python", "-m", "x", "--native", ray_bridge.NATIVE],
    "log": f"/logs/batch-{ray_bridge.NATIVE}.log",
    "environment": {},
}
AT_WORK = {"code": None, "failed": "", "stopping": False, "began": 5.0, "host": "n1"}


class Error(Exception):
    """Ray's errors."""


class DiedError(Error):
    pass


class UnavailableError(Error):
    pass


class LateError(Error):
    pass


class Group:
    def __init__(self, number: int) -> None:
        self.id = SimpleNamespace(hex=lambda: f"pg{number}")


class Actor:
    """A handle whose process answers as a test says: a value, an error, or nothing yet."""

    def __init__(self, world: "MadeUpRay", asked: Any) -> None:
        self.asked, self.answer, self.stopped = asked, dict(AT_WORK), 0
        self.look = SimpleNamespace(remote=lambda: self)
        self.stop = SimpleNamespace(remote=self._stop)

    def _stop(self) -> None:
        self.stopped += 1


class MadeUpRay:
    """Groups and actors of a cluster, with the calls of Ray that the bridge makes."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = {}
        self.actors: dict[str, Actor] = {}
        self.killed: list[Actor] = []
        self.state = "CREATED"
        self.draining: dict[str, int] = {}
        self._private = SimpleNamespace(
            state=SimpleNamespace(state=SimpleNamespace(get_draining_nodes=lambda: self.draining))
        )
        self.exceptions = SimpleNamespace(
            RayError=Error, RayActorError=DiedError, ActorUnavailableError=UnavailableError, GetTimeoutError=LateError
        )
        self.util = SimpleNamespace(
            get_placement_group=self.get_group,
            placement_group=self.make_group,
            remove_placement_group=self.remove_group,
            placement_group_table=lambda: self.groups,
        )

    def get_group(self, name: str) -> Group:
        for native, group in self.groups.items():
            if group["name"] == name and group["state"] != "REMOVED":
                return Group(int(native[2:]))
        raise ValueError(name)

    def make_group(self, bundles: Any, name: str, **options: Any) -> Group:
        assert options == {"strategy": "STRICT_PACK", "lifetime": "detached"}
        made = Group(len(self.groups) + 1)
        self.groups[made.id.hex()] = {
            "placement_group_id": made.id.hex(),
            "name": name,
            "state": self.state,
            "bundles": {"0": bundles[0]},
            "bundles_to_node_id": {"0": "node1"},
            "stats": {"scheduling_state": "NO_RESOURCES"},
        }
        return made

    def remove_group(self, group: Group) -> None:
        self.groups[group.id.hex()]["state"] = "REMOVED"

    def get_actor(self, name: str, namespace: str) -> Actor:
        assert namespace == "flexmarl"
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def remote(self, kind: Any) -> Any:
        def options(**given: Any) -> Any:
            assert (given["lifetime"], given["max_restarts"], given["get_if_exists"]) == ("detached", 0, True)
            return SimpleNamespace(remote=lambda asked: self.actors.setdefault(given["name"], Actor(self, asked)))

        return SimpleNamespace(options=options)

    def wait(self, references: Any, **_: Any) -> None:
        """Wait for nothing."""

    def get(self, reference: Actor, timeout: float) -> Any:
        if isinstance(reference.answer, Exception):
            raise reference.answer
        return reference.answer

    def kill(self, actor: Actor, no_restart: bool) -> None:
        self.killed.append(actor)
        self.actors = {name: one for name, one in self.actors.items() if one is not actor}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> MadeUpRay:
    made = MadeUpRay()
    monkeypatch.setattr(ray_bridge, "ray", made)
    monkeypatch.setattr(ray_bridge, "PlacementGroupSchedulingStrategy", lambda *given, **more: None, raising=False)
    return made


def looked(hosts: Hosts, native: str = "", at_work: bool = False, unwanted: bool = False) -> dict[str, Any] | None:
    found = hosts.look([{"name": NAME, "native": native, "at_work": at_work, "unwanted": unwanted}])
    return found[NAME][0] if found else None


def test_a_host_that_is_submitted_twice_is_one(ray: MadeUpRay) -> None:
    assert Hosts(False).submit(NAME, {"CPU": 2}, ASKED) == "pg1"
    assert Hosts(False).submit(NAME, {"CPU": 2}, ASKED) == "pg1", "by a bridge that knows nothing of it"
    assert (len(ray.groups), len(ray.actors)) == (1, 1)
    assert ray.actors[NAME].asked["command"][-1] == "pg1"
    assert ray.actors[NAME].asked["log"] == "/logs/batch-pg1.log"


def test_a_group_without_its_actor_is_finished_where_nobody_noted_it(ray: MadeUpRay) -> None:
    ray.make_group([{"CPU": 2}], NAME, strategy="STRICT_PACK", lifetime="detached")  # killed before the actor was made
    hosts = Hosts(False)
    assert looked(hosts) is None
    assert hosts.submit(NAME, {"CPU": 2}, ASKED) == "pg1"
    found = looked(hosts, "pg1")
    assert found is not None
    assert (found["state"], found["started_at"], found["place"]) == ("running", 5.0, "n1")


def test_a_group_without_its_actor_is_removed_where_nobody_wants_it_any_more(ray: MadeUpRay) -> None:
    ray.make_group([{"CPU": 2}], NAME, strategy="STRICT_PACK", lifetime="detached")
    assert looked(Hosts(False), unwanted=True) is None
    assert ray.groups["pg1"]["state"] == "REMOVED"


def test_a_host_whose_actor_is_gone_has_failed_and_gives_its_room_back(ray: MadeUpRay) -> None:
    Hosts(False).submit(NAME, {"CPU": 2}, ASKED)
    ray.actors.clear()
    hosts = Hosts(False)
    found = looked(hosts, "pg1", at_work=True)
    assert found is not None
    assert (found["state"], found["reason"]) == ("failed", "CREATED, but its actor is gone")
    assert ray.groups["pg1"]["state"] == "REMOVED"
    assert looked(hosts, "pg1", at_work=True) == found, "until it is noted"
    found = looked(Hosts(False), "pg1")
    assert found is not None
    assert found["state"] == "ended"


def test_the_cause_of_a_death_is_said_without_what_everybody_knows(ray: MadeUpRay) -> None:
    hosts = Hosts(False)
    hosts.submit(NAME, {"CPU": 2}, ASKED)
    ray.actors[NAME].answer = DiedError(  # type: ignore[assignment]
        "The actor died unexpectedly before finishing this task.\n\tclass_name: HostActor\n\tpid: 7\n\tip: 10.0.0.1\n"
        "The actor died because its node has died. Node Id: 8a3d\n\tthe actor's node was terminated unexpectedly"
    )
    found = looked(hosts, "pg1", at_work=True)
    assert found is not None
    cause = "The actor died because its node has died. Node Id: 8a3d the actor's node was terminated unexpectedly"
    assert (found["state"], found["reason"]) == ("failed", cause)


@pytest.mark.parametrize(("error", "state"), [(LateError(), "running"), (UnavailableError(), "running")])
def test_an_actor_that_does_not_answer_is_not_over(ray: MadeUpRay, error: Exception, state: str) -> None:
    hosts = Hosts(False)
    hosts.submit(NAME, {"CPU": 2}, ASKED)
    ray.actors[NAME].answer = error  # type: ignore[assignment]
    found = looked(hosts, "pg1", at_work=True)
    assert found is not None
    assert (found["state"], found["reason"]) == (state, "CREATED, its actor does not answer")
    starting = looked(hosts, "pg1")
    assert starting is not None
    assert (starting["state"], starting["reason"]) == ("pending", "CREATED, its actor starts")


def test_what_waits_for_room_says_what_for_and_is_withdrawn_at_once(ray: MadeUpRay) -> None:
    ray.state = "PENDING"
    hosts = Hosts(False)
    hosts.submit(NAME, {"CPU": 2, "memory": 2**31, "h100": 1}, ASKED)
    found = looked(hosts, "pg1")
    assert found is not None
    assert found["reason"] == "PENDING (NO_RESOURCES): asks for CPU 2, h100 1, memory 2.0 GiB"
    hosts.cancel("pg1")
    assert (len(ray.killed), ray.actors, ray.groups["pg1"]["state"]) == (1, {}, "REMOVED")
    hosts.cancel("pg1")
    hosts.cancel("pg9")


def test_processes_leave_before_their_host_is_removed(ray: MadeUpRay, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(False)
    hosts.submit(NAME, {"CPU": 2}, ASKED)
    hosts.cancel("pg1")
    actor = ray.actors[NAME]
    assert (actor.stopped, ray.killed) == (1, [])
    actor.answer = {**AT_WORK, "stopping": True}
    found = looked(hosts, "pg1", at_work=True)
    assert found is not None
    assert found["state"] == "ending"
    actor.answer = {**AT_WORK, "stopping": True, "code": 0}
    found = looked(hosts, "pg1", at_work=True)
    assert found is not None
    assert (found["state"], found["reason"], ray.killed) == ("ended", "STOPPED", [actor])


def test_an_actor_that_never_stops_is_killed(ray: MadeUpRay, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(False)
    hosts.submit(NAME, {"CPU": 2}, ASKED)
    hosts.cancel("pg1")
    monkeypatch.setattr(ray_bridge, "REMOVED_S", -1.0)
    hosts.cancel("pg1")
    assert len(ray.killed) == 1


def test_processes_that_end_by_themselves_name_their_exit(ray: MadeUpRay) -> None:
    hosts = Hosts(False)
    hosts.submit(NAME, {"CPU": 2}, ASKED)
    ray.actors[NAME].answer = {**AT_WORK, "code": 78}
    found = looked(hosts, "pg1", at_work=True)
    assert found is not None
    assert (found["state"], found["reason"]) == ("failed", "its processes ended with 78")


def test_a_node_that_is_drained_says_when_it_goes(ray: MadeUpRay) -> None:
    hosts = Hosts(False)
    hosts.submit(NAME, {"CPU": 2}, ASKED)
    ray.draining = {"node1": int((time.time() + 60) * 1000)}
    found = looked(hosts, "pg1", at_work=True)
    assert found is not None
    assert 50 < found["ends_at"] - time.time() < 70
    ray.draining = {"node1": 2**63 - 1}
    found = looked(hosts, "pg1", at_work=True)
    assert found is not None
    assert found["ends_at"] <= time.time(), "a node without a time may go now"


def test_a_host_that_is_over_and_forgotten_gives_its_room_back_by_itself(
    ray: MadeUpRay, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.make_group([{"CPU": 2}], NAME, strategy="STRICT_PACK", lifetime="detached")
    ray.util.get_current_placement_group = lambda: Group(1)
    monkeypatch.setattr(ray_bridge, "FORGOTTEN_S", 0.1)
    asked = {"command": ["true"], "folder": str(tmp_path), "python_path": "", "log": str(tmp_path / "log")}
    ray_bridge.HostActor({**asked, "environment": {}})
    deadline = time.monotonic() + 60
    while ray.groups["pg1"]["state"] != "REMOVED" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ray.groups["pg1"]["state"] == "REMOVED"


def test_the_actor_starts_the_processes_with_the_kernels_promise_and_no_setting_of_ray(
    ray: MadeUpRay, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "01")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(ray_bridge, "FORGOTTEN_S", 1e6)
    asked = {
        **{"command": ["sh", "-c", "env; exit 3"], "folder": str(tmp_path), "python_path": "here"},
        **{"log": str(tmp_path / "log"), "environment": {"NCCL_DEBUG": "INFO"}},
    }
    actor = ray_bridge.HostActor(asked)
    deadline = time.monotonic() + 60
    while actor.look()["code"] is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (actor.look()["code"], bool(actor.look()["said"])) == (3, True), "with the last line of its log"
    said = (tmp_path / "log").read_text().splitlines()
    assert {"NCCL_DEBUG=INFO", "PYTHONPATH=here"} <= set(said)
    assert any(line.startswith("FLEXMARL_PARENT_PID=") for line in said)
    assert not [line for line in said if line.startswith(("RAY_", "OMP_NUM_THREADS"))]
    lost = ray_bridge.HostActor({**asked, "log": str(tmp_path / "none" / "log")})
    assert "hosts need it at this path" in lost.look()["failed"]
    assert lost.look()["code"] == 1
