"""Adapters against PEFT: the same gradients, the same results, folders that it loads; and what is refused."""

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW, FactoryModel, Lora
from tests.support.packed import last_logits
from workers.child import ChildConfig, IntervalLog
from workers.models import architecture_of, build_model
from workers.models.adapter import WrongAdapterError, description, initial_adapter
from workers.models.architecture import parse_architecture
from workers.models.weights import initial_weights
from workers.rollout.engines.requests import Finished, Request
from workers.rollout.engines.serve import StatePlaneSource
from workers.rollout.engines.torch_engine import TorchEngine
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.learner import Adapter, Learner, Objective
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import (
    AccumulateRequest,
    BindReply,
    BindRequest,
    CheckpointRequest,
    RedoBatch,
    RedoStep,
    StepReply,
    StepRequest,
    TrainRow,
)
from workers.transfer import LocalTier

WORDS = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(37)))
N = len(WORDS)
SOURCE = FactoryModel()
BASE_SEED = 1
LORA = Lora(rank=4, alpha=12.0)
PARTIAL = Lora(rank=3, alpha=6.0, targets=("k_proj", "v_proj", "up_proj"))
POLICIES = ("speaker", "listener")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def base() -> dict[str, torch.Tensor]:
    return initial_weights(SOURCE, N, BASE_SEED)


def adapter(lora: Lora, seed: int) -> dict[str, torch.Tensor]:
    """An adapter that has been trained: nothing of it is zero."""
    generator = torch.Generator().manual_seed(seed)
    begun = initial_adapter(base(), lora, seed)
    return {name: tensor + torch.randn(tensor.shape, generator=generator) * 0.1 for name, tensor in begun.items()}


def by_peft(lora: Lora, weights: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> PeftModel:
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets), lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    model = get_peft_model(build_model(SOURCE, WORDS, BASE_SEED), config)
    left = set_peft_model_state_dict(model, weights)
    assert not left.unexpected_keys
    return model.to(dtype).eval()


def rows(count: int = 12) -> list[TrainRow]:
    rng = np.random.default_rng(0)
    return [
        TrainRow(
            prompt=rng.integers(1, N, int(rng.integers(1, 9))).astype("<i4").tobytes(),
            response=rng.integers(1, N, (size := int(rng.integers(1, 6)))).astype("<i4").tobytes(),
            logprobs=np.full(size, -3.0, "<f4").tobytes(),
            allowed=b"",
            temperature=1.0,
            advantages=[float(rng.standard_normal())],
            weight=1.0,
        )
        for _ in range(count)
    ]


def reference_loss(model: PeftModel, trained: list[TrainRow]) -> torch.Tensor:
    """The un-normalised policy gradient's loss, sequence by sequence."""
    total = torch.zeros((), dtype=torch.float64)
    for row in trained:
        prompt, reply = (np.frombuffer(part, "<i4").tolist() for part in (row.prompt, row.response))
        logits = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
        chances = torch.log_softmax(logits, -1).gather(1, torch.tensor(reply)[:, None])
        total = total - row.advantages[0] * chances.sum()
    return total


