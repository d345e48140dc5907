"""An instance: one vLLM engine in this process, which holds the weights of one version of one policy at a time.

Invariants. Weights change only while nothing runs on the instance, and its prefix cache is emptied with them, so no key
of other weights is ever read again. An instance whose weights did not load wholly holds nothing. Replies end inside
`step` or `end`, each once. The instance is built from a configuration alone, with random weights that are never served:
a parameter that its first load leaves as it was is one that vLLM does not update, and the model is refused.

Log-probabilities are those of the distribution drawn from: all parameters applied, renormalised; greedy replies
report the masked distribution at temperature 1, as the torch engine does. A reply that carries on another's tokens
draws with a seed of its own, since vLLM counts a request's draws from its first own token.

On a CPU a prompt is read in one step, never in parts: behind a part, vLLM takes back the draw of the request's own
generator, which only those of CUDA can do, and its engine would end. So that many prompts at once do not take the
memory of all of them, a step reads `STEP_TOKENS`, or one longer prompt.
"""

import contextlib
import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from flexmarl.contracts.specification.sampling import ChoiceOutput, JsonOutput, RegexOutput, StructuredOutput
from workers.rollout.engines import version_segments
from workers.rollout.engines.base import EngineFailedError
from workers.rollout.engines.requests import Finished, ReplyProgress, Request
from workers.rollout.engines.stop_strings import StopStrings, tail_of
from workers.rollout.engines.vllm_grammars import hold_replies, told_of
from workers.rollout.engines.vllm_models import VllmModel
from workers.rollout.engines.vllm_ranks import PROCESSES, Ranks
from workers.rollout.engines.wire import HeldVersion

if TYPE_CHECKING:
    import torch
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.engine.llm_engine import LLMEngine

BLOCK = 32
"""Tokens of a cache block: prompts that agree share whole blocks only, and the turns of small games are short."""
STEP_TOKENS = 4096
"""Tokens that a step reads and makes at most where prompts are read whole, unless one prompt has more."""
CUDA_SHARE = 0.4
"""Of the free memory of a GPU, for the attention cache of an instance."""


@dataclass(frozen=True, slots=True)
class Base:
    """Weights that stay, and the settings that leave room for adapters beside them."""

    weights: "Mapping[str, torch.Tensor]"
    room: Mapping[str, Any]


@dataclass(slots=True)
class _Running:
    request: Request
    number: str
    """Under which vLLM knows it."""


