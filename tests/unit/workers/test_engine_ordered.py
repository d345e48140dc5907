"""An ordered engine: the bits of a reply depend on its request and its weights, never on what else is generated."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from flexmarl.contracts.specification.team import FactoryModel
from tests.support.forms import form
from workers.models import UnsupportedModel, architecture_of, build_model
from workers.rollout.engines import decoder, invariant
from workers.rollout.engines.layout import capacity_of
from workers.rollout.engines.requests import Request
from workers.rollout.engines.torch_engine import TorchEngine

pytestmark = pytest.mark.slow

WORDS = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(37)))
Bits = dict[str, tuple[tuple[int, ...], tuple[float, ...]]]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_engine(rows: int, size: str = "S", ordered: bool = True, device: str = "cpu") -> TorchEngine:
    source = FactoryModel(size=size)
    engine = TorchEngine(device, rows, ordered)
    engine.load("p", 0, "d", engine.prepare(build_model(source, WORDS, 1).state_dict(), architecture_of(source)))
    return engine


def ragged(count: int, seed: int = 0) -> list[Request]:
    """Requests of several length classes, some of which grow from one into the next; a few share their prompt."""
    rng = np.random.default_rng(seed)
    prompts = [tuple(rng.integers(0, len(WORDS), rng.integers(1, 90)).tolist()) for _ in range(count - count // 5)]
    prompts += prompts[: count // 5]
    return [
        Request(
            str(i),
            "p",
            prompt,
            int(rng.integers(1, 60)),
            seed=int(rng.integers(0, 2**62)),
            temperature=(1.0, 0.7, 0.0)[i % 3],
            allowed=tuple(range(3, 30)) if i % 2 else (),
            stop=(5, 7) if i % 4 == 0 else (),
        )
        for i, prompt in enumerate(prompts)
    ]


def generate(engine: TorchEngine, arrivals: list[list[Request]]) -> Bits:
    """Submit one list of requests per decode step and return every reply."""
    waiting, done = list(arrivals), {}
    while waiting or engine.busy:
        if waiting:
            engine.submit(waiting.pop(0))
        for answer in engine.step():
            done[answer.request.request_id] = (tuple(answer.token_ids), tuple(answer.logprobs))
    return done


def schedules(requests: list[Request]) -> Iterator[tuple[str, int, list[list[Request]]]]:
    yield "one at a time", 1, [requests]
    yield "each joins those before", 64, [[request] for request in requests]
    order = random.Random(3)
    for rows in (7, 16, 64):
        mixed = order.sample(requests, len(requests))
        size = order.randint(1, 11)
        yield f"in parts of {size}", rows, [mixed[i : i + size] for i in range(0, len(mixed), size)]


@pytest.mark.parametrize("size", ["S", "M"])
def test_no_schedule_changes_a_bit(size: str):
    requests = ragged(60 if size == "S" else form(short=36, full=60))
    expected = generate(make_engine(64, size), [requests])
    for name, rows, arrivals in schedules(requests):
        assert generate(make_engine(rows, size), arrivals) == expected, name


def test_the_other_engine_does_depend_on_its_batches():
    """Shows that the comparison above can fail: without fixed shapes, log-probabilities differ in their last bits."""
    requests = ragged(60)
    whole = generate(make_engine(64, ordered=False), [requests])
    assert generate(make_engine(1, ordered=False), [requests]) != whole


def test_an_ordered_reply_is_the_other_engines_up_to_rounding():
    requests = ragged(60)
    ordered, default = (generate(make_engine(16, ordered=flag), [requests]) for flag in (True, False))
    assert {key: tokens for key, (tokens, _) in ordered.items()} == {
        key: tokens for key, (tokens, _) in default.items()
    }
    for key, (_, logprobs) in ordered.items():
        assert np.allclose(logprobs, default[key][1], atol=2e-5), key


def test_a_reply_survives_a_replica_that_ends_in_the_middle():
    """A turn asked again elsewhere says the same: what a lost engine had made is made once more."""
    requests = ragged(24)
    expected = generate(make_engine(24), [requests])
    engine = make_engine(24)
    engine.submit(requests)
    early = [answer for _ in range(9) for answer in engine.step()]
    done = {answer.request.request_id: (tuple(answer.token_ids), tuple(answer.logprobs)) for answer in early}
    rest = [request for request in requests if request.request_id not in done]
    assert early, "some were done before it ended"
    assert rest, "and some were not"
    assert generate(make_engine(5), [rest]) | done == expected


def test_blocks_are_of_one_class_and_of_bounded_size():
    lengths = np.array([200] * 3 + [100] * 70 + [40] + [12] * 33)
    found = list(invariant.blocks(lengths))
    assert [(part.start, part.stop) for part in found] == [
        (0, 3),
        (3, 35),
        (35, 67),
        (67, 73),
        (73, 74),
        (74, 106),
        (106, 107),
    ]
    for part in found:
        assert set(capacity_of(lengths[part.start : part.stop])) == {part.length}
    assert list(capacity_of(np.array([1, 32, 33, 64, 65, 513]))) == [32, 32, 64, 64, 128, 1024]


def test_kernels_that_see_a_rows_place_are_refused(monkeypatch: pytest.MonkeyPatch):
    """A version is not served on a machine where the promise would not hold."""
    exact = decoder.decode

    def placed(*args: object) -> torch.Tensor:
        logits = exact(*args)
        return logits * (1 + 1e-6 * torch.arange(len(logits))[:, None])

    monkeypatch.setattr(decoder, "decode", placed)
    with pytest.raises(UnsupportedModel, match="another place"):
        make_engine(8)


def test_kernels_that_see_a_rows_neighbours_are_refused(monkeypatch: pytest.MonkeyPatch):
    exact = decoder.decode

    def leaning(*args: object) -> torch.Tensor:
        logits = exact(*args)
        return logits + 1e-6 * logits.mean(0)

    monkeypatch.setattr(decoder, "decode", leaning)
    with pytest.raises(UnsupportedModel, match="neighbours"):
        make_engine(8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_no_schedule_changes_a_bit_on_a_gpu():
    requests = ragged(60)
    expected = generate(make_engine(64, device="cuda"), [requests])
    for name, rows, arrivals in schedules(requests):
        assert generate(make_engine(rows, device="cuda"), arrivals) == expected, name
