"""The trainer's back end of the transformers library: many families, each equal to plain transformers.

Documents are packed for the trainer and computed one by one for comparison.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM, Gemma3Config, Glm4MoeConfig, LlamaConfig, PhiConfig
from transformers.core_model_loading import revert_weight_conversion

from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW, FactoryModel, FolderModel, Lora, PolicySpec
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.families import FAMILIES, MORE, SHAPE, WORDS, one_by_one, plain, saved, spec_of
from tests.support.packed import last_logits
from tests.support.training_rows import rows_of
from workers.child import IntervalLog
from workers.models import UnsupportedModel
from workers.models.adapter import WrongAdapterError, initial_adapter
from workers.models.architecture import Architecture
from workers.models.families import LibraryModel, library_config, shape_of
from workers.models.opening import allow
from workers.models.weights import initial_weights, weight_shapes
from workers.training.beginning import spoken_by
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.learner import Adapter, Learner
from workers.training.objective import Objective
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import AccumulateRequest, BindRequest, CheckpointRequest, StepRequest, TrainRow

ALL = FAMILIES | MORE
ONE_BY_ONE = ("falcon", "bloom", "lfm2")
"""Families with attention of their own, or with more than attention between tokens."""
LAST = 3
DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}
OBJECTIVE = Objective.of(LOSS.options())
LORA = Lora(rank=4, alpha=12.0, targets=("q_proj", "v_proj", "o_proj"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(autouse=True)
def _process(root: Path, tmp_path: Path) -> Iterator[None]:
    torch.set_num_threads(1)
    allow(ModelRoots((str(root), str(tmp_path))))
    yield
    allow(ModelRoots())


@pytest.fixture
def folder(root: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of a family's model, made once."""
    name = request.param
    path = root / name
    return path if path.is_dir() else saved(ALL[name](), path)


def learner(folder: Path, precision: str, adapter: Adapter | None = None, recompute: bool = False) -> Learner:
    policy = PolicySpec(model=FolderModel(path=str(folder)), trainer="transformers")
    weights = initial_weights(policy.source, 0, 0)
    return Learner(
        weights, shape_of(policy), OBJECTIVE, AdamW(), precision, epoch="0:a", adapter=adapter, recompute=recompute
    )


def documents() -> list[list[int]]:
    """Of many lengths, some longer than the sliding windows; several of about one length, which share a stretch."""
    rng = np.random.default_rng(5)
    return [rng.integers(1, WORDS, n).tolist() for n in (9, 4, 70, 11, 300, 45, 30, 31, 33)]


@pytest.mark.parametrize("folder", ALL, indirect=True)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_logprobs_of_packed_documents_are_those_of_plain_transformers(folder: Path, precision: str) -> None:
    own = learner(folder, precision)
    with torch.no_grad():
        found = last_logits(own.decoder, documents(), LAST)
        expected = one_by_one(plain(folder, DTYPES[precision]), documents(), LAST)
    gaps = torch.stack(
        [a.float().log_softmax(-1) - b.float().log_softmax(-1) for a, b in zip(found, expected, strict=True)]
    ).abs()
    mean, most = {"fp32": (1e-5, 1e-4), "bf16": (0.05, 2.0)}[precision]
    assert gaps.mean() <= mean
    assert gaps.max() <= most
    assert own.decoder.packs == (folder.name.partition(",")[0] not in ONE_BY_ONE)


@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
def test_a_document_is_the_same_whatever_is_packed_beside_it(folder: Path) -> None:
    own, (first, *others) = learner(folder, "fp32"), documents()[2:]
    with torch.no_grad():
        found = last_logits(own.decoder, [first, *others], LAST)[0]
        beside = last_logits(own.decoder, [first, *([id_ % 50 + 1 for id_ in one] for one in others)], LAST)[0]
    assert torch.equal(found, beside)


