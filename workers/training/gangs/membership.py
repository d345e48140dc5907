"""The gangs that one trainer leads and those it follows: formed, worked in and left.

A leader works on the trainer's own thread, like a policy of one device. A follower has a thread for each gang, which
waits for orders and carries them out; it shares nothing with the trainer's other policies, so that two trainers that
lead each other's followers never wait for each other.

Invariants: a policy is held alone, led, or followed, never two of them; each forming of a gang has a number, and what
belongs to an older one is left before a newer one is formed; a gang that lost a rank ends on every rank, and what it
held is restored from disk.
"""

import gc
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers.child import IntervalLog
from workers.models.families import Shape, shape_of
from workers.training.back_ends import order_of
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.gangs.group import SILENT_S, GroupLost, RankGroup, of_process_group
from workers.training.gangs.layout import Shapes
from workers.training.gangs.learner import MASTER, REFERENCE, ShardedLearner, flat
from workers.training.gangs.orders import AccumulateOrder, Build, Collect, Open, Order, Restore, StepOrder
from workers.training.gangs.rendezvous import Place, Rendezvous, reach
from workers.training.held_replies import HeldReplies
from workers.training.learner import Learner
from workers.training.objective import Objective
from workers.training.wire import BindRequest, JoinReply, JoinRequest, rendezvous_key

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

log = structlog.get_logger(__name__)

JOIN_S = 60.0
"""How long a leader waits for its ranks: all they have to do is to say that they are there, once they are idle."""
GO_S = 900.0
"""How long a rank waits for a leader that lives: it may have other work first."""

LEAVE_S = 5.0
"""How long a trainer that ends waits for its threads."""

Ranks = tuple[tuple[int, ...], int]
"""Leases of a gang in the order of their ranks, and the number of its forming."""


@dataclass(frozen=True, slots=True)
class Led:
    ranks: Ranks
    group: RankGroup


