"""Keeps the container of one session: the only process beside it that sees the host's files and its container engine.

A session in a container has a room: name spaces of processes, mounts, messages and network of its own, and a file
system in memory of as many bytes as the run allows. The keeper is the room's first process, so nothing of the container
outlives it, however it ends. Beside it are the watcher, confined to a few folders of the room, and what the engine
starts: its records and whatever the container writes lie in the room and go with it, and images are read where the host
has them.

Invariants. What the watcher asks for is a command with its variables, and the files of the image: image, limits and
mounts are said by whoever started the room. The container is nobody's user of the host in a user name space, without
capabilities, and its network is the room's: itself, and whoever holds the socket that listens in it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import sandbox
from .hosting import ends_with_parent
from .jobs import Job, read_job
from .shapes import ProgramFault

ROOM = "/media"
"""Where the room's file system lies, as the keeper sees it: a folder that every host has, and nothing needs."""
FOLDERS = {"/tmp": f"{ROOM}/tmp", "/workspace": f"{ROOM}/workspace", "/home": f"{ROOM}/home"}
"""What the watcher writes to; the last two are the container's too, as its workspace and its home."""
SCRATCH = f"{ROOM}/scratch"
"""The container's own /tmp."""
ENGINE = f"{ROOM}/engine"
RECORDS = 2**26
"""Bytes of the engine's records."""
HOME = "/flexmarl"
"""The container's home, with what it is told of its session."""
WORKSPACE = "/workspace"
TOLD = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
"""Variables whose values stand in no command line of the host: keys are among them."""
GROUPS = "flexmarl"
"""Control groups of rooms, each under the number of the process that waits outside of it."""
MOST_OPEN_FILES = 1024
ENGINE_S = 120.0
"""Longest time of one order to the engine."""
EMPTY_S = 5.0
"""Longest wait for the kernel to have let go of the last processes of a room."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USERS = 65_536
WATCHER_MEMORY = 2**30
CHUNK = 2**16
_KILLED = 128 + signal.SIGKILL
_COUNTED_TOGETHER = 2**20
"""Bytes within which the kernel counts: each processor takes some ahead."""
_PREFIXES = ("Error: ", "error: ")


@dataclass(frozen=True)
class ContainerJob:
    """What is run and how much it may use, as whoever starts the room says."""

    engine: list[str]
    """The engine's program, with options that the operator gives it."""
    store: str
    """Where the engine's images lie."""
    image: str
    """Id of an image that is there."""
    folder: str
    """Folder of the image with which the workspace begins; empty: none."""
    cpus: float
    processes: int

    @property
    def workspace(self) -> str:
        """Where the workspace lies in the container."""
        return self.folder or WORKSPACE


def enter(given: Sequence[str], confinement: sandbox.Confinement) -> list[str]:
    """Make a room; returns, in the watcher's process, the arguments with which it goes on.

    Raises OSError where this process may not.
    """
    job = read_job(given[0])
    user = sandbox.own_user()
    group = f"{GROUPS}/{os.getpid()}"
    remove_left()
    sandbox.make_room(ROOM, job.disk)
    first = os.fork()
    if first:
        sandbox.wait_outside(first, lambda: remove_group(group))
    ends_with_parent()
    sandbox.show_processes()
    Path(ENGINE).mkdir()
    sandbox.in_memory(ENGINE, RECORDS)  # a container that fills its own files must not keep the engine from its work
    for folder in (*FOLDERS.values(), SCRATCH):
        Path(folder).mkdir(mode=0o700)
        os.chown(folder, user, user)
    ours, theirs = socket.socketpair()
    watcher = os.fork()
    if watcher:
        theirs.close()
        os.close(int(given[1]))
        keep(ours, watcher, ContainerKeeper(ContainerJob(**job.container), job, user, group, watcher))
    ours.close()
    sandbox.enter_within(confined_to(confinement, user, job.disk))
    theirs.set_inheritable(True)
    return [*given, str(theirs.detach())]


def confined_to(confinement: sandbox.Confinement, user: int, disk: int) -> sandbox.Confinement:
    """Return what the watcher may use: the room's folders beside its own."""
    return sandbox.Confinement(
        WATCHER_MEMORY, confinement.visible, file_bytes=disk, placed=tuple(FOLDERS.items()), user=user
    )


# Control groups of rooms ----------------------------------------------------------------------------------------------


def remove_left() -> None:
    """Remove the control groups of rooms that nobody waits for any more: whoever did was killed."""
    for place in _groups(f"{GROUPS}/[0-9]*"):
        if not Path("/proc", place.name).exists():
            _remove(place)


def remove_group(group: str) -> None:
    """Remove the control groups of a room whose processes were told to end: the kernel counts them a while longer."""
    until = time.monotonic() + EMPTY_S
    while [place for place in _groups(group) if not _remove(place)] and time.monotonic() < until:
        time.sleep(0.01)


