"""Where the hosts of a pool come from, as administrators choose it: started by hand, or asked of a cluster's scheduler.

Each provider has options of its own. What the options say becomes a request that a person can read before it is made.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.problems import broken_at

MOST_HOSTS = 256
_WORD = r"^[A-Za-z0-9][A-Za-z0-9_.,:@+-]*$|^$"
_ADDRESS = r"^(ray://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}$"
_RESOURCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_OWN_VARIABLES = frozenset({"DATABASE_URL", "REDIS_URL", "PYTHONPATH"})
RAY_RESOURCES = {"CPU": "cpus", "GPU": "devices", "memory": "memory_gib", "object_store_memory": "memory_gib"}
"""Resources of Ray that a field decides -> the field."""
_EXTRA = re.compile(r"--([a-z][a-z0-9-]*)(=[A-Za-z0-9_.,:;@%+*&|!()\[\]/=-]+)?")
SET_ELSEWHERE = {
    "account": "account",
    "array": "",
    "begin": "",
    "chdir": "",
    "cpus-per-task": "cpus",
    "error": "",
    "export": "",
    "export-file": "",
    "get-user-env": "",
    "gpus": "devices",
    "gpus-per-node": "devices",
    "gres": "devices",
    "input": "",
    "job-name": "",
    "mem": "memory_gib",
    "nodes": "max_nodes",
    "ntasks": "",
    "open-mode": "",
    "output": "",
    "partition": "partition",
    "parsable": "",
    "qos": "qos",
    "requeue": "",
    "signal": "notice_s",
    "test-only": "",
    "time": "time_limit_minutes",
    "uid": "",
    "wait": "",
    "wrap": "",
}
"""Options of sbatch that FlexMARL writes itself -> the field that decides them; empty: none does."""


class StaticProvider(Strict):
    """Hosts on which somebody starts a node agent by hand."""

    type: Literal["static"] = "static"


class GrowingProvider(Strict):
    """Hosts that a cluster is asked for when somebody waits, and that are given back."""

    kind: Literal["cpu", "cuda"] = "cpu"
    """What the devices of a host are: shares of its processors, or its GPUs, which are asked for as well."""
    devices: int = Field(default=2, ge=1, le=64)
    """Devices of a host. A host of one GPU offers it as two shares."""
    cpus: int = Field(default=2, ge=1, le=1024)
    """Processors that are asked for a host."""
    memory_gib: int = Field(default=0, ge=0, le=16384)
    """Memory that is asked for a host; 0: the cluster's default."""
    min_nodes: int = Field(default=0, ge=0, le=MOST_HOSTS)
    """Hosts that are kept whether or not somebody waits."""
    max_nodes: int = Field(default=1, ge=1, le=MOST_HOSTS)
    """Hosts at once, those about to end not counted."""
    idle_s: int = Field(default=600, ge=10, le=86400)
    """A host whose devices nobody has leased for so long is given back."""
    rollout_workers: int = Field(default=1, ge=0, le=16)
    """Rollout workers that a host runs for the pool."""
    python: str = Field(
        default="", max_length=500, pattern=r"^(/[A-Za-z0-9_.+/-]+)?$", examples=["/opt/flexmarl/bin/python"]
    )
    """Interpreter on the hosts; empty: the one of the process that submits, at the same path."""

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.min_nodes > self.max_nodes:
            raise broken_at(["min_nodes"], f"min_nodes is at most max_nodes, which is {self.max_nodes}")
        if self.kind == "cpu" and self.devices < 2:
            raise broken_at(["devices"], "a host of processors has 2 devices or more; set 2")
        return self

    @property
    def offered(self) -> int:
        """Devices that a host registers: two shares where it has a single GPU."""
        return 2 if self.kind == "cuda" and self.devices == 1 else self.devices


