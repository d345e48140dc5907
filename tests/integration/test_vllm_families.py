"""Families that the native decoder does not know, on a real vLLM engine: log-probabilities are the trainer's.

Weights and adapters go the road of a run: published by the names of files, loaded by digest.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW, FolderModel, Lora, PolicySpec
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.engines import RunningEngine, needs_vllm, running_engine
from tests.support.families import FAMILIES, saved
from tests.support.packed import last_logits
from tests.support.trained import PROMPTS
from workers.models.adapter import description, initial_adapter
from workers.models.families import shape_of
from workers.models.opening import allow
from workers.models.weights import initial_weights
from workers.rollout.engines.wire import CompletionChoice
from workers.training.learner import Adapter, Learner
from workers.training.objective import Objective

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(900)]

SERVED = ("qwen3", "qwen3_moe", "llama3", "smollm2", "gemma3", "mistral")
ADAPTED = ("gpt_oss", "qwen3")
MEAN, MOST = 2e-5, 2e-4
"""Of differences of log-probabilities in fp32: kernels add in another order."""
LORA = Lora(rank=4, targets=("q_proj", "v_proj", "o_proj"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("vllm-families")
    allow(ModelRoots((str(home),)))
    yield home
    allow(ModelRoots())


@pytest.fixture(scope="module")
def policies(home: Path) -> dict[str, PolicySpec]:
    made = {
        name: PolicySpec(model=FolderModel(path=str(saved(FAMILIES[name](), home / "models" / name))))
        for name in (*SERVED, "gpt_oss")
    }
    return made | {f"adapted_{name}": made[name].model_copy(update={"tuning": LORA}) for name in ADAPTED}


@pytest.fixture(scope="module")
def engine(home: Path, policies: dict[str, PolicySpec]) -> Iterator[RunningEngine]:
    (home / "plane").mkdir()
    more = {name: policy.model_dump(mode="json") for name, policy in policies.items()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VLLM_CACHE_ROOT", str(home / "cache"))
        with running_engine("vllm", home / "plane", more=more) as running:
            yield running


def moved(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """What a step of training may have left of weights."""
    made = torch.Generator().manual_seed(seed)
    return {name: tensor + 0.02 * torch.randn(tensor.shape, generator=made) for name, tensor in weights.items()}


def gaps(learner: Learner, choices: list[CompletionChoice]) -> list[float]:
    found: list[float] = []
    for choice in choices:
        ids = [*PROMPTS[choice.index], *choice.token_ids[:-1]]
        with torch.no_grad():
            (logits,) = last_logits(learner.decoder, [ids], len(choice.token_ids))
        own = logits.log_softmax(-1).gather(1, torch.tensor(choice.token_ids)[:, None])[:, 0]
        found += (own - torch.tensor(choice.logprobs)).abs().tolist()
    return found


async def replies(engine: RunningEngine, policy: str, version: int, digest: str) -> list[CompletionChoice]:
    await engine.load(policy, version, digest)
    body = {"model": policy, "prompt": PROMPTS, "max_tokens": 24, "version": version, "digest": digest}
    return await engine.complete(**body, seeds=list(range(len(PROMPTS))))


@pytest.mark.parametrize("name", SERVED)
async def test_published_weights_are_served_as_the_trainer_computes_them(
    name: str, engine: RunningEngine, policies: dict[str, PolicySpec]
) -> None:
    settings = policies[name]
    begun = initial_weights(settings.source, 0, 0)
    for version, weights in enumerate((begun, moved(begun, 1))):
        own = Learner(weights, shape_of(settings), Objective.of(LOSS.options()), AdamW())
        published = {one: tensor.clone() for one, tensor in own.parameters.named().items()}
        choices = await replies(engine, name, version, engine.plane.put(published).digest)
        assert [len(choice.token_ids) for choice in choices] == [24] * len(PROMPTS)
        found = gaps(own, choices)
        assert sum(found) / len(found) <= MEAN
        assert max(found) <= MOST


async def test_no_other_process_has_looked_at_a_class(
    engine: RunningEngine, policies: dict[str, PolicySpec], home: Path
) -> None:
    """It would import all of vLLM again, and leave here what it found."""
    digest = engine.plane.put(initial_weights(policies["smollm2"].source, 0, 0)).digest
    await replies(engine, "smollm2", 2, digest)
    assert not (home / "cache" / "modelinfos").exists()


async def test_weights_that_vllm_would_keep_are_refused(engine: RunningEngine, policies: dict[str, PolicySpec]) -> None:
    """Its loader of gpt-oss copies the experts' weights past the parameters that a reload puts back."""
    digest = engine.plane.put(initial_weights(policies["gpt_oss"].source, 0, 0)).digest
    status, answer = await engine.ask("/load", {"policy": "gpt_oss", "version": 0, "digest": digest, "keeps": []})
    assert (status, answer["code"]) == (422, "engine_failed")
    assert "takes no new weights" in answer["detail"]


async def test_a_published_adapter_is_served_as_the_trainer_computes_it(
    engine: RunningEngine, policies: dict[str, PolicySpec]
) -> None:
    settings = policies["adapted_qwen3"]
    base = initial_weights(settings.source, 0, 0)
    under = engine.plane.put(base, {"kind": "base"}).digest
    adapter = moved(initial_adapter(base, LORA, 1), 2)
    own = Learner(base, shape_of(settings), Objective.of(LOSS.options()), AdamW(), adapter=Adapter(LORA, adapter))
    digest = engine.plane.put(adapter, description(under, LORA)).digest
    found = gaps(own, await replies(engine, "adapted_qwen3", 0, digest))
    assert sum(found) / len(found) <= MEAN
    assert max(found) <= MOST


async def test_an_adapter_of_a_model_with_experts_is_refused(
    engine: RunningEngine, policies: dict[str, PolicySpec]
) -> None:
    base = initial_weights(policies["adapted_gpt_oss"].source, 0, 0)
    under = engine.plane.put(base, {"kind": "base"}).digest
    digest = engine.plane.put(initial_adapter(base, LORA, 1), description(under, LORA)).digest
    status, answer = await engine.ask(
        "/load", {"policy": "adapted_gpt_oss", "version": 0, "digest": digest, "keeps": []}
    )
    assert (status, answer["code"]) == (422, "engine_failed")
    assert "no kernel for adapters of a model with experts on a CPU" in answer["detail"]
