"""vLLM alone as the raw side: its own `LLM.generate` in a process without the platform, with the same prompts.

As many conversations at once as there are episodes, each reply as long as the platform's, one log-probability per
token, no text made of the ids. On a CPU the settings are those of the platform's engine, precision included, and the
process has the engine's core and niceness; on a GPU they are vLLM's own, its compiled graphs included.
"""

import contextlib
import json
import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import msgspec
from harness import ROOT, Report
from rollout_played import MEMBERS, Meter, Spent
from rollout_share import Sides, compare, stage
from safetensors.torch import save_file

from flexmarl.contracts.specification.team import FactoryModel, FolderModel
from tests.support.engines import VLLM_PYTHON, WORDS
from workers.child_server import NICENESS
from workers.models.weights import initial_weights
from workers.programs import VLLM_ENVIRONMENT, confined
from workers.rollout.engines.serve_vllm import ROWS
from workers.rollout.engines.vllm_instance import BLOCK, whole_prompts
from workers.rollout.engines.vllm_models import vllm_model

CHILD = """
import json, os, sys
os.nice(int(sys.argv[1]))
from vllm import LLM, SamplingParams
model = LLM(**json.loads(sys.stdin.readline()))
print("@ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    sampling = [SamplingParams(max_tokens=asked["tokens"], temperature=1.0, seed=seed, ignore_eos=True, logprobs=0,
                               detokenize=False) for seed in asked["seeds"]]
    made = model.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], sampling, use_tqdm=False)
    print("@" + json.dumps([list(one.outputs[0].token_ids) for one in made]), flush=True)
"""


class VllmAlone:
    def __init__(self, model: Path, source: FactoryModel | FolderModel, device: str, core: int) -> None:
        self._log = open(os.devnull, "wb")  # noqa: SIM115 - as long as the process
        shared = {"model": str(model), "skip_tokenizer_init": True, "generation_config": "vllm", "max_num_seqs": ROWS}
        own: dict[str, object] = {"dtype": "bfloat16", "logprobs_mode": "processed_logprobs"}
        if device == "cpu":
            served = vllm_model(source)
            own |= {"dtype": "float32", "enforce_eager": True, "block_size": BLOCK, "async_scheduling": False}
            own |= {"kv_cache_memory_bytes": served.cache_bytes}
            own |= whole_prompts(served.architecture.max_positions, ROWS)
        index = "" if device == "cpu" else "0"
        environment = {**os.environ, **confined(1, index), **VLLM_ENVIRONMENT}
        if device != "cpu":
            environment.pop("TORCHDYNAMO_DISABLE")
        self.process = subprocess.Popen(
            [VLLM_PYTHON, "-c", CHILD, str(NICENESS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, cwd=ROOT, env=environment,
        )  # fmt: skip
        if core >= 0:
            os.sched_setaffinity(self.process.pid, {core})  # whatever it starts inherits it
        self._tell({**shared, **own})
        assert self._heard() == "ready"

    def raw(self, sides: Sides, tokens: int, commands: int) -> Spent:
        """Have conversations of as many turns as the platform's, as many at once."""
        team, tasks = sides.platform.team, sides.tasks(commands)
        members = [(task, member) for task in tasks for member in range(MEMBERS)]
        meter, prompts = Meter([self.process.pid], sides.platform), team.prompts
        for first in range(0, len(members), team.episodes):
            wave = members[first : first + team.episodes]
            asked = [prompts.first(task) for task, _ in wave]
            for turn in range(team.turns):
                seeds = [(task * MEMBERS + member) * team.turns + turn for task, member in wave]
                self._tell({"prompts": asked, "seeds": seeds, "tokens": tokens})
                replies = json.loads(self._heard())
                assert all(len(reply) == tokens for reply in replies)
                told = zip(asked, replies, wave, strict=True)
                asked = [prompts.next(prompt, reply, task, turn + 1) for prompt, reply, (task, _) in told]
        return meter.spent(len(members) * team.turns)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()

    def _tell(self, body: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(body) + b"\n")
        self.process.stdin.flush()

    def _heard(self) -> str:
        """Return the next line that is meant for here: libraries print others."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"@"):
                return line[1:].decode().strip()
        raise RuntimeError("vLLM alone has ended")


def vllm_alone(report: Report) -> None:
    """Compare the platform on its vLLM engine with vLLM alone."""
    settings = report.settings
    with contextlib.ExitStack() as started:
        sides = started.enter_context(stage("vllm", settings, report.quick))
        if settings["model"]:
            folder = Path(str(settings["model"])).resolve()
            source: FactoryModel | FolderModel = FolderModel(path=str(folder))
        else:
            source = FactoryModel(size="M")
            folder = word_model(source, started)
        alone = VllmAlone(folder, source, str(settings["device"]), sides.core)
        started.callback(alone.stop)
        compare(report, "vllm", "alone", sides.platform.team, sides.play, partial(alone.raw, sides))


def word_model(source: FactoryModel, started: contextlib.ExitStack) -> Path:
    """Write the word team's model as a folder."""
    folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="flexmarl-bench-model-")))
    (folder / "config.json").write_text(json.dumps(vllm_model(source).sized(WORDS)), encoding="utf-8")
    save_file(initial_weights(source, WORDS, 0), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
