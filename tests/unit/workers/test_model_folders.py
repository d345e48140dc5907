"""Weights from elsewhere: folders of models and adapters read bit for bit, or refused with field and legal value."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from flexmarl.contracts.specification.experiment import ExperimentSpec
from tests.unit.workers.test_train_checkpoint import ROW
from workers.child import IntervalLog
from workers.training import merging
from workers.training.errors import TrainerRefusal
from workers.training.merging import merge, merged_folder
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import AccumulateRequest, BindReply, BindRequest, CheckpointRequest, StepReply, StepRequest
from workers.transfer import LocalTier

pytestmark = pytest.mark.usefixtures("models_in_tmp")
LORA = {"type": "lora", "rank": 4, "alpha": 8.0}


def make_trainer(home: Path, run: int, **policy: object) -> Trainer:
    spec = ExperimentSpec.model_validate(
        {
            "agents": {"speaker": {"policy": "speaker"}, "listener": {"policy": "speaker"}},
            "environment": {"type": "reference_game"},
            "policies": {"speaker": policy},
        }
    )
    return Trainer(spec, run, "a", str(home), "cpu", IntervalLog())


def stepped(trainer: Trainer, bound: BindReply) -> StepReply:
    """Take one step on a policy that was just bound."""
    epoch = f"{bound.version}:a"
    trainer.accumulate(AccumulateRequest("speaker", epoch, 1, 0.0, [ROW]))
    return trainer.step(StepRequest("speaker", epoch, [1], bound.version + 1, 2e-3))


@pytest.fixture
def first(tmp_path: Path) -> tuple[Trainer, StepReply, Path]:
    """A trained adapter, its version 1, and the folder of its checkpoint."""
    trainer = make_trainer(tmp_path, 1, tuning=LORA)
    reply = stepped(trainer, trainer.bind(BindRequest("speaker", CREATE)))
    written = trainer.checkpoint(CheckpointRequest("last", 1, {"speaker": 1}, {"speaker": reply.digest}))
    assert written.states == {"speaker": reply.state}
    return trainer, reply, Path(written.path)


def bits(home: Path, digest: str) -> dict[str, torch.Tensor]:
    return LocalTier(home, "reader").get(digest)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def refused(trainer: Trainer, request: BindRequest) -> str:
    with pytest.raises(TrainerRefusal) as found:
        trainer.bind(request)
    return str(found.value)


def test_an_adapter_goes_out_and_in_bit_for_bit(first, tmp_path: Path) -> None:
    _, reply, folder = first
    model = {"type": "folder", "path": str(folder / "base-0")}
    trainer = make_trainer(tmp_path / "b", 2, model=model, tuning={**LORA, "adapter": str(folder / "speaker")})
    bound = trainer.bind(BindRequest("speaker", CREATE))
    assert same(bits(tmp_path, reply.digest), bits(tmp_path / "b", bound.digest))
    assert stepped(trainer, bound).version == 1


def test_a_whole_model_goes_out_and_in_bit_for_bit(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, 1)
    reply = stepped(trainer, trainer.bind(BindRequest("speaker", CREATE)))
    path = trainer.checkpoint(CheckpointRequest("last", 1, {"speaker": 1}, {"speaker": reply.digest})).path
    again = make_trainer(tmp_path / "b", 2, model={"type": "folder", "path": f"{path}/speaker"})
    bound = again.bind(BindRequest("speaker", CREATE))
    assert bound.digest == reply.digest, "the same content has the same name"


def test_a_merged_model_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but its name says that it is whole; and of two that make it at once one is kept."""
    seen: list[tuple[str, bool]] = []
    target = merged_folder(tmp_path, "speaker")

    def written(adapter: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")

    def flushed(folder: Path) -> None:
        seen.append((folder.name, target.exists()))

    monkeypatch.setattr(merging, "_write", written)
    monkeypatch.setattr(merging, "sync_tree", flushed)
    assert merge(tmp_path, "speaker") == target
    assert [named for _, named in seen] == [False]

    def overtaken(adapter: Path, folder: Path) -> None:
        written(adapter, folder)
        written(adapter, merged_folder(tmp_path, "listener"))

    monkeypatch.setattr(merging, "_write", overtaken)
    assert (merge(tmp_path, "listener") / "model.safetensors").read_bytes() == b"weights"
    assert len(list(target.parent.iterdir())) == 2, "nothing else is left"


def test_a_merged_model_computes_what_the_adapter_does_and_is_a_model_source(first, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    _, _, folder = first
    whole = merge(folder, "speaker")
    stamp = (whole / "model.safetensors").stat().st_mtime_ns
    assert (merge(folder, "speaker") / "model.safetensors").stat().st_mtime_ns == stamp, "made once"
    words = torch.arange(3, 15).reshape(1, -1)
    base = AutoModelForCausalLM.from_pretrained(folder / "base-0")
    plain = base(words).logits.clone()
    adapted = PeftModel.from_pretrained(base, folder / "speaker")(words).logits
    merged = AutoModelForCausalLM.from_pretrained(whole)(words).logits
    assert torch.allclose(adapted, merged, atol=1e-5)
    assert not torch.allclose(plain, merged, atol=1e-6)
    bound = make_trainer(tmp_path / "b", 2, model={"type": "folder", "path": str(whole)})
    assert bound.bind(BindRequest("speaker", CREATE)).version == 0


@pytest.mark.parametrize(
    ("change", "tuning", "said"),
    [
        ({}, {"rank": 3}, "rank: is 3, the adapter has 4; set 4"),
        ({}, {"alpha": 2.0}, "alpha: is 2.0, the adapter has 8.0; set 8.0"),
        ({}, {"targets": ["q_proj"]}, "targets: is ['q_proj'], the adapter has "),
        ({"use_dora": True}, {}, "sets use_dora; an adapter without it"),
        ({"bias": "all"}, {}, "has bias: all; only bias: none"),
        ({"peft_type": "IA3"}, {}, "is of type IA3; only LORA"),
    ],
)
def test_an_adapter_of_another_kind_is_refused_by_field(first, tmp_path: Path, change, tuning, said) -> None:
    _, _, folder = first
    adapter = folder / "speaker"
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | change))
    model = {"type": "folder", "path": str(folder / "base-0")}
    trainer = make_trainer(tmp_path / "b", 2, model=model, tuning={**LORA, **tuning, "adapter": str(adapter)})
    text = refused(trainer, BindRequest("speaker", CREATE))
    assert "policies.speaker.tuning: " in text
    assert said in text
    assert str(tmp_path) not in text


