"""Who answers for a model: an engine of its run that holds the version, or one that a node brings up for it.

Invariants. A live engine is asked only for what it holds already, through a token that opens generation alone, at most
`LIVE_CALLS` at a time and for `LIVE_S` at most: training goes on beside it, and no talk loads weights there. Every
other version is answered by a node's own engine, which trains nothing. An answer is taken only from exactly the digest
that was asked for. A connection that is closed ends its replies.
"""

import contextlib
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import orjson
from django.conf import settings
from pydantic import ValidationError

from flexmarl.contracts.play import ENGINES_BUSY, PlayEngine, PlayRefusal, PlayRequest
from flexmarl.controlplane.common.problems import (
    Busy,
    Conflict,
    FieldError,
    ProblemError,
    RateLimited,
    ValidationProblem,
)
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.playground.models_of import Model
from flexmarl.controlplane.playground.speaking import TokenizedQuestion
from flexmarl.store.control import engines, nodes

CALLS, LIVE_CALLS = 4, 2
"""Questions that one web process has open at a time: to engines of nodes, and to engines of runs that train."""
LIVE_S, PLAY_S = 20.0, 60.0
"""How long one answer may take."""
CONNECT_S = 5.0
NODE_S = 35.0
"""A node answers at once, save when it loads weights."""
AGAIN_S = 0.2
BUSY_S, FREE_S = 0.5, 5
"""When to look again for an engine that answers others, here, and by whoever was refused."""
NODES = 3
"""Nodes that are asked for an engine, those that trained the run first."""


class EngineStarting(Busy):
    code = "engine_starting"
    title = "An engine is starting"


class NoEngineFree(Busy):
    code = "no_engine_free"
    title = "All engines of nodes are in use"


class EngineFailed(Busy):
    code = "engine_failed"
    title = "The engine did not answer"


class VersionGone(Conflict):
    code = "version_gone"
    title = "The version's weights were deleted"


class NotServed(Conflict):
    code = "not_served"
    title = "A node's own engine cannot serve this model"


class ContextTooLong(ProblemError):
    code = "context_length_exceeded"
    title = "The engine refused the request"


class VersionReleased(Exception):
    """The engine let the version go between finding it and asking."""


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """Where a version is answered."""

    endpoint: str
    token: str
    live: bool
    """It plays episodes of a run that trains."""


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """What came of one reply since the last part of it."""

    index: int
    token_ids: list[int]
    logprobs: list[float]
    finish: str
    """`stop`, `length`, or empty while it goes on."""


class QuestionSlots:
    """How many questions are open in this process."""

    def __init__(self, most: int, what: str) -> None:
        self._left, self._most, self._what = threading.BoundedSemaphore(most), most, what

    def take(self) -> None:
        """Take a place. Raises RateLimited at once when there is none: waiting would hold a thread."""
        if not self._left.acquire(blocking=False):
            detail = f"{self._most} {self._what} are open in this process. Try again in a second."
            raise RateLimited(detail, headers={"Retry-After": "1"})

    def leave(self) -> None:
        """Give a place back."""
        self._left.release()


PLAY_PLACES = QuestionSlots(CALLS, "requests to agents")
LIVE_PLACES = QuestionSlots(LIVE_CALLS, "requests to agents of training runs")


def live(model: Model) -> ServingEngine | None:
    """Return one of the run's own engines that holds the model, None when none does."""
    held = _live(model)
    return random.choice(held) if held else None


def bring_up(model: Model, wait_s: float) -> ServingEngine:
    """Return an engine of a node that holds the model.

    Raises EngineStarting when none is up after `wait_s`, NoEngineFree when all answer for other runs until then,
    VersionGone or EngineFailed when there will be none.
    """
    addresses = nodes.addresses_for(store_connection(), model.run.no)[:NODES]
    if not addresses:
        raise EngineFailed("No running node can start an engine.", headers={"Retry-After": "5"})
    deadline = time.monotonic() + wait_s
    while True:
        refused = []
        for address in addresses:
            answer = _from_node(address, model, deadline)
            if isinstance(answer, ServingEngine):
                return answer
            refused.append(answer)
        busy = any(one.code == ENGINES_BUSY for one in refused)
        if not busy or time.monotonic() + BUSY_S > deadline:
            raise _no_engine(model, refused)
        time.sleep(BUSY_S)


def _live(model: Model) -> list[ServingEngine]:
    """The run's own engines that hold exactly this version."""
    found = []
    for route in engines.routes(store_connection(), model.run.no):
        pins = [route.holds.get(model.policy), route.former.get(model.policy)]
        if any(pin is not None and pin.version == model.version and pin.digest == model.digest for pin in pins):
            found.append(ServingEngine(route.endpoint, route.token, live=True))
    return found


def _from_node(address: str, model: Model, deadline: float) -> ServingEngine | PlayRefusal:
    """Ask a node until its engine is up or time is over."""
    while True:
        answer = _ask_node(address, PlayRequest(run_id=model.run.no, policy=model.policy, version=model.version))
        if isinstance(answer, PlayRefusal):
            return answer
        if answer.endpoint and answer.digest == model.digest:
            return ServingEngine(answer.endpoint, answer.token, live=False)
        if time.monotonic() + AGAIN_S > deadline:
            detail = (
                f"An engine for {model.run.key} has been starting for {answer.since_s:.0f} s. Try again in a moment."
            )
            raise EngineStarting(detail, headers={"Retry-After": "1"})
        time.sleep(AGAIN_S)


