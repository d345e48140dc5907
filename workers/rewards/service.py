"""A reward from an HTTP endpoint: the episode is posted as JSON, what it earned comes back.

Sent: a `Played`. Expected, with status 200: `{"scores": {role: number}, "team_score": number, "facts": {name:
number}}`; `team_score` may be left out and is then the mean of the scores. Whom it may ask, and with which secret, is
this installation's choice, as for external agents.
"""

import aiohttp
import msgspec

from flexmarl.contracts.specification.reward import ScoringService
from workers.external_access import MAY_PASS, ExternalAccess, ExternalError, ExternalFailure, post, quoted
from workers.rewards.base import Earned, Played, RewardFailed

CONNECTIONS = 64
"""Episodes that one worker sends to a host at a time."""


class _Answer(msgspec.Struct):
    scores: dict[str, float]
    team_score: float | None = None
    facts: dict[str, float] = {}


class ServiceReward:
    """One per run and worker: keeps its connections, and nothing of an episode."""

    def __init__(self, spec: ScoringService, access: ExternalAccess) -> None:
        self._spec = spec
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, played: Played) -> Earned:
        try:
            headers = self._access.headers(self._spec.url, self._spec.secret)
            body = msgspec.json.encode(played)
            answer = await post(self._open(), self._spec.url, headers, body, self._spec.timeout_s)
            return _earned(answer, headers)
        except ExternalError as error:
            # A service that let one request time out may answer the next.
            passing = error.code in MAY_PASS or error.code is ExternalFailure.TIMEOUT
            raise RewardFailed(str(error), passing) from error

    async def close(self) -> None:
        """Drop the connections."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit_per_host=CONNECTIONS))
        return self._session


def _earned(answer: bytes, headers: dict[str, str]) -> Earned:
    try:
        said = msgspec.json.decode(answer, type=_Answer)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        text = f"no scores: {quoted(answer, headers)}"
        raise ExternalError(ExternalFailure.BAD_REPLY, text) from error
    scores = said.scores
    team = said.team_score
    if team is None:
        team = sum(scores.values()) / len(scores) if scores else 0.0
    return Earned(scores, team, said.facts)
