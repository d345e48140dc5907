"""The torch engine against plain transformers, and its promises about requests and versions."""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flexmarl.contracts.specification.team import FactoryModel
from workers.models import Architecture, UnsupportedModel, architecture_of, build_model
from workers.models.architecture import parse_architecture
from workers.rollout.engines.requests import BadRequestError, Finished, NotHeldError, Request
from workers.rollout.engines.torch_engine import TorchEngine
from workers.transfer import LocalTier

WORDS = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(37)))
N = len(WORDS)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def engine_with(model: torch.nn.Module, architecture: Architecture, rows: int = 16, device: str = "cpu") -> TorchEngine:
    engine = TorchEngine(device, rows)
    engine.load("p", 0, "d0", engine.prepare(model.state_dict(), architecture))
    return engine


def small(rows: int = 16, seed: int = 1) -> TorchEngine:
    return engine_with(build_model(FactoryModel(), WORDS, seed), architecture_of(FactoryModel()), rows)


def finish(engine: TorchEngine) -> dict[str, Finished]:
    done: dict[str, Finished] = {}
    while engine.busy:
        for answer in engine.step():
            assert answer.request.request_id not in done, "settled twice"
            done[answer.request.request_id] = answer
    return done


def ragged_requests(count: int, seed: int = 0) -> list[Request]:
    rng = np.random.default_rng(seed)
    return [
        Request(
            str(i),
            "p",
            tuple(rng.integers(0, N, rng.integers(1, 60)).tolist()),
            int(rng.integers(1, 90)),
            seed=int(rng.integers(0, 2**62)),
            temperature=(1.0, 0.7, 0.0)[i % 3],
            allowed=tuple(range(3, 30)) if i % 2 else (),
            stop=(5, 7) if i % 4 == 0 else (),
        )
        for i in range(count)
    ]


