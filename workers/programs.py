"""Which program a child is: the interpreter and the module that are started for what a lease is used for.

Invariant: a program that is returned can be started; what is missing on this machine is said in words that name the
setting, before anything is started.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flexmarl.contracts.events import DeviceUse
from flexmarl.store.control.nodes import DeviceRow
from workers.errors import HostingError
from workers.roots import python_path
from workers.settings import Settings

MODULES = {DeviceUse.ENGINE: "workers.rollout.engines.serve", DeviceUse.TRAINER: "workers.training.serve"}
IMPORTED = [*MODULES.values(), "torch", "safetensors.torch"]
"""What their fork server imports: them, and what they import only once they have read what they are to do."""
VLLM_MODULE = "workers.rollout.engines.serve_vllm"
VLLM_ENVIRONMENT = {
    # In the child's own process: it is smaller, starts in a third of the time, and its death takes everything along.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Ranks of an engine of several devices begin anew: a fork of a process with threads may hang.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # The sampler's one compiled helper costs seconds at its first call and at each new batch size.
    "TORCHDYNAMO_DISABLE": "1",
    # By itself vLLM binds every engine of a machine to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # Each warning would be a line of the run's log, and none of them is about the run.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
}
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""A rank that meets a closed connection says so itself; the stacks of process groups are no news."""


def confined(threads: int, cuda: str = "") -> dict[str, str]:
    """Return the environment that keeps each process of a child to so many threads, and all to these GPUs or none."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    huge_pages = {"THP_MEM_ALLOC_ENABLE": "1"}  # torch's large tensors: fresh memory is touched four times as fast
    return {**limits, **huge_pages, "CUDA_VISIBLE_DEVICES": cuda, "TOKENIZERS_PARALLELISM": "false"}


def device_environment(devices: Sequence[DeviceRow], threads: int) -> dict[str, str]:
    """Return the environment that confines a child to its devices."""
    cuda = [str(one.facts.get("cuda_index", one.ordinal)) for one in devices if one.kind == "cuda"]
    return confined(threads, ",".join(cuda))


@dataclass(frozen=True, slots=True)
class Program:
    module: str
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


def program_of(use: DeviceUse, spec: Mapping[str, object], settings: Settings) -> Program:
    """Return what to start. Raises HostingError when this machine lacks it."""
    resources = spec.get("resources")
    wanted = resources.get("engine") if isinstance(resources, dict) else None
    if use is DeviceUse.ENGINE and wanted == "vllm":
        return vllm_program(settings.vllm_python)
    return Program(MODULES[use], environment=QUIET if use is DeviceUse.TRAINER else {})


def vllm_program(python: str) -> Program:
    """Return the vLLM engine under an interpreter that has vLLM. Raises HostingError when there is none."""
    if not python:
        raise HostingError(
            "the run uses the vLLM engine, but FLEXMARL_VLLM_PYTHON is not set on this node; set it to the interpreter "
            "of an environment with vLLM, or choose resources.engine: torch"
        )
    if not os.access(python, os.X_OK):
        raise HostingError(
            "the interpreter in FLEXMARL_VLLM_PYTHON of this node cannot be run; set it to the interpreter of an "
            "environment with vLLM, or choose resources.engine: torch"
        )
    return Program(VLLM_MODULE, python, {**VLLM_ENVIRONMENT, "PYTHONPATH": python_path()})
