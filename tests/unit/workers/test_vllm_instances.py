"""Which instance a version takes, what a load does to replies, each settled once, with instances that only count."""

import asyncio
import itertools
import threading
from dataclasses import replace

import msgspec
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from flexmarl.contracts.specification.team import FactoryModel
from workers.child import IntervalLog
from workers.models.architecture import Architecture, UnsupportedModel
from workers.models.weights import initial_weights
from workers.rollout.engines.base import EngineFailedError
from workers.rollout.engines.requests import BadRequestError, Finished, NotHeldError, Request
from workers.rollout.engines.server import EngineServer
from workers.rollout.engines.tokenizers import Tokenizers
from workers.rollout.engines.vllm_engine import VllmEngine
from workers.rollout.engines.vllm_instance import _seed
from workers.rollout.engines.vllm_models import VllmModel
from workers.rollout.engines.wire import HeldVersion, LoadRequest

MODEL = VllmModel(FactoryModel(size="M"), {"num_hidden_layers": 2}, Architecture("qwen2", 4, 4, 32, 1e4, 1e-6, 64))
STATE = {"model.embed_tokens.weight": torch.zeros(40, 8)}
BROKEN = {**STATE, "broken": torch.zeros(1)}


class CountingInstance:
    """Replies with its version, one token a step."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.number, self.model, self.words = next(self.numbers), MODEL, 40
        self.version, self.digest = -1, ""
        self.cached_tokens, self.cache_use = 0, 0.0
        self.live: dict[str, list[int]] = {}
        self.requests: dict[str, Request] = {}

    @property
    def held(self):
        return HeldVersion(self.version, self.digest) if self.digest else None

    @property
    def busy(self):
        return bool(self.live)

    def hold(self, version, digest, state):
        assert not self.live, "weights change only while nothing runs"
        self.version, self.digest = -1, ""
        if "broken" in state:
            raise EngineFailedError("broken")
        self.version, self.digest = version, digest

    def add(self, request):
        if 39 in request.prompt:
            raise ValueError("a rule of the library")
        self.live[request.request_id], self.requests[request.request_id] = list(request.done), request

    def step(self):
        for tokens in self.live.values():
            tokens.append(self.version)
        full = [name for name, tokens in self.live.items() if len(tokens) >= self.requests[name].max_tokens]
        return [self._finished(name, "length") for name in full]

    def end(self, ids):
        return [self._finished(name, "abort") for name in [name for name in ids if name in self.live]]

    def running(self):
        return [self.requests[name] for name in self.live]

    def depth(self):
        return len(self.live), 0

    def parts(self, told):
        return []

    def _finished(self, name, reason):
        tokens = self.live.pop(name)
        return Finished(self.requests[name], tokens, [0.0] * len(tokens), reason, self.version)


def digest(version: int) -> str:
    return f"d{version}"


def ask(name: str, version: int = -1, **more: object) -> Request:
    return replace(Request(name, "solver", (1, 2), 3, 7, version=version), **more)


class Desk:
    """An engine and the instances it was given."""

    def __init__(self, *versions: int) -> None:
        self.instances: list[CountingInstance] = []
        self.engine = VllmEngine(self.make)
        for version in versions:
            self.load(version)

    def make(self, policy: str, words: int) -> CountingInstance:
        self.instances.append(CountingInstance())
        return self.instances[-1]

    def load(self, version: int, *keeps: int, state: dict[str, torch.Tensor] = STATE) -> None:
        self.engine.load("solver", version, digest(version), self.engine.prepare("solver", state, 40), keeps)

    def finish(self) -> dict[str, Finished]:
        found = []
        while self.engine.busy:
            for policy in self.engine.busy_policies():
                found += self.engine.step_policy(policy)[0]
        assert len(found) == len({ended.request.request_id for ended in found}), "each is settled once"
        return {ended.request.request_id: ended for ended in found}


def test_versions_that_nobody_needs_side_by_side_share_one_instance():
    desk = Desk(0, 1, 2)
    assert len(desk.instances) == 1
    assert desk.engine.holds() == {"solver": HeldVersion(2, "d2")}
    with pytest.raises(NotHeldError):
        desk.engine.submit([ask("a", 1)])
    desk.load(2)
    assert desk.engine.has("solver", 2, "d2")


def test_a_version_that_is_kept_gets_a_second_instance_and_a_third_takes_the_oldest():
    desk = Desk(0)
    desk.load(1, 0)
    desk.engine.submit([ask("old", 0), ask("new", 1)])
    assert {name: end.token_ids for name, end in desk.finish().items()} == {"old": [0] * 3, "new": [1] * 3}
    desk.load(2, 1)
    desk.load(3, 1, 2)
    assert len(desk.instances) == 2, "of two to keep, the newest"
    assert [desk.engine.has("solver", v, digest(v)) for v in (0, 1, 2, 3)] == [False, False, True, True]
    desk.load(4)
    desk.load(5, 4)
    desk.load(6)
    assert len(desk.instances) == 2, "one that serves nothing waits for its next version: an engine is never let go"
    desk.load(4)
    assert [desk.engine.has("solver", v, digest(v)) for v in (2, 3, 4)] == [False, False, True]


async def test_requests_are_taken_while_a_second_instance_is_made():
    desk, asked = Desk(0), threading.Event()

    def make(policy: str, words: int) -> CountingInstance:
        assert asked.wait(60), "the loop answers meanwhile"
        return desk.make(policy, words)

    desk.engine._make_instance = make
    fetch = lambda policy, digest: desk.engine.prepare(policy, STATE, 40)  # noqa: E731
    app = web.Application()
    app.add_routes(EngineServer(desk.engine, fetch, "life", IntervalLog(), Tokenizers({})).routes())
    async with TestClient(TestServer(app)) as client:
        body = LoadRequest("solver", 1, digest(1), [0])
        loading = asyncio.create_task(client.post("/load", data=msgspec.json.encode(body)))
        await asyncio.sleep(0.05)
        assert (await client.get("/stats")).status == 200
        asked.set()
        assert (await loading).status == 200
    assert len(desk.instances) == 2
    assert desk.engine.has("solver", 0, "d0")
    assert desk.engine.has("solver", 1, "d1")


def test_a_closed_policy_hands_back_what_runs_and_its_instances_wait_for_its_next_load():
    desk = Desk(0)
    desk.load(1, 0)
    desk.engine.submit([ask("a", 0), ask("b", 1)])
    desk.engine.step_policy("solver")
    back = desk.engine.close("solver", hand_over=True)
    assert {end.request.request_id: (end.reason, end.token_ids) for end in back} == {
        "a": ("abort", [0]),
        "b": ("abort", [1]),
    }
    assert desk.engine.forget("solver")
    assert (desk.engine.holds(), desk.engine.generated_tokens, desk.engine.busy) == ({}, 2, False)
    assert desk.engine.close("solver", hand_over=True) == desk.engine.close("unknown", hand_over=True) == []
    with pytest.raises(NotHeldError):
        desk.engine.submit([ask("c", 1)])
    desk.load(1)
    desk.engine.submit([ask("c", 1)])
    assert (desk.finish()["c"].token_ids, len(desk.instances)) == ([1] * 3, 2)


def test_a_load_ends_what_is_pinned_and_moves_what_follows():
    desk = Desk(5)
    desk.engine.submit([ask("pinned", 5), ask("resumes", 5, follow="resume"), ask("again", 5, follow="restart_turn")])
    desk.engine.step_policy("solver")
    desk.load(6)
    ended = desk.finish()
    assert (ended["pinned"].reason, ended["pinned"].segments) == ("abort", [5, 1])
    assert (ended["resumes"].reason, ended["resumes"].segments) == ("length", [5, 1, 6, 2])
    assert (ended["again"].reason, ended["again"].segments) == ("length", [6, 3])
    assert not desk.engine.busy


def test_weights_that_do_not_load_hold_nothing_and_settle_everybody():
    desk = Desk(0)
    desk.engine.submit([ask("pinned", 0), ask("follows", 0, follow="resume")])
    with pytest.raises(EngineFailedError):
        desk.load(1, state=BROKEN)
    assert desk.engine.holds() == {}
    assert {end.reason for end in desk.finish().values()} == {"abort"}
    desk.load(2)
    assert desk.engine.holds() == {"solver": HeldVersion(2, "d2")}
    assert len(desk.instances) == 2, "an instance that failed is not used again"


def test_weights_are_whole_or_refused_while_the_former_ones_go_on():
    """vLLM would keep the former value of a weight that a load leaves out, and say nothing."""
    weights = initial_weights(MODEL.source, 40, 1)
    assert MODEL.check(weights) == 40
    name = "model.layers.1.mlp.down_proj.weight"
    for wrong, words in (
        ({key: tensor for key, tensor in weights.items() if key != name}, "down_proj.weight is absent"),
        ({**weights, name: torch.zeros(3, 3)}, r"down_proj.weight is \(3, 3\), the model's is \(128, 256\)"),
        ({**weights, "model.extra": torch.zeros(1)}, r"model.extra is \(1,\), the model's is absent"),
        ({}, "is absent"),
    ):
        with pytest.raises(UnsupportedModel, match=words):
            MODEL.check(wrong)
    desk = Desk(0)
    with pytest.raises(UnsupportedModel, match="41 words and those of solver before had 40"):
        desk.engine.prepare("solver", STATE, 41)
    assert desk.engine.holds() == {"solver": HeldVersion(0, "d0")}


def test_requests_are_taken_all_or_none():
    desk = Desk(0)
    with pytest.raises(BadRequestError, match="a rule of the library"):
        desk.engine.submit([ask("a"), ask("b", prompt=(39,))])
    with pytest.raises(BadRequestError, match="65 positions exceed the model's 64"):
        desk.engine.submit([ask("a"), ask("b", max_tokens=63)])
    with pytest.raises(BadRequestError, match="it can resume"):
        desk.engine.submit([ask("a"), ask("b", follow="continue")])
    assert not desk.engine.busy
    desk.engine.submit([ask("a")])
    assert [end.request.request_id for end in desk.engine.abort({"a", "unknown"})] == ["a"]


def test_a_reply_that_is_carried_on_draws_anew_and_always_the_same():
    begun = ask("a")
    carried = replace(begun, done=(1, 2))
    assert _seed(begun) == begun.seed
    assert _seed(carried) == _seed(replace(carried, request_id="b"))
    assert len({_seed(begun), _seed(carried), _seed(replace(begun, done=(1,)))}) == 3
    assert 0 <= _seed(carried) < 2**63