class SlurmProvider(GrowingProvider):
    """Hosts that are batch jobs of a Slurm cluster, one job for each."""

    type: Literal["slurm"] = "slurm"
    partition: str = Field(default="", max_length=100, pattern=_WORD, examples=["gpu"])
    """Partition of the jobs; empty: the cluster's default."""
    account: str = Field(default="", max_length=100, pattern=_WORD, examples=["research"])
    """Account that is charged; empty: the user's default."""
    qos: str = Field(default="", max_length=100, pattern=_WORD, examples=["normal"])
    """Quality of service; empty: the account's default."""
    time_limit_minutes: int = Field(default=240, ge=2, le=43200)
    """A job ends after so long, whatever runs there."""
    notice_s: int = Field(default=300, ge=30, le=7200)
    """So long before a job's end its devices are drained: what runs there moves to other hosts. Slurm may give notice
    up to a minute earlier."""
    sbatch: tuple[str, ...] = Field(default=(), max_length=20, examples=[["--constraint=a100"]])
    """Further options of sbatch, as they would stand behind `#SBATCH`."""

    @field_validator("sbatch")
    @classmethod
    def _known_form(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for index, line in enumerate(given):
            found = _EXTRA.fullmatch(line)
            if found is None:
                raise broken_at([index], f"{line[:80]!r} is not one option of sbatch; write it like --constraint=a100")
            name = found[1]
            if name in SET_ELSEWHERE:
                field = SET_ELSEWHERE[name]
                instead = f"set {field} instead" if field else "remove it"
                raise broken_at([index], f"--{name} is set by FlexMARL; {instead}")
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> "SlurmProvider":
        if self.notice_s >= self.time_limit_minutes * 60:
            longest = self.time_limit_minutes * 60 - 1
            raise broken_at(["notice_s"], f"notice_s is shorter than the time limit; set {longest} or less")
        return self


class RayProvider(GrowingProvider):
    """Hosts that are placement groups of a Ray cluster, one bundle and one actor for each."""

    type: Literal["ray"] = "ray"
    address: str = Field(max_length=300, pattern=_ADDRESS, examples=["10.0.0.4:6379"])
    """Address of the cluster: HOST:PORT of its head where the process that submits runs on one of its nodes,
    ray://HOST:10001 (Ray's client) where it does not."""
    resources: dict[str, float] = Field(default_factory=dict, max_length=20, examples=[{"accelerator_type:H100": 0.01}])
    """Custom resources of Ray that a host is asked for besides; a name and how much of it."""
    env_vars: dict[str, str] = Field(default_factory=dict, max_length=50, examples=[{"NCCL_SOCKET_IFNAME": "eth0"}])
    """Environment variables of the host's processes. Everybody who uses the cluster can read them: no secrets."""

    @field_validator("resources")
    @classmethod
    def _custom(cls, given: dict[str, float]) -> dict[str, float]:
        for name, amount in given.items():
            if name in RAY_RESOURCES:
                raise broken_at([name], f"{name} is set by FlexMARL; set {RAY_RESOURCES[name]} instead")
            if not _RESOURCE.fullmatch(name):
                raise broken_at([name], f"{name[:80]!r} is not a valid resource name; use letters, digits and _ . : -")
            if not 0.0001 <= amount <= 1e6 or (amount > 1 and amount != int(amount)):
                raise broken_at([name], "Ray counts a resource in whole numbers, or in parts of one from 0.0001")
        return given

    @field_validator("env_vars")
    @classmethod
    def _plain(cls, given: dict[str, str]) -> dict[str, str]:
        for name, value in given.items():
            if not _VARIABLE.fullmatch(name):
                raise broken_at([name], f"{name[:80]!r} is not a valid variable name; use letters, digits and _")
            if name in _OWN_VARIABLES or name.startswith("FLEXMARL_"):
                raise broken_at([name], f"{name} comes from the settings of this installation; remove it")
            if len(value) > 1000 or "\0" in value:
                raise broken_at([name], "a value has 1000 characters at most, and no zero byte")
        return given


ProviderOptions = Annotated[StaticProvider | SlurmProvider | RayProvider, Field(discriminator="type")]


class PoolProvider(Strict):
    """What a pool says of its hosts."""

    provider: ProviderOptions = StaticProvider()
