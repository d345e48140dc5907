"""A real vLLM engine on this machine's processor: one start, and everything a run asks of it.

The first test that needs weights of its own loads them; each names the version it speaks of, so the order is free.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.torch import save_file

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.specification.team import FactoryModel
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.engines import EngineRoute
from tests.support.engines import SECRET, WORDS, RunningEngine, needs_vllm, running_engine
from tests.support.trained import ADAPTED, PROMPTS, asked, differences, put_adapter, trained_logprobs
from workers.children import Ended, Failed
from workers.models.weights import initial_weights
from workers.rollout.engine_client import EngineClient
from workers.rollout.pausing import Hold
from workers.rollout.turns import TurnReply, TurnRequest

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(900)]

MEAN_DIFFERENCE, MAX_DIFFERENCE = 1e-5, 1e-4
"""Of log-probabilities in fp32 between engine and trainer: kernels add in another order."""
LONG, MIDDLE = 3000, 800
"""Tokens of replies that are still running when something is done to them."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    home = tmp_path_factory.mktemp("vllm")
    adapted = {name: {"model": {"size": "M"}, "tuning": lora.model_dump()} for name, lora in ADAPTED.items()}
    with running_engine(
        "vllm", home, more={"giant": {"model": giant_model(tmp_path_factory.mktemp("giant") / "model")}, **adapted}
    ) as running:
        yield running


