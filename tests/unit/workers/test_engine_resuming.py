"""A reply that stops at any token and goes on at another engine is the reply of one that was never stopped."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flexmarl.contracts.specification.team import FactoryModel
from workers.models import architecture_of, build_model
from workers.rollout.engines import version_segments
from workers.rollout.engines.requests import BadRequestError, Finished, Request
from workers.rollout.engines.torch_engine import TorchEngine
from workers.rollout.engines.wire import SamplingParameters

WORDS = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(37)))
SHAPE = architecture_of(FactoryModel())
STATE = build_model(FactoryModel(), WORDS, 1).state_dict()
TOKENS = 20
REQUESTS = (
    Request("plain", "p", (1, 4, 5), TOKENS, seed=11),
    Request("cool", "p", (1, 9, 2, 30, 7), TOKENS, seed=12, temperature=0.6),
    Request("greedy", "p", (3,), TOKENS, seed=13, temperature=0.0),
    Request("few words", "p", (1, 8), TOKENS, seed=14, allowed=tuple(range(3, 20)), stop=(3, 4)),
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def engine(version: int = 0, ordered: bool = False, rows: int = 8) -> TorchEngine:
    made = TorchEngine("cpu", rows, ordered)
    made.load("p", version, f"d{version}", made.prepare(STATE, SHAPE))
    return made


def finish(on: TorchEngine, requests: list[Request]) -> dict[str, Finished]:
    on.submit(requests)
    done: dict[str, Finished] = {}
    while on.busy:
        done |= {answer.request.request_id: answer for answer in on.step()}
    return done


def interrupted(on: TorchEngine, requests: list[Request], steps: int) -> dict[str, Finished]:
    """Stop everything after some steps; what ended before is as it is."""
    on.submit(requests)
    done: dict[str, Finished] = {}
    for _ in range(steps):
        done |= {answer.request.request_id: answer for answer in on.step()}
    done |= {answer.request.request_id: answer for answer in on.abort({r.request_id for r in requests})}
    assert not on.busy, "an abort leaves nothing behind"
    return done


def carried_on(answer: Finished) -> Request:
    return replace(
        answer.request,
        done=tuple(answer.token_ids),
        done_logprobs=tuple(answer.logprobs),
        done_segments=tuple(answer.segments),
        done_uncertainty=tuple(answer.uncertainty),
    )


@pytest.fixture(scope="module")
def whole() -> dict[str, Finished]:
    return finish(engine(), list(REQUESTS))


@pytest.mark.parametrize("steps", range(TOKENS + 1))
def test_interrupted_at_every_token_it_is_the_uninterrupted_reply(whole: dict[str, Finished], steps: int) -> None:
    stopped = interrupted(engine(), list(REQUESTS), steps)
    left = [carried_on(answer) for answer in stopped.values() if answer.reason == "abort"]
    assert left or steps == TOKENS
    again = stopped | finish(engine(), left)
    for name, answer in again.items():
        assert answer.token_ids == whole[name].token_ids, name
        assert np.abs(np.array(answer.logprobs) - whole[name].logprobs).max() <= 1e-5, name
        assert answer.segments == whole[name].segments == [0, len(answer.token_ids)], name
        assert answer.reason == whole[name].reason, name
        assert answer.logprobs[: len(answer.request.done)] == list(answer.request.done_logprobs), "kept as they were"


def test_it_may_move_at_every_token(whole: dict[str, Finished]) -> None:
    requests, found = list(REQUESTS), {}
    while requests:
        stopped = interrupted(engine(), requests, 1)
        found |= stopped
        requests = [carried_on(answer) for answer in stopped.values() if answer.reason == "abort"]
    assert {name: answer.token_ids for name, answer in found.items()} == {
        name: answer.token_ids for name, answer in whole.items()
    }


@pytest.mark.parametrize("steps", [0, 1, TOKENS // 2, TOKENS - 1])
def test_what_leaves_with_its_policy_is_the_same_reply_elsewhere(whole: dict[str, Finished], steps: int) -> None:
    leaves = engine(rows=2)  # so two run and two have not begun
    leaves.submit(list(REQUESTS))
    ended = {answer.request.request_id: answer for _ in range(steps) for answer in leaves.step()}
    handed_over = leaves.close("p", hand_over=True)
    assert leaves.forget("p"), "nothing is left to wait for"
    again = ended | finish(engine(), [carried_on(answer) for answer in handed_over])
    assert {name: answer.token_ids for name, answer in again.items()} == {
        name: answer.token_ids for name, answer in whole.items()
    }


def test_what_nobody_else_can_carry_on_is_made_to_its_end(whole: dict[str, Finished]) -> None:
    ordered = engine(ordered=True)
    ordered.submit([REQUESTS[0]])
    ordered.step()
    assert ordered.close("p", hand_over=True) == []
    assert not ordered.forget("p")
    old = engine()
    old.submit([REQUESTS[0]])
    old.step()
    for version in (1, 2):
        old.load("p", version, f"d{version}", old.prepare(STATE, SHAPE))
    assert old.close("p", hand_over=True) == [], "a version that nobody is served by any more"
    assert [answer.token_ids for _ in range(TOKENS) for answer in old.step()] == [whole["plain"].token_ids]
    assert old.forget("p")


def test_tokens_of_two_versions_stay_told_apart() -> None:
    follows = replace(REQUESTS[0], follow="resume")
    (stopped,) = interrupted(engine(0), [follows], 7).values()
    (answer,) = finish(engine(3), [carried_on(stopped)]).values()
    assert answer.segments == [0, 7, 3, TOKENS - 7]
    assert len(answer.logprobs) == TOKENS


def test_parts_tell_each_token_once(whole: dict[str, Finished]) -> None:
    running, told = engine(), {"plain": 0, "cool": 0}
    running.submit(list(REQUESTS))
    heard: dict[str, list[int]] = {"plain": [], "cool": []}
    for step in range(1, TOKENS):
        running.step()
        if step % 3 == 0:
            for part in running.parts(told):
                assert part.at == len(heard[part.request_id])
                assert part.segments == [0, 3]
                assert len(part.logprobs) == 3
                heard[part.request_id] += part.token_ids
                told[part.request_id] = part.at + 3
    assert all(tokens == whole[name].token_ids[:18] for name, tokens in heard.items())


@pytest.mark.parametrize(
    ("ordered", "changes", "problem"),
    [
        (True, {}, "from its first token"),
        (False, {"follow": "restart_turn"}, "from its first token"),
        (False, {"done_logprobs": ()}, "as many log-probabilities"),
        (False, {"done_segments": (0, 3)}, "as many"),
        (False, {"stop": (5,)}, "at its end"),
        (False, {"max_tokens": 2}, "at its end"),
        (False, {"done": (4, 99)}, "outside"),
    ],
)
def test_what_cannot_be_carried_on_is_refused(ordered: bool, changes: dict, problem: str) -> None:
    sound = replace(REQUESTS[0], done=(4, 5), done_logprobs=(-1.0, -1.0), done_segments=(0, 2))
    with pytest.raises(BadRequestError, match=problem):
        engine(ordered=ordered).submit([replace(sound, **changes)])


def test_an_ordered_reply_begun_anew_has_the_same_bits() -> None:
    (whole,) = finish(engine(ordered=True), [REQUESTS[0]]).values()
    interrupted(engine(ordered=True), list(REQUESTS), 5)
    again = finish(engine(ordered=True), list(REQUESTS))["plain"]
    assert (again.token_ids, again.logprobs) == (whole.token_ids, whole.logprobs)


def test_segments_are_cut_and_joined_at_any_token() -> None:
    segments = [3, 4, 5, 2, 6, 1]
    for tokens in range(8):
        first, second = version_segments.until(segments, tokens), version_segments.since(segments, tokens)
        assert version_segments.count(first) == tokens
        assert version_segments.joined(first, second) == segments
    assert version_segments.joined([], [1, 2]) == [1, 2]


def test_what_is_told_of_uncertainty_changes_no_token_and_goes_on_with_the_reply(whole: dict[str, Finished]) -> None:
    asked = [replace(request, sampling=SamplingParameters(uncertainty=True)) for request in REQUESTS]
    told = finish(engine(), [*asked[:2], REQUESTS[2], asked[3]])
    assert not whole["plain"].uncertainty
    assert not told["greedy"].uncertainty, "nobody asked"
    for name, answer in told.items():
        assert (answer.token_ids, answer.logprobs) == (whole[name].token_ids, whole[name].logprobs)
        assert len(answer.uncertainty) in (0, 3 * len(answer.token_ids))
    entropies = np.array(told["few words"].uncertainty[::3])
    assert ((entropies > 0) & (entropies <= np.log(17) + 1e-6)).all(), "of the words that it may say"
    stopped = interrupted(engine(), asked, 7)
    assert len(stopped["plain"].uncertainty) == 3 * 7
    further = finish(engine(), [carried_on(one) for one in stopped.values() if one.reason == "abort"])
    for name in ("plain", "cool"):
        assert further[name].token_ids == told[name].token_ids
        assert np.allclose(further[name].uncertainty, told[name].uncertainty, atol=1e-5)
    with pytest.raises(BadRequestError, match="7 tokens need 3 numbers of uncertainty each"):
        engine().submit([replace(carried_on(stopped["plain"]), done_uncertainty=())])
