"""Instances on one vLLM engine: what a step ends for another instance waits there and is handed out once."""

from types import SimpleNamespace

import pytest

from flexmarl.contracts.specification.team import Lora
from workers.rollout.engines import vllm_adapters, vllm_instance
from workers.rollout.engines.requests import Request
from workers.rollout.engines.stop_strings import StopStrings
from workers.rollout.engines.vllm_adapters import SharedEngine, room_for


def ended(name: str, tokens: list[int]) -> SimpleNamespace:
    logprobs = SimpleNamespace(logprobs=[-1.0] * len(tokens))
    reply = SimpleNamespace(finish_reason="length", token_ids=tokens, logprobs=logprobs)
    return SimpleNamespace(finished=True, request_id=name, num_cached_tokens=0, outputs=[reply])


class CountingEngine:
    """Makes token 7 for every request at each step, as many as its prompt says."""

    def __init__(self) -> None:
        self.live: dict[str, list[int]] = {}
        self.wanted: dict[str, int] = {}
        self.steps = 0
        scheduler = SimpleNamespace(running=[])
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        self.output_processor = SimpleNamespace(request_states={})

    def add_request(self, name: str, prompt: dict[str, list[int]], sampling: object, lora_request: object) -> str:
        self.live[name], self.wanted[name] = [], prompt["prompt_token_ids"][0]
        made = SimpleNamespace(output_token_ids=self.live[name])
        logprobs = SimpleNamespace(logprobs=SimpleNamespace(logprobs=[-1.0] * 9))
        self.output_processor.request_states[name] = SimpleNamespace(detokenizer=made, logprobs_processor=logprobs)
        return name

    def abort_request(self, names: list[str], internal: bool) -> None:
        assert internal
        for name in names:
            del self.live[name]

    def step(self) -> list[SimpleNamespace]:
        self.steps += 1
        for tokens in self.live.values():
            tokens.append(7)
        full = {name: tokens for name, tokens in self.live.items() if len(tokens) == self.wanted[name]}
        self.live = {name: tokens for name, tokens in self.live.items() if name not in full}
        return [ended(name, tokens) for name, tokens in full.items()]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedEngine:
    engine = CountingEngine()
    monkeypatch.setattr(vllm_adapters, "build", lambda *_: engine)
    monkeypatch.setattr(vllm_instance, "_sampling", lambda _: None)
    model = SimpleNamespace(check=lambda _: 40, devices=1)
    return SharedEngine(model, {}, [Lora(), Lora()], "cpu", 4, StopStrings(lambda _: None))


def request(name: str, tokens: int) -> Request:
    return Request(name, name[0], (tokens,), tokens, seed=0)


def test_what_a_step_ends_for_another_instance_is_handed_out_once_by_that_instance(shared: SharedEngine) -> None:
    left, right = shared.instance(Lora()), shared.instance(Lora())
    left.add(request("l", 2))
    right.add(request("r", 1))
    right.add(request("rr", 3))
    assert left.step() == []
    assert right.busy
    assert [one.request_id for one in right.running()] == ["r", "rr"]
    (first,) = right.step()
    assert (first.request.request_id, first.token_ids, first.reason) == ("r", [7], "length")
    assert shared.engine.steps == 1, "what waits is handed out before anything else is made"
    assert [one.request.request_id for one in left.step()] == ["l"]
    assert not left.busy
    assert [one.request.request_id for one in right.step()] == ["rr"]
    assert not right.busy
    assert right.step() == []


def test_an_abort_hands_out_what_had_ended_as_it_ended(shared: SharedEngine) -> None:
    left, right = shared.instance(Lora()), shared.instance(Lora())
    left.add(request("l", 5))
    right.add(request("r", 1))
    right.add(request("rr", 5))
    left.step()
    out = right.end(["r", "rr", "l", "nobody"])
    assert [(one.request.request_id, one.reason, len(one.token_ids)) for one in out] == [
        ("r", "length", 1),
        ("rr", "abort", 1),
    ]
    assert not right.busy
    assert left.busy


def test_room_is_made_for_two_versions_of_each_and_for_the_widest() -> None:
    assert room_for([Lora(rank=4), Lora(rank=9)]) == {
        "enable_lora": True, "max_loras": 4, "max_cpu_loras": 4, "max_lora_rank": 16,
    }  # fmt: skip
    assert [room_for([Lora(rank=rank)])["max_lora_rank"] for rank in (1, 2, 8, 256)] == [1, 8, 8, 256]