def reference_logprobs(model: torch.nn.Module, answer: Finished) -> torch.Tensor:
    """Log-probabilities that plain transformers gives the answer's tokens, one sequence at a time."""
    asked = answer.request
    ids = torch.tensor([[*asked.prompt, *answer.token_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(asked.prompt) - 1 : -1]
    if asked.allowed:
        mask = torch.full((logits.shape[-1],), -torch.inf)
        mask[list(asked.allowed)] = 0.0
        logits = logits + mask
    logprobs = torch.log_softmax(logits / (asked.temperature or 1.0), -1)
    if asked.temperature == 0.0:
        assert answer.token_ids == logits.argmax(-1).tolist()
    return logprobs.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]


def check_against(model: torch.nn.Module, engine: TorchEngine, requests: list[Request]) -> None:
    engine.submit(requests)
    done = finish(engine)
    assert set(done) == {request.request_id for request in requests}
    for answer in done.values():
        asked = answer.request
        assert len(answer.token_ids) == len(answer.logprobs) <= asked.max_tokens
        assert (answer.reason == "stop") == (answer.token_ids[-1] in asked.stop)
        assert answer.reason == "stop" or len(answer.token_ids) == asked.max_tokens
        assert not set(answer.token_ids[:-1]) & set(asked.stop)
        gap = (reference_logprobs(model, answer) - torch.tensor(answer.logprobs)).abs().max()
        assert gap <= 2e-5  # the order of additions differs between processors


@pytest.mark.parametrize("size", ["S", "M"])
def test_logprobs_are_those_of_transformers_for_ragged_requests(size: str) -> None:
    source = FactoryModel(size=size)
    model = build_model(source, WORDS, seed=1)
    check_against(model, engine_with(model, architecture_of(source)), ragged_requests(60))


@pytest.mark.parametrize("size", ["S", "M"])
def test_large_matrices_are_computed_with_where_they_lie(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.rollout.engines.decoder.LARGE", 1)
    source = FactoryModel(size=size)
    model, tier = build_model(source, WORDS, seed=1), LocalTier(tmp_path)
    state = tier.mapped(tier.put(model.state_dict()).digest)
    memory = state["model.norm.weight"].untyped_storage()
    engine = TorchEngine("cpu", 16)
    weights = engine.prepare(state, architecture_of(source))
    own = [weights.embedding, weights.head, *(part for each in weights.layers for part in (each.out, each.down))]
    own += [each.gate_up for each in weights.layers]
    assert all(tensor.untyped_storage().data_ptr() == memory.data_ptr() for tensor in own)
    engine.load("p", 0, "d0", weights)
    check_against(model, engine, ragged_requests(30))


def test_weights_that_serve_nobody_any_more_take_no_memory() -> None:
    source = FactoryModel()
    engine, seen = TorchEngine("cpu", 4), []
    for version in range(4):
        weights = engine.prepare(build_model(source, WORDS, version).state_dict(), architecture_of(source))
        seen.append(weakref.ref(weights.head))
        engine.load("p", version, f"d{version}", weights)
        del weights
    assert [held() is not None for held in seen] == [False, False, True, True]


def test_biases_count() -> None:
    model = build_model(FactoryModel(), WORDS, seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.3)
    check_against(model, engine_with(model, architecture_of(FactoryModel())), ragged_requests(20))


def test_grouped_query_attention_and_tied_embeddings_of_llama() -> None:
    config = LlamaConfig(
        vocab_size=N,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.15,
        attention_bias=True,
        rope_theta=500.0,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    architecture = parse_architecture(config.to_dict())
    assert (architecture.kv_heads, architecture.rope_theta) == (2, 500.0)
    check_against(model, engine_with(model, architecture), ragged_requests(20))


def test_a_later_turn_with_the_whole_conversation_as_prompt_continues_it() -> None:
    model = build_model(FactoryModel(), WORDS, seed=2)
    engine = engine_with(model, architecture_of(FactoryModel()))
    prompts = [(1, 5 + i) for i in range(10)]
    for turn in range(4):
        requests = [Request(f"{turn}.{i}", "p", prompt, 3 + i, seed=i) for i, prompt in enumerate(prompts)]
        engine.submit(requests)
        done = finish(engine)
        for answer in done.values():
            assert (reference_logprobs(model, answer) - torch.tensor(answer.logprobs)).abs().max() <= 1e-5
        prompts = [(*p, *done[f"{turn}.{i}"].token_ids, 9) for i, p in enumerate(prompts)]


def test_draws_do_not_depend_on_the_batch() -> None:
    requests = ragged_requests(40, seed=3)
    together, few_at_a_time = small(rows=40), small(rows=3)
    together.submit(requests)
    first = finish(together)
    few_at_a_time.submit(list(reversed(requests)))
    second = finish(few_at_a_time)
    for name, answer in first.items():
        assert answer.token_ids == second[name].token_ids
        assert np.allclose(answer.logprobs, second[name].logprobs, atol=1e-5)


def test_equal_prompts_with_different_seeds_share_a_prefill_and_differ() -> None:
    model = build_model(FactoryModel(), WORDS, seed=2)
    engine = engine_with(model, architecture_of(FactoryModel()))
    prompt = tuple(range(3, 20))
    engine.submit([Request(str(i), "p", prompt, 12, seed=i) for i in range(12)])
    done = finish(engine)
    assert len({tuple(answer.token_ids) for answer in done.values()}) > 6
    for answer in done.values():
        assert (reference_logprobs(model, answer) - torch.tensor(answer.logprobs)).abs().max() <= 1e-5


def test_abort_settles_running_and_waiting_requests_once_with_what_they_have() -> None:
    engine = small(rows=4)
    engine.submit([Request(str(i), "p", (1, 2, 3), 20, seed=i) for i in range(6)])
    for _ in range(5):
        assert engine.step() == []
    aborted = {answer.request.request_id: answer for answer in engine.abort({"1", "5", "nobody"})}
    assert set(aborted) == {"1", "5"}
    assert all(answer.reason == "abort" for answer in aborted.values())
    assert (len(aborted["1"].token_ids), len(aborted["5"].token_ids)) == (5, 0)
    done = finish(engine)
    assert set(done) == {"0", "2", "3", "4"}
    complete = small()
    complete.submit([Request("1", "p", (1, 2, 3), 20, seed=1)])
    assert finish(complete)["1"].token_ids[:5] == aborted["1"].token_ids


def test_a_running_reply_is_finished_by_the_version_it_started_with() -> None:
    old, new = (build_model(FactoryModel(), WORDS, seed) for seed in (1, 2))
    engine = engine_with(old, architecture_of(FactoryModel()))
    engine.submit([Request("old", "p", (1, 4, 5), 12, seed=1, version=0, digest="d0")])
    engine.step()
    engine.load("p", 1, "d1", engine.prepare(new.state_dict(), architecture_of(FactoryModel())))
    engine.submit([Request("new", "p", (1, 4, 5), 12, seed=1, version=1, digest="d1")])
    engine.submit([Request("any", "p", (1, 4, 5), 12, seed=1)])
    engine.submit([Request("late", "p", (1, 4, 5), 12, seed=1, version=0, digest="d0")])
    done = finish(engine)
    assert {name: answer.version for name, answer in done.items()} == {"old": 0, "new": 1, "any": 1, "late": 0}
    assert done["old"].token_ids == done["late"].token_ids
    assert done["new"].token_ids == done["any"].token_ids
    for name, model in (("old", old), ("new", new)):
        assert (reference_logprobs(model, done[name]) - torch.tensor(done[name].logprobs)).abs().max() <= 1e-5


def test_versions_before_the_kept_ones_are_refused_but_finish_what_runs() -> None:
    engine = small()
    weights = engine.prepare(build_model(FactoryModel(), WORDS, 9).state_dict(), architecture_of(FactoryModel()))
    engine.submit([Request("first", "p", (1, 4), 30, seed=1, version=0, digest="d0")])
    engine.step()
    for version in (1, 2, 3):
        engine.load("p", version, f"d{version}", weights)
    with pytest.raises(NotHeldError, match="version 0"):
        engine.submit([Request("second", "p", (1, 4), 3, seed=1, version=0, digest="d0")])
    with pytest.raises(NotHeldError):
        engine.submit([Request("second", "p", (1, 4), 3, seed=1, version=3, digest="other")])
    with pytest.raises(NotHeldError, match="stranger"):
        engine.submit([Request("second", "stranger", (1, 4), 3, seed=1)])
    assert finish(engine)["first"].version == 0
    held = engine.holds()["p"]
    assert (held.version, held.digest) == (3, "d3")
    for version in (4, 5, 6):
        engine.load("p", version, f"d{version}", weights)
        engine.submit([Request("again", "p", (1, 4), 3, seed=1, version=version)])
        assert finish(engine)["again"].version == version
    assert len(engine._lanes["p"]) == 2


def test_a_load_keeps_the_version_that_it_names_whatever_was_loaded_between() -> None:
    engine = small()
    weights = engine.prepare(build_model(FactoryModel(), WORDS, 9).state_dict(), architecture_of(FactoryModel()))
    engine.load("p", 1, "d1", weights)
    engine.load("p", 2, "d2", weights, keeps=[0])
    assert [engine.has("p", version, f"d{version}") for version in (0, 1, 2)] == [True, False, True]
    engine.load("p", 3, "d3", weights, keeps=[7])
    assert [engine.has("p", version, f"d{version}") for version in (0, 2, 3)] == [False, True, True]
    assert engine.holds()["p"].version == 3


def test_policies_of_different_sizes_are_served_side_by_side() -> None:
    engine = small()
    large = build_model(FactoryModel(size="M"), WORDS[:20], 4)
    engine.load("q", 7, "dq", engine.prepare(large.state_dict(), architecture_of(FactoryModel(size="M"))))
    engine.submit([Request("p", "p", (1, 30), 10, seed=1), Request("q", "q", (1, 5), 10, seed=1)])
    assert (engine.depth().running, engine.depth().waiting) == (0, 2)
    done = finish(engine)
    assert (done["p"].version, done["q"].version) == (0, 7)
    assert (engine.generated_tokens, engine.prompt_tokens) == (20, 4)
    assert max(done["q"].token_ids) < 20


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, N)}, "prompt"),
        ({"prompt": (1, -1)}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"allowed": (N,)}, "allowed"),
        ({"stop": (N,)}, "stop"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_by_field_and_leaves_no_trace(change: dict, field: str) -> None:
    engine = small()
    good = Request("good", "p", (1, 2), 3, seed=0)
    bad = Request(**{"request_id": "bad", "policy": "p", "prompt": (1, 2), "max_tokens": 3, "seed": 0} | change)
    with pytest.raises(BadRequestError, match=field):
        engine.submit([good, bad])
    assert not engine.busy


def test_weights_the_decoder_would_leave_out_are_refused() -> None:
    engine = small()
    state = build_model(FactoryModel(), WORDS, 1).state_dict()
    state["model.layers.0.self_attn.q_norm.weight"] = torch.ones(16)
    with pytest.raises(UnsupportedModel, match="q_norm"):
        engine.prepare(state, architecture_of(FactoryModel()))


def test_prepared_weights_do_not_change_with_the_state_they_came_from() -> None:
    model = build_model(FactoryModel(), WORDS, 1)
    engine = engine_with(model, architecture_of(FactoryModel()))
    request = Request("a", "p", (1, 2, 3), 10, seed=0, temperature=0.0)
    engine.submit([request])
    before = finish(engine)["a"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    engine.submit([request])
    assert finish(engine)["a"].logprobs == before.logprobs


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_code_serves_on_a_gpu() -> None:
    model = build_model(FactoryModel(size="M"), WORDS, seed=1)
    engine = engine_with(model, architecture_of(FactoryModel(size="M")), device="cuda:0")
    engine.submit(ragged_requests(60))
    for answer in finish(engine).values():
        assert (reference_logprobs(model, answer) - torch.tensor(answer.logprobs)).abs().max() <= 1e-4


def test_a_closed_policy_ends_what_runs_hands_back_what_waits_and_is_forgotten() -> None:
    engine, model, architecture = small(rows=2), build_model(FactoryModel(), WORDS, 9), architecture_of(FactoryModel())
    engine.load("q", 0, "d", engine.prepare(model.state_dict(), architecture))
    alone = Request("alone", "p", (1, 5), 6, 3)
    engine.submit([alone])
    expected = finish(engine)["alone"].token_ids
    engine.submit([Request(f"r{i}", "p", (1, 5), 6, 3) for i in range(4)] + [Request("other", "q", (1, 5), 6, 3)])
    engine.step()
    back = engine.close("p", hand_over=False)
    assert sorted(answer.request.request_id for answer in back) == ["r2", "r3"]
    assert all(answer.reason == "abort" and not answer.token_ids for answer in back)
    assert not engine.forget("p"), "two still run"
    assert set(engine.holds()) == {"q"}
    with pytest.raises(NotHeldError):
        engine.submit([Request("late", "p", (1, 5), 6, 3)])
    done = finish(engine)
    assert [done[name].token_ids for name in ("r0", "r1")] == [expected, expected]
    assert engine.forget("p")
    assert engine.close("p", hand_over=False) == []
    assert engine.forget("p"), "to forget what is not held changes nothing"
    engine.load("p", 0, "d0", engine.prepare(build_model(FactoryModel(), WORDS, 1).state_dict(), architecture))
    engine.submit([alone])
    assert finish(engine)["alone"].token_ids == expected


def test_a_reply_that_was_begun_elsewhere_is_made_to_its_end_by_a_policy_that_closes() -> None:
    engine = small(rows=1)
    engine.submit([Request("runs", "p", (1, 5), 6, 3)])
    whole = finish(engine)["runs"]
    engine.submit([Request("runs", "p", (1, 5), 6, 3)])
    engine.step()
    begun = {"done": tuple(whole.token_ids[:2]), "done_logprobs": tuple(whole.logprobs[:2]), "done_segments": (0, 2)}
    engine.submit([Request("begun", "p", (1, 5), 6, 3, **begun)])
    assert engine.close("p", hand_over=False) == [], "nobody else would go on with what it has"
    assert finish(engine)["begun"].token_ids == whole.token_ids


def test_a_load_opens_a_policy_that_was_about_to_leave() -> None:
    engine = small()
    engine.submit([Request("runs", "p", (1, 5), 6, 3)])
    engine.step()
    engine.close("p", hand_over=False)
    engine.load(
        "p",
        0,
        "d0",
        engine.prepare(build_model(FactoryModel(), WORDS, 1).state_dict(), architecture_of(FactoryModel())),
    )
    engine.submit([Request("more", "p", (1, 5), 6, 3)])
    assert engine.forget("p"), "nobody closes it any more"
    assert finish(engine).keys() == {"runs", "more"}
