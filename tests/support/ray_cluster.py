"""A Ray cluster of one machine: a head and further raylets with made-up resources, on ports of its own."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexmarl.launcher.processes import end, free_port, spawn, wait_until

RAY_PYTHON = os.environ.get("FLEXMARL_RAY_PYTHON", "")
MISSING = "" if RAY_PYTHON else "FLEXMARL_RAY_PYTHON names no interpreter with Ray; scripts/test makes one"
READY_S = 90.0
STORE_BYTES = 80_000_000
FAST = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # A raylet that was killed is missed within some seconds, not fifteen.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
}
ASK = """
import json, sys, ray
ray.init(address=sys.argv[1], namespace="flexmarl", log_to_driver=False, logging_level="ERROR")
table = ray.util.placement_group_table().values()
groups = [(g["name"], g["state"], list(g["bundles_to_node_id"].values())) for g in table]
print("ANSWER" + json.dumps({"groups": groups, "actors": ray.util.list_named_actors(),
    "nodes": {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"]}}))
"""


@dataclass
class RayCluster:
    """A running cluster; `raylets` are those beside the head, by the resource that only they have."""

    folder: Path
    port: int
    client_port: int
    started: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self) -> dict[str, Any]:
        """Return its placement groups (name, state, nodes), named actors and living nodes."""
        command = [RAY_PYTHON, "-c", ASK, self.address]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=_environment())
        answer = next(line for line in said.stdout.splitlines() if line.startswith("ANSWER"))
        found: dict[str, Any] = json.loads(answer.removeprefix("ANSWER"))
        return found

    def living(self) -> list[tuple[str, str, list[str]]]:
        """List the placement groups that have not been removed."""
        return [(name, state, nodes) for name, state, nodes in self.ask()["groups"] if state != "REMOVED"]

    def add(self, cpus: Mapping[str, int], also: str = "") -> None:
        """Start raylets with so many made-up processors; the resource of its name tells each from others."""
        for name, count in cpus.items():
            resources = json.dumps({name: 1, **({also: 1} if also else {})})
            options = [f"--address={self.address}", f"--num-cpus={count}", f"--resources={resources}"]
            self.start(name, options)  # one after the other: two at once may take the same sockets

    def start(self, name: str, options: Sequence[str]) -> None:
        """Start the processes of one node and wait until they work."""
        command = [str(Path(RAY_PYTHON).parent / "ray"), "start", "--block", "--disable-usage-stats", *options]
        command += [f"--object-store-memory={STORE_BYTES}", "--node-ip-address=127.0.0.1"]
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            self.started[name] = spawn(command, cwd=self.folder, env=_environment(), output=out)
        assert wait_until(lambda: "Ray runtime started" in log.read_text(errors="replace"), READY_S), self.log()

    def raylet(self, name: str) -> int:
        """Return the process id of a raylet."""
        starter = self.started[name].pid
        return next(pid for pid, parent, text in _processes() if parent == starter and "raylet/raylet" in text)

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))


@contextmanager
def ray_cluster(cpus: Sequence[int] = (2, 2), head_cpus: int = 0) -> Iterator[RayCluster]:
    """Start a head and raylets r1, r2, ... with so many made-up processors; stop exactly these."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # sockets have short paths
    made = RayCluster(folder, free_port(), free_port())
    try:
        options = ["--head", f"--port={made.port}", f"--ray-client-server-port={made.client_port}"]
        options += [f"--num-cpus={head_cpus}", "--include-dashboard=False", f"--dashboard-port={free_port()}"]
        made.start("head", [*options, f"--temp-dir={folder}"])
        made.add({f"r{number + 1}": count for number, count in enumerate(cpus)})
        yield made
    finally:
        for process in reversed(made.started.values()):
            end(process, [(signal.SIGTERM, 20.0)])
        shutil.rmtree(folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON"))}
    return {**kept, **FAST}


def _processes() -> list[tuple[int, int, str]]:
    """List (process id, parent, command line) of this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found.append((int(entry.name), parent, (entry / "cmdline").read_text().replace("\0", " ")))
            except OSError:
                continue
    return found


def processes_of(home: Path, job: str = "") -> list[str]:
    """List the processes of provided hosts of an installation, or of one job, by what stands in their environment."""
    mark, found = (f"@{job}/" if job else f"FLEXMARL_HOME={home}/nodes/").encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append(f"{entry.name} {(entry / 'cmdline').read_text()}".replace("\0", " "))
            except OSError:
                continue
    return found