def _groups(pattern: str) -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [*root.glob(pattern), *root.glob(f"*/{pattern}")]


def _remove(group: Path) -> bool:
    """Remove a control group and those below it, as far as they are empty; return whether nothing of it is left."""
    for place, folders, _ in os.walk(group, topdown=False):
        for name in folders:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(place, name))
    with contextlib.suppress(OSError):  # a process in it has not ended yet; the next room removes it
        group.rmdir()
    return not group.exists()


def ran_out(group: str, code: int, most: int) -> bool:
    """Tell whether the kernel killed processes of a room for want of memory, of which the engine hears too late at
    times: by the count of the second version of control groups, else by how the container ended and what it had."""
    for place in _groups(group):
        counted, peak = place / "memory.events", place / "memory.max_usage_in_bytes"
        if counted.exists() and "oom_kill 0\n" not in counted.read_text():
            return True
        if peak.exists() and code == _KILLED and int(peak.read_text()) >= most - _COUNTED_TOGETHER:
            return True
    return False


# Orders of the watcher ------------------------------------------------------------------------------------------------


def keep(link: socket.socket, watcher: int, keeper: "ContainerKeeper") -> NoReturn:
    """Carry out what the watcher asks for, until it has ended."""
    os.chdir(ENGINE)  # the engine notes a lack of memory in a file where it was started
    try:
        orders = KeeperOrders(link, os.pidfd_open(watcher))
        while (order := orders.next()) is not None:
            try:
                answer = keeper.carry_out(order, orders)
            except ProgramFault as fault:
                answer = {"raised": str(fault)}
            finally:
                order.close()
            if answer:
                orders.tell(answer)
    finally:
        os._exit(0)  # and the kernel ends all that is in the room


class KeeperOrder:
    """What is asked for, and the descriptor that came with it."""

    def __init__(self, said: dict[str, Any], given: int) -> None:
        self.said, self.given = said, given

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.given)


class KeeperOrders:
    """The line to the watcher."""

    def __init__(self, link: socket.socket, watcher: int) -> None:
        """`watcher`: a descriptor of its process."""
        self._link, self._watcher = link, watcher

    def next(self) -> KeeperOrder | None:
        """Wait for an order; None: the watcher has ended."""
        if not self.stirs(None):
            return None
        mark, given, _, _ = socket.recv_fds(self._link, 1, 1)
        if not mark or not given:
            return None
        text = b""
        while not text.endswith(b"\n"):
            if not (more := self._link.recv(CHUNK)):
                return None
            text += more
        os.set_inheritable(given[0], False)
        return KeeperOrder(json.loads(text), given[0])

    def stirs(self, process: int | None) -> bool:
        """Wait until an order comes, or a process ends; False: the watcher has ended."""
        waiting = [self._link.fileno(), self._watcher, *([] if process is None else [process])]
        return self._watcher not in select.select(waiting, [], [])[0]

    def waits(self) -> bool:
        """Tell whether there is an order."""
        return bool(select.select([self._link], [], [], 0)[0])

    def tell(self, said: Mapping[str, Any]) -> None:
        """Answer."""
        with contextlib.suppress(OSError):
            self._link.sendall(json.dumps(said).encode() + b"\n")