def gradient_of(model: Any, rows: list[TrainRow]) -> dict[str, torch.Tensor]:
    """The un-normalised policy gradient by plain transformers, row by row, by the names that are saved."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        prompt, reply = (np.frombuffer(part, "<i4").tolist() for part in (row.prompt, row.response))
        logits = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1].double() / row.temperature
        if row.allowed:
            mask = torch.full((WORDS,), float("-inf"))
            mask[torch.from_numpy(np.frombuffer(row.allowed, "<i4").astype(int))] = 0.0
            logits = logits + mask
        chances = torch.log_softmax(logits, -1).gather(1, torch.tensor(reply)[:, None])[:, 0]
        total = total - row.weight * row.advantages[0] * chances.sum()
    total.backward()
    return {name: one.grad for name, one in model.named_parameters() if one.requires_grad}


@pytest.mark.parametrize("folder", ALL, indirect=True)
def test_gradients_are_those_of_plain_transformers(folder: Path) -> None:
    rows = rows_of(0, 24, WORDS, 30)
    own = learner(folder, "fp64")
    found, _ = own.gradient(rows, 0.0, OBJECTIVE)
    model = plain(folder, torch.float64)
    expected = revert_weight_conversion(model, gradient_of(model, rows))
    named = own.parameters.split(found)
    assert named.keys() == expected.keys()
    scale = found.norm() / len(named) ** 0.5
    for name, gradient in named.items():
        # The library computes norms, rotations and routers in fp32, whatever the model's precision.
        assert (gradient - expected[name]).norm() <= 1e-5 * (expected[name].norm() + 1e-2 * scale), name


@pytest.mark.parametrize("folder", ["qwen2", "smollm2"], indirect=True)
@pytest.mark.parametrize("tuning", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("recompute", [False, True], ids=["keep", "recompute"])
def test_both_back_ends_give_one_gradient_in_one_order(folder: Path, tuning: Lora | None, recompute: bool) -> None:
    found = []
    for trainer in ("native", "transformers"):
        policy = PolicySpec(model=FolderModel(path=str(folder)), trainer=trainer)
        weights = initial_weights(policy.source, 0, 0)
        adapter = None if tuning is None else Adapter(tuning, moved(initial_adapter(weights, tuning, 1)))
        own = Learner(
            weights, shape_of(policy), OBJECTIVE, AdamW(), "fp64", "cpu", "0:a", adapter=adapter, recompute=recompute
        )
        gradient, stats = own.gradient(rows_of(1, 24, WORDS, 30), 0.01, OBJECTIVE)
        found.append((gradient.clone(), stats, own.parameters.names))
    (native, one, names), (library, other, same) = found
    assert names == same
    assert (native - library).norm() <= 2e-6 * native.norm()
    assert one.loss_sum == pytest.approx(other.loss_sum, rel=1e-6)
    assert one.entropy_sum == pytest.approx(other.entropy_sum, rel=1e-6)


def moved(adapter: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An adapter of which nothing is zero."""
    made = torch.Generator().manual_seed(3)
    return {name: tensor + torch.randn(tensor.shape, generator=made) * 0.1 for name, tensor in adapter.items()}


@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
def test_gradients_of_adapters_are_those_of_peft(folder: Path) -> None:
    weights = initial_weights(FolderModel(path=str(folder)), 0, 0)
    adapter, rows = moved(initial_adapter(weights, LORA, 1)), rows_of(0, 16, WORDS, 20)
    found, _ = (own := learner(folder, "fp64", Adapter(LORA, adapter))).gradient(rows, 0.0, OBJECTIVE)
    config = LoraConfig(
        r=LORA.rank, lora_alpha=LORA.alpha, target_modules=list(LORA.targets), task_type="CAUSAL_LM", lora_dropout=0.0
    )
    model = get_peft_model(plain(folder, torch.float64), config)
    assert not set_peft_model_state_dict(model, adapter).unexpected_keys
    expected = gradient_of(model.double().eval(), rows)
    expected = {name.replace(".default", ""): gradient for name, gradient in expected.items()}
    named = own.parameters.split(found)
    assert named.keys() == expected.keys()
    for name, gradient in named.items():
        assert (gradient - expected[name]).norm() <= 1e-5 * expected[name].norm(), name


@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
def test_activations_computed_again_give_the_same_gradient_and_are_not_kept(folder: Path) -> None:
    rows, found, kept = rows_of(2, 24, WORDS, 30), [], []
    for recompute in (False, True):
        own, sizes = learner(folder, "fp32", recompute=recompute), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, to=sizes: to.append(x.numel()) or x, lambda x: x):
            found.append(own.gradient(rows, 0.01, OBJECTIVE)[0].clone())
        kept.append(sum(sizes))
    assert torch.equal(*found)
    assert kept[1] < kept[0] / 2


@pytest.mark.parametrize("folder", ["gemma3"], indirect=True)
def test_the_gradient_of_a_frequent_word_is_summed_in_fp32(folder: Path) -> None:
    """In bf16 a sum of ones ends at 256. The word that fills gaps elsewhere is a word like any other."""
    own = learner(folder, "bf16")
    own.parameters.fresh.zero_()
    embedding = own.decoder._model.get_input_embeddings()
    scale = float(embedding.embed_scale)
    embedding(torch.zeros(1, 1000, dtype=torch.long)).sum().backward()
    gradient = own.parameters.split(own.parameters.fresh)["model.embed_tokens.weight"]
    assert gradient.dtype == torch.float32
    assert torch.equal(gradient[0], torch.full_like(gradient[0], 1000 * scale))
    assert not gradient[1:].any()


