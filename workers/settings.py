"""The environment of worker processes, read in this one place."""

import os
import re
import shlex
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from flexmarl.contracts.folder_roots import SETTING
from flexmarl.contracts.hardware import Hardware, read_classes
from flexmarl.contracts.hub_models import SETTING as HUB
from flexmarl.contracts.hub_models import check_hub
from flexmarl.contracts.uploaded_models import SETTING as CONTROL_URL
from flexmarl.host.exits import leave, refuse
from flexmarl.store import database_address
from flexmarl.store.data.model_roots import read_roots
from flexmarl.store.data.segments import BY_VALUE_BYTES
from workers.containers import AUTO, ContainerSettings
from workers.door.address import DoorAddress
from workers.door.token_file import read_token
from workers.errors import SettingsError
from workers.exchange.access import ExchangeAccess
from workers.transfer.objects import check_url

NODE_TOKEN = "FLEXMARL_NODE_TOKEN"
TEMPORARY = "FLEXMARL_TEMPORARY_HOME"
EXAMPLE_URL = "https://flexmarl.example.org"
SECRETS = ("DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY")
"""Of the installation; a node with a token has none of them."""
_SECRET = "FLEXMARL_EXTERNAL_SECRET_"
_BROKER_SCHEMES = frozenset({"redis", "rediss", "unix"})


@dataclass(frozen=True, slots=True)
class HostShare:
    """The part of its machine that a node has, where a scheduler gave it one."""

    pool: str = ""
    """Pool that all its devices join when they register for the first time; empty: what they are decides."""
    memory_mib: int = 0
    """Memory of its processors' devices together; 0: the machine's."""
    gpus: frozenset[int] | None = None
    """Numbers of its GPUs, as nvidia-smi counts; None: all of the machine."""
    home_is_temporary: bool = False
    """Its home ends with it: what its trainers make is kept elsewhere before it is told of."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker process was told. Addresses are host:port."""

    database_url: str
    redis_url: str
    home: Path
    node: str
    cluster_key: str
    """Bearer key of the nodes' command endpoints."""
    node_bind: str
    """Address the node's endpoint binds; port 0 takes a free one."""
    advertise_host: str
    """Host under which others reach this node's endpoint and children."""
    child_host: str
    """Address the children bind."""
    child_threads: int
    """Threads of a child on a CPU share. One is fastest for tiny models: several contend for the same cores."""
    child_stuck_s: int
    """A child with open work that has done no piece of it for so many seconds hangs."""
    cpu_shares: int
    """Devices that the node makes of its processors, two at least; 0: one per core."""
    rollout_pool: str
    rollout_commands: int
    """Rollout commands that one worker process plays at a time."""
    reward_tasks: int
    """Rewards that one worker process computes at a time; a rollout worker with 0 leaves them to reward workers."""
    payload_by_value_bytes: int
    """Payloads of samples up to this size stay in their rows; larger ones go to segment files under the home folder."""
    log_dir: Path | None
    external_hosts: frozenset[str] = frozenset()
    """Hosts (or host:port) that rollout workers may ask for the turns of external agents."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name -> value of what is sent to those hosts."""
    vllm_python: str = ""
    """Interpreter of an environment with vLLM, for runs that choose that engine; empty: this node hosts none."""
    device_classes: Mapping[str, Hardware] = field(default_factory=dict)
    """Part of a device's name -> what such a device is good at."""
    model_roots: tuple[str, ...] = ()
    """Folders below which models and adapters are read; none: no folder is."""
    hub: str = ""
    """Address of the hub that models may be imported from; empty: none."""
    control_url: str = ""
    """Base URL at which this node reaches the control plane, for uploads; empty: it fetches none."""
    object_store: str = ""
    """Where nodes copy what runs can be restored from, and bring it from, as fsspec reads it; empty: nowhere."""
    upload_quota_gib: int = 0
    """What a run may have here of what nodes with tokens upload; 0: a quarter of the disk's size."""
    keep_builds_days: int = 30
    """Days after its last use until a build of a package is removed from this host; 0: never."""
    gateway_bind: str = "127.0.0.1:0"
    """Address at which a rollout worker answers agent programs; port 0 takes a free one."""
    gateway_url: str = ""
    """Base URL in front of it that programs are told; empty: its own address."""
    containers: ContainerSettings = ContainerSettings()  # noqa: RUF009 - immutable
    share: HostShare = HostShare()
    place: str = ""
    """Name of this machine's one process of each role, empty when there may be several."""
    door: DoorAddress | None = None
    """How this node reaches the control plane; addresses of database and broker, and the key, are empty then."""
    exchange: ExchangeAccess = ExchangeAccess()  # noqa: RUF009 - immutable
    """Of which exchange of rollouts this installation is a member."""
    heartbeat_descriptor: int = -1
    """The pipe to the supervisor that started this process; -1 without one."""

    def holder(self, role: str) -> str:
        """Return the place that takes commands for a role; a successor in it takes over what was held."""
        return f"{self.place}/{role}" if self.place else ""

    @property
    def payloads(self) -> Path:
        """Folder of the segment files."""
        return self.home / "payloads"


