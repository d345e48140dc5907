"""What an engine cannot compute is named and harms nobody: weights that are no model's, no numbers, no memory."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from flexmarl.contracts.specification.team import FactoryModel, FolderModel, PolicySpec
from tests.unit.workers.test_engine import WORDS, finish, ragged_requests, small
from workers.models import UnsupportedModel, architecture_of, tokenizer_json
from workers.models.checks import NonfiniteWeights, check_weights
from workers.models.weights import initial_weights
from workers.rollout.engines.base import EngineFailedError
from workers.rollout.engines.cache import Cache
from workers.rollout.engines.refusing import EngineRefusal, refusal_of
from workers.rollout.engines.requests import BadRequestError, Request
from workers.rollout.engines.sleeping import AsleepError, CannotSleepError, Sleep
from workers.rollout.engines.tokenizers import TokenizerDiffersError, Tokenizers
from workers.rollout.engines.torch_engine import TorchEngine
from workers.rollout.engines.vllm_engine import VllmEngine
from workers.rollout.engines.vllm_instance import numbers
from workers.rollout.engines.wire import LoadRequest
from workers.training.checks import check_tokenizer
from workers.training.errors import TrainerRefusal
from workers.transfer.base import StateMissing

NAN, INF = float("nan"), float("inf")
State = dict[str, torch.Tensor]


def without(state: State) -> None:
    del state["model.layers.0.mlp.down_proj.weight"]


def reshaped(state: State) -> None:
    state["model.layers.1.mlp.down_proj.weight"] = torch.zeros(3, 3)


def stranger(state: State) -> None:
    state["model.layers.9.mlp.down_proj.weight"] = torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(without, "is absent"), (reshaped, "is (3, 3)"), (stranger, "the model's is absent")],
)
def test_weights_that_are_not_the_models_are_refused_by_name(spoil: Callable[[State], None], words: str) -> None:
    state = initial_weights(FactoryModel(), len(WORDS), 1)
    assert check_weights(FactoryModel(), state) == len(WORDS)
    spoil(state)
    with pytest.raises(UnsupportedModel, match="down_proj") as refused:
        check_weights(FactoryModel(), state)
    assert words in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_one_weight_that_is_no_number_is_found_among_the_largest_ones(value: float, dtype: torch.dtype) -> None:
    state = {name: tensor.to(dtype) for name, tensor in initial_weights(FactoryModel(), len(WORDS), 1).items()}
    state["lm_head.weight"].fill_(torch.finfo(dtype).max)
    check_weights(FactoryModel(), state)
    state["model.layers.1.mlp.down_proj.weight"][3, 5] = value
    with pytest.raises(NonfiniteWeights, match=r"model\.layers\.1\.mlp\.down_proj"):
        check_weights(FactoryModel(), state)


@pytest.mark.parametrize("config", [None, "{", "[]", '{"model_type": "qwen2"}', '{"model_type": "mamba"}'])
@pytest.mark.usefixtures("models_in_tmp")
def test_a_folder_that_holds_no_model_is_refused_in_words(config: str | None, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UnsupportedModel) as refused:
        architecture_of(FolderModel(path=str(tmp_path)))
    assert "config.json" in str(refused.value) or "mamba" in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.usefixtures("models_in_tmp")
def test_a_damaged_file_of_weights_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00 no head")
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors cannot be read"):
        initial_weights(FolderModel(path=str(tmp_path)), 3, 0)


def request(name: str, *prompt: int, **more: object) -> Request:
    return Request(name, "p", prompt, 6, seed=len(name), **more)


def spoilt_word(engine: TorchEngine, word: int) -> None:
    """Let a word's numbers overflow, as weights within their range can make them."""
    with torch.inference_mode():
        engine._lanes["p"][0].weights.embedding[word] = NAN


def test_a_reply_without_numbers_is_given_up_and_spoils_no_other() -> None:
    """Its row's memory is used again: what stood there must not reach the next reply through a masked position."""
    sound = [request(f"s{number}", 1, 10 + number, allowed=(3, 4, 5)) for number in range(8)]
    alone = small(rows=4)
    alone.submit(sound)
    expected = finish(alone)
    engine = small(rows=4)
    spoilt_word(engine, 9)
    engine.submit([request("bad", 1, 5, 6, 9, 5, 6, 5, 6, 5, 6), *sound])
    done = finish(engine)
    assert (done["bad"].reason, done["bad"].token_ids, done["bad"].logprobs) == ("nonfinite", [], [])
    for name, answer in expected.items():
        assert done[name].token_ids == answer.token_ids, name
        assert done[name].logprobs == pytest.approx(answer.logprobs, abs=1e-5)
    assert not any(torch.isnan(tensor).any() for tensor in engine._caches.tensors())


def test_a_reply_that_loses_its_numbers_on_the_way_keeps_the_sound_ones() -> None:
    engine = small()
    spoilt_word(engine, 9)
    engine.submit([request("late", 1, 3, done=(4, 9), done_logprobs=(-0.5, -0.25), done_segments=(0, 2))])
    answer = finish(engine)["late"]
    assert (answer.reason, answer.token_ids, answer.logprobs) == ("nonfinite", [4, 9], [-0.5, -0.25])
    assert answer.segments == [0, 2]
    assert numbers([-0.5, -1.0]) == 2
    assert [numbers([-0.5, wrong, -1.0]) for wrong in (NAN, INF, -INF)] == [1, 1, 1]