@pytest.mark.parametrize("lora", [LORA, PARTIAL], ids=["all", "some"])
def test_gradients_are_those_of_peft(lora: Lora) -> None:
    weights = adapter(lora, 2)
    learner = Learner(
        base(), architecture_of(SOURCE), Objective.of(LOSS.options()), AdamW(), "fp64", adapter=Adapter(lora, weights)
    )
    found, _ = learner.gradient(rows(), 0.0, Objective.of(LOSS.options()))
    model = by_peft(lora, weights, torch.float64)
    reference_loss(model, rows()).backward()
    expected = {
        name.replace(".default", ""): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    named = learner.parameters.split(found)
    assert named.keys() == expected.keys()
    for name, gradient in named.items():
        # Hugging Face turns queries and keys by angles of fp32, whatever the model's precision.
        assert (gradient - expected[name]).norm() <= 2e-6 * expected[name].norm(), name


def test_a_step_moves_the_adapter_alone_and_the_decoder_with_it() -> None:
    learner = Learner(
        base(), architecture_of(SOURCE), Objective.of(LOSS.options()), AdamW(), adapter=Adapter(LORA, adapter(LORA, 2))
    )
    assert learner.optimizer.first.numel() == learner.accumulator.total.numel() == learner.parameters.size
    frozen = learner.decoder._parameters
    before, began = frozen.compute.clone(), logits(learner)
    learner.accumulate("", 1, b"", rows(), 0.0)
    assert not learner.step(1e-2).null_step
    assert torch.equal(frozen.compute, before)
    assert frozen.fresh.numel() == 0, "nothing is computed for weights that stay"
    assert not torch.equal(logits(learner), began)
    now = {name: tensor.clone() for name, tensor in learner.parameters.named().items()}
    assert torch.equal(logits(learner), logits(laid_over(now))), "what is published is all of it"
    learner.parameters.take(adapter(LORA, 3))
    assert torch.equal(logits(learner), logits(laid_over(adapter(LORA, 3))))


def laid_over(weights: dict[str, torch.Tensor]) -> Learner:
    """A new trainer's policy."""
    return Learner(
        base(), architecture_of(SOURCE), Objective.of(LOSS.options()), AdamW(), adapter=Adapter(LORA, weights)
    )


def logits(learner: Learner) -> torch.Tensor:
    with torch.no_grad():
        (found,) = last_logits(learner.decoder, [[1, 4, 8, 5, 11]], 5)
    return found


def plane_with(home: Path, lora: Lora, seed: int, **about: object) -> str:
    """Publish an adapter as a trainer does; returns its digest."""
    plane = LocalTier(home)
    under = plane.put(base(), {"kind": "base"}).digest
    return plane.put(adapter(lora, seed), {"kind": "weights", **description(under, lora), **about}).digest


def source(home: Path, tuning: dict[str, object] | str, ordered: bool = False) -> tuple[TorchEngine, StatePlaneSource]:
    policies = {role: {"model": SOURCE.model_dump(), "tuning": tuning} for role in POLICIES}
    spec = {
        "agents": {role: {} for role in POLICIES}, "policies": policies, "environment": {"type": "reference_game"},
        "mechanisms": {"ordered": ordered},
    }  # fmt: skip
    engine = TorchEngine(rows=16, ordered=ordered)
    config = ChildConfig(
        use="engine", run_id=1, lease_id=1, fence=1, incarnation="a", device="cpu", threads=1, host="127.0.0.1",
        secret="s", home=str(home), spec=spec,
    )  # fmt: skip
    return engine, StatePlaneSource(engine, config)


def finish(engine: TorchEngine) -> dict[str, Finished]:
    done: dict[str, Finished] = {}
    while engine.busy:
        done |= {answer.request.request_id: answer for answer in engine.step()}
    return done


def ragged(policy: str, count: int = 12) -> list[Request]:
    rng = np.random.default_rng(7)
    return [
        Request(f"{policy}.{i}", policy, tuple(rng.integers(0, N, int(rng.integers(1, 40))).tolist()), 12, seed=i)
        for i in range(count)
    ]


def gap(model: PeftModel, answer: Finished) -> float:
    ids = torch.tensor([[*answer.request.prompt, *answer.token_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(answer.request.prompt) - 1 : -1]
    chances = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    return float((chances - torch.tensor(answer.logprobs)).abs().max())


@pytest.mark.parametrize("lora", [LORA, PARTIAL], ids=["all", "some"])
@pytest.mark.parametrize("ordered", [False, True])
def test_one_engine_serves_adapters_over_one_base(tmp_path: Path, lora: Lora, ordered: bool) -> None:
    tuning = lora.model_dump()
    engine, fetch = source(tmp_path, tuning, ordered)
    held = {}
    for number, policy in enumerate(POLICIES):
        digest = plane_with(tmp_path, lora, number)
        weights = held[policy] = fetch(policy, digest)
        engine.load(policy, 0, digest, weights)
    assert held["speaker"].head.data_ptr() == held["listener"].head.data_ptr(), "the base is held once"
    assert held["speaker"].layers[0].qkv.data_ptr() == held["listener"].layers[0].qkv.data_ptr()
    engine.submit([*ragged("speaker"), *ragged("listener")])
    answers = finish(engine)
    for number, policy in enumerate(POLICIES):
        model, other = by_peft(lora, adapter(lora, number)), by_peft(lora, adapter(lora, 1 - number))
        own = [answer for answer in answers.values() if answer.request.policy == policy]
        assert len(own) == 12
        assert max(gap(model, answer) for answer in own) <= 1e-5
        assert max(gap(other, answer) for answer in own) > 1e-2, "another adapter is told apart"


def test_fewer_key_heads_than_query_heads_are_adapted_in_their_own_columns() -> None:
    config = LlamaConfig(
        vocab_size=N, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.15,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    weights = {name: torch.randn(tensor.shape) * 0.1 for name, tensor in initial_adapter(state, LORA, 3).items()}
    peft = get_peft_model(model, LoraConfig(r=LORA.rank, lora_alpha=LORA.alpha, target_modules=list(LORA.targets)))
    set_peft_model_state_dict(peft, weights)
    engine = TorchEngine(rows=16)
    base = engine.prepare(state, parse_architecture(config.to_dict()))
    engine.load("speaker", 0, "d", engine.adapt(base, weights, LORA))
    engine.submit(ragged("speaker"))
    assert max(gap(peft.eval(), answer) for answer in finish(engine).values()) <= 1e-5


def test_a_version_is_loaded_in_place_and_makes_its_own_replies(tmp_path: Path) -> None:
    engine, fetch = source(tmp_path, LORA.model_dump())
    for version in range(4):
        digest = plane_with(tmp_path, LORA, version)
        engine.load("speaker", version, digest, fetch("speaker", digest))
        engine.submit([replace(one, version=version, digest=digest) for one in ragged("speaker", 4)])
        model = by_peft(LORA, adapter(LORA, version))
        assert max(gap(model, answer) for answer in finish(engine).values()) <= 1e-5
    assert len(engine._lanes["speaker"]) == 2


def test_wrong_adapters_are_refused_in_words(tmp_path: Path) -> None:
    engine, fetch = source(tmp_path, LORA.model_dump())
    right = plane_with(tmp_path, LORA, 0)
    engine.load("speaker", 0, right, fetch("speaker", right))
    plane = LocalTier(tmp_path)
    whole = plane.put(base(), {"kind": "weights"}).digest
    under = description(plane.put(base(), {"kind": "base"}).digest, LORA)
    other = plane.put({name: tensor + 1 for name, tensor in base().items()}, {"kind": "base"}).digest
    missing = {name: tensor for name, tensor in adapter(LORA, 0).items() if "o_proj.lora_B" not in name}
    wider = adapter(Lora(rank=5, alpha=12.0), 0)
    for digest, words in {
        whole: "trains an adapter, but this content is not one",
        plane_with(tmp_path, PARTIAL, 0): "that of speaker has",
        plane_with(tmp_path, LORA, 0, base=other): f"is laid over {other[:12]}",
        plane.put(missing, under).digest: "o_proj.lora_B.weight is absent",
        plane.put(wider, under).digest: "is (5, 128) and must be (4, 128)",
    }.items():
        with pytest.raises(WrongAdapterError) as refused:
            fetch("speaker", digest)
        assert words in str(refused.value), words
    assert engine.has("speaker", 0, right)
    _, full = source(tmp_path, "full")
    with pytest.raises(WrongAdapterError, match="content is an adapter of rank 4; load whole weights"):
        full("speaker", right)
    strange = plane.put(base() | {"model.norm.weight": torch.zeros(3)}, {"kind": "base"}).digest
    with pytest.raises(WrongAdapterError, match="is not the model of its policy"):
        source(tmp_path, LORA.model_dump())[1]("speaker", plane_with(tmp_path, LORA, 0, base=strange))


def trainer(home: Path, incarnation: str = "a", tuning: Lora = LORA, every: int = 1, kl: float = 0.0) -> Trainer:
    policy = {"model": SOURCE.model_dump(), "tuning": tuning.model_dump()}
    durability = {"type": "every_k", "every": every} if every > 1 else "every_step"
    spec = {
        "agents": {role: {} for role in POLICIES}, "policies": dict.fromkeys(POLICIES, policy), "seed": 5,
        "environment": {"type": "reference_game"}, "mechanisms": {"durability": durability},
        "algorithm": {"kl": {"coefficient": kl}},
    }  # fmt: skip
    return Trainer(ExperimentSpec.model_validate(spec), 7, incarnation, str(home), "cpu", IntervalLog())


def small_rows(seed: int) -> list[TrainRow]:
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 20, (8, 5)).astype("<i4")
    return [
        TrainRow(
            one[:3].tobytes(), one[3:].tobytes(), np.full(2, -3.0, "<f4").tobytes(), b"", 1.0, [float(advantage)], 1.0
        )
        for one, advantage in zip(ids, rng.standard_normal(8), strict=True)
    ]


def step(own: Trainer, policy: str, version: int, incarnation: str = "a") -> StepReply:
    epoch = f"{version - 1}:{incarnation}"
    own.accumulate(AccumulateRequest(policy, epoch, version, 0.0, small_rows(version)))
    return own.step(StepRequest(policy, epoch, [version], version, 1e-2))


def bases(home: Path, *replies: BindReply | StepReply) -> set[object]:
    return {LocalTier(home).meta(reply.digest)["base"] for reply in replies}


def test_a_trainer_publishes_adapters_over_one_base_and_restores_them(tmp_path: Path) -> None:
    own = trainer(tmp_path)
    made = [own.bind(BindRequest(policy, CREATE)) for policy in POLICIES]
    layer = LORA.rank * (4 * (64 + 64) + 3 * (64 + 128))
    assert [reply.facts["parameters"] for reply in made] == [2 * layer] * 2
    assert made[0].digest != made[1].digest
    stepped = [step(own, policy, 1) for policy in POLICIES]
    (under,) = bases(tmp_path, *made, *stepped)
    plane = LocalTier(tmp_path)
    published, whole = plane.locate(stepped[0].digest), plane.locate(str(under))
    assert sum(tensor.numel() for tensor in plane.get(stepped[0].digest).values()) == 2 * layer
    assert published.bytes < whole.bytes / 2
    second = step(own, "speaker", 2)
    other = trainer(tmp_path, "b")
    again = other.bind(BindRequest("speaker", 1, stepped[0].digest, stepped[0].state))
    assert (again.digest, again.state) == (stepped[0].digest, stepped[0].state)
    assert step(other, "speaker", 2, "b").digest == second.digest, "the same bits after a restart"


def test_lost_steps_of_an_adapter_are_redone(tmp_path: Path) -> None:
    own = trainer(tmp_path, every=10)
    made = own.bind(BindRequest("speaker", CREATE))
    steps = [step(own, "speaker", version) for version in (1, 2, 3)]
    redo = [
        RedoStep(one.version, one.digest, 1e-2, [RedoBatch(one.version, 0.0, small_rows(one.version))])
        for one in steps[:2]
    ]
    other = trainer(tmp_path, "b", every=10)
    bound = other.bind(BindRequest("speaker", 2, steps[1].digest, made.state, made.digest, redo))
    assert bound.digest == steps[1].digest
    assert step(other, "speaker", 3, "b").digest == steps[2].digest


def test_a_trainer_refuses_an_adapter_of_another_kind(tmp_path: Path) -> None:
    digest = trainer(tmp_path).bind(BindRequest("speaker", CREATE)).digest
    with pytest.raises(TrainerRefusal, match="this adapter has") as refused:
        trainer(tmp_path, "b", PARTIAL).bind(BindRequest("speaker", 0, digest, ""))
    assert refused.value.code == RefusalCode.WRONG_ADAPTER


def test_policies_and_their_references_share_one_base_in_the_trainer(tmp_path: Path) -> None:
    own = trainer(tmp_path, kl=0.1)
    for policy in POLICIES:
        own.bind(BindRequest(policy, CREATE))
    learners = [own._holding(policy).learner for policy in POLICIES]
    decoders = [*(learner.decoder for learner in learners), *(own._references.get(policy) for policy in POLICIES)]
    (base,) = {id(decoder._parameters): decoder._parameters for decoder in decoders}.values()
    assert base.fresh.numel() == 0
    assert base.master is base.compute
    for learner in learners:
        step_size = learner.parameters.size
        assert step_size < base.size / 2
        assert learner.parameters.fresh.numel() == learner.optimizer.first.numel() == step_size
    assert len({id(learner.parameters) for learner in learners}) == 2
    gone = weakref.ref(base)
    del base, decoders, learners, learner
    own._references.clear()
    for policy in POLICIES:
        assert gone() is not None
        own.let_go(policy)
    gc.collect()
    assert gone() is None, "it goes with the last one that is laid over it"


def test_plain_transformers_and_peft_load_a_checkpoint(tmp_path: Path) -> None:
    own = trainer(tmp_path)
    for policy in POLICIES:
        own.bind(BindRequest(policy, CREATE))
    digests = {policy: step(own, policy, 1).digest for policy in POLICIES}
    folder = Path(own.checkpoint(CheckpointRequest("best", 1, dict.fromkeys(POLICIES, 1), digests)).path)
    names = {path.name for path in folder.iterdir()}
    assert names == {"base-0", "speaker", "listener", "flexmarl.json"}, "one base for both"
    assert json.loads((folder / "speaker/adapter_config.json").read_text())["r"] == LORA.rank
    ids = torch.tensor([[1, 4, 8, 5, 11]])
    under = AutoModelForCausalLM.from_pretrained(folder / "base-0")
    for policy in POLICIES:
        model = AutoModelForCausalLM.from_pretrained(folder / policy)
        learner = own._holding(policy).learner
        with torch.no_grad():
            found, expected = model(ids).logits, logits(learner)
            assert (found - expected).abs().max() <= 1e-5
            assert (found - under(ids).logits).abs().max() > 1e-3
        assert (folder / policy / "tokenizer.json").exists()