def main() -> None:
    """Read the settings and say what is wrong with them: `python -m workers.settings`."""
    try:
        load()
    except SettingsError as error:
        refuse(str(error))


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings. Raises SettingsError that names the variable."""
    env = os.environ if environment is None else environment
    child_host = env.get("FLEXMARL_CHILD_HOST", "127.0.0.1")
    home = Path(_required(env, "FLEXMARL_HOME", "a folder that all processes of this machine share")).resolve()
    door = _door(env, home)
    return Settings(
        **(_secrets_of_installation(env) if door is None else {"database_url": "", "redis_url": "", "cluster_key": ""}),
        home=home,
        node=env.get("FLEXMARL_NODE") or ("" if door else socket.gethostname()),
        node_bind=_address(env, "FLEXMARL_NODE_BIND", f"{child_host}:0" if door else "127.0.0.1:0"),
        advertise_host=env.get("FLEXMARL_ADVERTISE_HOST", child_host),
        child_host=child_host,
        child_threads=_positive(env, "FLEXMARL_CHILD_THREADS", 1),
        child_stuck_s=_positive(env, "FLEXMARL_CHILD_STUCK_S", 600),
        cpu_shares=_positive(env, "FLEXMARL_CPU_SHARES", 1) if env.get("FLEXMARL_CPU_SHARES") else 0,
        rollout_pool=env.get("FLEXMARL_ROLLOUT_POOL", "default"),
        rollout_commands=_positive(env, "FLEXMARL_ROLLOUT_COMMANDS", 16),
        reward_tasks=_count(env, "FLEXMARL_REWARD_TASKS", 32),
        payload_by_value_bytes=_positive(env, "FLEXMARL_PAYLOAD_BY_VALUE_BYTES", BY_VALUE_BYTES),
        log_dir=Path(env["FLEXMARL_LOG_DIR"]) if env.get("FLEXMARL_LOG_DIR") else None,
        external_hosts=frozenset(env.get("FLEXMARL_EXTERNAL_HOSTS", "").replace(",", " ").split()),
        secrets={name.removeprefix(_SECRET): value for name, value in env.items() if name.startswith(_SECRET)},
        vllm_python=_program(env, "FLEXMARL_VLLM_PYTHON"),
        device_classes=_classes(env),
        model_roots=_model_roots(env),
        hub=_hub(env),
        control_url=_base_url(env, CONTROL_URL, EXAMPLE_URL) or (door.url if door else ""),
        object_store=_object_store(env),
        upload_quota_gib=_count(env, "FLEXMARL_UPLOAD_QUOTA_GIB", 0),
        keep_builds_days=_count(env, "FLEXMARL_KEEP_BUILDS_DAYS", 30),
        gateway_bind=_address(env, "FLEXMARL_GATEWAY_BIND", f"{child_host}:0"),
        gateway_url=_base_url(env, "FLEXMARL_GATEWAY_URL", "https://gateway.example.org"),
        containers=_containers(env),
        share=_share(env),
        exchange=_exchange(env),
        place=env.get("FLEXMARL_PLACE", ""),
        door=door,
        heartbeat_descriptor=_count(env, "FLEXMARL_HEARTBEAT_FD", 0) if env.get("FLEXMARL_HEARTBEAT_FD") else -1,
    )


def _secrets_of_installation(env: Mapping[str, str]) -> dict[str, str]:
    return {
        "database_url": _database(env, "DATABASE_URL"),
        "redis_url": _url(env, "REDIS_URL", "redis://:password@host:6379/0", _BROKER_SCHEMES),
        "cluster_key": _required(env, "FLEXMARL_CLUSTER_KEY", "the same long random text on every node and driver"),
    }


def joining(url: str, token: str, environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of a host that asks to join with a token that it made. Raises SettingsError."""
    env = dict(os.environ if environment is None else environment)
    if env.get(NODE_TOKEN):
        raise SettingsError(f"{NODE_TOKEN} is set: this host has a token; start its processes, or unset it to join")
    return load({**env, CONTROL_URL: url, NODE_TOKEN: token})


def _door(env: Mapping[str, str], home: Path) -> DoorAddress | None:
    """Read how a node that has a token reaches the control plane; None for one with the installation's secrets."""
    token, secrets = env.get(NODE_TOKEN, ""), [name for name in SECRETS if env.get(name)]
    if not token:
        kept = None if secrets else read_token(home)
        if kept is None:
            return None
        return replace(kept, url=_base_url(env, CONTROL_URL, EXAMPLE_URL) or kept.url)
    if secrets:
        raise SettingsError(f"{NODE_TOKEN} and {secrets[0]} are both set; a node with a token needs no secret of these")
    url = _base_url(env, CONTROL_URL, EXAMPLE_URL)
    if not url:
        raise SettingsError(f"{CONTROL_URL} is not set; with {NODE_TOKEN} it must hold the address of the web service")
    return DoorAddress(url, token)


