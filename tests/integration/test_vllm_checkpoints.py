"""vLLM loads what a checkpoint holds, as it lies there: merged models, and adapters over their base."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.support.engines import VLLM_PYTHON, needs_vllm
from tests.unit.workers.test_model_folders import LORA, make_trainer, stepped
from workers.programs import VLLM_ENVIRONMENT
from workers.training.merging import merge
from workers.training.trainer import CREATE
from workers.training.wire import BindRequest, CheckpointRequest

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

WORDS = list(range(1, 9))
SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

words, model, adapter = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
llm = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=2, block_size=32,
          kv_cache_memory_bytes=2**26, enable_lora=bool(adapter), max_lora_rank=8)
asked = SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)
[made] = llm.generate([{"prompt_token_ids": words}], asked, use_tqdm=False,
                      lora_request=LoRARequest("a", 1, adapter) if adapter else None)
reply = made.outputs[0]
told = [step[token].logprob for token, step in zip(reply.token_ids, reply.logprobs)]
print("FOUND", json.dumps({"ids": list(reply.token_ids), "logprobs": told}))
"""


def by_vllm(model: Path, adapter: Path | None = None) -> dict[str, list]:
    """Let plain vLLM answer, with its own reader of folders and tokenizers."""
    done = subprocess.run(
        [VLLM_PYTHON, "-c", SCRIPT, json.dumps(WORDS), str(model), str(adapter or "")],
        env={**os.environ, **VLLM_ENVIRONMENT, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found, done.stderr[-3000:]
    return json.loads(found[0].removeprefix("FOUND "))


def by_transformers(model: Path, ids: list[int]) -> list[float]:
    """Return the log-probability of each of vLLM's tokens behind those before it."""
    from transformers import AutoModelForCausalLM

    whole = torch.tensor([[*WORDS, *ids]])
    with torch.no_grad():
        rows = AutoModelForCausalLM.from_pretrained(model)(whole).logits[0].log_softmax(-1)
    return [float(rows[len(WORDS) - 1 + place, word]) for place, word in enumerate(ids)]


def test_vllm_loads_a_merged_model_and_an_adapter_over_its_base(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, 1, model={"size": "M"}, tuning={**LORA, "rank": 8, "alpha": 64.0})
    reply = stepped(trainer, trainer.bind(BindRequest("speaker", CREATE)))
    written = trainer.checkpoint(CheckpointRequest("last", 1, {"speaker": 1}, {"speaker": reply.digest}))
    folder = Path(written.path)
    whole = merge(folder, "speaker")
    merged = by_vllm(whole)
    expected = by_transformers(whole, merged["ids"])
    assert merged["logprobs"] == pytest.approx(expected, abs=1e-4)
    assert by_transformers(folder / "base-0", merged["ids"]) != pytest.approx(expected, abs=1e-3), (
        "it changes something"
    )
    adapted = by_vllm(folder / "base-0", folder / "speaker")
    assert adapted["ids"] == merged["ids"]
    assert adapted["logprobs"] == pytest.approx(merged["logprobs"], abs=1e-4)
