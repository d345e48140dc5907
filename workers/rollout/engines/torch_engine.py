"""The torch engine: continuous batching for a set of policies in one process, without threads or I/O of its own.

Invariants:
- A reply is made by exactly the version it names; `KEPT_VERSIONS` loaded versions of a policy are held wholly: the last
  one, and of those before it the one that its load names, so a group pinned to that plays on while newer groups start.
  Other lanes finish what runs and take no more.
- Every submitted request is settled exactly once, by `step` or `abort`.
- A policy that is closed takes no requests; it is forgotten when the last one has ended, and any load opens it again.
- `load` swaps nothing under a running request: a new version is a new lane. Only requests that ask to follow move to
  it, with every token, log-probability and version they have so far.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import Lora, Precision
from workers.models.architecture import Architecture, UnsupportedModel
from workers.models.products import widen
from workers.rollout.engines import decoder, invariant, low_rank
from workers.rollout.engines.block_lane import BlockLane, check_whole
from workers.rollout.engines.cache import SpareCaches
from workers.rollout.engines.checks import check_all
from workers.rollout.engines.grammars import Grammars
from workers.rollout.engines.lane import EngineLane
from workers.rollout.engines.own_memory import OwnTensors
from workers.rollout.engines.requests import Finished, NotHeldError, ReplyProgress, Request
from workers.rollout.engines.stop_strings import StopStrings
from workers.rollout.engines.wire import HeldVersion, Load, LoadRequest

if TYPE_CHECKING:
    import torch

KEPT_VERSIONS = 2
"""Versions of a policy that take requests: the newest, and the one that unfinished groups may still pin."""


class TorchEngine:
    def __init__(
        self,
        device: str = "cpu",
        rows: int = 256,
        ordered: bool = False,
        tokenizer_of: Callable[[str], bytes | None] = lambda _: None,
    ) -> None:
        """`tokenizer_of`: policy -> tokenizer.json of its text; None where it has none."""
        self.rows = rows
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self._device = device
        self._ordered = ordered
        """Compute a row's bits from the row alone."""
        self._lanes: dict[str, list[EngineLane]] = {}
        """Per policy; the last `KEPT_VERSIONS` take requests, earlier ones only finish."""
        self._caches = SpareCaches()
        self._stop_strings = StopStrings(tokenizer_of)
        self._grammars = Grammars(tokenizer_of)
        self._left: dict[tuple[int, torch.dtype], OwnTensors] = {}
        """By size and precision, memory of a version that nothing runs on any more: fresh memory costs several times a
        copy."""
        self._closed: set[str] = set()
        self._rows: dict[str, int] = {}
        """Requests in generation at once of policies that ran out of memory with more."""

    def prepare(
        self, state: "dict[str, torch.Tensor]", architecture: Architecture, precision: Precision = "fp32"
    ) -> decoder.Weights:
        """Make a state dict ready to decode, whose memory nobody writes to from now on. May run in any thread.

        It is computed in bf16 where that is the precision, and in fp32 otherwise.

        An ordered engine lays its matrices as its check of the machine's kernels knows them.
        """
        import torch

        widen(precision, self._device)
        with torch.inference_mode():
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            memory = self._memory_for(decoder.own_elements(state), dtype)
            weights = decoder.prepare(state, architecture, self._device, memory, take_over=not self._ordered)
            if self._ordered:
                invariant.check(weights, self._device)
            return weights

    def adapt(self, base: decoder.Weights, adapter: "dict[str, torch.Tensor]", lora: Lora) -> decoder.Weights:
        """Lay an adapter over prepared weights, which are shared, not changed. May run in any thread, as `prepare`."""
        import torch

        with torch.inference_mode():
            weights = low_rank.over(base, adapter, lora, self._device)
            if self._ordered:
                invariant.check(weights, self._device)
            return weights

    def make_room(self, policy: str, keeps: Sequence[int]) -> None:
        """Have nothing ready: a lane is made in no time."""

    def load(self, policy: str, version: int, digest: str, weights: decoder.Weights, keeps: Sequence[int] = ()) -> None:
        """Hold a version from now on, beside one of `keeps`. Loading what is held already changes nothing."""
        import torch

        lanes = self._lanes.setdefault(policy, [])
        self._closed.discard(policy)
        if self.has(policy, version, digest):
            return
        known = {lane.weights.vocabulary for lane in lanes} - {weights.vocabulary}
        if known:
            text = f"these weights have {weights.vocabulary} words and those of {policy} before had {known.pop()}"
            raise UnsupportedModel(text)
        rows = self.rows_of(policy)
        made = (weights, version, digest, rows, self._device, self._caches, self._stop_strings, self._grammars)
        by_blocks = weights.architecture.denoising
        lane = EngineLane(*made, self._ordered) if by_blocks is None else BlockLane(*made, by_blocks)
        with torch.inference_mode():
            for older in lanes:
                if older.version < version:
                    lane.take_over(older)
        _stay_open(lanes, keeps)
        lanes.append(lane)
        self._retire(policy)

    def has(self, policy: str, version: int, digest: str) -> bool:
        """Whether requests for exactly these weights are taken."""
        return any((lane.version, lane.digest) == (version, digest) for lane in self._open(policy))

    def holds(self) -> dict[str, HeldVersion]:
        """Return the newest version of each policy."""
        open_now = ((policy, lanes) for policy, lanes in self._lanes.items() if policy not in self._closed)
        return {policy: HeldVersion(lanes[-1].version, lanes[-1].digest) for policy, lanes in open_now}

    def versions(self) -> list[LoadRequest]:
        """Return what would have to be loaded, in this order, to hold what is held."""
        return [
            LoadRequest(policy, lane.version, lane.digest, [other.version for other in self._open(policy)])
            for policy in self._lanes
            for lane in self._open(policy)
        ]

    def let_go(self) -> int:
        """Forget every weight and every attention cache; only while idle. Returns their bytes."""
        import torch

        if self.busy:
            raise RuntimeError("an engine with requests keeps its weights")
        held = [tensor for lane in self._all() for tensor in lane.tensors()] + self._caches.tensors()
        freed = sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in held}.values())
        self._lanes.clear()
        self._caches.clear()
        self._left.clear()
        self._closed.clear()
        if self._device.startswith("cuda"):
            torch.cuda.empty_cache()
        return freed

    def close(self, policy: str, hand_over: bool) -> list[Finished]:
        """Take no more requests of a policy; returns those that had not begun, which somebody else may answer.

        With `hand_over` also those under way, but in `ordered` mode, where no reply is carried on, and of versions that
        took no more requests: nobody else holds these either.
        """
        if policy not in self._lanes:
            return []
        lanes = self._lanes[policy]
        given = {request.request_id for lane in lanes for request in lane.waiting if not request.done}
        if hand_over and not self._ordered:
            given.update(request.request_id for lane in self._open(policy) for request in lane.requests())
        self._closed.add(policy)
        return self._end(lanes, given)

    def forget(self, policy: str) -> bool:
        """Let a closed policy's weights go once nothing of it runs. False: something does."""
        if policy not in self._closed:
            return True
        if any(lane.busy for lane in self._lanes[policy]):
            return False
        self._closed.discard(policy)
        del self._lanes[policy]
        self._caches.clear()
        self._left.clear()
        return True

    def understand(self, requests: list[Request]) -> None:
        """Compile what replies must be; `submit` finds it ready. May run in any thread."""
        lanes = [self._lane_of(request) for request in requests]
        self._grammars.check((one, lane.weights.vocabulary) for one, lane in zip(requests, lanes, strict=True))

    def submit(self, requests: list[Request]) -> None:
        """Queue requests, all or none; raise `NotHeldError` or `BadRequestError`."""
        lanes = [self._lane_of(request) for request in requests]
        models = [(lane.weights.vocabulary, lane.weights.architecture.max_positions) for lane in lanes]
        check_all(((request, *model) for request, model in zip(requests, models, strict=True)), self._ordered)
        check_whole([request for request, lane in zip(requests, lanes, strict=True) if isinstance(lane, BlockLane)])
        self._stop_strings.check(requests)
        self._grammars.check((request, words) for request, (words, _) in zip(requests, models, strict=True))
        for request, lane in zip(requests, lanes, strict=True):
            lane.waiting.append(request)
            self.prompt_tokens += len(request.prompt)

    @property
    def busy(self) -> bool:
        return any(lane.busy for lane in self._all())

    def step_policy(self, policy: str) -> tuple[list[Finished], int]:
        """Make one token for every live row of a policy; return what ended and the number of tokens."""
        import torch

        finished: list[Finished] = []
        made = 0
        with torch.inference_mode():
            for lane in self._lanes[policy]:
                if lane.busy:
                    ended, tokens = lane.step()
                    finished += ended
                    made += tokens
        if finished:
            self._retire(policy)
        self.generated_tokens += made
        return finished, made

    def shed(self, policy: str, error: Exception) -> list[Finished]:
        """Hand back everything of a policy, let its attention caches go, and take half as much at once from now on."""
        import torch

        lanes = self._lanes[policy]
        at_once = max(min(lane.rows.capacity, len(lane.requests())) for lane in lanes)
        self._rows[policy] = max(1, at_once // 2)
        with torch.inference_mode():
            ended = [replace(one, reason="out_of_memory") for lane in lanes for one in lane.empty(self._rows[policy])]
        self._caches.clear()
        self._retire(policy)
        return ended

    def rows_of(self, policy: str) -> int:
        return self._rows.get(policy, self.rows)

    def step(self) -> list[Finished]:
        """Make one token for every live row of every policy."""
        return [ended for policy in self.busy_policies() for ended in self.step_policy(policy)[0]]

    def busy_policies(self) -> list[str]:
        return [policy for policy, lanes in self._lanes.items() if any(lane.busy for lane in lanes)]

    def abort(self, ids: set[str]) -> list[Finished]:
        """End requests now; unknown ids are ignored."""
        return self._end(self._all(), ids)

    def parts(self, told: Mapping[str, int]) -> list[ReplyProgress]:
        """Return what running replies have beyond the tokens that `told` counts, by request; others are left out."""
        return [part for lane in self._all() for part in lane.rows.parts(told, lane.version)]

    def depth(self) -> Load:
        """Return how many requests run and wait."""
        return Load(sum(lane.rows.live for lane in self._all()), sum(len(lane.waiting) for lane in self._all()))

    @property
    def cached_tokens(self) -> None:
        """Prompts that wait at the same time share their keys; none is kept for later."""

    @property
    def cache_use(self) -> None:
        """Each lane's cache grows with its rows: there is no size that it could be a share of."""

    def _end(self, lanes: Sequence[EngineLane], ids: set[str]) -> list[Finished]:
        import torch

        with torch.inference_mode():
            return [ended for lane in lanes for ended in lane.abort(ids)]

    def _all(self) -> list[EngineLane]:
        return [lane for lanes in self._lanes.values() for lane in lanes]

    def _open(self, policy: str) -> list[EngineLane]:
        return [] if policy in self._closed else self._lanes.get(policy, [])[-KEPT_VERSIONS:]

    def _lane_of(self, request: Request) -> EngineLane:
        for lane in reversed(self._open(request.policy)):
            if request.follow and lane.version >= request.version:
                return lane
            if request.version in (-1, lane.version) and request.digest in ("", lane.digest):
                return lane
        wanted = f"{request.policy} version {request.version} {request.digest[:12]}"
        raise NotHeldError(f"{wanted} is not held")

    def _retire(self, policy: str) -> None:
        """Forget lanes that take no more requests and have none left."""
        lanes = self._lanes[policy]
        kept = lanes[-KEPT_VERSIONS:]
        running = [lane for lane in lanes[:-KEPT_VERSIONS] if lane.busy]
        self._lanes[policy] = running + kept
        for lane in lanes[:-KEPT_VERSIONS]:
            if not lane.busy:
                self._take_back(lane.weights.memory)

    def _take_back(self, memory: OwnTensors | None) -> None:
        """Keep memory for the next version, unless a lane still reads it."""
        if memory is not None and all(lane.weights.memory is not memory for lane in self._all()):
            self._left[memory.elements, memory.dtype] = memory

    def _memory_for(self, elements: int, dtype: "torch.dtype") -> OwnTensors:
        """Return memory for a version: such as another has left, or new.

        Where bits matter, or memory is not the host's, each tensor gets what the library gives it.
        """
        if self._ordered or self._device != "cpu":
            return OwnTensors(0, self._device, dtype)
        memory = self._left.pop((elements, dtype), None) or OwnTensors(elements, self._device, dtype)
        memory.begin()
        return memory


def _stay_open(lanes: list[EngineLane], keeps: Sequence[int]) -> None:
    """Put the lane that is to take requests beside the next one last."""
    wanted = [lane for lane in lanes[-KEPT_VERSIONS:] if lane.version in keeps]
    if wanted:
        lanes.remove(wanted[-1])
        lanes.append(wanted[-1])