class Gangs:
    def __init__(
        self,
        spec: ExperimentSpec,
        device: str,
        intervals: IntervalLog,
        join_s: float = JOIN_S,
        silent_s: float = SILENT_S,
    ) -> None:
        self._builder = _Builder(spec, intervals)
        self._device = device
        self._join_s, self._silent_s = join_s, silent_s
        self._rendezvous: Rendezvous | None = None
        self._host = self._secret = ""
        self._led: dict[str, Led] = {}
        self._followed: dict[str, Following] = {}

    def listen(self, host: str, secret: str) -> int:
        """Open this trainer's rendezvous on the address of its child; returns its port."""
        if self._builder.shared:
            import torch.distributed.fsdp  # noqa: F401 - takes seconds, for which the first gang would wait

        self._rendezvous, self._host, self._secret = Rendezvous(host), host, secret
        return self._rendezvous.port

    def fit(self, asked: BindRequest) -> bool:
        """Tell whether a policy is with the ranks that are asked for; alone, or nowhere yet, is no other place."""
        led = self._led.get(asked.policy)
        if asked.policy in self._followed or (led is not None and led.group.closed):
            return False
        wanted = (tuple(asked.gang), asked.meeting) if asked.gang else None
        return (None if led is None else led.ranks) == wanted

    def leads(self, policy: str) -> bool:
        """Tell whether this trainer leads a policy's gang."""
        return policy in self._led

    def size(self, policy: str) -> int:
        """Return how many ranks a policy has here: one, unless this trainer leads its gang."""
        led = self._led.get(policy)
        return 1 if led is None else led.group.ranks

    def lead(
        self, asked: BindRequest, epoch: str, weights: "Weights", reference: "Weights | None", tokenizer: bytes = b""
    ) -> ShardedLearner:
        """Form a policy's gang and give its ranks their parts. Raises TrainerRefusal; nothing stands then."""
        place = self._place(asked)
        place.await_ranks(len(asked.gang), self._join_s)
        group = _connected(place, 0, len(asked.gang), self._host, self._device, self._silent_s)
        sizes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        shapes = {name: list(sizes[name]) for name in order_of(self._builder.shape(asked.policy), sizes)}
        try:
            group.order(Build(shapes, tokenizer))
            with group.together():
                learner = self._builder.learner(asked.policy, group, shapes, epoch)
            learner.give(MASTER, flat(weights, shapes))
            if reference is not None:
                learner.give(REFERENCE, flat(reference, shapes))
        except BaseException:
            group.close()
            raise
        self._led[asked.policy] = Led((tuple(asked.gang), asked.meeting), group)
        log.info("gang stands", policy=asked.policy, ranks=len(asked.gang), meeting=asked.meeting)
        return learner

    def refer(self, learner: Learner, reference: "Weights | None") -> None:
        """Let the ranks of a policy that this trainer leads compare it with other weights from now on."""
        assert isinstance(learner, ShardedLearner)
        assert reference is not None
        learner.give(REFERENCE, flat(reference, learner.shapes))

    def join(self, asked: JoinRequest) -> JoinReply:
        """Become a further rank of a gang: say so at the leader's rendezvous and wait for orders, in a thread."""
        reply, known = JoinReply(asked.policy, asked.meeting), self._followed.get(asked.policy)
        if known is not None and known.asked == asked and known.alive:
            return reply
        if known is not None and known.asked.meeting > asked.meeting:
            raise TrainerRefusal(RefusalCode.GANG_INCOMPLETE, f"meeting {asked.meeting} of {asked.policy} is over")
        self.leave(asked.policy)
        place = reach(asked.leader, asked.key)
        place.arrive(asked.rank)
        connect = partial(_connected, place, asked.rank, asked.ranks, self._host, self._device, self._silent_s)
        self._followed[asked.policy] = Following(asked, place, connect, self._builder)
        self._followed[asked.policy].start()
        return reply

    def leave(self, policy: str) -> None:
        """Leave a policy's gang, if there is one; its other ranks learn it."""
        led, followed = self._led.pop(policy, None), self._followed.pop(policy, None)
        if led is not None:
            led.group.close()
            gc.collect()  # what works with it knows itself in circles, and keeps its connections
        if followed is not None:
            followed.leave()

    def close(self) -> None:
        """Leave every gang, and wait for its thread, which must not outlive what it works with."""
        followed = list(self._followed.values())
        for policy in [*self._led, *self._followed]:
            self.leave(policy)
        for following in followed:
            following.join(LEAVE_S)
        gc.collect()

    def rest(self) -> None:
        """Keep no part of any gang: what it led is suspended by now, and what it followed ends with its leader.

        Raises TrainerRefusal while a thread still holds its part.
        """
        followed = dict(self._followed)
        for policy in followed:
            self.leave(policy)
        for following in followed.values():
            following.join(LEAVE_S)
        held = [policy for policy, following in followed.items() if following.alive]
        self._followed |= {policy: followed[policy] for policy in held}
        if held:
            raise TrainerRefusal(RefusalCode.GANG_INCOMPLETE, f"the parts of {', '.join(held)} are still in use")

    def _place(self, asked: BindRequest) -> Place:
        if self._rendezvous is None:
            raise TrainerRefusal(RefusalCode.GANG_INCOMPLETE, "this trainer has no rendezvous")
        return self._rendezvous.place(rendezvous_key(self._secret, asked.policy, asked.meeting))


