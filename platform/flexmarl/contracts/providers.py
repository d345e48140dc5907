"""Where the hosts of a pool come from, as administrators choose it: started by hand, or asked of a cluster's scheduler.

Each provider has options of its own. What the options say becomes a request that a person can read before it is made.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.problems import broken_at

MOST_HOSTS = 256
_WORD = r"^[A-Za-z0-9][A-Za-z0-9_.,:@+-]*$|^$"
_ADDRESS = r"^(ray://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}$"
_PLAIN_PATH = r"^(/[A-Za-z0-9_.+/-]+)?$"
_RESOURCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_OWN_VARIABLES = frozenset({"DATABASE_URL", "REDIS_URL", "PYTHONPATH"})
RAY_RESOURCES = {"CPU": "cpus", "GPU": "devices", "memory": "memory_gib", "object_store_memory": "memory_gib"}
"""Resources of Ray that a field decides -> the field."""
_LABEL = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_OBJECT = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_OBJECT_OR_NONE = rf"^({_OBJECT})?$"
_MOUNT = re.compile(r"/[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")
TOLERATION = re.compile(r"([^=:]+)(?:=([^:]*))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?")
"""A toleration as `kubectl taint` writes the taint: KEY, KEY:EFFECT or KEY=VALUE:EFFECT."""
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


def _plain(given: dict[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not _VARIABLE.fullmatch(name):
            raise broken_at([name], f"{name[:80]!r} is not a valid variable name; use letters, digits and _")
        if name in _OWN_VARIABLES or name.startswith("FLEXMARL_"):
            raise broken_at([name], f"{name} comes from the settings of this installation; remove it")
        if len(value) > 1000 or "\0" in value:
            raise broken_at([name], "a value has 1000 characters at most, and no zero byte")
    return given


PlainVariables = Annotated[dict[str, str], AfterValidator(_plain)]
"""Environment variables that are no secrets, and that no setting of an installation decides."""


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
    python: str = Field(default="", max_length=500, pattern=_PLAIN_PATH, examples=["/opt/flexmarl/bin/python"])
    """Interpreter on the hosts; empty: the one of the process that submits, at the same path."""
    checkout: str = Field(default="", max_length=500, pattern=_PLAIN_PATH, examples=["/opt/flexmarl"])
    """Folder of the checkout on the hosts; empty: the one of this installation, at the same path."""
    access: Literal["shared_folder", "node_token"] = "shared_folder"
    """How a host reaches the installation: with its secrets, from the folder that they share, or with a node token of
    its own, which ends with its job, and the web service alone."""
    home: str = Field(default="", max_length=500, pattern=_PLAIN_PATH, examples=["/var/lib/flexmarl"])
    """Folder on a host's own disk below which it keeps its files, with access node_token; empty: a folder below its
    temporary folder, which is removed when the host ends."""

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.home and self.access == "shared_folder":
            words = "with access shared_folder a host keeps its files below FLEXMARL_HOME; remove home, or set access"
            raise broken_at(["home"], f"{words} to node_token")
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
    env_vars: PlainVariables = Field(default_factory=dict, max_length=50, examples=[{"NCCL_SOCKET_IFNAME": "eth0"}])
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


class KubernetesProvider(GrowingProvider):
    """Hosts that are Jobs of a Kubernetes cluster, one pod for each."""

    type: Literal["kubernetes"] = "kubernetes"
    namespace: str = Field(default="default", max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    """Namespace of the Jobs."""
    context: str = Field(default="", max_length=253, pattern=r"^[A-Za-z0-9_.:/@+-]*$", examples=["training"])
    """Context of the file that FLEXMARL_KUBECONFIG names; empty: its current one. It must be empty in a cluster."""
    image: str = Field(
        max_length=500,
        pattern=r"^[a-z0-9]([A-Za-z0-9._/:@-]*[A-Za-z0-9])?$",
        examples=["registry.example.org/flexmarl:1.4"],
    )
    """Image of the pods. Checkout and interpreter lie in it at the paths of this installation, or on a volume."""
    image_pull_secrets: tuple[str, ...] = Field(default=(), max_length=10, examples=[["registry"]])
    """Secrets of the namespace with which the image is pulled."""
    volume_claims: dict[str, str] = Field(
        default_factory=dict, max_length=20, examples=[{"/srv/flexmarl": "flexmarl-home"}]
    )
    """Where claims of persistent volumes are mounted: a path and the name of the claim. One has the folder that the
    installation and its hosts share (FLEXMARL_HOME), at the same path."""
    gpu_resource: str = Field(default="nvidia.com/gpu", max_length=253, examples=["nvidia.com/gpu"])
    """Resource of which a pod of GPUs is given as many as it has devices."""
    node_selector: dict[str, str] = Field(
        default_factory=dict, max_length=20, examples=[{"nvidia.com/gpu.product": "H100"}]
    )
    """Labels that a node must have to run the pods."""
    tolerations: tuple[str, ...] = Field(default=(), max_length=20, examples=[["nvidia.com/gpu:NoSchedule"]])
    """Taints of nodes that the pods tolerate, as kubectl writes them: KEY, KEY:EFFECT or KEY=VALUE:EFFECT."""
    priority_class: str = Field(default="", max_length=253, pattern=_OBJECT_OR_NONE, examples=["batch-low"])
    """Priority class of the pods; empty: the cluster's default."""
    service_account: str = Field(default="", max_length=253, pattern=_OBJECT_OR_NONE, examples=["flexmarl-hosts"])
    """Service account of the pods, which get no token of it; empty: the namespace's default."""
    grace_s: int = Field(default=300, ge=30, le=7200)
    """So long a pod that is evicted goes on: its devices are drained at once, and what runs there moves."""
    env_vars: PlainVariables = Field(default_factory=dict, max_length=50, examples=[{"NCCL_SOCKET_IFNAME": "eth0"}])
    """Environment variables of the host's processes. Everybody who may read pods can read them: no secrets."""

    @field_validator("image_pull_secrets")
    @classmethod
    def _named(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for index, name in enumerate(given):
            if not re.fullmatch(_OBJECT, name):
                raise broken_at([index], f"{name[:80]!r} is not a name of a Secret; write it like registry")
        return given

    @field_validator("volume_claims")
    @classmethod
    def _mounted(cls, given: dict[str, str]) -> dict[str, str]:
        for path, claim in given.items():
            if not _MOUNT.fullmatch(path) or {".", ".."} & set(path.split("/")):
                raise broken_at([path], f"{path[:80]!r} is not an absolute path; write it like /srv/flexmarl")
            if not re.fullmatch(_OBJECT, claim):
                raise broken_at([path], f"{claim[:80]!r} is not a name of a claim; write it like flexmarl-home")
        return given

    @field_validator("gpu_resource")
    @classmethod
    def _extended(cls, given: str) -> str:
        if "/" not in given or not _LABEL.fullmatch(given):
            raise ValueError(f"{given[:80]!r} is not an extended resource; write it like nvidia.com/gpu")
        return given

    @field_validator("node_selector")
    @classmethod
    def _labels(cls, given: dict[str, str]) -> dict[str, str]:
        for name, value in given.items():
            if not (_LABEL.fullmatch(name) and _LABEL_VALUE.fullmatch(value)):
                words = f"{name[:80]}={value[:80]} is not a label; write it like nvidia.com/gpu.product=H100"
                raise broken_at([name], words)
        return given

    @field_validator("tolerations")
    @classmethod
    def _taints(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for index, taint in enumerate(given):
            found = TOLERATION.fullmatch(taint)
            if found is None or not _LABEL.fullmatch(found[1]) or not _LABEL_VALUE.fullmatch(found[2] or ""):
                words = f"{taint[:80]!r} is not a taint; write it like nvidia.com/gpu:NoSchedule or team=rl:NoExecute"
                raise broken_at([index], words)
        return given


ProviderOptions = Annotated[
    StaticProvider | SlurmProvider | RayProvider | KubernetesProvider, Field(discriminator="type")
]


class PoolProvider(Strict):
    """What a pool says of its hosts."""

    provider: ProviderOptions = StaticProvider()