class Instance:
    def __init__(
        self, model: VllmModel, words: int, engine: "LLMEngine", stop_strings: StopStrings, home: str = ""
    ) -> None:
        """`home`: where ranks of several devices read weights."""
        self.model = model
        self.words = words
        self.version = -1
        self.digest = ""
        self.cached_tokens = 0
        self._engine = engine
        self._ranks = Ranks(engine, model.devices, home)
        self._stop_strings = stop_strings
        self._scheduler: Any = engine.engine_core.engine_core.scheduler
        self._adapter: LoRARequest | None = None
        """What its requests name beside the engine's weights."""
        self._updates_all = False
        """A load has changed every parameter."""
        self._running: dict[str, _Running] = {}

    @property
    def held(self) -> HeldVersion | None:
        """Return the version it holds, if it does."""
        return HeldVersion(self.version, self.digest) if self.digest else None

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def hold(self, version: int, digest: str, state: "Mapping[str, torch.Tensor]") -> None:
        """Take other weights; only while idle. Raises EngineFailedError, and holds nothing then."""
        if self._running:
            raise RuntimeError("an instance with requests keeps its weights")
        self.version, self.digest = -1, ""
        try:
            before = {} if self._updates_all else self._ranks.samples()
            self._ranks.reload(digest, state)
            after = {} if self._updates_all else self._ranks.samples()
        except Exception as error:  # vLLM raises what its loaders raise: assertions, key errors, runtime errors
            raise EngineFailedError(f"vLLM cannot load these weights: {said(error)}") from error
        if not self._engine.reset_prefix_cache():
            raise EngineFailedError("vLLM kept attention keys of the weights before; the engine must be restarted")
        if kept := [name for (rank, name), values in before.items() if values == after.get((rank, name))]:
            raise EngineFailedError(
                f"vLLM takes no new weights for {len(set(kept))} parameters of this model, such as {kept[0]}: it "
                "cannot serve it while all weights are trained"
            )
        self._updates_all = True
        self.version, self.digest = version, digest

    def add(self, request: Request) -> None:
        """Begin a reply, or carry on what it has. Raises BadRequestError without a tokenizer for its stop strings."""
        self._stop_strings.check([request])
        prompt: Any = {"prompt_token_ids": list(request.context)}
        number = self._engine.add_request(request.request_id, prompt, _sampling(request), lora_request=self._adapter)
        self._running[request.request_id] = _Running(request, number)

    def step(self) -> list[Finished]:
        """Advance every reply by one token; return what ended."""
        if not self._engine.vllm_config.scheduler_config.enable_chunked_prefill:
            longest = max((request.num_tokens for request in self._scheduler.waiting), default=0)
            self._scheduler.max_num_scheduled_tokens = max(STEP_TOKENS, longest + len(self._running))
        taken = [self.take(output) for output in self._engine.step()]
        return [one for one in taken if one is not None] + self.stopped()

    def stopped(self) -> list[Finished]:
        """End the replies that have come to a stop string: vLLM has no tokenizer here."""
        found = []
        for name, running in list(self._running.items()):
            if running.request.sampling.stop:
                tail = [*running.request.done, *self._so_far(running)[0]][-tail_of(running.request) :]
                if self._stop_strings.ended(running.request, tail):
                    found += [replace(one, reason="stop") for one in self.end([name])]
        return found

    def take(self, output: Any) -> Finished | None:
        """Return the reply that an output of vLLM ends, if it is one of this instance."""
        if not output.finished or (running := self._running.pop(output.request_id, None)) is None:
            return None
        self.cached_tokens += output.num_cached_tokens or 0
        reply = output.outputs[0]
        reason = reply.finish_reason if reply.finish_reason in ("stop", "length") else "abort"
        chances = list(reply.logprobs.logprobs)[: len(reply.token_ids)]
        sound = numbers(chances)
        reason = reason if sound == len(chances) else "nonfinite"
        return self._finished(running.request, reply.token_ids[:sound], chances[:sound], reason)

    def end(self, ids: Iterable[str]) -> list[Finished]:
        """End replies now, with the tokens they have; unknown ids are ignored."""
        ended = []
        for known in [known for known in ids if known in self._running]:
            running = self._running.pop(known)
            tokens, logprobs = self._so_far(running)
            self._engine.abort_request([running.number], internal=True)
            ended.append(self._finished(running.request, tokens, logprobs, "abort"))
        return ended

    def running(self) -> list[Request]:
        """Return the requests in generation or waiting for it."""
        return [running.request for running in self._running.values()]

    def parts(self, told: Mapping[str, int]) -> list[ReplyProgress]:
        """Return what running replies have beyond the tokens that `told` counts."""
        found = []
        for name, running in self._running.items():
            at = told.get(name, -1)
            if at < 0:
                continue
            whole = self._finished(running.request, *self._so_far(running), "")
            if at < len(whole.token_ids):
                segments = version_segments.since(whole.segments, at)
                found.append(ReplyProgress(name, at, whole.token_ids[at:], whole.logprobs[at:], segments))
        return found

    def depth(self) -> tuple[int, int]:
        """Return how many requests run and wait."""
        running, _ = self._scheduler.get_request_counts()
        return running, max(0, len(self._running) - running)

    @property
    def cache_use(self) -> float:
        """Return the share of the attention cache in use."""
        return float(self._scheduler.get_kv_cache_usage())

    def _so_far(self, running: _Running) -> tuple[list[int], list[float]]:
        state = self._engine.output_processor.request_states[running.number]
        tokens = list(state.detokenizer.output_token_ids)
        chances = list(state.logprobs_processor.logprobs.logprobs)[: len(tokens)]
        sound = numbers(chances)
        return tokens[:sound], chances[:sound]

    def _finished(self, request: Request, tokens: Iterable[int], logprobs: Iterable[float], reason: str) -> Finished:
        ids, chances = [*request.done, *tokens], [*request.done_logprobs, *logprobs]
        return Finished(request, ids, chances, reason, self.version)


def numbers(logprobs: Sequence[float]) -> int:
    """Return how many log-probabilities stand before the first that is no number."""
    return next((place for place, chance in enumerate(logprobs) if not math.isfinite(chance)), len(logprobs))


def handed_on(ended: Finished) -> Request:
    """Return the request of a reply that was ended to be carried on."""
    if ended.request.follow == "restart_turn":
        return ended.request
    return replace(
        ended.request,
        done=tuple(ended.token_ids),
        done_logprobs=tuple(ended.logprobs),
        done_segments=tuple(ended.segments),
    )


def _sampling(request: Request) -> "SamplingParams":
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    sampling = request.sampling
    return SamplingParams(
        max_tokens=request.max_tokens - len(request.done),
        temperature=request.temperature,
        seed=_seed(request),
        allowed_token_ids=list(request.allowed) or None,
        stop_token_ids=list(request.stop),
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        structured_outputs=_structured(sampling.structured),
        extra_args=told_of(request),
    )