def test_memory_that_runs_out_hands_everything_back_once_and_less_is_taken_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = ragged_requests(30)
    plenty = small(rows=16)
    plenty.submit(asked)
    expected = finish(plenty)
    reserve = Cache.reserve

    def little(self: Cache, rows: int, positions: int, live: int) -> None:
        if rows > 8:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        reserve(self, rows, positions, live)

    monkeypatch.setattr(Cache, "reserve", little)
    engine = small(rows=16)
    engine.submit(asked)
    with pytest.raises(RuntimeError, match="can't allocate") as failed:
        finish(engine)
    handed_back = engine.shed("p", failed.value)
    assert sorted(one.request.request_id for one in handed_back) == sorted(r.request_id for r in asked)
    assert {one.reason for one in handed_back} == {"out_of_memory"}
    assert (engine.busy, engine.rows_of("p")) == (False, 8)
    engine.submit([replace(one.request, done=tuple(one.token_ids)) for one in handed_back])
    done = finish(engine)
    assert {name: answer.token_ids for name, answer in done.items()} == {n: a.token_ids for n, a in expected.items()}


def test_of_requests_that_come_together_the_wrong_ones_are_named() -> None:
    engine = small()
    long = request("long", *([5] * 4092))
    with pytest.raises(BadRequestError, match="positions exceed the model's 4096") as refused:
        engine.submit([request("a", 1), long, request("b", 1), request("c", 400)])
    assert (refused.value.code, refused.value.request_ids) == ("context_overflow", ["long", "c"])
    assert not engine.busy


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), EngineRefusal(503, "out_of_memory")),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), EngineRefusal(503, "out_of_memory")),
        (
            EngineFailedError("vLLM cannot start this model: RuntimeError: out of memory"),
            EngineRefusal(503, "out_of_memory"),
        ),
        (EngineFailedError("vLLM cannot load these weights"), EngineRefusal(422, "engine_failed")),
        (NonfiniteWeights("norm"), EngineRefusal(422, "nonfinite_weights")),
        (BadRequestError("prompt: is empty", request_ids=["a"]), EngineRefusal(422, "bad_request", ["a"])),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_each_trouble_has_its_answer(error: Exception, expected: EngineRefusal | None) -> None:
    assert refusal_of(error) == expected


def test_weights_of_another_vocabulary_than_those_before_are_refused() -> None:
    engine = small()
    other = initial_weights(FactoryModel(), len(WORDS) + 10, 1)
    with pytest.raises(UnsupportedModel, match="50 words and those of p before had 40"):
        engine.load("p", 1, "d1", engine.prepare(other, architecture_of(FactoryModel())))
    assert engine.has("p", 0, "d0")


def load_named(tokenizer: bytes, policy: str = "p") -> LoadRequest:
    return LoadRequest(policy, 0, "d0", tokenizer=sha256(tokenizer).hexdigest())


@pytest.mark.usefixtures("models_in_tmp")
def test_a_run_that_speaks_by_another_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"beside the model")
    folder = PolicySpec(model=FolderModel(path=str(tmp_path)))
    known = Tokenizers({"p": folder, "made": PolicySpec()})
    known.check(LoadRequest("p", 0, "d0"))
    known.check(load_named(b"beside the model"))
    with pytest.raises(TokenizerDiffersError, match="put the folder that the policy was made from on every host"):
        known.check(load_named(b"another"))
    known.check(load_named(b"first", "made"))
    known.check(load_named(b"first", "made"))
    with pytest.raises(TokenizerDiffersError) as refused:
        known.check(load_named(b"second", "made"))
    assert refusal_of(refused.value) == EngineRefusal(422, "tokenizer_differs")


def test_a_tokenizer_with_more_ids_than_the_model_knows_is_refused_before_anything_is_trained() -> None:
    weights = initial_weights(FactoryModel(), len(WORDS), 1)
    check_tokenizer("p", tokenizer_json(WORDS), weights)
    check_tokenizer("p", tokenizer_json(WORDS[:-5]), weights)
    with pytest.raises(TrainerRefusal, match="has 41 ids, its model 40") as refused:
        check_tokenizer("p", tokenizer_json((*WORDS, "more")), weights)
    assert refused.value.code == "tokenizer_differs"


class Asks:
    """Stands in for the state plane; one digest of it is lost after a while."""

    def __init__(self) -> None:
        self.lost = ""

    async def __call__(self, asked: LoadRequest) -> object:
        if asked.digest == self.lost:
            raise StateMissing("no complete manifest", asked.digest)
        return TorchEngine().prepare(initial_weights(FactoryModel(), len(WORDS), 1), architecture_of(FactoryModel()))


async def test_an_engine_that_cannot_wake_wholly_sleeps_on_and_holds_nothing() -> None:
    engine, sleep, plane = small(), Sleep(), Asks()
    for version in (1, 2):
        engine.load("p", version, f"d{version}", await plane(LoadRequest("p", version, f"d{version}")), [version - 1])
    kept = [(asked.version, asked.digest) for asked in engine.versions()]
    assert kept == [(1, "d1"), (2, "d2")]
    sleep.begin(engine)
    plane.lost = "d2"
    with pytest.raises(StateMissing):
        await sleep.end(engine, plane)
    assert engine.holds() == {}
    with pytest.raises(AsleepError):
        sleep.refuse()
    plane.lost = ""
    await sleep.end(engine, plane)
    sleep.refuse()
    assert [(asked.version, asked.digest) for asked in engine.versions()] == kept


def test_a_vllm_engine_does_not_pretend_to_sleep() -> None:
    engine, sleep = VllmEngine(lambda *_: None), Sleep()
    with pytest.raises(CannotSleepError):
        sleep.begin(engine)
    sleep.refuse()
