"""Starts commands: one session in a sandbox of its own, its workspace laid out before and compared afterwards.

Invariants. A command finds the key of its session and no other secret; one that evaluates finds none. When a command
has ended, whatever it started has ended too before anything is read of the workspace. What stands in braces is filled
in where a value is one argument, and never read by a shell.
"""

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from . import workspaces
from .hosting import adopts_orphans, ends_with_parent, serve
from .sessions import REWARD_FILE, TASK_FILE, become
from .shapes import NoReward, ProgramFault, TooLarge
from .starting import WatchedProgram, begun, ready, report_of, rewarded, watch

PROMPT_FILE = "prompt.txt"
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
MOST_FILE = 2**18
"""Bytes of a final file that are read."""
LOOK_S = 0.005
"""Between looks at whether what was killed has ended."""
_UNKNOWN = 127


def main(arguments: Sequence[str]) -> None:
    """Serve orders until the worker hangs up."""
    control = socket.socket(fileno=int(arguments[1]))
    job, how, folder, door = begun(control, arguments)
    ready(control, how, door)
    kind = {"command": WatchedCommand, "evaluate": WatchedEvaluation}[job.name]
    play = partial(watch, job=job, folder=folder, kind=kind)
    serve(control, play, lambda: shutil.rmtree(folder, ignore_errors=True), alone=True)


