"""Agent programs that are commands: each session in a sandbox of its own, and its reward from an evaluator.

Invariants. A session's sandbox has one command and nothing of other sessions. A command that evaluates runs in another
one, without keys and without a way to the gateway, on a copy of the files: nothing that the agent left running is
there. What is no reward within the run's range is none, and never 0.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from flexmarl.algorithms.scores import RowScorer, ScorePart
from flexmarl.contracts.specification.commands import CommandRunner, EvaluateCommand, ScoredText, WorkspaceFiles
from flexmarl.language.dataset_rows import DatasetRow
from flexmarl.language.messages import Message
from workers.rollout.gateway.images import Image, Images
from workers.rollout.gateway.processes import StartedProgram
from workers.rollout.gateway.server import Gateway
from workers.rollout.gateway.sessions import ProgramSession
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.isolation.lines import (
    Began,
    Broke,
    Evaluated,
    FileText,
    Packed,
    PackOrder,
    Piece,
    ProgramRan,
    ReadOrder,
    ScoreOrder,
    StartCommand,
    line,
)
from workers.rollout.isolation.processes import ForkedProcess
from workers.rollout.packages import Builds, start_packaged
from workers.scoring.apart import ApartScorer
from workers.scoring.errors import ScoringFailed

SECRET = ("key", "base_url")
"""What a command that evaluates is not told."""


@dataclass(slots=True)
class CommandPool:
    """The commands of one run in one rollout worker."""

    run_id: int
    spec: CommandRunner
    gateway: Gateway
    builds: Builds
    images: Images = field(default_factory=Images)
    _folder: Path | None = None
    _sites: dict[ForkedProcess, web.SockSite] = field(default_factory=dict)
    _scorer: "TextScorer | None" = None
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def build(self) -> None:
        """Have the package here, where the runner names one. Raises EnvironmentBroke."""
        if self._folder is None and self.spec.package:
            self._folder = await self.builds.of(self.spec)

    def play(
        self, session: ProgramSession, told: dict[str, Any], seed: int, row: DatasetRow | None = None
    ) -> "StartedCommand":
        """Start a command for a session. `told`: what it is told of it, except for its base URL."""
        return StartedCommand(self, session, told, seed, row)

    async def image(self, row: DatasetRow | None) -> Image | None:
        """Return the image of a session; None: it runs in no container. Raises EnvironmentBroke."""
        if (container := self.spec.container) is None:
            return None
        return await self.images.of(container.image or column_of(row, container.column, "image"))

    async def fork(self, image: Image | None = None) -> tuple[ForkedProcess, str]:
        """Have a sandbox, and the base URL at which it reaches the gateway. Raises EnvironmentBroke."""
        process = await self.sandbox("command", image)
        try:
            door = process.host.ready.result()
            assert door is not None
            self._sites[process] = await self.gateway.admit(door)
        except BaseException:
            self.release(process)
            raise
        return process, f"http://127.0.0.1:{door.getsockname()[1]}/v1"

    async def sandbox(self, kind: str, image: Image | None) -> ForkedProcess:
        """Have the only process of a new sandbox, for a `command` or to `evaluate`. Raises EnvironmentBroke."""
        job: dict[str, Any] = {"name": kind, "memory": self.spec.memory_mb * 2**20, "disk": self.spec.disk_mb * 2**20}
        if image is not None:
            job["container"] = self._contained(image)
        host = start_packaged(self._folder, "command" if image is None else "container", job)
        try:
            return await host.fork()
        except BaseException:
            host.end()
            raise

    def _contained(self, image: Image) -> dict[str, Any]:
        """Return what the keeper of a container is told (`workers.packages.inside.containing.ContainerJob`)."""
        own, engine = self.spec.container, image.engine
        assert own is not None
        of_host = {"engine": engine.command, "store": engine.store, "image": image.id}
        return {**of_host, "folder": own.folder, "cpus": own.cpus, "processes": own.processes}

    def late(self, broke: EnvironmentBroke) -> None:
        """Do nothing: a sandbox ends with its session."""

    def release(self, process: ForkedProcess) -> None:
        """End a sandbox, and all that is in it."""
        process.end()
        process.host.end()
        if (site := self._sites.pop(process, None)) is not None:
            self.later(site.stop())

    def later(self, work: Any) -> None:
        """Do something that nobody waits for but the end of the pool."""
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def scorer(self, evaluator: ScoredText) -> "TextScorer":
        """Return what scores texts, one for all sessions."""
        if self._scorer is None:
            self._scorer = TextScorer(evaluator)
        return self._scorer

    async def close(self) -> None:
        """Wait for the end of every command, and end what scores."""
        while self._ending:
            await asyncio.wait(self._ending)
        if self._scorer is not None:
            await self._scorer.apart.close()


class StartedCommand(StartedProgram):
    """A session that a command of this worker plays."""

    def __init__(
        self,
        pool: CommandPool,
        session: ProgramSession,
        told: dict[str, Any],
        seed: int,
        row: DatasetRow | None,
    ) -> None:
        self._commands, self._row = pool, row
        self._image: Image | None = None
        self._evaluation = ""
        """End of what the command wrote that evaluated."""
        super().__init__(pool, session, told, seed)

    @property
    def image(self) -> str:
        """Image of the container that it runs in, with its digest; empty: in none."""
        return "" if self._image is None else str(self._image)

    async def _forked(self) -> tuple[ForkedProcess, str]:
        self._image = await self._commands.image(self._row)
        return await self._commands.fork(self._image)

    def _order(self, url: str) -> StartCommand:
        return self._start({**self._told, "base_url": url}, self._commands.spec.workspace)

    def _start(self, told: dict[str, Any], files: WorkspaceFiles) -> StartCommand:
        question = "" if self._row is None else self._row.prompt
        return StartCommand(told, self._commands.spec.model_dump(mode="json"), question, columns_of(self._row, files))

    async def _scored(self, process: ForkedProcess) -> dict[str, Any]:
        match self._commands.spec.evaluator:
            case EvaluateCommand() as evaluator:
                return await self._evaluated(process, evaluator)
            case ScoredText() as evaluator:
                text = self._session.last_message
                if evaluator.of == "file":
                    text = (await process.ask(ReadOrder(evaluator.file), FileText)).text
                spec = self._session.spec
                return await self._commands.scorer(evaluator).report(text, self._row, spec.seats, spec.best_reward)
        return await super()._scored(process)

    async def _evaluated(self, process: ForkedProcess, evaluator: EvaluateCommand) -> dict[str, Any]:
        """Have a command look at what was left, elsewhere. Raises EnvironmentBroke."""
        other = await self._commands.sandbox("evaluate", self._image)
        try:
            told = {name: value for name, value in self._told.items() if name not in SECRET}
            other.writer.write(line(self._start(told, evaluator.files)))
            await _sent(process, other)
            began = await other.answer()
            ran = await other.answer() if isinstance(began, Began) else began
            if not isinstance(ran, ProgramRan):
                raise EnvironmentBroke(f"evaluate: garbage: {type(ran).__name__} is not how it ended")
            self._evaluation = ran.output
            if ran.reason and ran.status not in evaluator.worthless:
                raise EnvironmentBroke(f"evaluate: {ran.reason}")
            said = (await other.ask(ScoreOrder(), Evaluated)).report
        finally:
            self._commands.release(other)
        passed = 0.0 if ran.reason else self._session.spec.best_reward
        return {"reward": passed} if said is None else said

    def _kept(self, output: str) -> str:
        whole = f"{output.rstrip()}\n[evaluate]\n{self._evaluation}" if self._evaluation else output
        return super()._kept(whole)


async def _sent(process: ForkedProcess, other: ForkedProcess) -> None:
    """Carry the files of one sandbox to another one. Raises EnvironmentBroke."""
    process.writer.write(line(PackOrder()))
    try:
        while not isinstance(answer := await process.answer(), Packed):
            if isinstance(answer, Broke):
                raise EnvironmentBroke(answer.reason)
            if not isinstance(answer, Piece):
                raise EnvironmentBroke(f"garbage: {type(answer).__name__} is no piece of a workspace")
            other.writer.write(line(answer))
            await other.writer.drain()
        other.writer.write(line(answer))
    except ConnectionError as error:
        raise EnvironmentBroke(f"evaluate: its process died: {error}") from error


def columns_of(row: DatasetRow | None, files: WorkspaceFiles) -> dict[str, str]:
    """Return what of a row is laid into a workspace, by path. Raises EnvironmentBroke."""
    return {path: column_of(row, column, "workspace") for path, column in files.columns.items()}


def column_of(row: DatasetRow | None, column: str, what: str) -> str:
    """Return what a column of a row says. Raises EnvironmentBroke for `what` needs it where there is none."""
    known: Mapping[str, Any] = {} if row is None else {"question": row.prompt, "answer": row.answer, **row.columns}
    if column not in known:
        raise EnvironmentBroke(f"{what}: the row has no column {column}; its columns: {', '.join(known)}")
    value = known[column]
    return value if isinstance(value, str) else json.dumps(value)


class TextScorer:
    """Scores texts by the scores of datasets."""

    def __init__(self, evaluator: ScoredText) -> None:
        self._rows = RowScorer(evaluator.scores)
        self.apart = ApartScorer(evaluator.scores)

    async def report(self, text: str, row: DatasetRow | None, seats: tuple[str, ...], best: float) -> dict[str, Any]:
        """Return what a text earns. Raises EnvironmentBroke where a score is not known."""
        of = row or DatasetRow((Message("user", ""),))
        parts: dict[str, ScorePart] = self._rows.parts(of, text)
        try:
            parts |= await self.apart.parts(of, text)
        except ScoringFailed as failed:
            raise EnvironmentBroke(f"none: {failed}") from failed
        if broken := [f"{name}: {part.why}" for name, part in parts.items() if part.broken]:
            raise EnvironmentBroke(f"none: {broken[0]}")
        own = {seat: best * self._rows.worth(parts, seat) for seat in seats if self._rows.pays(seat)}
        return {"reward": best * self._rows.worth(parts), **({"rewards": own} if own else {})}
