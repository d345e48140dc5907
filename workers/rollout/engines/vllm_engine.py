"""The vLLM engine: a set of policies in one process, each on instances of its own.

Invariants:
- A reply is made by exactly the version it names. A policy has one instance; a second one is made when a load is told
  to keep a version that is held, so two versions are served only where the run needs two.
- Every submitted request is settled exactly once, by `step_policy` or `abort`.
- A load takes the instance of a version that nobody is to be served by any more. What still runs there ends as aborted,
  with the tokens so far, before the weights change; what asked to follow goes on under the new version with every token
  it has, its keys computed anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workers.models.architecture import UnsupportedModel
from workers.rollout.engines.base import EngineFailedError
from workers.rollout.engines.checks import check_all
from workers.rollout.engines.grammars import check_terms
from workers.rollout.engines.requests import BadRequestError, Finished, NotHeldError, ReplyProgress, Request
from workers.rollout.engines.sleeping import CannotSleepError
from workers.rollout.engines.vllm_instance import Instance, handed_on
from workers.rollout.engines.wire import HeldVersion, Load, LoadRequest

if TYPE_CHECKING:
    import torch

MakeInstance = Callable[[str, int], Instance]
"""(policy, words) -> an instance without weights."""
FOLLOWS = ("", "resume", "restart_turn")


@dataclass(slots=True)
class _Policy:
    instances: list[Instance] = field(default_factory=list)
    """In the order of their loads: the newest last."""
    spares: list[Instance] = field(default_factory=list)
    """Without a version: one made in another thread before its load, and those that serve none any more."""
    broken: list[Instance] = field(default_factory=list)
    """Whose weights did not load. Never let go: the end of one vLLM engine tears down what all of a process share."""
    ended: list[Finished] = field(default_factory=list)
    """Ended by a load; settled with the next step."""

    @property
    def busy(self) -> bool:
        return bool(self.ended) or any(instance.busy for instance in self.instances)


class VllmEngine:
    def __init__(self, make_instance: MakeInstance, rows: int = 256) -> None:
        self.rows = rows
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self._make_instance = make_instance
        self._policies: dict[str, _Policy] = {}

    def prepare(self, policy: str, state: "dict[str, torch.Tensor]", words: int) -> "dict[str, torch.Tensor]":
        """Make the first instance of a policy for its weights. May run in any thread while nothing else does.

        Raises UnsupportedModel for another vocabulary than that of the policy's instances.
        """
        own = self._policies.setdefault(policy, _Policy())
        known = {instance.words for instance in (*own.instances, *own.spares)} - {words}
        if known:
            raise UnsupportedModel(f"these weights have {words} words and those of {policy} before had {known.pop()}")
        if not own.instances and not own.spares:
            own.spares.append(self._make_instance(policy, words))
        return state

    def make_room(self, policy: str, keeps: Sequence[int]) -> None:
        """Make the second instance of a policy whose only one is kept: that takes seconds, and others are served."""
        own = self._policies.get(policy)
        if own is not None and not own.spares and [instance.version in keeps for instance in own.instances] == [True]:
            own.spares.append(self._make_instance(policy, own.instances[0].words))

    def load(
        self, policy: str, version: int, digest: str, weights: "dict[str, torch.Tensor]", keeps: Sequence[int] = ()
    ) -> None:
        """Hold a version from now on, beside one of `keeps`. Loading what is held already changes nothing."""
        if self.has(policy, version, digest):
            return
        own = self._policies.setdefault(policy, _Policy())
        following = _take_followers(own.instances, version)
        instance = self._vacate(policy, own, keeps)
        try:
            instance.hold(version, digest, weights)
        except EngineFailedError:
            own.ended += following
            own.broken.append(instance)
            raise
        own.instances.append(instance)
        for one in following:
            instance.add(handed_on(one))

    def has(self, policy: str, version: int, digest: str) -> bool:
        """Whether requests for exactly these weights are taken."""
        return any((instance.version, instance.digest) == (version, digest) for instance in self._instances(policy))

    def holds(self) -> dict[str, HeldVersion]:
        """Return the newest version of each policy."""
        newest = {name: own.instances[-1].held for name, own in self._policies.items() if own.instances}
        return {name: held for name, held in newest.items() if held is not None}

    def versions(self) -> list[LoadRequest]:
        """Return nothing: this engine never lets go."""
        return []

    def let_go(self) -> int:
        """Refuse: on a CPU vLLM's sleep does nothing, and of its levels on a GPU none was tried here."""
        raise CannotSleepError("vLLM releases memory only when its process ends: end the lease and grant it again")

    def close(self, policy: str, hand_over: bool) -> list[Finished]:
        """Take no more requests of a policy; returns what ran, with the tokens it has, whoever carries it on.

        Its instances stay for its next load: vLLM gives the memory of one engine back only with the process.
        """
        own = self._policies.get(policy)
        if own is None:
            return []
        ended, own.ended = own.ended, []
        for instance in own.instances:
            ended += self._counted(instance.end([request.request_id for request in instance.running()]))
        own.spares += own.instances
        own.instances = []
        return ended

    def forget(self, policy: str) -> bool:
        """Whether nothing of a closed policy runs: nothing does."""
        return not self._instances(policy)

    def understand(self, requests: list[Request]) -> None:
        """Have nothing ready: vLLM compiles grammars in threads of its own, while other replies are made."""

    def submit(self, requests: list[Request]) -> None:
        """Queue requests, all or none; raise `NotHeldError` or `BadRequestError`."""
        instances = [self._instance_of(request) for request in requests]
        models = [(instance.words, instance.model.architecture.max_positions) for instance in instances]
        check_all((request, *model) for request, model in zip(requests, models, strict=True))
        check_terms(requests)
        added: list[str] = []
        try:
            for request, instance in zip(requests, instances, strict=True):
                instance.add(request)
                added.append(request.request_id)
        except ValueError as refused:  # a rule of vLLM's own that we do not know
            for instance in set(instances):
                instance.end(added)
            text = f"vLLM refuses this request: {refused}"
            raise BadRequestError(text, request_ids=[requests[len(added)].request_id]) from refused
        self.prompt_tokens += sum(len(request.prompt) for request in requests)

    @property
    def busy(self) -> bool:
        return any(own.busy for own in self._policies.values())

    def busy_policies(self) -> list[str]:
        return [name for name, own in self._policies.items() if own.busy]

    def step_policy(self, policy: str) -> tuple[list[Finished], int]:
        """Advance every reply of a policy by one token; return what ended and how many tokens those had."""
        own = self._policies[policy]
        finished, own.ended = own.ended, []
        for instance in own.instances:
            if instance.busy:
                finished += instance.step()
        before = self.generated_tokens
        return self._counted(finished), self.generated_tokens - before

    def shed(self, policy: str, error: Exception) -> list[Finished]:
        """Raise the error: vLLM takes its memory when it starts, and one that lacks some in a step is of no use."""
        raise error

    def rows_of(self, policy: str) -> int:
        return self.rows

    def abort(self, ids: set[str]) -> list[Finished]:
        """End requests now, with the tokens they have; unknown ids are ignored."""
        return self._counted([one for instance in self._all() for one in instance.end(ids)])

    def parts(self, told: Mapping[str, int]) -> list[ReplyProgress]:
        """Return what running replies have beyond the tokens that `told` counts, by request; others are left out."""
        return [part for instance in self._all() for part in instance.parts(told)]

    def depth(self) -> Load:
        """Return how many requests run and wait."""
        depths = [instance.depth() for instance in self._all()]
        return Load(sum(running for running, _ in depths), sum(waiting for _, waiting in depths))

    @property
    def cached_tokens(self) -> int:
        """Return how many prompt tokens were not computed, because an earlier request had left their keys."""
        return sum(instance.cached_tokens for instance in self._all())

    @property
    def cache_use(self) -> float:
        """Return the share of the attention cache in use, of the instance that uses most of its own."""
        return max((instance.cache_use for instance in self._all()), default=0.0)

    def _counted(self, ended: list[Finished]) -> list[Finished]:
        self.generated_tokens += sum(len(one.token_ids) - len(one.request.done) for one in ended)
        return ended

    def _all(self) -> list[Instance]:
        return [instance for own in self._policies.values() for instance in own.instances]

    def _instances(self, policy: str) -> list[Instance]:
        own = self._policies.get(policy)
        return own.instances if own is not None else []

    def _instance_of(self, request: Request) -> Instance:
        if request.follow not in FOLLOWS:
            raise BadRequestError(f"follow: vLLM cannot {request.follow} on keys of older weights; it can resume")
        for instance in reversed(self._instances(request.policy)):
            if request.follow and instance.version >= request.version:
                return instance
            if request.version in (-1, instance.version) and request.digest in ("", instance.digest):
                return instance
        wanted = f"{request.policy} version {request.version} {request.digest[:12]}"
        raise NotHeldError(f"{wanted} is not held")

    def _vacate(self, policy: str, own: _Policy, keeps: Sequence[int]) -> Instance:
        """Take what nobody is to be served by any more out of service; return an idle instance, or a new one."""
        kept = [instance for instance in own.instances if instance.version in keeps][-1:]
        leaving = [instance for instance in own.instances if instance not in kept]
        own.instances = kept
        for instance in leaving:
            own.ended += instance.end([request.request_id for request in instance.running()])
        own.spares += leaving
        return own.spares.pop() if own.spares else self._make_instance(policy, kept[0].words)


def _take_followers(instances: Sequence[Instance], version: int) -> list[Finished]:
    """End the replies that asked to follow newer weights, to be carried on by them."""
    older = [instance for instance in instances if instance.version < version]
    return [one for instance in older for one in instance.end([r.request_id for r in instance.running() if r.follow])]