class Following:
    """One gang in which this trainer is a further rank."""

    def __init__(self, asked: JoinRequest, place: Place, connect: Callable[[], RankGroup], builder: "_Builder") -> None:
        self.asked = asked
        self._place = place
        self._connect = connect
        self._builder = builder
        self._left = threading.Event()
        self._group: RankGroup | None = None
        self._learner: ShardedLearner | None = None
        self._replies = HeldReplies(b"")
        self._thread = threading.Thread(target=self._run, name=f"gang-{asked.policy}", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        self._thread.join(seconds)

    def leave(self) -> None:
        """End; the thread follows by itself."""
        self._left.set()
        if self._group is not None:
            self._group.close()

    def _run(self) -> None:
        import torch

        torch.set_flush_denormal(True)
        told = log.bind(policy=self.asked.policy, rank=self.asked.rank, meeting=self.asked.meeting)
        try:
            if not self._place.await_go(GO_S, lambda: not self._left.is_set()):
                told.info("the gang did not form")
                return
            self._group = self._connect()
            told.info("joined the gang")
            if not self._left.is_set():
                self._follow(self._group)
        except GroupLost as ended:
            told.info("the gang is over", reason=str(ended))
        except TrainerRefusal as refused:
            told.warning("the gang is lost", code=refused.code, detail=refused.detail)
        except Exception:  # this rank can do no more for the gang, whatever it was: the others learn it by its leaving
            told.exception("rank failed")
        finally:
            if self._group is not None:
                self._group.close()
            self._learner = None
            gc.collect()  # modules of FSDP2 know each other in circles

    def _follow(self, group: RankGroup) -> None:
        while True:
            order = group.next_order()
            try:
                with self._builder.working():
                    self._carry_out(order, group)
            except TrainerRefusal as refused:
                if group.closed:
                    raise
                log.info("refused with the leader", policy=self.asked.policy, code=refused.code)

    def _carry_out(self, order: Order, group: RankGroup) -> None:
        policy, began = self.asked.policy, time.time()
        if isinstance(order, Build):
            with group.together():
                self._learner = self._builder.learner(policy, group, order.shapes, "")
            self._replies = HeldReplies(order.tokenizer)
            return
        learner = self._learner
        assert learner is not None, "a leader's first order is to build"
        match order:
            case AccumulateOrder():
                stats = learner.follow(order, self._replies)
                self._builder.interval("train", policy, began, stats.tokens // group.ranks)
            case StepOrder():
                learner.follow_step(order)
                self._builder.interval("step", policy, began)
            case Open():
                learner.accumulator.open("")
            case Collect(name):
                learner.give_up(name)
            case Restore(name):
                learner.give(name, None)


class _Builder:
    """What learners of a run's policies are made of, and where their work is noted."""

    def __init__(self, spec: ExperimentSpec, intervals: IntervalLog) -> None:
        self._spec = spec
        self._intervals = intervals

    @property
    def shared(self) -> bool:
        """Whether several ranks may ever share a policy."""
        return any(policy.devices.most > 1 for policy in self._spec.policies.values())

    def shape(self, policy: str) -> Shape:
        """Return what computes a policy: an architecture of the native back end, or a model of the library."""
        return shape_of(self._spec.policies[policy])

    def learner(self, policy: str, group: RankGroup, shapes: Shapes, epoch: str) -> ShardedLearner:
        settings, algorithm = self._spec.policies[policy], self._spec.algorithm
        return ShardedLearner(
            shapes,
            self.shape(policy),
            group,
            Objective.of(algorithm.loss, algorithm),
            settings.optimizer,
            settings.precision,
            epoch,
            self._intervals.progress.beat,
            settings.activations == "recompute",
        )

    def interval(self, phase: str, policy: str, began: float, tokens: int = 0) -> None:
        """Note a stretch of work of this rank's device."""
        self._intervals.add(phase, policy, began, time.time(), tokens)

    def working(self) -> AbstractContextManager[None]:
        """Let the host know that this process has something to do."""
        return self._intervals.progress.work()


def _connected(place: Place, rank: int, ranks: int, host: str, device: str, silent_s: float) -> RankGroup:
    """Make the process group of ranks that are all there. Raises TrainerRefusal when one is gone by then."""
    try:
        return RankGroup(place, rank, ranks, host, device, silent_s)
    except RuntimeError as error:
        if not of_process_group(error):
            raise
        place.leave()
        raise TrainerRefusal(RefusalCode.GANG_INCOMPLETE, f"the ranks cannot reach each other: {error}") from error
