"""Environments of NeMo Gym behind URLs, of one run in one rollout worker: a session of a resources server per episode.

Invariants. Only hosts that the operator allows are asked. A session belongs to one episode. Deadlines of start, turn,
reward and end are each kept, and each failure has a name.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import structlog

from flexmarl.contracts.specification.nemo_gym import NemoGymUrl
from flexmarl.contracts.specification.openenv import PLAYER
from flexmarl.language.dataset_rows import DatasetRow, from_line
from flexmarl.language.gym_rows import NotOfGym, task_of
from flexmarl.language.messages import Message, characters
from workers.external_access import ExternalAccess, ExternalError
from workers.packages.inside.shapes import MOST_LINE, NoReward, NotFinite, ProgramFault, TooLarge
from workers.rollout.datasets import DatasetLines
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.environments.rows import EPOCH, training_line
from workers.rollout.isolation.processes import EnvironmentBroke
from workers.rollout.mcp_client import connections
from workers.rollout.nemo_gym_play import PROTOCOLS, GymPlay, GymScore, GymTalk
from workers.rollout.nemo_gym_wire import GymSession

log = structlog.get_logger(__name__)

NAMED = (ProgramFault, TooLarge, NotFinite, NoReward, ExternalError, NotOfGym)
CUT_OFF = "cut_off"
"""Fact: the agent had all its turns before the episode was over."""


@dataclass(slots=True)
class NemoGymPool:
    """The sessions with one server. Used from one event loop."""

    spec: NemoGymUrl
    access: ExternalAccess
    lines: DatasetLines
    _http: aiohttp.ClientSession | None = None
    _closing: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def begin(self, task_seed: int, held_out: bool, seed: int) -> "NemoGymEpisode":
        """Begin an episode of a row; waits while the server is full. Raises EnvironmentBroke."""
        line, epoch = self._line(task_seed, held_out)
        row = from_line(line)
        try:
            proof, task = self.access.headers(self.spec.url, self.spec.secret), task_of(row)
        except NAMED as error:
            raise EnvironmentBroke(f"boot: {error}") from error
        session = GymSession(self._connections(), self.spec.url, proof)
        play = PROTOCOLS[self.spec.protocol](task, session, GymTalk(task.call, f"{seed}"))
        try:
            async with named("boot", self.spec.setup_timeout_s, session):
                told = bounded(await play.begin())
        except BaseException:  # cancelled, too: the server may hold what nobody would end
            self.left(play)
            raise
        return NemoGymEpisode(self, session, play, row, told, {} if epoch is None else {EPOCH: float(epoch)})

    def _line(self, task_seed: int, held_out: bool) -> tuple[bytes, int | None]:
        if not held_out:
            return training_line(self.lines, task_seed, self.spec.seed)
        rows = self.lines.held_out if self.spec.evaluation_rows == "held_out" else self.lines.training
        return rows[task_seed % len(rows)], None

    def _connections(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = connections()
        return self._http

    def left(self, play: GymPlay) -> None:
        """End a session that nobody uses any more, without waiting for it."""
        closing = asyncio.get_running_loop().create_task(self._closed(play))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _closed(self, play: GymPlay) -> None:
        try:
            async with asyncio.timeout(self.spec.close_timeout_s):
                await play.close()
        except (TimeoutError, *NAMED) as error:
            log.warning("session of an environment not closed", server=self.spec.url, error=str(error))

    async def close(self) -> None:
        """End every session that is still being ended, and drop the connections."""
        if self._closing:
            await asyncio.wait(self._closing)
        if self._http is not None:
            await self._http.close()
            self._http = None


@asynccontextmanager
async def named(where: str, limit: float, session: GymSession) -> AsyncIterator[None]:
    """Name what a server does wrong within a deadline in seconds. Raises EnvironmentBroke."""
    try:
        async with asyncio.timeout(limit):
            yield
    except TimeoutError as error:
        known = f"it was full for {limit:g} s" if session.full else f"no answer within {limit:g} s"
        raise EnvironmentBroke(f"{where}: {known}") from error
    except (NoReward, NotFinite) as error:
        raise EnvironmentBroke(f"score: {error}") from error
    except NAMED as error:
        raise EnvironmentBroke(f"{where}: {error}") from error


def bounded(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return messages that can be read. Raises TooLarge."""
    if (said := characters(messages)) > MOST_LINE:
        raise TooLarge(f"oversized: its messages have {said} characters, at most {MOST_LINE} are read")
    return messages


@dataclass(slots=True)
class NemoGymEpisode:
    """An episode that a server plays. Leave it in every case."""

    pool: NemoGymPool
    session: GymSession
    play: GymPlay
    row: DatasetRow
    told: tuple[Message, ...]
    """What the agent reads next."""
    facts: dict[str, float]
    task: dict[str, object] = field(init=False)
    _score: GymScore | None = None
    _turns: int = 0

    def __post_init__(self) -> None:
        lines = [line.strip() for line in self.row.prompt.splitlines() if line.strip()]
        facts = {"question": self.row.prompt[:MOST_LINE], "server": self.pool.spec.url}
        self.task = {"title": (lines or [""])[-1][:120], "facts": facts}

    def asks(self) -> list[Ask]:
        """Return who must act now; empty when the episode is over."""
        if self._score is not None:
            return []
        call, most = self.play.talk.call, self.pool.spec.reply_tokens
        most = min(most, call.max_tokens or most)
        return [Ask(PLAYER, "", most, messages=self.told, tools=call.tools, structured=call.structured)]

    async def score(self, replies: list[Reply]) -> None:
        """Do nothing: the server scores what it plays."""

    async def act(self, replies: list[Reply]) -> None:
        """Move on. Raises EnvironmentBroke for a server that failed or said nothing in time."""
        self._turns += 1
        async with named("step", self.pool.spec.step_timeout_s, self.session):
            self.told = bounded(await self.play.act(replies[0]))
        self.facts[CUT_OFF] = float(not self.play.over)
        if self.play.over or self._turns >= self.pool.spec.max_turns:
            async with named("score", self.pool.spec.score_timeout_s, self.session):
                self._score = await self.play.score()

    def outcome(self) -> Outcome:
        """Return the account; only when `asks` is empty."""
        assert self._score is not None
        reward = self._score.reward
        earned = {(PLAYER, turn): one for turn, one in self._score.turns.items()}
        solved = reward >= self.pool.spec.best_reward
        return Outcome({PLAYER: reward}, reward, solved, earned, {**self._score.facts, **self.facts})

    def leave(self, reason: str = "") -> None:
        """End the session."""
        self.pool.left(self.play)
