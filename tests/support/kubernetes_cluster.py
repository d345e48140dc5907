"""What stands for a Kubernetes cluster: its API server, and behind that what makes pods of Jobs and runs them.

The kubelet runs a pod's command as a local process group, with the variables of the pod and none of the tests.
"""

import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.kubernetes_server import NAMESPACE, ApiServer, Shown, cpus_of, now, served, stamp

TURN_S = 0.05


class KubernetesCluster(ApiServer):
    """The state of the cluster, and what its controllers and its kubelet do with it."""

    def __init__(self, folder: Path, *, runs: bool, cpus: tuple[int, ...]) -> None:
        super().__init__(folder, cpus)
        self.runs = runs
        self.images, self.claims = {"registry.test/flexmarl:1"}, {"flexmarl-home"}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def pod_of(self, job: str) -> Shown:
        """Return the pod of a Job."""
        [pod] = [one for one in self.all("pods") if one["metadata"]["ownerReferences"][0]["name"] == job]
        return pod

    def process_of(self, job: str) -> int:
        """Return the process of a Job's pod on this machine."""
        return self._processes[self.pod_of(job)["metadata"]["name"]].pid

    def evict(self, job: str) -> None:
        """Evict the pod of a Job, as `kubectl drain` does."""
        with self.guard:
            pod = self.pod_of(job)
            _set_condition(pod, "DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")
            self._delete_pod(pod)

    def set_status(self, job: str, **status: Any) -> None:
        """Say how a pod stands, where no kubelet does."""
        with self.guard:
            self.changed(self.pod_of(job))["status"].update(status)

    # What its controllers and its kubelet do ------------------------------------------------------------------------

    def turn(self) -> None:
        """Do what there is to do now."""
        with self.guard:
            for pod in self.all("pods"):
                self._tend(pod)
            for job in self.all("jobs"):
                self._sync(job)

    def _sync(self, job: Shown) -> None:
        """Make the pod of a Job, say how the Job ended, and let go of what was deleted."""
        pods, name = self._pods(job), job["metadata"]["name"]
        deleted, over = "deletionTimestamp" in job["metadata"], {"Failed", "Succeeded"}
        if not deleted and not job["status"].get("started"):
            self._make_pod(job)
        elif not deleted and not job["status"].get("conditions"):
            if any(pod["status"]["phase"] == "Succeeded" for pod in pods):
                _set_condition(job, "Complete", "True", "CompletionsReached", "Reached expected number of pods")
                self.changed(job)
            elif all(pod["status"]["phase"] in over for pod in pods):
                said = "Job has reached the specified backoff limit"
                _set_condition(job, "Failed", "True", "BackoffLimitExceeded", said)
                self.changed(job)
        for pod in pods:
            if deleted:
                self._delete_pod(pod)
            ended = pod["status"]["phase"] != "Running" or (deleted and not self.runs)
            if ended and "deletionTimestamp" in pod["metadata"]:
                del self.objects["pods", pod["metadata"]["name"]]
        if deleted and not self._pods(job):
            del self.objects["jobs", name]
            self._collect()

    def _collect(self) -> None:
        """Delete Secrets whose owner is gone."""
        living = {job["metadata"]["uid"] for job in self.all("jobs")}
        for secret in self.all("secrets"):
            if secret["metadata"]["ownerReferences"][0]["uid"] not in living:
                del self.objects["secrets", secret["metadata"]["name"]]

    def _make_pod(self, job: Shown) -> None:
        name, template = job["metadata"]["name"], job["spec"]["template"]
        wanted = cpus_of(template)
        if self.quota_cpus is not None and self.cpus_held() + wanted > self.quota_cpus:
            amounts = f"requested: cpu={wanted}, used: cpu={self.cpus_held()}, limited: cpu={self.quota_cpus}"
            said = f'Error creating: pods "{name}-x" is forbidden: exceeded quota: compute, {amounts}'
            self._warn(name, "FailedCreate", said)
            return
        pod_name = f"{name}-{uuid.uuid4().hex[:5]}"
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        metadata = {**template["metadata"], "name": pod_name, "creationTimestamp": now(), "ownerReferences": [owner]}
        pod = {"metadata": metadata, "spec": dict(template["spec"]), "status": {"phase": "Pending"}}
        self.objects["pods", pod_name] = self.changed(pod)
        job["status"]["started"] = True

    def _tend(self, pod: Shown) -> None:
        name, phase = pod["metadata"]["name"], pod["status"]["phase"]
        if not pod["spec"].get("nodeName") and not self._schedule(pod):
            pass
        elif self.runs and phase == "Pending" and "deletionTimestamp" not in pod["metadata"]:
            self._start(pod)
        elif name in self._processes and phase == "Running":
            self._watch(pod, self._processes[name])

    def _schedule(self, pod: Shown) -> bool:
        lacking = [
            v["persistentVolumeClaim"]["claimName"] for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v
        ]
        lacking = [claim for claim in lacking if claim not in self.claims]
        fits = [name for name, cpus in self.nodes.items() if self.cpus_held(name) + cpus_of(pod) <= cpus]
        count = len(self.nodes)
        if lacking:
            said = f'0/{count} nodes are available: persistentvolumeclaim "{lacking[0]}" not found.'
        elif not fits:
            said = f"0/{count} nodes are available: {count} Insufficient cpu."
        else:
            pod["spec"]["nodeName"] = fits[0]
            _set_condition(pod, "PodScheduled", "True")
            self.changed(pod)
            return True
        _set_condition(pod, "PodScheduled", "False", "Unschedulable", said)
        return False

    def _start(self, pod: Shown) -> None:
        container, name = pod["spec"]["containers"][0], pod["metadata"]["name"]
        if container["image"] not in self.images:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{container["image"]}"'}
            self._container(pod, {"waiting": waiting})
            return
        try:
            environment = {"PATH": "/usr/bin:/bin", **{one["name"]: self._value(one) for one in container["env"]}}
        except KeyError as missing:
            waiting = {"reason": "CreateContainerConfigError", "message": f"secret {missing} not found"}
            self._container(pod, {"waiting": waiting})
            return
        with (self.folder / f"{name}.log").open("wb") as out:
            self._processes[name] = subprocess.Popen(
                container["command"], cwd=container["workingDir"], env=environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        pod["status"]["phase"] = "Running"
        self._container(pod, {"running": {"startedAt": now()}})

    def _value(self, variable: Shown) -> str:
        """Return the value of a variable. Raises KeyError for one whose Secret is not there."""
        if "valueFrom" not in variable:
            return str(variable["value"])
        named = variable["valueFrom"]["secretKeyRef"]
        if ("secrets", named["name"]) not in self.objects:
            raise KeyError(named["name"])
        return str(self.objects["secrets", named["name"]]["stringData"][named["key"]])

    def _watch(self, pod: Shown, process: "subprocess.Popen[bytes]") -> None:
        leaves = pod["metadata"].get("deletionTimestamp")
        if leaves and datetime.fromisoformat(leaves) < datetime.now(UTC):
            process.kill()
        code = process.poll()
        if code is None:
            return
        _kill_group(process.pid)
        code = 128 - code if code < 0 else code
        log = (self.folder / f"{pod['metadata']['name']}.log").read_text(errors="replace")
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": log[-2048:] if code else ""}
        pod["status"]["phase"] = "Failed" if code else "Succeeded"
        self._container(pod, {"terminated": {**ended, "startedAt": pod["metadata"]["creationTimestamp"]}})

    def _delete_pod(self, pod: Shown) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            return
        grace = timedelta(seconds=pod["spec"]["terminationGracePeriodSeconds"])
        pod["metadata"]["deletionTimestamp"] = stamp(datetime.now(UTC) + grace)
        self.changed(pod)
        process = self._processes.get(pod["metadata"]["name"])
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End all pods."""
        for process in self._processes.values():
            _kill_group(process.pid)
            process.wait(20)

    def _pods(self, job: Shown) -> list[Shown]:
        name = job["metadata"]["name"]
        return [pod for pod in self.all("pods") if pod["metadata"]["ownerReferences"][0]["name"] == name]

    def _container(self, pod: Shown, state: Shown) -> None:
        pod["status"]["containerStatuses"] = [{"name": "host", "state": state}]
        self.changed(pod)

    def _warn(self, name: str, reason: str, message: str) -> None:
        about = {"name": name, "namespace": NAMESPACE}
        event = {"type": "Warning", "involvedObject": about, "reason": reason, "message": message}
        self.events = [one for one in self.events if one["involvedObject"] != about]
        self.events.append({**event, "lastTimestamp": now()})


@contextmanager
def kubernetes_cluster(folder: Path, *, runs: bool, cpus: tuple[int, ...] = (8, 8)) -> Iterator[KubernetesCluster]:
    """Serve a cluster; with `runs` its kubelet starts the pods. Its file of credentials is in the folder."""
    cluster = KubernetesCluster(folder, runs=runs, cpus=cpus)

    stopping = threading.Event()

    def work() -> None:
        while not stopping.wait(TURN_S):
            cluster.turn()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        with served(cluster):
            yield cluster
    finally:
        stopping.set()
        thread.join(20)
        cluster.end()


def _set_condition(one: Shown, name: str, status: str, reason: str = "", message: str = "") -> None:
    kept = [other for other in one["status"].get("conditions", []) if other["type"] != name]
    one["status"]["conditions"] = [*kept, {"type": name, "status": status, "reason": reason, "message": message}]


def _kill_group(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        return