def _required(env: Mapping[str, str], name: str, hint: str) -> str:
    value = env.get(name, "")
    if not value:
        raise SettingsError(f"{name} is not set; it must hold {hint}")
    return value


def _database(env: Mapping[str, str], name: str) -> str:
    value = _required(env, name, database_address.EXAMPLE)
    try:
        database_address.read(name, value)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return value


def _url(env: Mapping[str, str], name: str, example: str, schemes: frozenset[str]) -> str:
    value = _required(env, name, example)
    try:
        url = urlsplit(value)
        legal = url.scheme in schemes and url.port != 0
    except ValueError:  # a port that is no number, or a bracket that is not closed
        legal = False
    if not legal:
        raise SettingsError(f"{name} is not a legal address; it must look like {example}")
    return value


def _address(env: Mapping[str, str], name: str, default: str) -> str:
    value = env.get(name) or default
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"{name} is {value!r}; it must be host:port, such as {default}")
    return value


def _program(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if value and shutil.which(value) is None:
        raise SettingsError(f"{name} is {value!r}; it must name an interpreter that can be run, or be left out")
    return value


def _classes(env: Mapping[str, str]) -> dict[str, Hardware]:
    try:
        return read_classes(env.get("FLEXMARL_DEVICE_CLASSES", ""))
    except ValueError as error:
        raise SettingsError(f"FLEXMARL_DEVICE_CLASSES: {error}") from None


def _model_roots(env: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return read_roots(env.get(SETTING, ""))
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _share(env: Mapping[str, str]) -> HostShare:
    gpus = env.get("FLEXMARL_GPUS")
    words = (gpus or "").replace(",", " ").split()
    if not all(word.isdecimal() for word in words):
        raise SettingsError(f"FLEXMARL_GPUS is {gpus!r}; it must list numbers of GPUs, such as 0,1, or be empty")
    chosen = None if gpus is None else frozenset(int(word) for word in words)
    return HostShare(env.get("FLEXMARL_POOL", ""), _count(env, "FLEXMARL_MEMORY_MIB", 0), chosen, _flag(env, TEMPORARY))


def _containers(env: Mapping[str, str]) -> ContainerSettings:
    engine = env.get("FLEXMARL_CONTAINER_ENGINE") or AUTO
    try:
        words = shlex.split(engine)
    except ValueError:
        words = []
    if not words:
        raise SettingsError(
            f"FLEXMARL_CONTAINER_ENGINE is {engine!r}; it must be auto, none, or a command of podman with its options, "
            "such as podman --runtime /usr/bin/crun"
        )
    pulled = tuple(env.get("FLEXMARL_CONTAINER_IMAGES", "").replace(",", " ").split())
    if wrong := [one for one in pulled if "/" not in one or "*" in one]:
        raise SettingsError(
            f"FLEXMARL_CONTAINER_IMAGES has {wrong[0]!r}; it must list beginnings of names of images with a registry, "
            "such as ghcr.io/acme/"
        )
    return ContainerSettings(engine, pulled)


def _exchange(env: Mapping[str, str]) -> ExchangeAccess:
    url = _base_url(env, "FLEXMARL_EXCHANGE_URL", "https://exchange.example.org")
    if not url:
        return ExchangeAccess()
    key = _required(env, "FLEXMARL_EXCHANGE_KEY", "the key that `python -m workers.exchange enrol` told")
    if re.fullmatch(r"[0-9a-f]{64}", key) is None:
        raise SettingsError("FLEXMARL_EXCHANGE_KEY is not a key; it must be the 64 hexadecimal digits that enrol told")
    member = _required(env, "FLEXMARL_EXCHANGE_MEMBER", "the name under which this installation was enrolled")
    return ExchangeAccess(url, member, bytes.fromhex(key))


def _hub(env: Mapping[str, str]) -> str:
    try:
        return check_hub(env.get(HUB, ""))
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _base_url(env: Mapping[str, str], name: str, example: str) -> str:
    return _url(env, name, example, frozenset({"http", "https"})).rstrip("/") if env.get(name) else ""


def _object_store(env: Mapping[str, str]) -> str:
    if url := env.get("FLEXMARL_OBJECT_STORE", ""):
        try:
            check_url(url)
        except ValueError as error:
            raise SettingsError(f"FLEXMARL_OBJECT_STORE: {error}") from None
    return url


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name) or "0"
    if text not in {"0", "1"}:
        raise SettingsError(f"{name} is {text!r}; it must be 1, or 0 as if it were not set")
    return text == "1"


def _positive(env: Mapping[str, str], name: str, default: int) -> int:
    return _count(env, name, default, least=1)


def _count(env: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    text = env.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise SettingsError(f"{name} is {text!r}; it must be a whole number from {least}")
    return int(text)


if __name__ == "__main__":
    main()
    leave()