def _ask_node(address: str, asked: PlayRequest) -> PlayEngine | PlayRefusal:
    request = urllib.request.Request(
        f"http://{address}/v1/playground",
        data=asked.model_dump_json().encode(),
        headers={"Authorization": f"Bearer {settings.CLUSTER_KEY}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=NODE_S) as answer:
            return PlayEngine.model_validate_json(answer.read())
    except urllib.error.HTTPError as error:
        with contextlib.suppress(ValidationError):
            return PlayRefusal.model_validate_json(error.read())
        return PlayRefusal(code="node_failed", detail=f"the node at {address} answered {error.code}")
    except (OSError, ValidationError) as error:
        return PlayRefusal(code="node_unreachable", detail=f"the node at {address} did not answer: {error}")


def _no_engine(model: Model, refused: list[PlayRefusal]) -> ProblemError:
    said = "; ".join(dict.fromkeys(one.detail for one in refused))
    if any(one.code in {"state_missing", "state_corrupt"} for one in refused):
        detail = f"{model.name}: its weights are no longer stored ({said})."
        hint = f"Use a newer version, or {model.run.key}/{model.role} for the newest."
        return VersionGone(detail, errors=[FieldError("/model", VersionGone.code, detail, hint)])
    if any(one.code == ENGINES_BUSY for one in refused):
        detail = f"No engine is free for {model.name}: {said}. Ask again when one of their answers has ended."
        return NoEngineFree(detail, headers={"Retry-After": str(FREE_S)})
    if any(one.code == "unsupported_model" for one in refused):
        return NotServed(f"{model.name} is available only while the run's own engines serve it: {said}.")
    return EngineFailed(f"No engine answers for {model.name}: {said}.", headers={"Retry-After": "5"})


async def parts(
    engine: ServingEngine, model: Model, asked: TokenizedQuestion, seeds: list[int]
) -> AsyncIterator[ReplyPart]:
    """Ask an engine; yield what comes of the replies, which are prompts times draws in the order of `seeds`.

    Raises VersionReleased, EngineFailed, or ContextTooLong with what the engine refused.
    """
    each = len(seeds) // len(asked.prompts)
    body = {
        "model": model.policy,
        "prompt": [prompt for prompt in asked.prompts for _ in range(each)],
        "max_tokens": asked.max_tokens, "seeds": seeds, "version": model.version, "digest": model.digest,
        "temperature": asked.temperature, "allowed_token_ids": asked.allowed, "stop_token_ids": asked.stop,
        "sampling": {**asked.sampling, "top_k": int(asked.sampling["top_k"])},
        "stream": True, "progress": True,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {engine.token}", "Content-Type": "application/json"}
    missing = set(range(len(seeds)))
    timeout = aiohttp.ClientTimeout(total=LIVE_S if engine.live else PLAY_S, sock_connect=CONNECT_S)
    url, packed = f"{engine.endpoint}/v1/completions", orjson.dumps(body)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, data=packed, headers=headers) as response,
        ):
            if response.status != 200:
                raise _refusal(response.status, await response.read())
            async for line in response.content:
                for part in _parts_of(line):
                    missing -= {part.index} if part.finish else set()
                    yield part
    except TimeoutError:
        raise EngineFailed(_late(model, engine), headers={"Retry-After": "5"}) from None
    except (aiohttp.ClientError, ConnectionError) as error:
        detail = f"{model.name}: the engine's connection broke off ({type(error).__name__}). Try again."
        raise EngineFailed(detail, headers={"Retry-After": "1"}) from None
    if missing:
        raise EngineFailed(f"{model.name}: the engine ended the answer too early.", headers={"Retry-After": "1"})


def _late(model: Model, engine: ServingEngine) -> str:
    if engine.live:
        why = f"no answer within {LIVE_S:g} s: the run's engines play its episodes at the same time"
        return f"{model.name}: {why}. Try again, ask for fewer tokens, or ask an ended or paused run."
    return f"{model.name}: no whole answer within {PLAY_S:g} s. Ask for fewer tokens, or use a faster host."


def _parts_of(line: bytes) -> list[ReplyPart]:
    if not line.startswith(b"data: {"):
        return []
    choices = orjson.loads(line[6:])["choices"]
    if any(choice["finish_reason"] == "nonfinite" for choice in choices):
        raise EngineFailed("The weights of this version compute log-probabilities that are not numbers.")
    if any(choice["finish_reason"] == "too_complex" for choice in choices):
        raise EngineFailed("What the reply must be exceeds the limits of grammars. Say less in its format.")
    if any(choice["finish_reason"] in ("abort", "out_of_memory") for choice in choices):
        raise EngineFailed("The engine stopped the reply. Try again.", headers={"Retry-After": "1"})
    return [ReplyPart(c["index"], c["token_ids"], c["logprobs"], c["finish_reason"]) for c in choices]


def _refusal(status: int, body: bytes) -> Exception:
    try:
        said = json.loads(body)
        code, detail = str(said.get("code", "")), str(said.get("detail", ""))
    except ValueError:
        code, detail = "", body[:200].decode(errors="replace")
    if status == 409:
        return VersionReleased(code)
    if status == 422 and detail.startswith("structured: "):
        return ValidationProblem(f"No engine can hold a reply to its format. {detail}")
    if status == 422:
        field = "max_tokens" if "positions" in detail else detail.partition(":")[0]
        return ContextTooLong(detail, errors=[FieldError(f"/{field}", ContextTooLong.code, detail)])
    return EngineFailed(f"The engine answered {status} {code}: {detail}", headers={"Retry-After": "1"})
