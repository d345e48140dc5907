"""An agent program as its users have it: the client of OpenAI, unmodified, with another base URL and key."""

import threading
from typing import Any

from openai import OpenAI, OpenAIError

from tests.support.system import Api, ApiError


def client_of(session: dict[str, Any], **options: Any) -> OpenAI:
    return OpenAI(base_url=session["base_url"], api_key=session["key"], **options)


def take(api: Api, run: str, ended: threading.Event) -> dict[str, Any] | None:
    """Take a session as soon as there is one; None when the run has ended."""
    while not ended.is_set():
        try:
            return api.call("POST", f"/runs/{run}/sessions", {})
        except ApiError as refused:
            if refused.problem.get("code") == "invalid_state":
                return None
            if refused.problem.get("code") != "no_open_session":
                raise
        ended.wait(0.1)
    return None


def solve(session: dict[str, Any], *, stream: bool = False, solver_asks: dict[str, Any] | None = None) -> list[str]:
    """Have a solver answer and a reviser look at it, twice each; returns what they said, in order.

    `solver_asks`: what calls to the solver say beside their messages.
    """
    client, said = client_of(session), []
    question = f"What is {session['task'] % 10}+{session['task'] // 10 % 10}?"
    solver = [{"role": "user", "content": question}]
    reviser = [{"role": "system", "content": "You revise."}, {"role": "user", "content": question}]
    for _ in range(2):
        for seat, messages in (("solver", solver), ("reviser", reviser)):
            text = asked(client, seat, messages, stream=stream, **(solver_asks or {} if seat == "solver" else {}))
            said.append(text)
            messages.append({"role": "assistant", "content": text})
        solver.append({"role": "user", "content": f"The reviser said: {said[-1]}"})
        reviser.append({"role": "user", "content": f"The solver said: {said[-2]}"})
    return said


def asked(client: OpenAI, seat: str, messages: list[dict[str, Any]], *, stream: bool = False, **more: Any) -> str:
    if not stream:
        return client.chat.completions.create(model=seat, messages=messages, **more).choices[0].message.content
    chunks = client.chat.completions.create(model=seat, messages=messages, stream=True, **more)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


class Program(threading.Thread):
    """Plays sessions of a run until it has ended."""

    def __init__(
        self,
        api: Api,
        run: str,
        *,
        stream: bool = False,
        later_s: float = 0.0,
        solver_asks: dict[str, Any] | None = None,
    ) -> None:
        """`later_s`: how long after its end the reward of a session is known; 0: at once. `solver_asks`: what calls to
        the solver say beside their messages."""
        super().__init__(daemon=True)
        self.api, self.run_id, self.stream, self.later_s = api, run, stream, later_s
        self.solver_asks = solver_asks
        self.ended = threading.Event()
        self.played: dict[str, list[str]] = {}
        """Session -> what was said in it."""
        self.lost: list[str] = []
        """Sessions whose worker was gone."""
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while (session := take(self.api, self.run_id, self.ended)) is not None:
                try:
                    said = solve(session, stream=self.stream, solver_asks=self.solver_asks)
                    self.report(session["id"], score(said))
                except (OpenAIError, ApiError):
                    self.lost.append(session["id"])
                else:
                    self.played[session["id"]] = said
        except Exception as failure:
            self.failure = failure

    def report(self, session: str, reward: float) -> None:
        if self.later_s:
            self.finish(session, {"reward_later": True})
            threading.Timer(self.later_s, self.evaluated, [session, reward]).start()
        else:
            self.finish(session, {"reward": reward})

    def evaluated(self, session: str, reward: float) -> None:
        """Report what was found out about a session whose program has ended."""
        try:
            self.finish(session, {"reward": reward})
        except Exception as failure:
            self.failure = failure

    def finish(self, session: str, said: dict[str, Any]) -> None:
        self.api.call("POST", f"/runs/{self.run_id}/sessions/{session}/finish", said)


def score(said: list[str]) -> float:
    """Some reward that differs between sessions."""
    return (sum(map(len, said)) % 7) / 7
