"""The members of episode groups: who plays when, how often, and what becomes of those that are not needed.

Invariants. Every member of a group ends in exactly one attempt that counts: a finished one, the last that failed, or
one that says it was cancelled. A member plays as soon as it has a place of its group and one of the run, in the order
of draws and members, on its own: it shares neither request nor engine with the others unless these come at the same
moment to the same one. Who waits for a place costs none of its own time; who waits for its reward alone has none.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from flexmarl.algorithms.branching import BRANCH_CONTROLLERS
from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.specification.branch_controllers import EchoOptions
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.wire import EpisodeStatus, Origin, PolicyPin
from flexmarl.store.control.commands import Taken
from flexmarl.store.data.groups import SettledGroup
from workers.rollout.ageing import GroupAge
from workers.rollout.branching import Branching, play_branches
from workers.rollout.continuing import Tree, play_tree
from workers.rollout.engines.parameters import parameters_of
from workers.rollout.engines.wire import SamplingParameters
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, play_episode, tokens_of
from workers.rollout.pausing import FREE, Hold
from workers.rollout.recorder import EventDetails, settled_group
from workers.rollout.run_context import RunContext
from workers.rollout.sharing import Sharing
from workers.rollout.slots import HeldSlots, Slots, slots
from workers.rollout.spares import play_with_spares
from workers.rollout.speech import Seat
from workers.rollout.tracks import Track
from workers.rollout.turn_barrier import TurnBarrier

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CommandPlay:
    """A command that is played, with what its groups share."""

    taken: Taken
    order: PlayGroups
    context: RunContext
    seats: dict[str, Seat]
    together: TurnBarrier | None = None
    """Where its episodes wait for each other before every turn; None: they do not."""

    def age(self) -> GroupAge | None:
        """Return what keeps the age of members that are trained together; None where nothing is ever given up."""
        bounds = self.context.spec.abandon_bounds() if self.order.origin is Origin.TRAIN else {}
        return GroupAge(bounds, self.context.client.newest, self.seats) if bounds else None

    def settled(self, attempts: list[EpisodeAttempt]) -> SettledGroup:
        spec, trains = self.context.spec, self.order.origin is Origin.TRAIN
        told = EventDetails(
            surprisals=trains and spec.sampling.turn_quantile > 0,
            answers=trains and spec.algorithm.shaping.counts_answers,
        )
        return settled_group(self.order, self.taken.no, attempts, self.seats, told)


def begin(taken: Taken, order: PlayGroups, context: RunContext, hold: Hold = FREE) -> CommandPlay:
    """Seat every role with the exact weights that the command pins."""
    spec, seats = context.spec, {}
    for role, agent in spec.agents.items():
        policy = spec.policy_of(role)
        known = agent.external is None
        seats[role] = Seat(
            policy=policy,
            pin=order.pins[policy] if known else PolicyPin(version=0, digest=""),
            codec=context.codecs[policy] if known else context.codecs[min(context.codecs)],
            renderer=context.renderers.get(policy if known else min(context.codecs)),
            external=agent.external,
            instructions=agent.instructions,
            context_tokens=agent.context_tokens,
            max_tokens=agent.sampling.max_tokens,
            temperature=0.0 if order.greedy else agent.sampling.temperature,
            sampling=sampling_of(spec, role, order.origin),
            follow=order.follows.get(policy, ""),
            engine=order.engine,
            hold=hold,
            trained=agent.trainable,
            takes_formats=not agent.trainable or getattr(spec.environment, "formats", "held") == "held",
        )
    together = TurnBarrier() if spec.mechanisms.parallel.turns == "together" else None
    return CommandPlay(taken, order, context, seats, together)


def sampling_of(spec: ExperimentSpec, role: str, origin: Origin) -> SamplingParameters:
    """Return how a role samples; what is trained tells how uncertain it is where replies are continued for that."""
    agent = spec.agents[role]
    told = isinstance(spec.sampling.branch_controller, EchoOptions) and origin is Origin.TRAIN and agent.trainable
    return msgspec.structs.replace(parameters_of(agent.sampling), uncertainty=told)


async def play_group(playing: CommandPlay, group: GroupOrder) -> SettledGroup:
    """Play all members of a group, or as many as it needs: never more of them count, so that groups stay alike."""
    spec = playing.context.spec
    if spec.sampling.branches and playing.order.origin is Origin.TRAIN:
        return playing.settled(await _branched(playing, group))
    sharing, places = playing.context.sharing, slots(spec.mechanisms.parallel.members)
    if (count := spec.sampling.branch_controller.continuations(group.members)) and playing.order.origin is Origin.TRAIN:
        play = partial(_play_member, playing, group, places=places)
        tree = Tree(group.draw, range(group.members - count), range(group.members - count, group.members))
        return playing.settled(await play_tree(tree, playing.order, playing.context.spec, playing.seats, play))
    if sharing is not None and sharing.foreign and playing.order.origin is Origin.TRAIN:
        return playing.settled(await _with_others(playing, group, sharing, places))
    age = playing.age()
    async with asyncio.TaskGroup() as tasks:
        members = [
            tasks.create_task(_play_member(playing, group, member, places, age=age)) for member in range(group.members)
        ]
        if group.enough:
            await _until_enough(members, group.enough)
        if group.spares:
            again = partial(_play_again, playing, group, age)
            return playing.settled(await play_with_spares(members, group.spares, again))
    attempts = [
        _cancelled(playing, group, member) if task.cancelled() else task.result() for member, task in enumerate(members)
    ]
    unneeded = beyond(attempts, group.enough) if group.enough else frozenset()
    return playing.settled(
        [_cancelled(playing, group, no) if no in unneeded else attempt for no, attempt in enumerate(attempts)]
    )


async def _with_others(
    playing: CommandPlay, group: GroupOrder, sharing: Sharing, places: Slots
) -> list[EpisodeAttempt]:
    """Play a group whose last members are what others said, as far as there is any; the rest is played as ever."""
    own, age = group.members - sharing.foreign, playing.age()
    async with asyncio.TaskGroup() as tasks:
        played = [tasks.create_task(_play_member(playing, group, member, places, age=age)) for member in range(own)]
        orders = [_episode(playing, group, member, 1, 0) for member in range(own, group.members)]
        others = await sharing.members(orders, playing.context.stage, playing.seats)
        begin_at = own + len(others)
        rest = [
            tasks.create_task(_play_member(playing, group, member, places, age=age))
            for member in range(begin_at, group.members)
        ]
    return [*(task.result() for task in played), *others, *(task.result() for task in rest)]


def beyond(attempts: Sequence[EpisodeAttempt], enough: int) -> frozenset[int]:
    """Return the members that finished in the same moment as the last that was needed, behind it."""
    finished = [no for no, attempt in enumerate(attempts) if attempt.status is EpisodeStatus.FINISHED]
    finished.sort(key=lambda no: (attempts[no].finished_at, no))
    return frozenset(finished[enough:])


async def play_each(
    playing: CommandPlay, group: GroupOrder, members: Sequence[int], settled: "asyncio.Queue[SettledGroup]"
) -> None:
    """Play these members of a group, each of which settles as soon as it ends."""
    places = slots(playing.context.spec.mechanisms.parallel.members)

    async def play(member: int) -> None:
        # Its rows are trained by themselves: how old those of other members are is nothing to it.
        settled.put_nowait(playing.settled([await _play_member(playing, group, member, places, age=playing.age())]))

    async with asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(play(member))


async def _play_again(playing: CommandPlay, group: GroupOrder, age: GroupAge | None, member: int) -> EpisodeAttempt:
    """Play a member in a second environment, whose attempts are numbered behind those of the first.

    It needs no place of the group: these are for its members, and one of them is playing already.
    """
    return await _play_member(playing, group, member, slots(None), playing.context.spec.batch.max_attempts, age=age)


async def _branched(playing: CommandPlay, group: GroupOrder) -> list[EpisodeAttempt]:
    """Play the one episode of a group that branches, in one place of the run, until a try of it finishes."""
    context, breakdowns = playing.context, 0
    options = context.spec.sampling.branch_controller
    controller = BRANCH_CONTROLLERS.make(options)
    attempts: list[EpisodeAttempt] = []
    async with context.episodes:
        for tried in range(1, context.spec.batch.max_attempts + 1):
            orders = [_episode(playing, group, member, tried, breakdowns) for member in range(group.members)]
            branching = Branching(
                orders, playing.seats, controller, options.plays_out, context.spec.algorithm.advantage
            )
            before = [attempt.wasted + tokens_of(attempt) for attempt in attempts]
            attempts = await play_branches(branching, context.stage, context.client, context.external)
            for attempt, wasted in zip(attempts, before, strict=False):
                attempt.wasted = wasted
            if attempts[0].status is EpisodeStatus.FINISHED or attempts[0].unscored:
                break
            breakdowns += attempts[0].broke
            log.warning("attempt failed", run_id=context.run_id, draw=group.draw, reason=attempts[0].reason)
    return attempts


async def _until_enough(members: "list[asyncio.Task[EpisodeAttempt]]", enough: int) -> None:
    """Cancel the members that still play once enough of them have finished."""
    waiting = set(members)
    finished = 0
    while waiting and finished < enough:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finished += sum(task.result().status is EpisodeStatus.FINISHED for task in done)
    for task in waiting:
        task.cancel()


def _cancelled(playing: CommandPlay, group: GroupOrder, member: int) -> EpisodeAttempt:
    """Record a member that its group did not need."""
    now = time.time()
    reason = f"rollout: {group.enough} members of its group had finished"
    episode = _episode(playing, group, member, 1, 0)
    return EpisodeAttempt(episode, EpisodeStatus.CANCELLED, reason, started_at=now, finished_at=now)


def _episode(playing: CommandPlay, group: GroupOrder, member: int, tried: int, breakdowns: int) -> EpisodeOrder:
    spec, order = playing.context.spec, playing.order
    environments = 2 if group.spares else 1
    return EpisodeOrder(
        draw=group.draw,
        member=member,
        attempt=(playing.taken.takes - 1) * spec.batch.max_attempts * environments + tried,
        task_seed=group.task_seed,
        held_out=order.origin is Origin.EVAL,
        sampling_seed=order.sampling_seed,
        timeout_s=spec.batch.episode_timeout_s,
        weights_timeout_s=spec.batch.weights_timeout_s,
        latency=spec.environment.latency,
        breakdowns=breakdowns,
        agents=spec.mechanisms.parallel.agents,
        most_turns=group.turns,
    )


async def _play_member(
    playing: CommandPlay,
    group: GroupOrder,
    member: int,
    places: Slots,
    before: int = 0,
    track: Track | None = None,
    age: GroupAge | None = None,
) -> EpisodeAttempt:
    """Play a member once it has its places, which it leaves before it waits for its reward."""
    async with HeldSlots(places, playing.context.episodes) as held:
        attempt = await _tried(playing, group, member, before, held, track, age)
    rewards = playing.context.rewards
    if rewards is None or attempt.status is not EpisodeStatus.FINISHED:
        return attempt
    return await rewards.given(playing.taken, playing.order.pool, attempt, playing.seats)


async def _tried(
    playing: CommandPlay,
    group: GroupOrder,
    member: int,
    before: int,
    held: HeldSlots,
    track: Track | None,
    age: GroupAge | None,
) -> EpisodeAttempt:
    """Try an episode until an attempt finishes or the attempts are used up; they are numbered behind `before`.

    One that grew too old is not tried again: whoever draws tasks decides what plays in its place.
    """
    context, together = playing.context, playing.together
    attempt, breakdowns, wasted = None, 0, 0
    for tried in range(1, context.spec.batch.max_attempts + 1):
        episode = _episode(playing, group, member, before + tried, breakdowns)
        await held.take()
        others = context.client, context.external, together, held, track, None if age is None else age.outgrown
        attempt = await play_episode(episode, context.stage, playing.seats, *others)
        attempt.wasted = wasted
        if age is not None and attempt.status is EpisodeStatus.FINISHED:
            age.ended(attempt)
        if attempt.status is not EpisodeStatus.FAILED or attempt.unscored:
            return attempt
        breakdowns, wasted = breakdowns + attempt.broke, wasted + tokens_of(attempt)
        log.warning("attempt failed", run_id=context.run_id, draw=group.draw, member=member, reason=attempt.reason)
    assert attempt is not None
    return attempt
