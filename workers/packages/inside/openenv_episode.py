"""An episode of OpenEnv, without the wire: what a session is asked, and what its answers mean.

What asks is a generator: it yields a message, and is sent the answer of the server as an object. So the same episode is
played with a server in this process, and with one that is far away.

Invariant: a reward that is absent is never 0.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from .openenv_actions import ActionForm, NoAction, told, tool_result, tools_of, why
from .shapes import NoReward, ProgramFault, SeatAsk, SeatReply, SeatResult

ROLE = "player"
UNFINISHED = "unfinished_reward"
CAPACITY, FACTORY, INVALID = "CAPACITY_REACHED", "FACTORY_ERROR", "VALIDATION_ERROR"
"""Codes of the library's errors."""

Asking = Generator[dict[str, Any], dict[str, Any], None]
"""Yields messages and is sent their answers."""


@dataclass(frozen=True)
class Worth:
    """How rewards make a score."""

    last: bool
    """The last reward counts, else their sum."""
    unfinished: float | None
    """Score of an episode that ended before there was a reward; None: it has none."""


class ServerError(ProgramFault):
    """A server answered with an error; `code` is one of the library's."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def asked(work: Asking, exchange: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Ask all that an episode asks."""
    try:
        message = next(work)
        while True:
            message = work.send(exchange(message))
    except StopIteration:
        return


def observation_of(what: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an answer holds: observation, reward, done. Raises NoAction, ServerError and ProgramFault."""
    said = answer.get("data")
    if not isinstance(said, dict):
        raise ProgramFault(f"garbage: the answer to {what} has no data")
    if answer.get("type") == "error":
        code, message = str(said.get("code")), str(said.get("message", ""))
        if code == INVALID and what == "step":
            raise NoAction(f"That is no legal action. {why(said.get('errors', message))}")
        raise ServerError(code, f"its {what} failed: {code}: {message}")
    reward = said.get("reward")
    if answer.get("type") != "observation" or not isinstance(said.get("observation"), dict):
        raise ProgramFault(f"garbage: the answer to {what} is no observation")
    if reward is not None and not isinstance(reward, int | float):
        raise ProgramFault(f"garbage: the reward of {what} is no number")
    return said


class ServedGame:
    """One player, who acts until the environment says that it is over, or who calls no tool any more."""

    def __init__(self, form: ActionForm, worth: Worth) -> None:
        self._form = form
        self._worth = worth
        self._rewards: dict[int, float] = {}
        """Rewards by the number of the turn that earned them."""
        self._turn = 0
        self._counts = {"steps": 0.0, "illegal": 0.0}
        self._over = self._won = False
        self._unpaid = False
        """The last observation of an episode that is over has no reward."""
        self._text = self.first = ""
        self._tools: tuple[dict[str, Any], ...] = ()
        self._results: tuple[tuple[str, str], ...] = ()

    def begin(self, given: Mapping[str, Any]) -> Asking:
        """Begin, with what `reset` is given."""
        said = observation_of("reset", (yield {"type": "reset", "data": dict(given)}))
        self._over = bool(said.get("done"))
        self._text = self.first = told(said["observation"])
        if self._over:
            self._pay(said)
        elif self._form.kind == "tools":
            answer = yield {"type": "step", "data": {"type": "list_tools"}}
            self._tools = tools_of(observation_of("step", answer)["observation"])
            if not self._tools:
                raise ProgramFault("its actions are calls of tools, and it lists none")

    def asks(self) -> list[SeatAsk]:
        """Return who must act now."""
        if self._over:
            return []
        system = self._form.rules if self._turn == 0 else ""
        return [SeatAsk(ROLE, self._text, system, self._tools, self._results)]

    def act(self, reply: SeatReply) -> Asking:
        """Take a reply."""
        self._results = ()
        if self._form.kind == "tools":
            self._text = ""
            yield from self._call(reply)
        else:
            yield from self._say(reply.text)
        self._turn += 1

    def _say(self, text: str) -> Asking:
        """Take an action; what is none is told to the player, and changes nothing."""
        try:
            said = observation_of("step", (yield {"type": "step", "data": self._form.action(text)}))
        except NoAction as refused:
            self._counts["illegal"] += 1
            self._text = str(refused)
            return
        self._taken(said)
        self._text = told(said["observation"])

    def _call(self, reply: SeatReply) -> Asking:
        """Make the calls of a reply up to the end of the episode; one without calls ends it."""
        self._over = not reply.calls
        results = []
        for call in reply.calls:
            if self._over:
                break
            action = {"type": "call_tool", "tool_name": call["name"], "arguments": call.get("arguments", {})}
            try:
                said = observation_of("step", (yield {"type": "step", "data": action}))
            except NoAction as refused:
                text, failed = str(refused), True
            else:
                self._taken(said)
                text, failed = tool_result(said["observation"])
            self._counts["illegal"] += failed
            results.append((str(call.get("id", "")), text))
        self._results = tuple(results)

    def _taken(self, said: Mapping[str, Any]) -> None:
        self._counts["steps"] += 1
        self._over = bool(said.get("done"))
        self._pay(said)

    def _pay(self, said: Mapping[str, Any]) -> None:
        reward = said.get("reward")
        self._unpaid = self._over and reward is None
        self._won = self._over and reward is not None and float(reward) > 0.0
        if reward is not None:
            before = 0.0 if self._worth.last else self._rewards.get(self._turn, 0.0)
            self._rewards[self._turn] = before + float(reward)

    def result(self) -> SeatResult:
        """Return the rewards. Raises NoReward where the environment gave none."""
        if self._unpaid:
            raise NoReward("none: the last observation has no reward")
        turns = sorted(self._rewards.items())
        if self._worth.last:
            turns = turns[-1:]
        total = sum(reward for _, reward in turns) if turns else self._without_reward()
        if not self._turn:  # it was over before anybody had a turn
            turns = []
        earned = {(ROLE, turn): one for turn, one in turns}
        return SeatResult({ROLE: total}, total, self._won, earned, dict(self._counts))

    def _without_reward(self) -> float:
        """Return the score of an episode that was cut off, or given up, before there was a reward."""
        if self._worth.unfinished is None:
            known = f"none of its {self._counts['steps']:g} observations has a reward"
            raise NoReward(f"none: {known}, and the option {UNFINISHED} does not say what it is worth unfinished")
        return self._worth.unfinished
