"""Speaks to one Ray cluster for the control plane: `PYTHON -I ray_bridge.py ADDRESS`, JSON lines in and out.

It runs under an interpreter with the cluster's versions of Ray and Python, so it imports the standard library and ray
alone; the class of its actors goes to the cluster by value.

Invariants. A host is a placement group of one bundle and a detached actor in it, both named as its job is: submitting
a job a second time finishes or finds the first. The host's processes end with the actor, by the kernel. A host that is
over is removed from the cluster before that is said. The bridge ends when its reader is gone, or asks nothing for long.
"""

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

try:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:  # it is said to who asks; the tests of this program have no Ray
    ray, MISSING = None, str(error)
else:
    MISSING = ""

NAMESPACE = "flexmarl"
NATIVE = "PLACEMENT_GROUP_ID"
"""Stands in a command for the id of its placement group, which is not known before."""
IDLE_S = 300.0
REACHES_S = 3.0
LOOK_S = 2.0
"""How long actors may take to answer in one look; what is late is read in the next."""
STOPS_S = 30.0
"""How long the processes of a host may take to leave."""
REMOVED_S = 50.0
"""After so long an actor that does not stop is killed."""
FORGOTTEN_S = 900.0
"""So long after its processes an actor that nobody removed gives its room back."""
_DETAIL = re.compile(r"(class_name|actor_id|pid|name|namespace|ip): ")
_SECRET_OR_RAYS = ("RAY_", "PYTHON", "VIRTUAL_ENV", "OMP_NUM_THREADS", "LD_PRELOAD")


class HostActor:
    """Starts the processes of one host, and ends with them."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._began, self._stopped, self._failed, self._log = time.time(), 0.0, "", asked["log"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_SECRET_OR_RAYS)}
        own = {"PYTHONPATH": asked["python_path"], "FLEXMARL_PARENT_PID": str(os.getpid())}
        with contextlib.suppress(PermissionError):  # Ray's workers begin at 15; only root may be less nice again
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))
        try:
            descriptor = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "ab") as out:
                self._process = subprocess.Popen(
                    asked["command"],
                    cwd=asked["folder"],
                    env={**kept, **asked["environment"], **own},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
        except OSError as error:
            self._failed = f"{error.filename}: {error.strerror} on {socket.gethostname()}; hosts need it at this path"
        threading.Thread(target=self._give_back, daemon=True).start()

    def look(self) -> dict[str, Any]:
        """Say how the processes are; those that do not leave are killed."""
        code = self._process.poll() if self._process is not None else 1
        if self._process is not None and code is None and self._stopped and time.time() - self._stopped > STOPS_S:
            self._process.kill()
        found = {"code": code, "failed": self._failed, "stopping": self._stopped > 0.0}
        said = self._last_words() if code and not self._failed else ""
        return {**found, "said": said, "began": self._began, "host": socket.gethostname()}

    def stop(self) -> None:
        """Ask the processes to leave."""
        if not self._stopped and self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        self._stopped = self._stopped or time.time()

    def _last_words(self) -> str:
        """Return the last line of the host's log, which nobody else may see; empty where there is none."""
        try:
            with open(self._log, errors="replace") as file:
                lines = file.read().strip().splitlines()
        except OSError:
            return ""
        return lines[-1][:500] if lines else ""

    def _give_back(self) -> None:
        if self._process is not None:
            self._process.wait()
        time.sleep(FORGOTTEN_S)
        ray.util.remove_placement_group(ray.util.get_current_placement_group())


