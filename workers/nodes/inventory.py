"""What this machine offers: its CPU cores as shares, its GPUs through nvidia-smi.

The tool runs in a process with a deadline, rather than NVML in this one: a driver that hangs on a broken GPU holds
every thread that asks it, and with it the end of the node agent.

Invariant: at least two devices, so that an engine and a trainer fit on any machine. With GPUs the CPU shares stand in
a pool of their own, so that the default pool is all of one kind.
"""

import os
import platform
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import metadata

import psutil
import structlog

from flexmarl.contracts.hardware import Hardware, class_of
from flexmarl.store.control.nodes import DeviceFacts
from workers.containers import ContainerSettings, engine_or_nothing
from workers.settings import HostShare

log = structlog.get_logger(__name__)

MIN_DEVICES = 2
DEFAULT_POOL = "default"
CPU_POOL_BESIDE_GPUS = "cpu"
_QUERY = ["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]


def discover(
    node: str,
    classes: Mapping[str, Hardware] | None = None,
    cpu_shares: int = 0,
    share: HostShare = HostShare(),  # noqa: B008 - immutable
) -> list[DeviceFacts]:
    """Return this machine's devices, each with what it is good at where `classes` declare that of its type.

    Its processors are offered in as many shares as told, or one per core. A node that has a `share` of its machine in
    a pool offers devices of one kind there: its GPUs where it has any.
    """
    gpus = cuda_devices(node, "" if share.gpus == frozenset() else nvidia_smi(), share.gpus)
    cpus = cpu_devices(node, CPU_POOL_BESIDE_GPUS if gpus else DEFAULT_POOL, cpu_shares, share.memory_mib)
    found = [classed(device, {"CPU": Hardware.CPU, **(classes or {})}) for device in (*gpus, *cpus)]
    return [replace(device, pool=share.pool) for device in found[: len(gpus)] or found] if share.pool else found


def classed(device: DeviceFacts, classes: Mapping[str, Hardware]) -> DeviceFacts:
    """Note a device's class among its facts; one that nobody declared is good at anything."""
    found = class_of(device.name, classes)
    return device if found is Hardware.ANY else replace(device, facts={**device.facts, "class": found.value})


def node_facts(vllm_python: str = "", containers: ContainerSettings = ContainerSettings()) -> dict[str, object]:  # noqa: B008 - immutable
    """Return what people want to know of this machine, and which engines it can start."""
    return {
        "engines": ["torch", *(["vllm"] if os.access(vllm_python, os.X_OK) else [])],
        "containers": engine_or_nothing(containers),
        "cpus": _cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "booted_at": round(psutil.boot_time(), 1),
    }


def agent_version() -> str:
    """Name the version of what runs here."""
    try:
        return metadata.version("flexmarl")
    except metadata.PackageNotFoundError:
        return "checkout"


def cpu_devices(node: str, pool: str, shares: int = 0, memory_mib: int = 0) -> list[DeviceFacts]:
    """Offer one share per core this process may use, or as many as told; two at least."""
    cores = _cores()
    count = max(shares or cores, MIN_DEVICES)
    memory = (memory_mib * 2**20 or psutil.virtual_memory().total) // count
    return [
        DeviceFacts(f"{node}.cpu{i}", "cpu", i, f"CPU share {i + 1} of {count}", memory, pool, {"cores": cores / count})
        for i in range(count)
    ]


def cuda_devices(node: str, listing: str, chosen: Collection[int] | None = None) -> list[DeviceFacts]:
    """Read nvidia-smi's listing, of it those `chosen` where somebody chose.

    A single GPU is offered as two shares: an engine and a trainer live on it together.
    """
    rows = [[field.strip() for field in line.split(",")] for line in listing.splitlines() if line.count(",") >= 2]
    rows = [row for row in rows if chosen is None or int(row[0]) in chosen]
    shares = 2 if len(rows) == 1 else 1
    found: list[DeviceFacts] = []
    for index, name, memory in rows:
        for share in range(shares):
            title = name if shares == 1 else f"{name}, share {share + 1} of {shares}"
            facts: dict[str, object] = {"cuda_index": int(index), "share": 1 / shares}
            size = (int(memory) if memory.isdecimal() else 0) * 2**20 // shares  # some drivers say [N/A]
            ordinal = len(found)
            found.append(DeviceFacts(f"{node}.gpu{ordinal}", "cuda", ordinal, title, size, DEFAULT_POOL, facts))
    return found


def nvidia_smi() -> str:
    """Ask the driver's own tool, so that nothing here loads CUDA. Empty when there is no GPU."""
    try:
        return subprocess.run(_QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
    except FileNotFoundError:
        return ""
    except (subprocess.SubprocessError, OSError) as error:
        log.warning("nvidia-smi failed, going on without GPUs", error=str(error))
        return ""


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