def trainer_of(folder: Path, home: Path, incarnation: str = "a", **policy: Any) -> Trainer:
    return Trainer(spec_of(folder, **policy), 7, incarnation, str(home), "cpu", IntervalLog())


def stepped(own: Trainer, version: int, incarnation: str = "a") -> Any:
    epoch = f"{version - 1}:{incarnation}"
    own.accumulate(AccumulateRequest("speaker", epoch, version, 0.0, rows_of(version, 24, WORDS, 12)))
    return own.step(StepRequest("speaker", epoch, [version], version, 1e-2))


@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.slow
def test_a_step_moves_every_weight_and_a_checkpoint_loads_in_plain_transformers(
    folder: Path, precision: str, tmp_path: Path
) -> None:
    own = trainer_of(folder, tmp_path, precision=precision, trainer="transformers")
    made = own.bind(BindRequest("speaker", CREATE))
    assert made.facts["parameters"] == sum(
        np.prod(shape) for shape in weight_shapes(FolderModel(path=str(folder)), 0).values()
    )
    before = {name: tensor.clone() for name, tensor in own._holding("speaker").learner.parameters.named().items()}
    reply = stepped(own, 1)
    held = own._holding("speaker").learner
    idle = {name for name, tensor in held.parameters.named().items() if torch.equal(tensor, before[name])}
    assert not {name for name in idle if ".experts." not in name}, "an expert may have been asked by no token"
    assert len(idle) < len(before) / 4
    written = own.checkpoint(CheckpointRequest("best", 1, {"speaker": 1}, {"speaker": reply.digest}))
    with torch.no_grad():
        model = plain(Path(written.path) / "speaker", DTYPES[precision])
        expected, found = one_by_one(model, documents(), LAST), last_logits(held.decoder, documents(), LAST)
    gaps = [(a.float() - b.float()).norm() / b.float().norm() for a, b in zip(found, expected, strict=True)]
    assert max(gaps) <= {"fp32": 1e-5, "bf16": 0.1}[precision]
    other = trainer_of(folder, tmp_path, "b", precision=precision, trainer="transformers")
    other.bind(BindRequest("speaker", 1, reply.digest, reply.state))
    assert stepped(other, 2, "b").digest == stepped(own, 2).digest, "a restart goes on with the same bits"


@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
def test_a_checkpoint_of_an_adapter_loads_in_peft(folder: Path, tmp_path: Path) -> None:
    own = trainer_of(folder, tmp_path, tuning=LORA.model_dump())
    own.bind(BindRequest("speaker", CREATE))
    reply = stepped(own, 1)
    written = own.checkpoint(CheckpointRequest("best", 1, {"speaker": 1}, {"speaker": reply.digest}))
    model = PeftModel.from_pretrained(plain(folder), Path(written.path) / "speaker").eval()
    with torch.no_grad():
        found = last_logits(own._holding("speaker").learner.decoder, documents(), LAST)
        expected, base = (one_by_one(one, documents(), LAST) for one in (model, plain(folder)))
    assert max((a - b).norm() / b.norm() for a, b in zip(found, expected, strict=True)) <= 1e-5
    assert max((a - b).norm() / b.norm() for a, b in zip(found, base, strict=True)) > 1e-3


@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
def test_what_native_knows_stays_native(folder: Path) -> None:
    shape = shape_of(PolicySpec(model=FolderModel(path=str(folder))))
    assert isinstance(shape, Architecture if folder.name in ("qwen2", "smollm2") else LibraryModel)
    assert isinstance(shape_of(PolicySpec()), Architecture)
    assert isinstance(shape_of(PolicySpec(trainer="transformers")), LibraryModel)


def test_a_factory_model_is_computed_by_either_back_end(tmp_path: Path) -> None:
    weights = initial_weights(FactoryModel(), 23, 5)
    found = []
    for trainer in ("native", "transformers"):
        own = Learner(copy.deepcopy(weights), shape_of(PolicySpec(trainer=trainer)), OBJECTIVE, AdamW())
        found.append(own.gradient(rows_of(1, 24), 0.01, OBJECTIVE)[0].clone())
    assert (found[0] - found[1]).norm() <= 1e-5 * found[0].norm()


def refused(folder: Path, **policy: Any) -> str:
    """Return why a folder's model is refused when a trainer takes it up."""
    home = folder.parent / f"{folder.name}-home"
    with pytest.raises(TrainerRefusal) as found:
        trainer_of(folder, home, **policy).bind(BindRequest("speaker", CREATE))
    assert found.value.code in (RefusalCode.UNSUPPORTED_MODEL, RefusalCode.WRONG_ADAPTER)
    return str(found.value)


