"""Adapters on vLLM: one engine holds their base, and each version of each is an instance of its own on it.

Invariants. The engine's own weights never change. A version is loaded under a number and a place of its own, so a key
that another version left in the prefix cache is never read again, and none has to be thrown away. One step advances the
replies of all instances; what it ended for another instance waits there, and is handed out once, by that instance.
"""

import itertools
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import Lora
from workers.models.adapter import peft_config
from workers.rollout.engines.base import EngineFailedError
from workers.rollout.engines.requests import Finished, Request
from workers.rollout.engines.stop_strings import StopStrings
from workers.rollout.engines.vllm_instance import Base, Instance, build, said
from workers.rollout.engines.vllm_models import VllmModel

if TYPE_CHECKING:
    import torch

RANKS = (1, 8, 16, 32, 64, 128, 256)
"""Widths for which vLLM makes room; an adapter uses part of the next larger one."""
VERSIONS = 2
"""Versions of a policy that may be served at once."""


class SharedEngine:
    """One vLLM engine with the base of several policies' adapters."""

    def __init__(
        self,
        model: VllmModel,
        weights: "Mapping[str, torch.Tensor]",
        adapters: Sequence[Lora],
        device: str,
        rows: int,
        stop_strings: StopStrings,
        tokenizer: str = "",
    ) -> None:
        """`adapters`: of each policy over this base. Raises EngineFailedError, UnsupportedModel."""
        self.model, self.words = model, model.check(weights)
        self.engine = build(model, self.words, device, rows, Base(weights, room_for(adapters)), tokenizer)
        self.stop_strings = stop_strings
        self._instances: list[AdapterInstance] = []
        self._numbers = itertools.count(1)

    def instance(self, lora: Lora) -> "AdapterInstance":
        """Return a further instance, without an adapter yet."""
        self._instances.append(AdapterInstance(self, lora))
        return self._instances[-1]

    def number(self) -> int:
        """Return a number that no adapter has had."""
        return next(self._numbers)

    def step(self) -> None:
        """Advance every reply by one token; each instance keeps what ended of its own."""
        outputs = self.engine.step()
        for instance in self._instances:
            taken = [instance.take(output) for output in outputs]
            instance.keep([one for one in taken if one is not None] + instance.stopped())


class AdapterInstance(Instance):
    """Holds one version of one policy's adapter; weights given to it are the adapter's."""

    def __init__(self, shared: SharedEngine, lora: Lora) -> None:
        super().__init__(shared.model, shared.words, shared.engine, shared.stop_strings)
        self._shared = shared
        self._lora = lora
        self._ended: dict[str, Finished] = {}

    @property
    def busy(self) -> bool:
        return bool(self._ended) or super().busy

    def hold(self, version: int, digest: str, state: "Mapping[str, torch.Tensor]") -> None:
        """Take another adapter; only while idle. Raises EngineFailedError, and holds nothing then."""
        from vllm.lora.request import LoRARequest

        if self.busy:
            raise RuntimeError("an instance with requests keeps its adapter")
        self._let_go()
        with tempfile.TemporaryDirectory(prefix="flexmarl-adapter-") as folder:
            _write(Path(folder), state, self._lora)
            adapter = LoRARequest(digest, self._shared.number(), folder)
            try:
                taken = self._engine.add_lora(adapter)
            except Exception as error:  # vLLM raises what its loaders raise: assertions, key errors, runtime errors
                raise EngineFailedError(f"vLLM cannot load this adapter: {said(error)}") from error
        if not taken:
            raise EngineFailedError("vLLM has no room for this adapter; the engine must be restarted")
        self._adapter, self.version, self.digest = adapter, version, digest

    def step(self) -> list[Finished]:
        """Advance every reply, unless some that ended wait to be handed out; return what ended."""
        if not self._ended:
            self._shared.step()
        ended, self._ended = list(self._ended.values()), {}
        return ended

    def keep(self, ended: Iterable[Finished]) -> None:
        """Keep replies that ended until they are handed out."""
        self._ended |= {one.request.request_id: one for one in ended}

    def end(self, ids: Iterable[str]) -> list[Finished]:
        """End replies now, with the tokens they have; what ended by itself is handed out as it did."""
        wanted = list(ids)
        waiting = [self._ended.pop(known) for known in wanted if known in self._ended]
        return waiting + super().end(wanted)

    def running(self) -> list[Request]:
        """Return the requests that were not handed out."""
        return [one.request for one in self._ended.values()] + super().running()

    def depth(self) -> tuple[int, int]:
        """Return how many of its own requests run and wait."""
        live = {request.request_id for request in self._scheduler.running}
        running = sum(one.number in live for one in self._running.values())
        return running, len(self._running) - running

    def _let_go(self) -> None:
        self.version, self.digest = -1, ""
        if self._adapter is not None:
            self._engine.remove_lora(self._adapter.lora_int_id)
            self._adapter = None


def room_for(adapters: Sequence[Lora]) -> dict[str, object]:
    """Return the settings with which vLLM serves each of these policies in as many versions as may be.

    None of them is ever put aside, so the files of an adapter are read once.
    """
    widest = max(lora.rank for lora in adapters)
    versions = VERSIONS * len(adapters)
    rank = next(rank for rank in RANKS if rank >= widest)
    return {"enable_lora": True, "max_loras": versions, "max_cpu_loras": versions, "max_lora_rank": rank}


def _write(folder: Path, adapter: "Mapping[str, torch.Tensor]", lora: Lora) -> None:
    """Write an adapter as vLLM reads it."""
    from safetensors.torch import save_file

    (folder / "adapter_config.json").write_text(json.dumps(peft_config("", lora)), encoding="utf-8")
    save_file(dict(adapter), folder / "adapter_model.safetensors", metadata={"format": "pt"})