class Hosts:
    """The hosts of one cluster, by the names of their jobs."""

    def __init__(self, is_client: bool) -> None:
        self._is_client = is_client
        self._actors: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        """Placement group -> the look that its actor has not answered yet."""
        self._stopping: dict[str, float] = {}
        self._over: dict[str, dict[str, Any]] = {}
        """Placement group -> the last that is to be said of it."""

    def submit(self, name: str, bundle: dict[str, float], asked: dict[str, Any]) -> str:
        """Make what there is not yet of a host; returns the id of its placement group."""
        try:
            group = ray.util.get_placement_group(name)
        except ValueError:
            group = ray.util.placement_group([bundle], strategy="STRICT_PACK", name=name, lifetime="detached")
        native = group.id.hex()
        asked = {**asked, "log": asked["log"].replace(NATIVE, native)}
        asked["command"] = [native if word == NATIVE else word for word in asked["command"]]
        options = {
            **{"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True},
            **{"max_restarts": 0, "max_task_retries": 0, "num_cpus": bundle["CPU"]},
            **{"num_gpus": bundle.get("GPU", 0), "memory": bundle.get("memory")},
            "resources": {kind: count for kind, count in bundle.items() if kind not in {"CPU", "GPU", "memory"}},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        }
        self._actors[native] = ray.remote(HostActor).options(**options).remote(asked)
        return str(native)

    def look(self, jobs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        """Return what is known of jobs: name, the placement group that was noted, and whether its host works."""
        table = ray.util.placement_group_table()
        named: dict[str, dict[str, Any]] = {one["name"]: one for one in table.values() if one["state"] != "REMOVED"}
        found: dict[str, list[dict[str, Any]]] = {}
        living = []
        for job in jobs:
            group = named.get(job["name"]) or table.get(job["native"]) or {}
            native = group.get("placement_group_id", job["native"])
            if native in self._over:
                found[job["name"]] = [self._over[native]]
            elif group.get("state") == "REMOVED":
                found[job["name"]] = [_sighting(native, "ended", "REMOVED")]
            elif group:
                living.append((job, group))
        groups = [(job["name"], group["placement_group_id"]) for job, group in living]
        answers = self._answers(groups, {one["placement_group_id"] for _, one in living if one["state"] == "PENDING"})
        leaving = self._leaving()
        for job, group in living:
            if sighting := self._judge(job, group, answers[job["name"]], leaving):
                found[job["name"]] = [sighting]
        return found

    def cancel(self, native: str) -> None:
        """End a host: its processes may leave first."""
        group = ray.util.placement_group_table().get(native)
        if group is None or group["state"] == "REMOVED":
            return
        since = self._stopping.setdefault(native, time.monotonic())
        actor = self._actor(group["name"], native)
        if actor is None or group["state"] != "CREATED" or time.monotonic() - since > REMOVED_S:
            self._remove(group["name"], native)
        else:
            actor.stop.remote()

    def capacity(self) -> dict[str, Any]:
        """Return what the living nodes have, and what of it is free in the cluster."""
        nodes = [
            {"name": f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})", "has": _shown(node["Resources"])}
            for node in ray.nodes()
            if node["Alive"]
        ]
        return {"ray": ray.__version__, "nodes": nodes, "free": _shown(ray.available_resources())}

    def _actor(self, name: str, native: str) -> Any:
        """Return the actor of a host, or None when it is over or was never made."""
        if native not in self._actors:
            try:
                self._actors[native] = ray.get_actor(name, NAMESPACE)
            except ValueError:
                return None
        return self._actors[native]

    def _answers(self, living: list[tuple[str, str]], without_room: set[str]) -> dict[str, dict[str, Any]]:
        """Ask the actors of (name, placement group) that can be there: `over`, `late`, or how their processes are."""
        said: dict[str, dict[str, Any]] = {}
        for name, native in living:
            actor = self._actor(name, native)
            if actor is None:
                said[name] = {"over": ""}
            elif native in without_room:
                said[name] = {"late": True}
            elif native not in self._asked:
                self._asked[native] = actor.look.remote()
        waiting = {native: name for name, native in living if name not in said}
        if waiting:
            ray.wait([self._asked[native] for native in waiting], num_returns=len(waiting), timeout=LOOK_S)
        for native, name in waiting.items():
            said[name] = self._answer(native)
        return said

    def _answer(self, native: str) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = ray.get(self._asked[native], timeout=0)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError) as error:
            if not isinstance(error, ray.exceptions.GetTimeoutError):
                del self._asked[native]
            return {"late": True}
        except ray.exceptions.RayActorError as error:
            answer = {"over": _cause(str(error))}
        del self._asked[native]
        return answer

    def _judge(
        self, job: dict[str, Any], group: dict[str, Any], answer: dict[str, Any], leaving: dict[str, float]
    ) -> dict[str, Any] | None:
        """Say what a placement group and its actor come to; None for one that was only begun to be made."""
        native, state = group["placement_group_id"], group["state"]
        node = next(iter(group["bundles_to_node_id"].values()), "")
        if "over" in answer:
            if not (answer["over"] or job["native"]):
                if job["unwanted"]:
                    self._remove(job["name"], native)
                return None  # submitting it once more makes its actor
            return self._finish(job["name"], native, "failed", answer["over"] or f"{state}, but its actor is gone")
        if answer.get("code") is not None:
            code, stopped = answer["code"], answer["stopping"]
            ended = f"its processes ended with {code}" + (f": {last}" if (last := answer.get("said")) else "")
            said = answer["failed"] or ("STOPPED" if stopped else ended)
            return self._finish(job["name"], native, "ended" if stopped or code == 0 else "failed", said)
        if "late" in answer and not job["at_work"]:
            return _sighting(native, "pending", _pending(group))
        words = f"{state}, its actor does not answer" if "late" in answer else "ALIVE"
        found = _sighting(native, "ending" if answer.get("stopping") else "running", words, answer.get("host", ""))
        found["started_at"] = answer.get("began")
        if node in leaving:
            found |= {"ends_at": leaving[node], "ends_why": "Ray drains its node"}
        return found

    def _finish(self, name: str, native: str, state: str, words: str) -> dict[str, Any]:
        self._remove(name, native)
        self._over[native] = _sighting(native, state, words)
        while len(self._over) > 1000:
            del self._over[next(iter(self._over))]
        return self._over[native]

    def _remove(self, name: str, native: str) -> None:
        """Kill the actor, whose processes the kernel kills with it, and give its room back."""
        actor = self._actor(name, native)
        if actor is not None:
            ray.kill(actor, no_restart=True)
        with contextlib.suppress(ValueError):
            group = ray.util.get_placement_group(name)
            if group.id.hex() == native:
                ray.util.remove_placement_group(group)
        for known in (self._actors, self._asked, self._stopping):
            known.pop(native, None)

    def _leaving(self) -> dict[str, float]:
        """Return the nodes that Ray drains -> when they go, in seconds since the epoch; unknown to Ray's client."""
        if self._is_client:
            return {}
        state = getattr(getattr(ray, "_private", None), "state", None)
        asks = getattr(getattr(state, "state", None), "get_draining_nodes", None)
        nodes: dict[str, int] = asks() if asks is not None else {}
        soon = time.time()
        return {node: at / 1000.0 if 0 < at / 1000.0 < soon + 1e8 else soon for node, at in nodes.items()}


