"""Ranks of a vLLM engine of several devices: one process each, started by vLLM, all computing every layer together.

Invariants. An engine is whole or gone: the end of one rank ends all of them and this process, so its host starts a
fresh life. Each rank reads new weights from the state plane by their digest, in memory that all of them share. What
ranks share by name has no name any more once all have it, so nothing of it is left however they end.
"""

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers import memory
from workers.transfer.local import LocalTier

if TYPE_CHECKING:
    import torch
    from vllm.v1.engine.llm_engine import LLMEngine

SAMPLED = 64
"""Values of a parameter that are compared before and after a load."""
_SHARED = Path("/dev/shm")
_OURS = re.compile(r"psm_|.*cpushm")
"""Names that vLLM gives; those of NCCL are its own business."""
_MAPS = Path("/proc/self/maps")

PATIENCE_S = 1.0
"""For a rank's end to be seen that another rank has met first."""
Samples = dict[tuple[int, str], list[float]]
"""(rank, parameter) -> some of its values."""


class Ranks:
    """Those of one engine, or the engine itself where it has one device."""

    def __init__(self, engine: "LLMEngine", devices: int = 1, home: str = "") -> None:
        """`home`: where the state plane is; read only where there are several devices."""
        self._engine = engine
        self._devices, self._home = devices, home

    def reload(self, digest: str, state: "Mapping[str, torch.Tensor]") -> None:
        """Give every rank its part of other weights. Raises whatever vLLM's loaders raise."""
        # The linear weights were repacked for the CPU: only the reloading loader puts new ones where they belong.
        if self._devices == 1:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(state.items())})
        else:
            self._engine.collective_rpc(_reload, args=(self._home, digest))
        self._engine.apply_model(_pack_tied_head)
        self._engine.apply_model(_pack_experts)

    def samples(self) -> Samples:
        """Return some values of each rank's part of each parameter, to see whether a load has changed it."""
        found = self._engine.apply_model(_samples)
        return {(rank, name): values for rank, part in enumerate(found) for name, values in part.items()}


class RankProcesses:
    """Those of all engines of this process. The first that ends is the reason of the others' end, and of this one's."""

    def __init__(self) -> None:
        self._engines: list[list[BaseProcess]] = []
        self._kills = memory.kernel_kills()

    def watch(self, engine: "LLMEngine") -> None:
        """Take the names off what the ranks of a started engine share, and end this process once one of them ends."""
        logging.getLogger("vllm.v1.executor.multiproc_executor").setLevel(logging.CRITICAL)  # the last words are ours
        _unlink_shared(None)
        engine.collective_rpc(_unlink_shared)
        workers: Iterable[Any] = engine.model_executor.workers
        own: list[BaseProcess] = [worker.proc for worker in workers]
        self._engines.append(own)
        threading.Thread(target=self._wait, args=(own,), name="ranks", daemon=True).start()

    def lost(self, patience_s: float = PATIENCE_S) -> str:
        """Say which rank has ended, if one does before long: those that computed with it say something else."""
        sentinels = [process.sentinel for own in self._engines for process in own]
        gone = wait(sentinels, patience_s) if sentinels else []
        return next((self._reason(own, gone) for own in self._engines if any(p.sentinel in gone for p in own)), "")

    def _wait(self, own: list[BaseProcess]) -> None:
        reason = self._reason(own, wait([process.sentinel for process in own]))
        for process in own:
            process.kill()
        sys.stderr.write(f"{reason}\n")
        sys.stderr.flush()
        os._exit(1)  # whatever is left is ended by the host

    def _reason(self, own: list[BaseProcess], gone: Collection[object]) -> str:
        rank, process = next((rank, process) for rank, process in enumerate(own) if process.sentinel in gone)
        until = time.monotonic() + PATIENCE_S
        while (code := process.exitcode) is None and time.monotonic() < until:
            time.sleep(0.01)  # a thread of vLLM's asks as well: for a moment it alone knows
        how = "no code" if code is None else f"signal {-code}" if code < 0 else f"code {code}"
        lack = "; out of memory: the kernel killed it" if memory.killed_for_memory(code or 0, self._kills) else ""
        return f"rank {rank} of the {len(own)} of this engine ended with {how}{lack}"


PROCESSES = RankProcesses()


def _reload(worker: Any, home: str, digest: str) -> None:
    """Load a rank's part of weights that lie in the state plane. Runs on a rank."""
    worker.reload_weights(weights_iterator=iter(LocalTier(home).mapped(digest).items()))


def _unlink_shared(_: Any) -> None:
    """Take the names off the shared memory that this process has mapped. Runs on a rank, and in this process."""
    with contextlib.suppress(OSError):
        for line in _MAPS.read_text(encoding="utf-8").splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.parent == _SHARED and _OURS.match(path.name):
                path.unlink(missing_ok=True)


def _pack_tied_head(model: Any) -> None:
    """Prepare a head that is tied to the embedding for the processor anew.

    The reloading loader prepares each layer that is named among the weights; a tied head is not, and would go on with
    the table that was packed for it before.
    """
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is None or embedding is None or head is embedding or not hasattr(head, "quant_method"):
        return
    if head.weight.data_ptr() == embedding.weight.data_ptr():
        head.quant_method.process_weights_after_loading(head)


def _pack_experts(model: Any) -> None:
    """Pack the weights of experts for the processor anew, as vLLM does after the first load of an engine only."""
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        if kernel is not None and layer.w13_weight.device.type == "cpu":
            kernel.fused_experts.process_weights_after_loading(layer)


def _samples(model: Any) -> dict[str, list[float]]:
    """Return some values of each parameter; one that was packed elsewhere has none, and a rank's part of a vocabulary
    may have no word."""
    wordless = [
        module
        for module in model.modules()
        if getattr(getattr(module, "shard_indices", None), "num_org_elements", 1) == 0
    ]
    left_out = {id(parameter) for module in wordless for parameter in module.parameters()}
    return {
        name: parameter.detach().flatten()[:SAMPLED].tolist()
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.numel() and id(parameter) not in left_out
    }
