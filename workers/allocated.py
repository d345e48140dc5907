"""The processes of one host that a cluster gave for a while: `python -m workers.allocated --job ID ...`.

It runs as the batch job of Slurm itself, as the container of a pod of Kubernetes, or as the child of an actor of Ray:
node agent, device worker and rollout workers are its children and are started again when they end. SIGUSR1 is the
scheduler's notice that the time is nearly over: what runs here moves to other hosts. SIGTERM ends the children and the
job; where it is itself the notice (`--grace`), as in a pod that is evicted, it does so once nothing runs here.

Invariants: secrets of the installation come from a file that only its owner reads (`--settings`), never from the
command line or the job's environment. Without that file the host has a node token in its environment and keeps its
files on its own disk; none of its processes gets a secret of the installation. A job that does not own its row in the
store starts nothing, so that of two jobs of one row only one works.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import structlog

from flexmarl.contracts.uploaded_models import SETTING as CONTROL_URL
from flexmarl.host.exits import CONFIGURATION, refuse
from flexmarl.host.output import open_log, protect
from flexmarl.store.control import host_jobs
from workers import reporting, settings
from workers.adopted import PARENT
from workers.door.client import NotItsOwn
from workers.entry import briefly
from workers.errors import NotAdmitted, SettingsError
from workers.settings import NODE_TOKEN, SECRETS, TEMPORARY

log = structlog.get_logger(__name__)
ROUND_S = 0.2
STOP_S = 12.0
"""Longest time that children may take to leave; a device worker takes most of it."""
LONGEST_PAUSE_S = 30.0
STOP_MARGIN_S = 3.0
LOOK_S = 1.0
"""How often a host that was told to stop looks whether something runs there still."""
TOLD_TO_STOP = "Kubernetes ends its pod"
SHARED = ("state", "payloads", "checkpoints")
"""Folders of the installation that all its hosts share."""
TRIES_S = 60.0
"""How long a database that does not answer is asked again before the job ends."""
OPEN_MODES = 0o077
_VLLM = "FLEXMARL_VLLM_PYTHON"
_OVER = (NotAdmitted, NotItsOwn)
"""What a host with a token is told when its job, or its token, holds no more."""
Store = Callable[[], AbstractContextManager[psycopg.Connection]]
"""Opens the way to the store for one call."""


@dataclass(slots=True)
class HostProcess:
    """A child that is kept running."""

    name: str
    arguments: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    pause_s: float = 0.0
    next_start: float = 0.0
    began: float = 0.0

    def tend(self, environment: Mapping[str, str], logs: Path, now: float) -> int | None:
        """Start it where it does not run; returns how it ended where no start of it can work."""
        if self.process is not None and (code := self.process.poll()) is not None:
            if code == CONFIGURATION:
                return code
            self.pause_s = 1.0 if now - self.began > LONGEST_PAUSE_S else min(LONGEST_PAUSE_S, 2 * self.pause_s or 1.0)
            log.warning("process ended", process=self.name, code=code, again_in_s=self.pause_s)
            self.process, self.next_start = None, now + self.pause_s
        if self.process is None and now >= self.next_start:
            out = open_log(logs / f"{self.name}.log")
            command = [sys.executable, "-m", "workers.adopted", *self.arguments]
            try:
                self.process = subprocess.Popen(
                    command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            finally:
                os.close(out)
            self.began = now
        return None


@dataclass(slots=True)
class HostSignals:
    """What the scheduler has said; handlers only note it."""

    leaving: bool = False
    stopping: bool = False
    told: bool = field(default=False)

    def arm(self) -> None:
        """Listen from now on."""
        signal.signal(signal.SIGUSR1, self._leave)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self.leaving = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True


@dataclass(slots=True)
class HostGrace:
    """When a host ends that was told to stop: at once, or once nothing runs there, before it is killed."""

    store: Store
    job: UUID
    grace_s: float
    until: float | None = None
    next_look: float = 0.0

    def over(self, now: float) -> bool:
        """Tell whether it ends now; the first time that it does not, what runs there has yet to be told to move."""
        if not self.grace_s:
            return True
        if self.until is None:
            self.until = now + max(0.0, self.grace_s - STOP_S - STOP_MARGIN_S)
            return False
        if now < self.next_look:
            return now >= self.until
        self.next_look = now + LOOK_S
        return now >= self.until or not self._used()

    def _used(self) -> bool:
        """Tell whether something may run on the host still."""
        try:
            with self.store() as conn:
                return host_jobs.is_used(conn, self.job)
        except _OVER:
            return False
        except psycopg.Error as error:
            log.warning("store does not answer", error=str(error))
            return True


def main() -> None:
    """Run the host until SIGTERM."""
    given = _told()
    signals = HostSignals()
    signals.arm()
    reporting.configure("allocated")
    shared = read_settings(given.settings) if given.settings else None
    native = given.native or os.environ.get("SLURM_JOB_ID", "")
    with home_of(given, shared) as home:
        try:
            environment = environment_of(shared, given, home, os.environ)
            store = briefly(settings.load(environment), "flexmarl allocated")
        except SettingsError as error:
            _refuse(str(error))
        if not _claimed(store, given.job, native, signals):
            log.warning("superseded", job=str(given.job), native=native)
            return
        prepare_home(home, Path(shared["FLEXMARL_HOME"]) if shared else None)
        sys.exit(_serve(given, environment, store, signals))


def _told() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.allocated", description=__doc__)
    parser.add_argument("--settings", type=Path, help="JSON file of mode 600 with the settings; none: it has a token")
    parser.add_argument("--home", type=Path, help="its files are below this, with a token; none: in a temporary folder")
    parser.add_argument("--job", type=UUID, required=True, help="id of the job's row")
    parser.add_argument("--node", required=True, help="name of the node")
    parser.add_argument("--pool", required=True, help="pool that its devices join")
    parser.add_argument("--devices", type=int, required=True, help="shares of its processors")
    parser.add_argument("--kind", choices=("cpu", "cuda"), required=True, help="what its devices are")
    parser.add_argument("--rollout-workers", type=int, default=1, help="rollout workers that it runs")
    parser.add_argument("--notice", type=float, default=0.0, help="seconds between SIGUSR1 and the end")
    parser.add_argument("--native", default="", help="the provider's name of the job; none: Slurm's variable says it")
    parser.add_argument("--memory-gib", type=int, default=0, help="memory of the host; 0: Slurm's variable says it")
    parser.add_argument("--grace", type=float, default=0.0, help="seconds between SIGTERM and SIGKILL; 0: end at once")
    return parser.parse_args()


def read_settings(path: Path) -> dict[str, str]:
    """Read the settings of an installation's hosts; refuses a file that others may read."""
    try:
        with path.open() as file:
            found = os.fstat(file.fileno())
            if found.st_mode & OPEN_MODES or found.st_uid != os.geteuid():
                _refuse(
                    f"{path} must belong to this user and have mode 600; correct it, or delete it: it is written again"
                )
            values = json.load(file)
    except OSError as error:
        _refuse(f"{path} cannot be read ({error.strerror}); FLEXMARL_HOME must be a folder that all hosts share")
    except ValueError:
        _refuse(f"{path} is damaged; delete it: it is written again")
    return {str(name): str(value) for name, value in values.items()}


