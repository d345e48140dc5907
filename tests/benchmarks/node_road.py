"""What does a node pay for having a token instead of the installation's secrets? The same run on either road.

One installation, with its own node and one that has only an address and a token, on one machine. The same runs train on
either in turns, and a figure is the median time of a step, from the times that a run itself notes for its steps, behind
the first few. `steps_ratio` is direct over token, pair by pair: what share of the steps per second is left, and as a
step has as many rows on either road, of the rows per second. `cpu_ratio` is the same of the processor time that all
processes of the installation and of both nodes took for a run, which other work on the machine changes less.
`operation_ms` is the time of one small operation of the store, asked for behind another by one thread. With `--tls`
the node asks an HAProxy that ends TLS in front of the service and is counted with its processes. With
`--temporary-home` what the node's trainers make is kept elsewhere before it is told of, as where a cluster gave the
host; each run has a seed of its own then, since equal contents are sent once.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import psutil
from harness import interleave, paired_ratios, start

from flexmarl.launcher.processes import free_port
from flexmarl.store.control import commands
from tests.support.door_node import DoorNode
from tests.support.far_link import make_certificate
from tests.support.machine import wait_for
from tests.support.system import Api, System
from workers.door.address import DoorAddress
from workers.door.client import Door

WITHIN_S = 900.0


def main() -> None:
    """Train on both roads in turns, report the ratio."""
    report = start("node_road", __doc__ or "", _options)
    pairs = 1 if report.quick else int(str(report.settings["pairs"]))
    steps = 8 if report.quick else int(str(report.settings["steps"]))
    more = trusted() | ({"FLEXMARL_TEMPORARY_HOME": "1"} if report.settings["temporary_home"] else {})
    report.settings["load_before"] = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="flexmarl-road-") as folder:
        Path(folder).chmod(0o711)
        with System(Path(folder) / "home") as system:
            api = system.api()
            made = api.post("/node-tokens", {"node": "far-1", "pool": "far"})
            with (
                in_front(Path(folder), system.url, report.settings["tls"]) as (url, proxies),
                DoorNode(Path(folder) / "far", url, made["secret"], **more) as far,
            ):
                wait_for(lambda: "far-1" in {row["name"] for row in api.get("/nodes")["results"]}, 120)
                report.figures["operation_ms"] = operation_ms(url, made["secret"])
                roots = [system.pid, *proxies, *(process.pid for process in far.processes.values())]
                seeds = count(1)
                used: dict[str, list[float]] = {"default": [], "far": []}

                def trained(pool: str) -> float:
                    before = cpu_seconds(roots)
                    seed = next(seeds) if report.settings["temporary_home"] else 1
                    median = step_seconds(api, pool, steps, seed, report.settings)
                    used[pool].append(cpu_seconds(roots) - before)
                    return median

                times = interleave({pool: partial(trained, pool) for pool in used}, pairs)
                report.ratio("steps_ratio", paired_ratios(times["default"], times["far"]))
                report.ratio("cpu_ratio", paired_ratios(used["default"], used["far"]))
    report.figures["direct_cpu_s"] = statistics.median(used["default"])
    report.figures["token_cpu_s"] = statistics.median(used["far"])
    report.figures["direct_step_ms"] = 1000 * statistics.median(times["default"])
    report.figures["token_step_ms"] = 1000 * statistics.median(times["far"])
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tls", action="store_true", help="with TLS, by HAProxy in front of the service")
    parser.add_argument("--temporary-home", action="store_true", help="the node's home ends with its host")
    parser.add_argument("--steps", type=int, default=30, help="of each run")
    parser.add_argument("--warm-up", type=int, default=4, help="steps of a run that do not count: caches fill")
    parser.add_argument("--template", default="reference_game")


PROXY = """
global
  maxconn 1000
defaults
  mode http
  timeout connect 5s
  timeout client 120s
  timeout server 120s
frontend web
  bind 127.0.0.1:{port} ssl crt {certificate}
  default_backend service
backend service
  server one {service}
"""


@contextlib.contextmanager
def in_front(folder: Path, service: str, tls: object) -> Iterator[tuple[str, list[int]]]:
    """Yield the address that a node is given, and the processes behind it that the installation does not have."""
    if not tls:
        yield service, []
        return
    program = shutil.which("haproxy") or "/usr/sbin/haproxy"
    certificate, both, port = folder / "proxy.pem", folder / "both.pem", free_port()
    make_certificate(certificate, folder / "proxy.key", "127.0.0.1")
    both.write_bytes(certificate.read_bytes() + (folder / "proxy.key").read_bytes())
    settings = folder / "haproxy.cfg"
    settings.write_text(PROXY.format(port=port, certificate=both, service=service.removeprefix("http://")))
    os.environ["SSL_CERT_FILE"] = str(certificate)  # of this process, which asks as a node does
    proxy = subprocess.Popen([program, "-f", str(settings)])
    try:
        yield f"https://127.0.0.1:{port}", [proxy.pid]
    finally:
        proxy.terminate()
        proxy.wait(30)


def trusted() -> dict[str, str]:
    """Return whose certificates a node's processes believe beside those of the system."""
    return {name: os.environ[name] for name in ("SSL_CERT_FILE",) if name in os.environ}


def step_seconds(api: Api, pool: str, steps: int, seed: int, settings: Mapping[str, object]) -> float:
    """Train a run in a pool; return the median time of its steps."""
    overrides = {
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 1000, "tasks": 4},
        "resources": {"rollout_pool": pool, "training_pool": pool},
        "seed": seed,
    }
    run = api.create_run(name=f"road-{pool}", template=settings["template"], overrides=overrides)
    ended = api.finish(run["id"], WITHIN_S)
    if ended["status"] != "completed":
        raise RuntimeError(f"{pool}: {ended['status']} {ended['reason_text']}")
    path = f"/runs/{run['id']}/series/data?names=reward/team&stat=mean&x=time&max_points=5000"
    (series,) = api.get(path)["series"]
    return statistics.median(after - before for before, after in pairwise(series["x"][int(str(settings["warm_up"])) :]))


def cpu_seconds(roots: list[int]) -> float:
    """Return the processor time of processes and of all that they started."""
    total = 0.0
    for root in map(psutil.Process, roots):
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])  # its own, and that of children which it has waited for
    return total


def operation_ms(url: str, token: str, calls: int = 200) -> float:
    """Ask for one small operation again and again; return the median time of one."""
    door = Door(DoorAddress(url, token))
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        commands.open_on_node(door, "far-1")  # type: ignore[arg-type] # a carrier stands in the place of a connection
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


if __name__ == "__main__":
    main()