def rewritten(folder: Path, target: Path, **settings: object) -> Path:
    """Copy a folder with other settings in its config.json."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | settings))
    return target


@pytest.mark.parametrize("folder", ["qwen3"], indirect=True)
def test_models_out_of_reach_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    own = {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}
    text = refused(rewritten(folder, tmp_path / "own", **own))
    assert "has no model_type 'mine'" in text
    assert "(trust_remote_code) is not run" in text
    quantised = rewritten(folder, tmp_path / "quantised", quantization_config={"quant_method": "gptq"})
    assert "quantised" in refused(quantised)
    assert "policies.speaker.model.path" in refused(quantised)
    deeper = rewritten(folder, tmp_path / "deeper", num_hidden_layers=3, layer_types=["full_attention"] * 3)
    assert "misses ['model.layers.2" in refused(deeper)
    wider = rewritten(folder, tmp_path / "wider", intermediate_size=160)
    assert "config.json says (64, 160) of model.layers.0.mlp" in refused(wider)
    unlike = rewritten(folder, tmp_path / "unlike", num_hidden_layers=3)
    assert "config.json does not describe a model: Strict" in refused(unlike)
    assert "set trainer: transformers" in refused(folder, trainer="native")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: PhiConfig(**SHAPE), "has a head with a bias"),
        (lambda: Glm4MoeConfig(**SHAPE, **{"first_k_dense_replace": 0}), "e_score_correction_bias"),
    ],
    ids=["phi", "glm4_moe"],
)
def test_families_that_do_more_are_refused_by_name(config: Any, words: str, tmp_path: Path) -> None:
    assert words in refused(saved(config(), tmp_path / "model"))


def test_more_than_text_is_refused(tmp_path: Path) -> None:
    settings = Gemma3Config(text_config=SHAPE, vision_config={"hidden_size": 16}).to_dict()
    with pytest.raises(UnsupportedModel, match="'gemma3' is more than text"):
        library_config(LibraryModel(json.dumps(settings), sized=True), 0)


@pytest.mark.parametrize("folder", ["gemma3"], indirect=True)
def test_what_only_native_models_can_is_refused_with_what_is_legal(folder: Path) -> None:
    def why(engine: str = "vllm", ordered: bool = False, **policy: object) -> str:
        spec = spec_of(folder, engine, **policy)
        if ordered:
            spec = spec.model_copy(update={"mechanisms": spec.mechanisms.model_copy(update={"ordered": True})})
        with pytest.raises(UnsupportedModel) as found:
            spoken_by(spec, "speaker", ())
        return str(found.value)

    assert spoken_by(spec_of(folder), "speaker", ())
    assert "model_type 'gemma3_text' is not served by the torch engine" in why("torch")
    assert why("torch").endswith("set resources.engine: vllm")
    assert why(ordered=True).endswith("set mechanisms.ordered: false")


@pytest.mark.parametrize("folder", ["qwen3_moe"], indirect=True)
def test_an_adapter_that_would_reach_experts_is_refused(folder: Path) -> None:
    text = refused(folder, tuning="lora")
    assert "gate_proj, up_proj, down_proj: the model has no such matrix outside of experts" in text
    assert "set targets: q_proj, k_proj, v_proj, o_proj" in text


@pytest.mark.parametrize(
    "change",
    [{"mlp_bias": True}, {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}],
    ids=str,
)
def test_what_native_would_compute_wrongly_goes_to_the_library(change: dict[str, Any], tmp_path: Path) -> None:
    folder = saved(LlamaConfig(**SHAPE, **change), tmp_path / "model")
    policy = PolicySpec(model=FolderModel(path=str(folder)))
    assert isinstance(shape_of(policy), LibraryModel)
    own = learner(folder, "fp32")
    with torch.no_grad():
        found = last_logits(own.decoder, documents(), LAST)
        expected = one_by_one(AutoModelForCausalLM.from_pretrained(folder), documents(), LAST)
    assert max((a - b).norm() / b.norm() for a, b in zip(found, expected, strict=True)) <= 1e-5


def test_wrong_adapter_is_told_by_its_base() -> None:
    """Two spellings of one target set are one kind; a target that no matrix has is none."""
    weights = initial_weights(FactoryModel(), 8, 0)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items() if "gate" not in name}
    from workers.models.adapter import check_adapter

    with pytest.raises(WrongAdapterError, match="gate_proj: the model has no such matrix"):
        check_adapter({}, shapes, Lora(targets=("q_proj", "gate_proj")))
