"""What Slurm says: its states, and what an administrator can do about its refusals."""

from flexmarl.controlplane.inventory.providers.base import HostState

_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
_OVER = frozenset({"COMPLETED", "CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE", "REVOKED"})
_BROKEN = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"})

_STEPS = (
    (
        "policy",
        "Wait until other jobs end, lower max_nodes or time_limit_minutes, or ask for a higher limit of the account.",
    ),
    ("invalid account", "Set account to one that sacctmgr show associations user=$USER lists."),
    ("qos", "Set qos to one that sacctmgr show associations user=$USER lists."),
    ("time limit", "Lower time_limit_minutes below the partition's limit (sinfo -o '%P %l')."),
    ("gres", "Set kind and devices to what sinfo -o '%P %G' shows for the partition."),
    (
        "node configuration",
        "Lower cpus, memory_gib or devices to what one host of the partition has (sinfo -o '%P %c %m %G').",
    ),
    ("cpu", "Lower cpus to what a host of the partition has (sinfo -o '%P %c')."),
    ("memory", "Lower memory_gib to what a host of the partition has (sinfo -o '%P %m')."),
    ("partition", "Set partition to one that sinfo lists and this account may use."),
    ("feature", "Correct the additional sbatch options; sinfo -o '%P %f' lists features."),
    ("option", "Correct the additional sbatch options: this cluster's version does not know one of them."),
    ("limit", "Wait until other jobs end, or lower max_nodes."),
)
"""Part of a refusal -> what to do, the first that fits."""


def state_of(state: str, reason: str) -> tuple[HostState, str]:
    """Return a job's state and Slurm's words for it. While one completes, its processes are still there."""
    said = state if reason in {"", "None"} else f"{state} ({reason})"
    if state in _WAITING:
        return "pending", said
    if state == "COMPLETING":
        return "ending", said
    if state in _OVER:
        return "ended", said
    return ("failed" if state in _BROKEN else "running"), said


def words(text: str) -> str:
    """Return what a command of Slurm wrote, in one line without the command's name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(line.partition("error: ")[2] or line for line in lines)[:1000]


def next_step(said: str) -> str:
    """Return what to do about a refusal."""
    lower = said.lower()
    return next(
        (step for part, step in _STEPS if part in lower), "Submit the script of the dry run by hand to find out more."
    )