class WatchedCommand(WatchedProgram):
    """A command that runs, from its watcher's side. The order has `session`, `runner`, `question` and `files`."""

    def prepare(self) -> None:
        """Lay out the workspace, and what the command is told."""
        adopts_orphans()
        self._fault = ""
        self._before: workspaces.Workspace = {}
        self.workspace.mkdir(parents=True, exist_ok=True)
        session = self._order["session"]
        self._told: dict[str, object] = {
            **session, "session": session["id"], "seat": session["seats"][0],
            "workspace": self.seen(self.workspace),
        }  # fmt: skip
        try:
            self.fill_workspace()
            self._before = workspaces.state_of(self.workspace)
            self._told["prompt"] = self._prompt()
            self.variables = self._variables()
        except ProgramFault as fault:
            self._fault = str(fault)
        except (OSError, UnicodeError) as error:
            self._fault = f"workspace: {type(error).__name__}: {_reason(error)}"

    @property
    def beside(self) -> Path:
        """Its home, with what it is told of its session."""
        return self._folder / "tmp"

    def seen(self, path: Path) -> str:
        """Return a path as the command finds it."""
        return str(path)

    def fill_workspace(self) -> None:
        """Lay files into the empty workspace. Raises ProgramFault or OSError."""
        self._lay(self._order["runner"]["workspace"])

    def _lay(self, files: Mapping[str, Any]) -> None:
        workspaces.lay(self.workspace, filled_in(files["folder"], self._told), self._order["files"])

    @property
    def command(self) -> Any:
        """What is run."""
        return self._order["runner"]["command"]

    def _prompt(self) -> str:
        """Return what the agent is asked. Raises ProgramFault."""
        runner, question = self._order["runner"], self._order["question"]
        if not (name := runner["prompt_file"]):
            template = runner["prompt"] or "{question}"
            return filled_in(template, {**self._told, "question": question})
        return read_text(self.workspace, filled_in(name, self._told), "prompt")

    def _variables(self) -> dict[str, str]:
        """Return what a command finds in its environment, beside what its sandbox was started with."""
        session = self._order["session"]
        told = {name: session[name] for name in ("task", "number", "purpose", "seats")}
        beside, seen = self.beside, self.seen
        beside.mkdir(exist_ok=True)
        task = {"session": session["id"], **told, "prompt": self._told["prompt"], "workspace": seen(self.workspace)}
        (beside / TASK_FILE).write_text(json.dumps(task))
        (beside / PROMPT_FILE).write_text(str(self._told["prompt"]), errors="surrogateescape")
        own = {
            "PATH": ":".join(dict.fromkeys([f"{sys.prefix}/bin", *SYSTEM_PATH, f"{sys.base_prefix}/bin"])),
            "HOME": seen(beside),
            "TMPDIR": seen(beside),
            "FLEXMARL_TASK": seen(beside / TASK_FILE),
            "FLEXMARL_PROMPT": seen(beside / PROMPT_FILE),
        }
        return {**own, **self._secrets()}

    def _secrets(self) -> dict[str, str]:
        """Return what unmodified clients read, and the runner's own variables."""
        url, key = str(self._told["base_url"]), str(self._told["key"])
        clients = {
            "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_API_KEY": key,
        }  # fmt: skip
        own = {name: filled_in(value, self._told) for name, value in self._order["runner"]["env"].items()}
        return {**own, **clients}

    def become(self, output: int, telling: int) -> NoReturn:
        """Be the command."""
        for taken in (1, 2):
            os.dup2(output, taken)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.set_inheritable(telling, False)
        ends_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            if self._fault:
                raise ProgramFault(self._fault)
            words = self.words()
            program = shutil.which(words[0], path=self.variables["PATH"])
            if program is None:
                raise ProgramFault(f"unknown command: {words[0]!r} is not a program of {self._where()}")
            os.chdir(self.workspace)
            say(telling, {"began": True})
            become(program, words, self.variables)
        except ProgramFault as fault:
            say(telling, {"raised": str(fault)})
        except (OSError, ValueError) as error:  # too many words, a NUL among them, a file that is no program
            say(telling, {"raised": f"command not started: {_reason(error)}"})
        finally:
            os._exit(_UNKNOWN)

    def words(self) -> list[str]:
        """Return what is run, with its arguments."""
        if isinstance(self.command, str):
            return ["/bin/sh", "-c", self.command]
        return [filled_in(word, self._told) for word in self.command]

    def _where(self) -> str:
        """Say where programs are looked for."""
        own = sys.prefix != sys.base_prefix
        if not own:
            return "the host, and the runner names no package"
        names = sorted(path.name for path in Path(sys.prefix, "bin").iterdir() if path.name not in _OF_ENVIRONMENTS)
        return f"its package or of the host; its package's: {', '.join(names[:20])}"

    def left(self) -> None:
        """End whatever the command started."""
        end_descendants()

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order about a command that has ended. Raises ProgramFault or NoReward."""
        match order["type"]:
            case "read":
                return {"type": "text", "text": read_text(self.workspace, order["path"], "none")}
            case "pack":
                workspaces.pack(self.workspace, partial(_send_piece, self.tell), self._job.disk)
                return {"type": "packed"}
        return super().answer(order)

    def last(self) -> dict[str, Any]:
        """Return what became of the files."""
        return {"changes": workspaces.changes(self._before, workspaces.state_of(self.workspace))}


class WatchedEvaluation(WatchedCommand):
    """A command that looks at the workspace of another one, which comes in pieces behind the order."""

    def fill_workspace(self) -> None:
        """Lay out the workspace as the agent left it, and over it what it must not have changed."""
        workspaces.unpack(self._pieces(), self.workspace)
        left = self.workspace / REWARD_FILE
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        self._lay(self._order["runner"]["evaluator"]["files"])

    def _pieces(self) -> Iterator[bytes]:
        """Read pieces from the worker's line. Raises ProgramFault where it ends before they do."""
        while True:
            while b"\n" not in self._heard:
                if not (more := os.read(self._line, workspaces.PIECE)):
                    raise ProgramFault("workspace: it did not come whole")
                self._heard += more
            text, _, self._heard = self._heard.partition(b"\n")
            said = json.loads(text)
            if said["type"] != "piece":
                return
            yield base64.b64decode(said["data"])

    @property
    def command(self) -> Any:
        """What is run."""
        return self._order["runner"]["evaluator"]["command"]

    def _prompt(self) -> str:
        """Return what the agent was asked; nothing where a file says it, which the agent may have changed."""
        return "" if self._order["runner"]["prompt_file"] else super()._prompt()

    def _secrets(self) -> dict[str, str]:
        return {}

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Say what the command found. Raises NoReward or NotFinite."""
        earned = rewarded(self.workspace)
        return {"type": "evaluated", "report": None if earned is None else report_of(earned)}

    def last(self) -> dict[str, Any]:
        return {}


_OF_ENVIRONMENTS = frozenset({"python", "python3", "activate", "activate.csh", "activate.fish", "Activate.ps1"})
"""What every virtual environment has."""
_WORDS = re.compile(r"(?<!\$)\{([a-z_]+)\}")


def filled_in(text: str, told: Mapping[str, object]) -> str:
    """Return a text with the words in braces that are told; all others stay as they are."""
    return _WORDS.sub(lambda found: str(told.get(found[1], found[0])), text)


def read_text(workspace: Path, name: str, what: str) -> str:
    """Return a file of a workspace. Raises NoReward or ProgramFault for `what` is not there."""
    fault: Callable[[str], Exception] = NoReward if what == "none" else ProgramFault
    path = workspace / name
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            body = file.read(MOST_FILE + 1) if path.is_file() else None
    except OSError as error:
        raise fault(f"{what}: {name} cannot be read: {error.strerror}") from None
    if body is None:
        raise fault(f"{what}: {name} is no file")
    if len(body) > MOST_FILE:
        raise TooLarge(f"oversized: {name} has more than {MOST_FILE} bytes")
    return body.decode(errors="replace")


def _reason(error: Exception) -> str:
    """Say what an error is, without paths."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def say(telling: int, said: Mapping[str, Any]) -> None:
    os.write(telling, json.dumps(said).encode() + b"\n")


def _send_piece(tell: Callable[[dict[str, Any]], None], body: bytes) -> None:
    tell({"type": "piece", "data": base64.b64encode(body).decode()})


# Processes -----------------------------------------------------------------------------------------------------------


def end_descendants() -> None:
    """Kill every descendant of this process, and reap it."""
    while found := _descendants(os.getpid()):
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)
        _reap()
    _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def _descendants(own: int) -> set[int]:
    """Return the descendants of a process that have not ended; none where they cannot be seen."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(folder.name)] = int(fields[1])
    found: set[int] = set()
    waiting = [own]
    while waiting:
        above = waiting.pop()
        new = {pid for pid, parent in parents.items() if parent == above} - found
        found |= new
        waiting += new
    return found
