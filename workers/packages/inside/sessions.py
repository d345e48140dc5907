"""An agent program in its own process: what it is told of its session, and what it is called with."""

import asyncio
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import verifiers_environments
from .finding import named_by
from .hosting import ends_with_parent
from .jobs import Job
from .playing import seed_everything
from .shapes import ProgramFault

TASK_FILE = "task.json"
REWARD_FILE = "reward.json"


@dataclass(frozen=True)
class Session:
    """A session, as its program is told of it."""

    id: str
    task: int
    """Number of the task; those of evaluation follow those of training."""
    number: int
    """Number of the task among those of its purpose."""
    held_out: int
    """How many tasks there are for evaluation."""
    purpose: str
    """`training` or `evaluation`."""
    seats: tuple[str, ...]
    """What `model` of a call may be."""
    base_url: str
    """For clients of OpenAI's API."""
    key: str
    workspace: Path
    """Folder of this session alone, in which the program begins."""


def run(order: Mapping[str, Any], job: Job, workspace: Path, tell: Callable[[dict[str, Any]], None]) -> None:
    """Call the program; `tell` says that it begins, and what it came to. Returns where the program does."""
    ends_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What was printed is read up to the last line, however the process ends.
    for stream in (sys.stdout, sys.stderr):
        getattr(stream, "reconfigure", lambda **_: None)(line_buffering=True)
    told = {**order["session"], "seats": tuple(order["session"]["seats"]), "workspace": workspace}
    session = Session(**told)
    os.environ.update(_variables(session))
    os.chdir(workspace)
    sys.argv[:] = [job.name]
    seed_everything(order["seed"])
    try:
        function = verifiers_environments.program_of(job) if job.adapter else named_by(job.entry)
        seed_everything(order["seed"])  # what was loaded may have drawn
        tell({"began": True})
        earned = function(session, **job.options)
        if inspect.isawaitable(earned):
            earned = asyncio.run(_awaited(earned))
        tell({"earned": earned})
    except MemoryError:
        tell({"raised": f"memory: more than {job.memory // 2**20} MiB of address space"})
        raise
    except Exception as error:
        tell({"raised": str(error) if isinstance(error, ProgramFault) else f"{type(error).__name__}: {error}"})
        raise


def become(program: str, words: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Be a command, with these variables beside those that its sandbox was started with. Raises OSError."""
    os.environ.update(variables)
    os.execv(program, list(words))


async def _awaited(earned: Any) -> Any:
    return await earned


def _variables(session: Session) -> dict[str, str]:
    """Return what unmodified clients read, and where the task is."""
    beside = session.workspace.parent / "tmp"
    beside.mkdir()
    task = {"session": session.id, "task": session.task, "purpose": session.purpose, "seats": session.seats}
    (session.workspace / TASK_FILE).write_text(json.dumps(task))
    return {
        "OPENAI_BASE_URL": session.base_url,
        "OPENAI_API_KEY": session.key,
        "ANTHROPIC_BASE_URL": session.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": session.key,
        "FLEXMARL_TASK": str(session.workspace / TASK_FILE),
        "HOME": str(beside),
        "TMPDIR": str(beside),
    }
