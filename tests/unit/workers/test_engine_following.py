"""What happens to running replies when newer weights arrive: tokens, log-probabilities and versions stay aligned."""

import numpy as np
import pytest
import torch

from flexmarl.contracts.specification.team import FactoryModel
from workers.models import architecture_of, build_model
from workers.rollout.engines.requests import Finished, Request
from workers.rollout.engines.torch_engine import TorchEngine

WORDS = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(37)))
SHAPE = architecture_of(FactoryModel())
MODELS = {version: build_model(FactoryModel(), WORDS, version + 1) for version in range(3)}
PROMPTS = ((1, 4, 5), (1, 9, 2, 30, 7), (3,))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def load(engine: TorchEngine, version: int) -> None:
    engine.load("p", version, f"d{version}", engine.prepare(MODELS[version].state_dict(), SHAPE))


def play(follow: str, updates: dict[int, int], tokens: int = 12, rows: int = 16) -> dict[str, Finished]:
    """Play three prompts that follow, and one that does not; `updates` maps a number of steps to a version."""
    engine = TorchEngine("cpu", rows)
    load(engine, 0)
    engine.submit([Request(f"f{i}", "p", p, tokens, seed=i, version=0, follow=follow) for i, p in enumerate(PROMPTS)])
    engine.submit([Request("pinned", "p", PROMPTS[0], tokens, seed=0, version=0, digest="d0")])
    done: dict[str, Finished] = {}
    steps = 0
    while engine.busy:
        if steps in updates:
            load(engine, updates[steps])
        for answer in engine.step():
            assert answer.request.request_id not in done, "settled twice"
            done[answer.request.request_id] = answer
        steps += 1
    return done


def logprobs_by(version: int, prompt: tuple[int, ...], tokens: list[int]) -> np.ndarray:
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        scores = torch.log_softmax(MODELS[version](ids).logits[0, len(prompt) - 1 : -1], -1)
    return scores.gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()


def per_token(segments: list[int]) -> list[int]:
    return [v for v, n in zip(segments[::2], segments[1::2], strict=True) for _ in range(n)]


@pytest.mark.parametrize("follow", ["continue", "resume"])
def test_a_reply_that_follows_carries_on_with_newer_weights(follow: str) -> None:
    done = play(follow, {4: 1, 7: 2})
    for i, prompt in enumerate(PROMPTS):
        answer = done[f"f{i}"]
        assert answer.segments == [0, 4, 1, 3, 2, 5]
        assert len(answer.token_ids) == len(answer.logprobs) == 12
        made_by = per_token(answer.segments)
        if follow == "resume":
            # A fresh cache: every token's log-probability is that of the version it is marked with.
            truth = np.stack([logprobs_by(version, prompt, answer.token_ids) for version in range(3)])
            assert np.abs(truth[made_by, range(12)] - answer.logprobs).max() <= 1e-5
    assert done["pinned"].segments == [0, 12]
    alone = play("", {})["pinned"]
    assert done["pinned"].token_ids == alone.token_ids
    assert done["f0"].token_ids[:4] == alone.token_ids[:4]


def test_continue_keeps_the_old_attention_cache_and_resume_does_not() -> None:
    kept, fresh = (play(follow, {4: 1})["f1"] for follow in ("continue", "resume"))
    own = logprobs_by(1, PROMPTS[1], kept.token_ids)
    assert np.abs(own[4:] - kept.logprobs[4:]).max() > 1e-3, "the cache was computed anew"
    assert np.abs(logprobs_by(1, PROMPTS[1], fresh.token_ids)[4:] - fresh.logprobs[4:]).max() <= 1e-5


def test_a_restarted_turn_is_made_by_one_version_from_its_first_token() -> None:
    done = play("restart_turn", {4: 1, 7: 2})
    assert all(done[f"f{i}"].segments == [2, 12] for i in range(3))
    assert np.abs(logprobs_by(2, PROMPTS[0], done["f0"].token_ids) - done["f0"].logprobs).max() <= 1e-5


def test_waiting_requests_follow_as_well_and_none_is_lost() -> None:
    done = play("continue", {4: 1, 15: 2}, rows=2)
    assert sorted(done) == ["f0", "f1", "f2", "pinned"]
    assert all(sum(done[f"f{i}"].segments[1::2]) == 12 for i in range(3))


def test_an_aborted_reply_keeps_its_segments() -> None:
    engine = TorchEngine("cpu", 4)
    load(engine, 0)
    engine.submit([Request("f", "p", PROMPTS[0], 12, seed=0, version=0, follow="continue")])
    engine.step()
    load(engine, 1)
    engine.step()
    (ended,) = engine.abort({"f"})
    assert ended.segments == [0, 1, 1, 1]
    assert len(ended.token_ids) == len(ended.logprobs) == 2
