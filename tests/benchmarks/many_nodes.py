"""What does the control plane pay for many nodes with tokens?

A whole installation (`manage.py up`, with its own PostgreSQL and broker) on one side; on the other a process that
stands for the hosts: each registers its devices, sends heartbeats and loads with the product's periods and holds its
streams of news, and some carry a run out whose engines and trainers only wait (`many_nodes_fleet`, `many_nodes_runs`).

Cores are processor seconds per second, of each process of the control plane over the same stretch, once all is there.
`plane_cores` is all of them together without PostgreSQL, the broker and the own workers. On a machine that
others keep busy hosts ask less often than they would: `plane_ms` and `postgres_ms` are processor milliseconds for each
second of a host that was served, so a thousand of them are cores. `fact_*` is the
time from a node's report of another load until REST shows it, `lost_*` that from a node's silence until it is called
silent, `page_*` that of a whole page. With `--page` *Pools and nodes* is open meanwhile; `shown_*` is the time from
such a report until it stands there (`many_nodes_page`). A request, a stream or a run that fails is an error.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import psycopg
from harness import ROOT, start
from many_nodes_page import shown

from tests.support.system import Api, System
from workers.nodes.agent import HEARTBEAT_S

PLANE = ("web", "driver", "simulations")
OWN_WORKERS = ("node", "device-worker", "rollout-worker")
SETTLE_S = 8.0
PAGES = {"page_cluster": "/cluster", "page_devices": "/cluster?view=devices", "page_queue": "/queue"}


def main() -> None:
    """Bring hosts and runs up, measure a stretch of time, then facts, pages and losses."""
    report = start("many_nodes", __doc__ or "", _options)
    nodes = 20 if report.quick else int(str(report.settings["nodes"]))
    devices, runs = int(str(report.settings["devices"])), int(str(report.settings["runs"]))
    seconds = 5.0 if report.quick else float(str(report.settings["seconds"]))
    with tempfile.TemporaryDirectory(prefix="flexmarl-nodes-") as folder:
        Path(folder).chmod(0o711)
        settings = {"FLEXMARL_API_REQUESTS_PER_MINUTE": "1000000", "FLEXMARL_CPU_SHARES": "2"}
        with System(Path(folder) / "home", environment=settings) as system:
            tokens = made_tokens(system.api(), nodes)
            hosts = [
                {"node": name, "pool": name, "token": token, "devices": max(devices // nodes, 1)}
                for name, token in tokens.items()
            ]
            with helper("many_nodes_fleet.py", {"url": system.url, "hosts": hosts}) as fleet:
                fleet.hear()
                with running(system, dict(list(tokens.items())[: min(runs, nodes)])) as working:
                    time.sleep(SETTLE_S)
                    report.figures |= stretch(system, fleet, working, seconds)
                    report.figures |= facts(system.api(), fleet, list(tokens)[runs:] or list(tokens), seconds)
                    report.figures |= pages(system)
                    if report.settings["page"]:
                        report.figures |= shown(system, fleet, seconds)
                    report.figures |= losses(system.api(), fleet, list(tokens)[-max(nodes // 50, 1) :])
                    report.figures["errors"] += noted(fleet)
    report.figures["load_average"] = os.getloadavg()[0]
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=3000, help="of all nodes together")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the stretch that is measured")
    parser.add_argument("--page", action="store_true", help="until an open page has what a host reports, too")


# What stands on the other side ---------------------------------------------------------------------------------------


class Helper:
    """A process that is told what to do in lines of JSON, and answers each."""

    def __init__(self, program: str, orders: Any) -> None:
        command = [sys.executable, str(Path(__file__).with_name(program))]
        path = f"{ROOT}:{ROOT / 'platform'}"
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        self.tell(orders)

    def ask(self, order: Any) -> Any:
        """Tell something and return the answer."""
        self.tell(order)
        return self.hear()

    def tell(self, order: Any) -> None:
        """Write a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """Read a line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a helper process ended early")
        return json.loads(line)


@contextlib.contextmanager
def helper(program: str, orders: Any) -> Iterator[Helper]:
    """Run a helper process."""
    one = Helper(program, orders)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()


def made_tokens(api: Api, nodes: int) -> dict[str, str]:
    """Make a token for each host; name -> text."""
    names = [f"far-{number:04d}" for number in range(nodes)]
    with ThreadPoolExecutor(4) as many:
        made = many.map(lambda name: api.post("/node-tokens", {"node": name, "pool": name})["secret"], names)
        return dict(zip(names, made, strict=True))


@contextlib.contextmanager
def running(system: System, tokens: dict[str, str]) -> Iterator[Helper | None]:
    """Start a run on each of some hosts, and what carries them out."""
    if not tokens:
        yield None
        return
    api, made = system.api(), []
    for name in tokens:
        overrides = {
            "budget": {"train_steps": 1_000_000, "target": None},
            "evaluation": {"every_steps": 100_000, "tasks": 4},
            "resources": {"rollout_pool": name, "training_pool": name},
        }
        made.append(api.create_run(name=name, template="reference_game", overrides=overrides)["id"])
    with psycopg.connect(system.database_url) as conn:
        row = conn.execute("SELECT spec FROM store.run_state LIMIT 1").fetchone()
    assert row is not None
    with helper("many_nodes_runs.py", {"url": system.url, "tokens": list(tokens.values()), "spec": row[0]}) as working:
        for one in made:
            api.wait(one, lambda run: run["status"] == "running", 300, every_s=1.0)
        yield working


# What is measured ----------------------------------------------------------------------------------------------------


def stretch(system: System, fleet: Helper, working: Helper | None, seconds: float) -> dict[str, float]:
    """Measure processor time, statements, memory and connections over a stretch of time."""
    done = working.ask({})["steps"] if working else 0
    fleet.ask({"do": "seen"})
    roots = {**system.processes(), "postgres": _postmaster(system), "broker": _broker(system)}
    began, before = time.monotonic(), {name: cpu_seconds(pid) for name, pid in roots.items()}
    statements = _statements(system)
    time.sleep(seconds)
    passed = time.monotonic() - began
    cores = {name: (cpu_seconds(pid) - before[name]) / passed for name, pid in roots.items()}
    asked = fleet.ask({"do": "seen"})
    after = _statements(system)
    web = psutil.Process(roots["web"])
    ended = working.ask({}) if working else {"steps": 0, "away": 0, "errors": []}
    for error in [*asked["errors"].items(), *ended["errors"]]:
        print("  error:", error)
    served = asked["asked"].get("node_beats.beat", 0) * HEARTBEAT_S
    return {
        "nodes_served": served / passed,
        "plane_ms": 1000 * passed * sum(cores[name] for name in PLANE) / max(served, 1),
        "postgres_ms": 1000 * passed * cores["postgres"] / max(served, 1),
        "plane_cores": sum(cores[name] for name in PLANE),
        **{f"{name}_cores": value for name, value in cores.items()},
        "requests_s": sum(asked["asked"].values()) / passed,
        "answer_p50_ms": 1000 * asked["p50_s"],
        "answer_p99_ms": 1000 * asked["p99_s"],
        "hints_s": sum(count for name, count in asked["heard"].items() if name != "quiet") / passed,
        "transactions_s": (after - statements) / passed,
        "steps_min": 60 * (ended["steps"] - done) / passed,
        "web_memory_mib": web.memory_info().rss / 2**20,
        "web_connections": len(web.net_connections("tcp")),
        "postgres_connections": _sessions(system),
        "errors": sum(asked["errors"].values()) + len(ended["errors"]) + ended["away"],
    }


def facts(api: Api, fleet: Helper, names: list[str], seconds: float) -> dict[str, float]:
    """Change a node's load again and again, and time until REST shows it."""
    taken, until, number = [], time.monotonic() + seconds, 0
    while time.monotonic() < until or len(taken) < 5:
        number += 1
        name, value = names[number * 7 % len(names)], number / 1000
        at = fleet.ask({"do": "load", "node": name, "cpu_share": value})["at"]
        while api.get(f"/nodes/{name}")["load"].get("cpu_share") != value:
            time.sleep(0.02)
        taken.append(time.time() - at)
    taken.sort()
    return {"fact_p50_ms": 1000 * taken[len(taken) // 2], "fact_p99_ms": 1000 * taken[len(taken) * 99 // 100]}


def pages(system: System) -> dict[str, float]:
    """Read pages as a person does; the least time of three, and their size."""
    browser, found = system.signed_in(), {}
    for name, path in PAGES.items():
        times, pid = [], system.processes()["web"]
        for _ in range(3):
            began, used = time.monotonic(), cpu_seconds(pid)
            size = len(browser.open(f"{system.url}{path}", timeout=120).read())
            times.append((time.monotonic() - began, cpu_seconds(pid) - used))
        found[f"{name}_ms"] = 1000 * min(taken for taken, _ in times)
        found[f"{name}_cpu_ms"] = 1000 * min(used for _, used in times)
        found[f"{name}_kib"] = size / 1024
    return found


def losses(api: Api, fleet: Helper, names: list[str]) -> dict[str, float]:
    """Let hosts fall silent at once, and time until each is called silent."""
    at, found = fleet.ask({"do": "silence", "nodes": names})["at"], {}
    while len(found) < len(names) and time.time() - at < 120:
        for name in names:
            if name not in found and api.get(f"/nodes/{name}")["state"] == "silent":
                found[name] = time.time() - at
        time.sleep(0.2)
    slowest = max(found.values()) if len(found) == len(names) else float("inf")
    return {"lost_first_s": min(found.values()), "lost_last_s": slowest}


def noted(fleet: Helper) -> float:
    """Count errors that hosts saw since they were asked last, and show them."""
    errors = fleet.ask({"do": "seen"})["errors"]
    for error in errors.items():
        print("  error:", error)
    return float(sum(errors.values()))


def cpu_seconds(root: int) -> float:
    """Return the processor time of a process and of all that it started."""
    total = 0.0
    for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def _postmaster(system: System) -> int:
    with psycopg.connect(system.database_url) as conn:
        row = conn.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        return psutil.Process(row[0]).ppid()


def _broker(system: System) -> int:
    children = psutil.Process(system.pid).children(recursive=True)
    return next(one.pid for one in children if "valkey" in one.name() or "redis" in one.name())


def _statements(system: System) -> int:
    """Count transactions of the database so far: outside of blocks, each statement is one."""
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        row = conn.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        assert row is not None
        return int(row[0])


def _sessions(system: System) -> int:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        row = conn.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").fetchone()
        assert row is not None
        return int(row[0])


if __name__ == "__main__":
    main()