def giant_model(folder: Path) -> dict[str, str]:
    """Describe a small model whose longest context needs an attention cache of terabytes."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 32}
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": WORDS, "dtype": "float32"}
    config |= {"max_position_embeddings": 2**20, "head_dim": 512, "num_key_value_heads": 32}
    folder.mkdir()
    save_file(initial_weights(FactoryModel(size="M"), WORDS, 0), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, **sizes}))
    return {"type": "folder", "path": str(folder)}


@pytest.fixture(scope="module")
def digests(engine: RunningEngine) -> list[str]:
    return [engine.put(seed) for seed in range(10)]


async def running(engine: RunningEngine, count: int) -> None:
    while (await engine.stats()).running != count:
        await asyncio.sleep(0.01)


async def test_every_loaded_version_is_the_trainers_in_fp32(engine, digests, record_property, capsys):
    """Three versions after each other, without a restart: what was repacked for the processor is loaded anew."""
    found = []
    for seed in (0, 1, 2):
        await engine.load("speaker", seed, digests[seed])
        choices = await engine.complete(**asked(seed, digests[seed]))
        assert [len(choice.token_ids) for choice in choices] == [24] * 4
        assert all(choice.segments == [seed, 24] and choice.finish_reason == "length" for choice in choices)
        found += differences(seed, choices)
        assert max(differences(seed + 5, choices)) > 0.5, "other weights are told apart"
    mean, most = sum(found) / len(found), max(found)
    record_property("mean_abs_logprob_difference", mean)
    with capsys.disabled():
        print(f"\n[log-probabilities of vLLM against the trainer, fp32: mean {mean:.1e}, max {most:.1e}]", end=" ")
    assert mean < MEAN_DIFFERENCE
    assert most < MAX_DIFFERENCE


async def test_log_probabilities_are_those_of_the_distribution_drawn_from(engine, digests):
    await engine.load("speaker", 3, digests[3])
    allowed = list(range(10, 26))
    for temperature in (0.7, 1.6):
        how = {"temperature": temperature, "allowed_token_ids": allowed}
        choices = await engine.complete(**asked(3, digests[3], **how))
        assert all(set(choice.token_ids) <= set(allowed) for choice in choices)
        assert max(differences(3, choices, temperature=temperature, allowed=allowed)) < MAX_DIFFERENCE
    greedy = await engine.complete(**asked(3, digests[3], temperature=0.0, allowed_token_ids=allowed))
    assert max(differences(3, greedy, allowed=allowed)) < MAX_DIFFERENCE
    again = await engine.complete(**asked(3, digests[3], temperature=0.0, allowed_token_ids=allowed, seeds=[9] * 4))
    assert [choice.token_ids for choice in again] == [choice.token_ids for choice in greedy]


async def test_a_seed_draws_the_same_whatever_else_is_asked_and_a_stop_word_ends_a_reply(engine, digests):
    await engine.load("speaker", 3, digests[3])
    first = (await engine.complete(**asked(3, digests[3])))[1]
    alone, other = await engine.complete(**asked(3, digests[3], prompt=[PROMPTS[1]] * 2, seeds=[1, 77]))
    assert alone.token_ids == first.token_ids
    assert other.token_ids != first.token_ids
    word = first.token_ids[7]
    (stopped,) = await engine.complete(**asked(3, digests[3], prompt=[PROMPTS[1]], seeds=[1], stop_token_ids=[word]))
    end = first.token_ids.index(word) + 1
    assert (stopped.token_ids, stopped.finish_reason) == (first.token_ids[:end], "stop")


async def test_more_prompts_than_a_step_reads_are_each_read_whole_and_draw_by_their_seeds(engine, digests):
    """A step reads 4096 tokens, and vLLM cannot take a draw back that comes behind a part of a prompt."""
    await engine.load("speaker", 3, digests[3])
    prompts = [[1, *random.Random(place).choices(range(3, WORDS), k=699)] for place in range(16)]
    choices = await engine.complete(**asked(3, digests[3], prompt=prompts, seeds=list(range(16)), max_tokens=8))
    (alone,) = await engine.complete(**asked(3, digests[3], prompt=prompts[15:], seeds=[15], max_tokens=8))
    assert alone.token_ids == choices[15].token_ids


async def test_an_aborted_reply_goes_on_by_its_tokens(engine, digests):
    await engine.load("speaker", 4, digests[4])
    body = asked(4, digests[4], prompt=[PROMPTS[0]], max_tokens=LONG, request_ids=["long"])
    asking = asyncio.create_task(engine.complete(**body))
    await running(engine, 1)
    assert await engine.ask("/abort", {"request_ids": ["long", "unknown"]}) == (200, {"aborted": ["long"]})
    (part,) = await asking
    made = len(part.token_ids)
    assert part.finish_reason == "abort"
    assert 0 < made == len(part.logprobs) < LONG
    assert (await engine.stats()).running == 0
    done = {"token_ids": part.token_ids, "logprobs": part.logprobs, "segments": part.segments}
    (whole,) = await engine.complete(**body | {"done": [done], "max_tokens": made + 20})
    assert whole.token_ids[:made] == part.token_ids
    assert (len(whole.token_ids), whole.segments) == (made + 20, [4, made + 20])
    assert max(differences(4, [whole])) < MAX_DIFFERENCE, "the keys of what was done are computed anew"


async def test_a_turn_that_is_held_goes_on_with_what_it_has_under_the_weights_that_are_served_then(engine, digests):
    """Greedy replies, so what comes after a hold is what would have come without one."""
    tokens = 200
    held_by = {"speaker": PolicyPin(version=5, digest=digests[5])}

    async def routes() -> list[EngineRoute]:
        return [EngineRoute(1, engine.url, SECRET, "life-1", held_by)]

    async def ask(hold: Hold) -> list[TurnReply]:
        first = TurnRequest("speaker", held_by["speaker"], (), 1, tokens, 0.0, (), (), follow="resume", hold=hold)
        turns = [client.turn(replace(first, prompt=tuple(one)), time.monotonic() + 300.0) for one in PROMPTS]
        return await asyncio.gather(*turns)

    async def stopped(hold: Hold) -> asyncio.Task[list[TurnReply]]:
        """Ask, and hold what was asked when some of each reply is there."""
        before = (await engine.stats()).generated_tokens
        asking = asyncio.create_task(ask(hold))
        await running(engine, len(PROMPTS))
        hold.set(True)
        await running(engine, 0)
        made = (await engine.stats()).generated_tokens - before
        assert 0 < made < tokens * len(PROMPTS)
        assert not asking.done()
        return asking

    await engine.load("speaker", 5, digests[5])
    client, hold = EngineClient(routes, ROUTERS.make(ROUTER.options("least_loaded"))), Hold()
    try:
        whole = await ask(Hold())
        asking = await stopped(hold)
        hold.set(False)
        for reply, expected in zip(await asking, whole, strict=True):
            assert reply.choice.token_ids == expected.choice.token_ids
            assert max(map(abs, np.subtract(reply.choice.logprobs, expected.choice.logprobs))) < MAX_DIFFERENCE
            assert (reply.choice.segments, reply.moves) == ([5, tokens], 0)
        asking = await stopped(hold)
        await engine.load("speaker", 6, digests[6])
        hold.set(False)
        for prompt, reply, before in zip(PROMPTS, await asking, whole, strict=True):
            own = reply.choice
            version, first, newer, rest = own.segments
            assert (version, newer, first + rest, reply.moves) == (5, 6, tokens, 0)
            assert own.token_ids[:first] == before.choice.token_ids[:first]
            chances = trained_logprobs(5, prompt, own.token_ids[:first])
            chances += trained_logprobs(6, [*prompt, *own.token_ids[:first]], own.token_ids[first:])
            assert max(map(abs, np.subtract(own.logprobs, chances))) < MAX_DIFFERENCE
    finally:
        await client.close()


async def test_a_load_ends_what_runs_on_the_weights_it_replaces_and_moves_what_follows(engine, digests):
    await engine.load("speaker", 5, digests[5])
    one = {"prompt": [PROMPTS[0]], "max_tokens": MIDDLE, "seeds": [3]}
    pinned = asyncio.create_task(engine.complete(**asked(5, digests[5], **one)))
    following = asyncio.create_task(engine.complete(**asked(5, "", **one, follow="resume")))
    await running(engine, 2)
    await engine.load("speaker", 6, digests[6])
    (ended,), (moved,) = await pinned, await following
    assert ended.finish_reason == "abort"
    assert ended.segments == [5, len(ended.token_ids)]
    assert max(differences(5, [ended])) < MAX_DIFFERENCE, "no token of it was made by the new weights"
    version, before, newer, after = moved.segments
    assert (version, newer, before + after, moved.finish_reason) == (5, 6, MIDDLE, "length")
    own = trained_logprobs(6, [*PROMPTS[0], *moved.token_ids[:before]], moved.token_ids[before:])
    assert max(abs(a - b) for a, b in zip(moved.logprobs[before:], own, strict=True)) < MAX_DIFFERENCE


async def test_an_unloaded_policy_hands_back_what_runs_and_may_be_loaded_again(engine, digests):
    await engine.load("speaker", 5, digests[5])
    body = asked(5, digests[5], prompt=[PROMPTS[0]], max_tokens=MIDDLE)
    asking = asyncio.create_task(engine.complete(**body))
    await running(engine, 1)
    assert await engine.ask("/unload", {"policy": "speaker"}) == (200, {"unloaded": "speaker"})
    (part,) = await asking
    assert part.finish_reason == "abort"
    assert (await engine.ask("/v1/completions", body))[0] == 409
    await engine.load("speaker", 5, digests[5])
    (again,) = await engine.complete(**body | {"max_tokens": 20})
    assert max(differences(5, [part, again])) < MAX_DIFFERENCE


async def test_a_version_that_is_to_be_kept_is_served_beside_the_newer_one(engine, digests):
    await engine.load("speaker", 7, digests[7])
    one = {"prompt": [PROMPTS[0]], "max_tokens": 400, "seeds": [3]}
    asking = asyncio.create_task(engine.complete(**asked(7, digests[7], **one)))
    await running(engine, 1)
    await engine.load("speaker", 8, digests[8], keeps=(7,))
    (old,) = await asking
    assert (old.finish_reason, old.segments) == ("length", [7, 400])
    for version in (7, 8):
        choices = await engine.complete(**asked(version, digests[version]))
        assert max(differences(version, choices)) < MAX_DIFFERENCE
    await engine.load("speaker", 9, digests[9], keeps=(8,))
    status, refusal = await engine.ask("/v1/completions", asked(7, digests[7]))
    assert (status, refusal["code"], refusal["holds"]["speaker"]["version"]) == (409, "not_held", 9)
    assert max(differences(8, await engine.complete(**asked(8, digests[8])))) < MAX_DIFFERENCE


async def test_adapters_over_one_base_share_an_engine_and_are_the_trainers(engine):
    """Both policies at once, three versions each, one of them kept: no key of another version is ever read."""
    digests = {policy: [put_adapter(engine, policy, seed) for seed in (0, 1, 2)] for policy in ADAPTED}
    long = [[1] + [3 + i % 30 for i in range(100)]]
    for version in (0, 1, 2):
        for policy in ADAPTED:
            await engine.load(policy, version, digests[policy][version], keeps=(version - 1,))
        asking = [
            engine.complete(**asked(held, digests[policy][held], model=policy, prompt=[*PROMPTS, *long], max_tokens=9))
            for policy in ADAPTED
            for held in (version, max(version - 1, 0))
        ]
        answers = iter(await asyncio.gather(*asking))
        for policy in ADAPTED:
            for held in (version, max(version - 1, 0)):
                choices = next(answers)
                assert all(choice.segments == [held, 9] for choice in choices)
                of = {"adapted": policy}
                assert max(differences(held, choices, prompts=[*PROMPTS, *long], **of)) < MAX_DIFFERENCE
                assert max(differences(held + 5, choices, prompts=[*PROMPTS, *long], **of)) > 1e-2
    status, refusal = await engine.ask("/v1/completions", asked(0, digests["left"][0], model="left"))
    assert (status, refusal["code"]) == (409, "not_held")


async def test_an_adapter_that_does_not_belong_is_refused_and_the_others_go_on(engine):
    right = put_adapter(engine, "left", 7)
    await engine.load("left", 7, right)
    for digest, words in {
        put_adapter(engine, "left", 7, base=9): "is laid over",
        put_adapter(engine, "right", 7): "that of left has",
        engine.put(0): "this content is not one",
    }.items():
        status, refusal = await engine.ask("/load", {"policy": "left", "version": 8, "digest": digest})
        assert (status, refusal["code"]) == (422, "wrong_adapter")
        assert words in refusal["detail"]
        assert refusal["holds"]["left"]["version"] == 7
    choices = await engine.complete(**asked(7, right, model="left"))
    assert max(differences(7, choices, adapted="left")) < MAX_DIFFERENCE


async def test_a_load_of_one_adapter_ends_its_own_replies_and_no_others(engine):
    digests = {policy: put_adapter(engine, policy, 7) for policy in ADAPTED}
    for policy in ADAPTED:
        await engine.load(policy, 7, digests[policy])
    one = {"prompt": [PROMPTS[0]], "max_tokens": MIDDLE}
    ended, whole = (
        asyncio.create_task(engine.complete(**asked(7, digests[policy], model=policy, **one))) for policy in ADAPTED
    )
    await running(engine, 2)
    await engine.load("left", 8, put_adapter(engine, "left", 8))
    ((ended,), (whole,)) = await asyncio.gather(ended, whole)
    assert (ended.finish_reason, whole.finish_reason) == ("abort", "length")
    assert len(whole.token_ids) == MIDDLE
    assert max(differences(7, [ended], adapted="left")) < MAX_DIFFERENCE
    assert max(differences(7, [whole], adapted="right")) < MAX_DIFFERENCE


BAD = {
    "prompt and max_tokens: 4102 positions exceed the model's 4096": {
        "max_tokens": 4096 + 6 - 3,
        "prompt": [[1, 3, 4]],
    },
    "prompt: holds a token id outside 0..39": {"prompt": [[1, 40]]},
    "prompt: is empty": {"prompt": [[]]},
    "max_tokens: 0 is below 1": {"max_tokens": 0},
    "temperature: -1.0 is negative": {"temperature": -1.0},
    "allowed: holds a token id": {"allowed_token_ids": [-1]},
    "cannot continue on keys of older weights": {"follow": "continue"},
    "seeds: 1 seeds for 4 prompts": {"seeds": [1]},
    "done: 1 tokens need as many": {"prompt": [[1, 3]], "done": [{"token_ids": [4], "logprobs": [], "segments": []}]},
}


async def test_bad_requests_are_refused_in_words_and_harm_nobody(engine, digests):
    await engine.load("speaker", 9, digests[9])
    for words, wrong in BAD.items():
        status, refusal = await engine.ask("/v1/completions", asked(9, digests[9], **wrong))
        code = "context_overflow" if "positions exceed" in words else "bad_request"
        assert (status, refusal["code"]) == (422, code), words
        assert words in refusal["detail"]
    for version, digest in ((9, digests[8]), (10, digests[9])):
        status, refusal = await engine.ask("/v1/completions", asked(version, digest))
        assert (status, refusal["code"]) == (409, "not_held")
    assert len(await engine.complete(**asked(9, digests[9]))) == 4


async def test_weights_that_do_not_fit_are_refused_and_the_next_ones_load(engine, digests):
    await engine.load("listener", 0, digests[0])
    part = {name: tensor for name, tensor in engine.plane.get(digests[1]).items() if "up_proj" not in name}
    digest = engine.plane.put(part).digest
    status, refusal = await engine.ask("/load", {"policy": "listener", "version": 1, "digest": digest})
    assert (status, refusal["code"]) == (422, "unsupported_model")
    assert "model.layers.0.mlp.up_proj.weight is absent" in refusal["detail"]
    assert refusal["holds"]["listener"]["version"] == 0
    status, refusal = await engine.ask("/v1/completions", asked(1, digest, model="listener"))
    assert (status, refusal["code"]) == (409, "not_held")
    spoilt, overflows = engine.put(1, spoil=float("nan")), engine.put(1, spoil=1e30)
    status, refusal = await engine.ask("/load", {"policy": "listener", "version": 1, "digest": spoilt})
    assert (status, refusal["code"]) == (422, "nonfinite_weights")
    await engine.load("listener", 1, overflows)
    assert {c.finish_reason for c in await engine.complete(**asked(1, overflows, model="listener"))} == {"nonfinite"}
    await engine.load("listener", 2, digests[2])
    assert max(differences(2, await engine.complete(**asked(2, digests[2], model="listener")))) < MAX_DIFFERENCE
    status, refusal = await engine.ask("/load", {"policy": "stranger", "version": 1, "digest": digest})
    assert (status, refusal["code"]) == (409, "not_held")


async def test_an_engine_without_the_memory_says_so_and_the_other_policies_go_on(engine, digests):
    await engine.load("listener", 5, digests[5])
    status, refusal = await engine.ask("/load", {"policy": "giant", "version": 0, "digest": digests[0]})
    assert (status, refusal["code"], "memory" in refusal["detail"]) == (422, "engine_failed", True)
    choices = await engine.complete(**asked(5, digests[5], model="listener"))
    assert max(differences(5, choices)) < MAX_DIFFERENCE
    await engine.load("listener", 6, digests[6], keeps=(5,))
    for version in (5, 6):
        choices = await engine.complete(**asked(version, digests[version], model="listener"))
        assert max(differences(version, choices)) < MAX_DIFFERENCE, "an instance made after the failure works"
    await engine.load("listener", 7, digests[7])
    choices = await engine.complete(**asked(7, digests[7], model="listener"))
    assert max(differences(7, choices)) < MAX_DIFFERENCE, "so do the others when one is needed no more"


async def test_stats_tell_the_cache_and_a_load_empties_it(engine, digests):
    await engine.load("listener", 7, digests[7])
    body = asked(7, digests[7], model="listener", prompt=[[1] + [3 + i % 30 for i in range(320)]], max_tokens=2)
    await engine.complete(**body)
    before = (await engine.stats()).cached_tokens
    await engine.complete(**body)
    assert (await engine.stats()).cached_tokens - before == 320, "all whole blocks of the prompt"
    await engine.load("listener", 8, digests[8])
    before = (await engine.stats()).cached_tokens
    await engine.complete(**body | {"version": 8, "digest": digests[8]})
    assert (await engine.stats()).cached_tokens == before
    asking = asyncio.create_task(engine.complete(**asked(8, digests[8], model="listener", max_tokens=LONG)))
    await running(engine, 4)
    assert (await engine.stats()).cache_use > 0
    asking.cancel()
    await running(engine, 0)


def test_a_model_it_does_not_serve_is_said_at_once(tmp_path: Path):
    engine = RunningEngine("vllm", tmp_path, size="S")
    try:
        said = engine.told.get(timeout=60)
        assert isinstance(said, Failed)
        assert said.reason.startswith("unsupported_model: attention heads of 16 are not served by vLLM; it serves 32,")
        assert isinstance(engine.told.get(timeout=60), Ended)
    finally:
        engine.child.stop(0.0)


def test_a_killed_engine_leaves_nothing_behind(engine):
    """Last in this file: the engine is gone afterwards."""
    process = psutil.Process(engine.child.pid)
    family = [process, *process.children(recursive=True)]
    os.kill(engine.child.pid, signal.SIGKILL)
    assert engine.told.get(timeout=60) == Ended(-signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
