"""What this machine and its devices are doing now, as measured; what cannot be measured is left out.

A CPU share has no meter of its own: its memory is that of the child process on it. A GPU is asked through nvidia-smi.
"""

import subprocess
import time

import psutil
import structlog

from flexmarl.store.control.nodes import DeviceFacts

log = structlog.get_logger(__name__)

_QUERY = [
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu,memory.used,temperature.gpu",
    "--format=csv,noheader,nounits",
]
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


def measure(
    devices: list[DeviceFacts], children: list[tuple[str, int]]
) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """Measure the machine, and every device: its child's memory, or what its GPU says. A free device has no load."""
    found: dict[str, dict[str, object]] = {device.id: {} for device in devices}
    if any("cuda_index" in device.facts for device in devices):
        found |= gpu_load(devices, nvidia_smi_load())
    for device_id, pid in children:
        own = child_load(pid)
        if own is not None and "use" not in found.get(device_id, {}):
            found[device_id] = own
    return node_load(), found


def node_load() -> dict[str, object]:
    """Measure the whole machine. The first call of a process has no CPU share to tell."""
    memory = psutil.virtual_memory()
    found: dict[str, object] = {
        "at": round(time.time(), 1),
        "cpu_share": round(psutil.cpu_percent(interval=None) / 100, 3),
        "memory_used": memory.total - memory.available,
    }
    degrees = _cpu_degrees()
    return found if degrees is None else {**found, "temperature_c": degrees}


def child_load(pid: int) -> dict[str, object] | None:
    """Measure the memory of a child with its own children, None when it is gone."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return {"at": round(time.time(), 1), "memory_bytes": sum(one.memory_info().rss for one in family)}
    except psutil.Error:
        return None


def gpu_load(devices: list[DeviceFacts], listing: str) -> dict[str, dict[str, object]]:
    """Read nvidia-smi's listing for the devices that are GPUs; shares of one GPU show the same figures."""
    now = round(time.time(), 1)
    by_index: dict[int, dict[str, object]] = {}
    for line in listing.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4 and all(field.isdecimal() for field in fields):
            index, use, memory, degrees = (int(field) for field in fields)
            by_index[index] = {
                "at": now, "use": use / 100, "memory_bytes": memory * 2**20, "temperature_c": degrees,
            }  # fmt: skip
    found = {}
    for device in devices:
        own = device.facts.get("cuda_index")
        if isinstance(own, int) and own in by_index:
            found[device.id] = by_index[own]
    return found


def nvidia_smi_load() -> str:
    """Ask the driver's own tool; empty when it does not answer."""
    try:
        return subprocess.run(_QUERY, capture_output=True, text=True, timeout=5, check=True).stdout
    except (subprocess.SubprocessError, OSError) as error:
        log.warning("nvidia-smi does not report the load", error=str(error))
        return ""


def _cpu_degrees() -> float | None:
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    sensors = psutil.sensors_temperatures()
    read = [entry.current for name in _CPU_SENSORS for entry in sensors.get(name, [])]
    return max(read) if read else None
