"""Watches commands in containers: their files and what they are told are this process's, the container is the keeper's.

Invariant: nothing of the workspace is read while a process of the container is there.
"""

import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from . import workspaces
from .commanding import WatchedCommand, WatchedEvaluation, say
from .containing import CHUNK, HOME, ContainerJob
from .hosting import ends_with_parent, serve
from .jobs import Job
from .shapes import ProgramFault
from .starting import begun, ready, watch

OWN_WORKSPACE, OWN_HOME = Path("/workspace"), Path("/home")
"""Where this process has them."""


def main(arguments: Sequence[str]) -> None:
    """Serve orders until the worker hangs up."""
    control = socket.socket(fileno=int(arguments[1]))
    keeper = KeeperLine(socket.socket(fileno=int(arguments[2])))
    job, how, folder, door = begun(control, arguments)
    ready(control, how, door)
    kind = {"command": ContainedCommand, "evaluate": ContainedEvaluation}[job.name]
    play = partial(watch, job=job, folder=folder, kind=partial(kind, keeper))
    serve(control, play, lambda: shutil.rmtree(folder, ignore_errors=True), alone=True)


class KeeperLine:
    """The line to the keeper of the container."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._heard = link, b""

    def ask(self, order: Mapping[str, Any], given: int) -> None:
        """Ask for something that concerns a descriptor."""
        socket.send_fds(self._link, [b"!"], [given])
        self._link.sendall(json.dumps(order).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """Wait for an answer. Raises ProgramFault where it says why not."""
        while b"\n" not in self._heard:
            if not (more := self._link.recv(CHUNK)):
                raise ProgramFault("container: its keeper is gone")
            self._heard += more
        text, _, self._heard = self._heard.partition(b"\n")
        said: dict[str, Any] = json.loads(text)
        if "raised" in said:
            raise ProgramFault(said["raised"])
        return said


class Contained(WatchedCommand):
    """A command in a container, from its watcher's side."""

    def __init__(
        self, keeper: KeeperLine, line: int, order: Mapping[str, Any], heard: bytes, job: Job, folder: Path
    ) -> None:
        self._keeper, self._container = keeper, ContainerJob(**job.container)
        super().__init__(line, order, heard, job, folder)

    @property
    def workspace(self) -> Path:
        """Folder in which it begins."""
        return OWN_WORKSPACE

    @property
    def beside(self) -> Path:
        """Its home, with what it is told of its session."""
        return OWN_HOME

    def seen(self, path: Path) -> str:
        """Return a path as the command finds it."""
        for own, there in ((OWN_WORKSPACE, self._container.workspace), (OWN_HOME, HOME)):
            if path.is_relative_to(own):
                return str(there / path.relative_to(own))
        return str(path)

    def _variables(self) -> dict[str, str]:
        """Return what it finds in its environment beside what its image says."""
        variables = {**super()._variables(), "TMPDIR": "/tmp"}
        del variables["PATH"]
        return variables

    def become(self, output: int, telling: int) -> NoReturn:
        """Have the command run, and end as it did."""
        ends_with_parent()
        status = 1
        try:
            if self._fault:
                raise ProgramFault(self._fault)
            self._keeper.ask({"type": "run", "words": self.words(), "env": self.variables}, output)
            os.close(output)
            self._keeper.hear()
            say(telling, {"began": True})
            ended = self._keeper.hear()
            status = ended["ended"] & 0xFF
            if ended["out_of_memory"] and status:
                raise ProgramFault(f"memory: its processes needed more than {self._job.memory // 2**20} MiB")
        except ProgramFault as fault:
            say(telling, {"raised": str(fault)})
        finally:
            os._exit(status)

    def left(self) -> None:
        """End whatever is in the container."""
        with open(os.devnull, "rb") as nothing:
            self._keeper.ask({"type": "end"}, nothing.fileno())
        gone = False
        while not gone:
            try:
                gone = "gone" in self._keeper.hear()
            except ProgramFault as fault:  # of a command that nobody waits for any more
                gone = "keeper" in str(fault)


class ContainedCommand(Contained):
    """The agent's command, in a workspace that may begin with files of its image."""

    def fill_workspace(self) -> None:
        """Lay files into the empty workspace. Raises ProgramFault or OSError."""
        if self._container.folder:
            self._copy()
        super().fill_workspace()

    def _copy(self) -> None:
        """Lay the image's folder into the workspace. Raises ProgramFault."""
        reading, writing = os.pipe()
        self._keeper.ask({"type": "copy"}, writing)
        os.close(writing)
        broken: ProgramFault | None = None
        try:
            workspaces.unpack(_pieces(reading), self.workspace)
        except ProgramFault as fault:
            broken = fault
        finally:
            os.close(reading)
        self._keeper.hear()
        if broken is not None:
            raise broken
        room = os.statvfs(self.workspace)
        if room.f_bavail * room.f_frsize < workspaces.PIECE:
            raise ProgramFault(
                f"workspace: {self._container.folder} of its image fills the {self._job.disk // 2**20} MiB of disk_mb"
            )


class ContainedEvaluation(Contained, WatchedEvaluation):
    """A command that looks at the workspace of another one, in the same image."""


def _pieces(reading: int) -> Iterator[bytes]:
    while piece := os.read(reading, CHUNK):
        yield piece