@contextmanager
def home_of(given: argparse.Namespace, shared: Mapping[str, str] | None) -> Iterator[Path]:
    """Give the host a folder of its own; one that nobody chose goes with it."""
    if shared is not None:
        yield Path(shared["FLEXMARL_HOME"]) / "nodes" / given.node
    elif given.home is not None:
        yield given.home / given.node
    else:
        made = tempfile.mkdtemp(prefix=f"flexmarl-{given.node}-")
        try:
            yield Path(made)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def environment_of(
    shared: Mapping[str, str] | None, given: argparse.Namespace, home: Path, ours: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the host's processes: the installation's settings, and what this host is.

    Without the settings that hosts share they come from this process's environment, and none is a secret. Raises
    SettingsError where that has no token, or not the address of the web service.
    """
    told = {**ours, **shared} if shared is not None else _without_secrets(ours)
    address = address_towards(*(_database(told) if shared is not None else _web_service(told)))
    memory = str(given.memory_gib * 1024) if given.memory_gib else ours.get("SLURM_MEM_PER_NODE", "")
    own = {
        "FLEXMARL_HOME": str(home),
        "FLEXMARL_LOG_DIR": str(home / "logs"),
        "FLEXMARL_NODE": given.node,
        "FLEXMARL_PLACE": f"{given.node}@{given.job}",
        "FLEXMARL_POOL": given.pool,
        "FLEXMARL_ROLLOUT_POOL": given.pool,
        "FLEXMARL_CPU_SHARES": str(given.devices),
        "FLEXMARL_GPUS": ours.get("CUDA_VISIBLE_DEVICES", "") if given.kind == "cuda" else "",
        "FLEXMARL_MEMORY_MIB": memory if memory.isdecimal() else "0",
        "FLEXMARL_NODE_BIND": f"{address}:0",
        "FLEXMARL_CHILD_HOST": address,
        "FLEXMARL_ADVERTISE_HOST": address,
        PARENT: str(os.getpid()),
    }
    if shared is None:
        own[TEMPORARY] = "1"  # what is below `--home` may be found by no other host
    return {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **told, **own}


def _without_secrets(ours: Mapping[str, str]) -> dict[str, str]:
    for name in (NODE_TOKEN, CONTROL_URL):
        if not ours.get(name):
            raise SettingsError(f"{name} is not set; without --settings a host needs it in its environment")
    told = {name: value for name, value in ours.items() if name not in SECRETS}
    if (python := told.get(_VLLM)) and shutil.which(python) is None:
        log.warning("no vLLM here", setting=_VLLM, value=python)  # it is a path of the installation's own machines
        del told[_VLLM]
    return told


def _database(told: Mapping[str, str]) -> tuple[str, int]:
    options = psycopg.conninfo.conninfo_to_dict(told["DATABASE_URL"])
    return str(options.get("host") or "").split(",")[0], int(str(options.get("port") or 5432).split(",")[0])


def _web_service(told: Mapping[str, str]) -> tuple[str, int]:
    try:
        url = urlsplit(told[CONTROL_URL])
        return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        raise SettingsError(f"{CONTROL_URL} is not a legal address; it must look like {settings.EXAMPLE_URL}") from None


def address_towards(host: str, port: int) -> str:
    """Return the address of this host on the network of a server, which others of the installation reach."""
    if not host or host.startswith("/"):
        return "127.0.0.1"
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        _refuse(f"{host} has no address on this host: {error.strerror}")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])


def prepare_home(home: Path, installation: Path | None) -> None:
    """Make the host's home; weights, checkpoints and payloads are the installation's where it shares a folder."""
    (home / "logs").mkdir(parents=True, exist_ok=True)
    if installation is None:
        return
    for name in SHARED:
        (installation / name).mkdir(exist_ok=True)
        if not (home / name).exists():
            (home / name).symlink_to(installation / name)


def _claimed(store: Store, job: UUID, native: str, signals: HostSignals) -> bool:
    """Own the job's row; an installation that does not answer yet is asked again."""
    deadline = time.monotonic() + TRIES_S
    while not signals.stopping:
        try:
            with store() as conn:
                return host_jobs.claim(conn, job, native)
        except NotAdmitted as refused:
            _refuse(str(refused))
        except NotItsOwn:
            return False
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                _refuse(f"the installation does not answer this host: {str(error).strip()}")
            time.sleep(2.0)
    return False


def _serve(given: argparse.Namespace, environment: Mapping[str, str], store: Store, signals: HostSignals) -> int:
    run = ("workers.run", "--role")
    kept = [HostProcess("node", ("workers.node",)), HostProcess("device-worker", (*run, "device"))]
    kept += [HostProcess(f"rollout-worker-{n + 1}", (*run, "rollout")) for n in range(given.rollout_workers)]
    logs, code = Path(environment["FLEXMARL_LOG_DIR"]), 0
    places = environment["FLEXMARL_PLACE"]
    grace = HostGrace(store, given.job, given.grace)
    while not code and not (signals.stopping and grace.over(time.monotonic())):
        now = time.monotonic()
        for one in kept:
            place = f"{places}/{one.name}"  # several rollout workers are several places
            ended = one.tend({**environment, "FLEXMARL_PLACE": place}, logs, now)
            if ended is not None:
                code = ended
                log.error("setting is wrong", process=one.name, log=str(logs / f"{one.name}.log"))
        if (signals.leaving or (signals.stopping and given.grace)) and not signals.told:
            signals.told = _leave(store, given)
        time.sleep(ROUND_S)
    _stop(kept)
    return code


def _leave(store: Store, given: argparse.Namespace) -> bool:
    """Let what runs here move, since the scheduler ends the job soon. False: to be tried again."""
    left_s = given.notice or given.grace
    end = time.time() + left_s if left_s else None
    try:
        with store() as conn:
            host_jobs.leave(conn, given.job, TOLD_TO_STOP if given.grace else host_jobs.TIME_LIMIT, end)
    except _OVER as refused:
        log.warning("cannot leave", why=str(refused))
    except psycopg.Error as error:
        log.warning("store does not answer", error=str(error))
        return False
    log.info("leaving", node=given.node, until=end)
    return True


def _stop(kept: Sequence[HostProcess]) -> None:
    """End the children, those that hold leases first; none is left."""
    running = [one.process for one in reversed(kept) if one.process is not None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + STOP_S
    for process in running:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _refuse(text: str) -> NoReturn:
    refuse(f"allocated: {text}")


if __name__ == "__main__":
    protect()
    main()