def test_a_folder_that_is_no_model_is_refused_by_field(first, tmp_path: Path) -> None:
    _, _, folder = first
    other = tmp_path / "gpt"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    (other / "config.json").write_text('{"model_type": "gpt2"}')
    for number, (path, said) in enumerate(
        (
            (tmp_path / "nowhere", "policies.speaker.model.path: "),
            (folder / "speaker", "is an adapter; set it as tuning.adapter"),
            (other, "model_type 'gpt2' is not served"),
        )
    ):
        trainer = make_trainer(tmp_path / f"t{number}", 2, model={"type": "folder", "path": str(path)})
        assert said in refused(trainer, BindRequest("speaker", CREATE)), path


def test_a_fork_has_the_same_content_and_the_optimizer_goes_on(first, tmp_path: Path) -> None:
    old, reply, _ = first
    tokenizer = sha256(make_trainer(tmp_path / "x", 9).bind(BindRequest("speaker", CREATE)).tokenizer).hexdigest()
    taken = BindRequest("speaker", CREATE, digest=reply.digest, state=reply.state, tokenizer=tokenizer)
    fork = make_trainer(tmp_path, 2, tuning=LORA)
    bound = fork.bind(taken)
    assert (bound.version, bound.digest, bound.state) == (0, reply.digest, reply.state)
    fork.accumulate(AccumulateRequest("speaker", "0:a", 1, 0.0, [ROW]))
    old.accumulate(AccumulateRequest("speaker", "1:a", 2, 0.0, [ROW]))
    went_on = old.step(StepRequest("speaker", "1:a", [2], 2, 2e-3)).digest
    assert fork.step(StepRequest("speaker", "0:a", [1], 1, 2e-3)).digest == went_on, "as if it were the same run"
    fresh = make_trainer(tmp_path, 3, tuning=LORA)
    assert stepped(fresh, fresh.bind(BindRequest("speaker", CREATE, digest=reply.digest))).digest != went_on


def test_what_a_fork_begins_with_is_its_own_when_the_origin_is_gone(first, tmp_path: Path) -> None:
    _, reply, _ = first
    fork = make_trainer(tmp_path, 2, tuning=LORA)
    bound = fork.bind(BindRequest("speaker", CREATE, digest=reply.digest))
    for owner in ("run-1-speaker", "run-1-speaker-base", "run-1-speaker-step-1"):
        tier = LocalTier(tmp_path, owner)
        for digest in tier.claims():
            tier.evict(digest)
    later = make_trainer(tmp_path, 2, tuning=LORA)
    assert later.bind(BindRequest("speaker", 0, bound.digest, bound.state)).digest == bound.digest


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"tuning": {**LORA, "rank": 2}}, "policies.speaker.tuning"),
        ({}, "policies.speaker: speaker trains all weights"),
        ({"model": {"size": "M"}, "tuning": LORA}, "these weights are not the model's"),
    ],
)
def test_weights_that_do_not_fit_the_policy_are_refused(first, tmp_path: Path, policy, said) -> None:
    _, reply, _ = first
    text = refused(make_trainer(tmp_path, 2, **policy), BindRequest("speaker", CREATE, digest=reply.digest))
    assert said in text


def test_weights_that_speak_other_words_are_refused(first, tmp_path: Path) -> None:
    _, reply, _ = first
    asked = BindRequest("speaker", CREATE, digest=reply.digest, tokenizer="f" * 64)
    text = refused(make_trainer(tmp_path, 2, tuning=LORA), asked)
    assert "tokenizer_differs" in text
    assert "policies.speaker.model" in text


def test_whole_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    digest = make_trainer(tmp_path, 1).bind(BindRequest("speaker", CREATE)).digest
    text = refused(make_trainer(tmp_path, 2, model={"size": "M"}), BindRequest("speaker", CREATE, digest=digest))
    assert "policies.speaker: these weights are not the model's" in text
