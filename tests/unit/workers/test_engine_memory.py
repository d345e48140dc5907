"""A version's own memory serves the next one: when nobody reads it any more, not before, and with the same bits."""

from dataclasses import replace

import torch

from flexmarl.contracts.specification.team import FactoryModel, Lora
from workers.models import architecture_of, build_model
from workers.models.adapter import initial_adapter
from workers.rollout.engines.decoder import Weights
from workers.rollout.engines.own_memory import ALIGNMENT, OwnTensors
from workers.rollout.engines.requests import Finished, Request
from workers.rollout.engines.torch_engine import TorchEngine

WORDS = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(37)))
SOURCE = FactoryModel()


def prepared(engine: TorchEngine, seed: int) -> Weights:
    return engine.prepare(build_model(SOURCE, WORDS, seed).state_dict(), architecture_of(SOURCE))


def load(engine: TorchEngine, version: int) -> Weights:
    weights = prepared(engine, version)
    engine.load("p", version, f"d{version}", weights)
    return weights


def request(version: int, length: int = 20) -> Request:
    return Request(f"of {version}", "p", (1, 2, 3), length, seed=7, version=version)


def finished(engine: TorchEngine) -> list[Finished]:
    ended: list[Finished] = []
    while engine.busy:
        ended += engine.step()
    return ended


def alone(version: int) -> Finished:
    """Return the reply of an engine that never held another version."""
    engine = TorchEngine("cpu", 4)
    load(engine, version)
    engine.submit([request(version)])
    return finished(engine)[0]


def test_a_version_lies_where_one_lay_that_is_gone_and_replies_as_anywhere() -> None:
    engine, places = TorchEngine("cpu", 4), []
    for version in range(6):
        places.append(load(engine, version).layers[0].qkv.data_ptr())
        engine.submit([request(version)])
        [reply], expected = finished(engine), alone(version)
        assert (reply.token_ids, reply.logprobs) == (expected.token_ids, expected.logprobs)
    assert places[3:] == places[:3], "fresh memory was taken although a version had left some"
    assert len(set(places)) == 3


def test_memory_that_a_reply_still_needs_is_not_given_on() -> None:
    engine = TorchEngine("cpu", 4)
    places = {load(engine, 0).layers[0].qkv.data_ptr()}
    engine.submit([request(0)])
    engine.step()
    for version in range(1, 6):
        assert load(engine, version).layers[0].qkv.data_ptr() not in places
    [reply], expected = finished(engine), alone(0)
    assert (reply.version, reply.token_ids, reply.logprobs) == (0, expected.token_ids, expected.logprobs)
    assert load(engine, 6).layers[0].qkv.data_ptr() in places


def test_memory_that_two_versions_share_stays_with_the_other() -> None:
    engine = TorchEngine("cpu", 4)
    weights = prepared(engine, 9)
    for version in range(4):
        engine.load("p", version, f"d{version}", weights)
    assert prepared(engine, 1).layers[0].qkv.data_ptr() != weights.layers[0].qkv.data_ptr()


def test_what_adapters_lie_over_is_nobodys_to_give_on() -> None:
    engine, lora = TorchEngine("cpu", 4), Lora(rank=4, alpha=8.0)
    base = prepared(engine, 3)
    before = base.layers[0].qkv.clone()
    adapter = initial_adapter(build_model(SOURCE, WORDS, 3).state_dict(), lora, 1)
    for version in range(5):
        engine.load("p", version, f"d{version}", engine.adapt(base, adapter, lora))
    assert prepared(engine, 4).layers[0].qkv.data_ptr() != base.layers[0].qkv.data_ptr()
    assert torch.equal(base.layers[0].qkv, before)


def test_ordered_engines_and_sleeping_ones_keep_nothing() -> None:
    ordered, engine = TorchEngine("cpu", 4, ordered=True), TorchEngine("cpu", 4)
    for version in range(4):
        load(engine, version)
    assert prepared(ordered, 1).layers[0].qkv.untyped_storage().nbytes() == prepared(ordered, 1).layers[0].qkv.nbytes
    assert engine._left
    engine.let_go()
    assert not engine._left


def test_what_does_not_fit_has_memory_of_its_own_and_nothing_overlaps() -> None:
    memory = OwnTensors(2 * ALIGNMENT, "cpu", torch.float32)
    first, second, third = memory.take(3, 5).fill_(1), memory.take(ALIGNMENT).fill_(2), memory.take(1).fill_(3)
    assert [bool((each == number).all()) for number, each in enumerate((first, second, third), 1)] == [True] * 3
    assert third.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
    assert [each.data_ptr() % ALIGNMENT for each in (first, second)] == [0, 0]


def test_versions_that_nobody_asks_hold_no_attention_cache() -> None:
    """What is held is what was once in use at the same time, however many versions and policies there are."""
    engine = TorchEngine("cpu", 4)
    for version in range(5):
        for policy in ("p", "q"):
            engine.load(policy, version, f"d{version}", prepared(engine, version))
            engine.submit([replace(request(version), policy=policy)])
            finished(engine)
    assert not any(lane._cache.keys for lanes in engine._lanes.values() for lane in lanes)
    (alone,) = engine._caches._left.values()
    assert len(alone) == 1
    engine.submit([replace(request(4), policy=policy) for policy in ("p", "q")])
    engine.step()
    assert not engine._caches.tensors()
    finished(engine)
    (both,) = engine._caches._left.values()
    assert len(both) == 2
    engine.forget("p")
    assert engine.let_go() > 0
    assert not engine._caches.tensors()


def test_a_cache_that_another_policy_has_left_changes_no_reply() -> None:
    engine = TorchEngine("cpu", 4)
    engine.load("q", 3, "d3", prepared(engine, 3))
    engine.submit([Request(f"q{n}", "q", tuple(range(3, 30)), 30, seed=n, version=3) for n in range(4)])
    finished(engine)
    load(engine, 0)
    engine.submit([request(0)])
    [reply], expected = finished(engine), alone(0)
    assert (reply.token_ids, reply.logprobs) == (expected.token_ids, expected.logprobs)