def _sighting(native: str, state: str, reason: str, place: str = "") -> dict[str, Any]:
    return {"native": native, "state": state, "reason": reason, "place": place, "started_at": None}


def _pending(group: dict[str, Any]) -> str:
    """Return Ray's words for a host that does not work yet."""
    bundle: dict[str, float] = next(iter(group["bundles"].values()), {})
    state = group["stats"].get("scheduling_state", "")
    if group["state"] == "CREATED":
        return "CREATED, its actor starts"
    return f"{group['state']} ({state}): asks for {_shown(bundle)}"


def _shown(resources: dict[str, float]) -> str:
    """Return resources in words, without those that Ray makes for itself."""
    kept = {name: count for name, count in resources.items() if not re.search(r"^node:|_group_|^object_store", name)}
    return ", ".join(
        f"{name} {count / 2**30:.1f} GiB" if name == "memory" else f"{name} {count:g}"
        for name, count in sorted(kept.items())
    )


def _cause(text: str) -> str:
    """Return why an actor died, from Ray's account of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _DETAIL.match(line.strip())]
    return " ".join(lines[1:] or lines)[:1000] or "its actor died"


def connect(address: str) -> None:
    """Become a client of the cluster. Raises OSError, and RuntimeError where the cluster has other versions."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=REACHES_S):
        pass  # Ray itself would try for more than a minute
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")


def main() -> None:
    """Answer requests until the one who asks is gone."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is no answer
    asked: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(asked,), daemon=True).start()
    address = sys.argv[1]
    try:
        if MISSING:
            raise LookupError(MISSING)
        connect(address)
    except LookupError as error:
        _say(out, {"failed": "missing", "words": str(error)})
    except OSError as error:
        _say(out, {"failed": "unreachable", "words": error.strerror or str(error)})
    except RuntimeError as error:
        words = " ".join(str(error).split())
        _say(out, {"failed": "versions" if "ersion mismatch" in words else "unreachable", "words": words})
    else:
        _serve(asked, out, address)
    out.close()
    os._exit(0)  # at its ordinary end Ray waits for a cluster that may not answer


def _serve(asked: "queue.Queue[str]", out: Any, address: str) -> None:
    hosts = Hosts(address.startswith("ray://"))
    calls: dict[str, Callable[..., Any]] = {
        "submit": hosts.submit,
        "look": hosts.look,
        "cancel": hosts.cancel,
        "capacity": hosts.capacity,
    }
    _say(out, {"ready": ray.__version__})
    while True:
        try:
            request = json.loads(asked.get(timeout=IDLE_S))
        except queue.Empty:
            return
        try:
            answer = {"result": calls[request["call"]](**request["given"])}
        except (ValueError, TypeError) as error:
            answer = {"refused": " ".join(str(error).split())[:1000]}
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            answer = {"silent": " ".join(str(error).split())[:1000]}
        _say(out, {"id": request["id"], **answer})


def _read(asked: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        asked.put(line)
    os._exit(0)


def _say(out: Any, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