class ContainerKeeper:
    """Has the engine do what is asked for."""

    def __init__(self, container: ContainerJob, job: Job, user: int, group: str, watcher: int) -> None:
        self._container, self._job, self._user, self._group = container, job, user, group
        self._spared = {os.getpid(), watcher}
        self._places = [f"{ENGINE}/{name}" for name in ("root", "run", "tmp")]

    def carry_out(self, order: KeeperOrder, orders: KeeperOrders) -> dict[str, Any]:
        """Carry out an order; returns the answer. Raises ProgramFault."""
        match order.said["type"]:
            case "copy":
                self._copy(order.given)
                return {"copied": True}
            case "run":
                return self._run(order, orders)
            case "end":
                self._end()
                return {"gone": True}
        raise ProgramFault(f"container: no order {order.said['type']}")

    def _copy(self, to: int) -> None:
        """Write the files of the image's folder as an archive. Raises ProgramFault."""
        self._engine("create", "--name", "files", "--pull=never", "--network=none", self._container.image, "files")
        self._engine("cp", f"files:{self._container.folder}/.", "-", output=to)
        self._engine("rm", "--force", "files")

    def _run(self, order: KeeperOrder, orders: KeeperOrders) -> dict[str, Any]:
        """Run a command; returns how it ended, or nothing where it was ended. Raises ProgramFault."""
        variables: dict[str, str] = order.said["env"]
        told = {name: variables[name] for name in TOLD if name in variables}
        named = [f"--env={name}" if name in told else f"--env={name}={value}" for name, value in variables.items()]
        words = [*self._options(), *named, self._container.image, *order.said["words"]]
        self._engine("create", "--name", "session", *words, variables=told)
        self._engine("init", "session")
        orders.tell({"began": True})
        started = subprocess.Popen(
            [*self._command(), "start", "--attach", "session"],
            stdin=subprocess.DEVNULL, stdout=order.given, stderr=order.given, env=_environment(),
        )  # fmt: skip
        ending = os.pidfd_open(started.pid)
        try:
            while started.poll() is None:
                if not orders.stirs(ending):
                    os._exit(0)
                if orders.waits():  # whoever asked does not wait any more
                    return {}
        finally:
            os.close(ending)
        state = json.loads(self._engine("inspect", "--format", "{{json .State}}", "session"))
        code = int(state["ExitCode"])
        short = bool(state.get("OOMKilled")) or ran_out(self._group, code, self._job.memory)
        self._end()
        return {"ended": code, "out_of_memory": short}

    def _options(self) -> list[str]:
        """Return what the container may use."""
        own, most = self._container, self._container.processes
        memory, mapped = str(self._job.memory), f"0:{self._user}:{USERS}"
        return [
            "--pull=never", "--network=host", "--uts=private", "--ipc=private", "--pid=private", "--cgroups=no-conmon",
            f"--cgroup-parent=/{self._group}", f"--uidmap={mapped}", f"--gidmap={mapped}", "--user=0:0",
            "--log-driver=none", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all",
            "--security-opt=no-new-privileges", f"--memory={memory}", f"--memory-swap={memory}", f"--cpus={own.cpus}",
            f"--pids-limit={most}", f"--ulimit=nofile={MOST_OPEN_FILES}:{MOST_OPEN_FILES}",
            f"--ulimit=nproc={most}:{most}", "--ulimit=core=0:0", "--entrypoint=", "--no-healthcheck",
            "--hostname=session",
            f"--volume={FOLDERS['/workspace']}:{own.workspace}", f"--volume={FOLDERS['/home']}:{HOME}",
            f"--volume={SCRATCH}:/tmp", f"--workdir={own.workspace}",
        ]  # fmt: skip

    def _command(self) -> list[str]:
        root, run, tmp = self._places
        own = self._container
        return [
            *own.engine, "--root", root, "--runroot", run, "--tmpdir", tmp, "--cgroup-manager=cgroupfs",
            "--storage-driver=overlay", "--storage-opt", f"additionalimagestore={own.store}",
            "--events-backend=none", "--log-level=error",
        ]  # fmt: skip

    def _engine(self, *words: str, output: int = subprocess.PIPE, variables: Mapping[str, str] | None = None) -> str:
        """Have the engine do something; returns what it says. Raises ProgramFault in its words."""
        try:
            done = subprocess.run(
                [*self._command(), *words], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                timeout=ENGINE_S, env=_environment(variables), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ProgramFault(f"container: its engine did not answer to {words[0]} within {ENGINE_S:g} s") from None
        except OSError as error:
            raise ProgramFault(f"container: its engine cannot be started: {error.strerror}") from None
        if done.returncode:
            raise ProgramFault(fault_of(words[0], done.stderr.decode(errors="replace"), self._container))
        return "" if done.stdout is None else done.stdout.decode(errors="replace")

    def _end(self) -> None:
        """End every process of the room but this one and the watcher's own."""
        while others := _others(self._spared):
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _reap(others)
            time.sleep(0.005)


def fault_of(word: str, said: str, container: ContainerJob) -> str:
    """Return why the engine did not do something, from what it wrote."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    for prefix in _PREFIXES:
        last = last.removeprefix(prefix)
    last = last.replace(ENGINE, "").replace(container.store, "")
    if "executable file not found" in last or "command that was not found" in last:
        return f"unknown command: its image has no such program: {_quoted(last)}"
    if word == "cp" and "no such file" in last.lower():
        return f"workspace: its image has no folder {container.folder}"
    return f"container: {last[:400]}"


def _quoted(said: str) -> str:
    """Return what an engine put in quotes, or all of it."""
    parts = said.split('"')
    return repr(parts[1]) if len(parts) > 2 else said[:200]


def _environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what the engine finds in its environment; `variables` are those of the session that it passes on."""
    return {**(variables or {}), "PATH": SYSTEM_PATH, "HOME": ENGINE, "LANG": "C.UTF-8"}


def _others(spared: set[int]) -> set[int]:
    """Return the processes of the room but for some and their descendants; what the first one adopted is none."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(folder.name)] = int(fields[1])
    kept, growing = spared, True
    while growing:
        more = {pid for pid, parent in parents.items() if parent in kept - {os.getpid()}} - kept
        kept, growing = kept | more, bool(more)
    return parents.keys() - kept


def _reap(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