def _structured(asked: str) -> "StructuredOutputsParams | None":
    """Return what a reply must be in vLLM's words."""
    from vllm.sampling_params import StructuredOutputsParams

    if not asked:
        return None
    match TypeAdapter(StructuredOutput).validate_json(asked):
        case ChoiceOutput(choices=choices):
            return StructuredOutputsParams(choice=list(choices))
        case RegexOutput(pattern=pattern):
            return StructuredOutputsParams(regex=pattern)
        case JsonOutput(of=schema):
            return StructuredOutputsParams(json=schema)


def _seed(request: Request) -> int:
    if not request.done:
        return request.seed
    text = f"{request.seed}:{len(request.done)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def build(
    model: VllmModel, words: int, device: str, rows: int, base: "Base | None" = None, tokenizer: str = ""
) -> "LLMEngine":
    """Start an engine, with weights of no meaning unless a base is given. Raises EngineFailedError in vLLM's words.

    `tokenizer`: folder of the one that structured output needs; empty: the engine reads no text. What it holds replies
    to are the grammars that the torch engine and the refusals of formats know.
    """
    from safetensors.torch import save_file
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    on_cpu, several = device == "cpu", model.devices > 1
    if not several:
        _make_groups()
    with tempfile.TemporaryDirectory(prefix="flexmarl-vllm-") as folder:
        described = model.sized(words)
        (Path(folder) / "config.json").write_text(json.dumps(described), encoding="utf-8")
        if base is not None:
            save_file(dict(base.weights), Path(folder) / "model.safetensors", metadata={"format": "pt"})
        try:
            _look_at_classes(described.get("architectures") or ())
            arguments = EngineArgs(
                model=folder,
                tokenizer=tokenizer or None,
                skip_tokenizer_init=not tokenizer,
                load_format="dummy" if base is None else "safetensors",
                **({} if base is None else base.room),
                generation_config="vllm",
                dtype="float32" if on_cpu else "bfloat16",
                enforce_eager=True,
                max_model_len=model.architecture.max_positions,
                max_num_seqs=rows,
                **(whole_prompts(model.architecture.max_positions, rows) if on_cpu else {}),
                kv_cache_memory_bytes=model.cache_bytes if on_cpu else _cuda_cache(model),
                block_size=BLOCK,
                logprobs_mode="processed_logprobs",
                structured_outputs_config={"backend": "guidance"},
                async_scheduling=False,
                disable_log_stats=True,
                **({"tensor_parallel_size": model.devices, "distributed_executor_backend": "mp"} if several else {}),
            )
            engine = LLMEngine.from_engine_args(arguments)
        except Exception as error:  # whatever keeps vLLM from starting is the reason that people have to read
            raise EngineFailedError(f"vLLM cannot start this model: {said(error)}") from error
    if tokenizer:
        hold_replies(engine, tokenizer, words)
    if several:
        PROCESSES.watch(engine)
    if on_cpu and base is not None and engine.model_config.is_moe:
        raise EngineFailedError("vLLM has no kernel for adapters of a model with experts on a CPU; it needs a GPU")
    return engine


def whole_prompts(longest: int, rows: int) -> dict[str, Any]:
    """Return the settings with which a step reads any prompt whole, beside a token of every other reply."""
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(STEP_TOKENS, longest) + rows}


def _look_at_classes(architectures: Iterable[str]) -> None:
    """Have vLLM look at the class of a model here, where it is needed next in any case.

    By itself it starts another process for that, which imports all of vLLM again: longer than the engine takes itself.
    It does so for programs that fork their ranks after CUDA has started; ours begin anew.
    """
    from vllm import ModelRegistry

    for name in architectures:
        if (known := ModelRegistry.models.get(name)) is not None:
            ModelRegistry.register_model(name, known.load_model_cls())


def _make_groups() -> None:
    """Make the process groups that the engines of this process share, with one for models with experts.

    vLLM makes them for its first engine, and that one only if its model has experts: one that came later would fail.
    """
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.platforms import current_platform
    from vllm.utils.network_utils import get_distributed_init_method, get_open_port

    if parallel_state.model_parallel_is_initialized():
        return
    with set_current_vllm_config(VllmConfig()):
        address = get_distributed_init_method("127.0.0.1", get_open_port())
        parallel_state.init_distributed_environment(1, 0, address, 0, current_platform.dist_backend)
        parallel_state.ensure_model_parallel_initialized(1, 1)


def _cuda_cache(model: VllmModel) -> int:
    import torch

    free = min(torch.cuda.mem_get_info(device)[0] for device in range(model.devices))
    return max(model.cache_bytes, int(free * CUDA_SHARE))


def said(error: BaseException) -> str:
    """Return an error's first line, in which vLLM says the cause."""
    text = str(error)
    with contextlib.suppress(IndexError):
        text = text.strip().splitlines()[0]
    return f"{type(error).__name__}: {text[:400]}"
