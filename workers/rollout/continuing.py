"""Groups some of whose members continue others: episodes first, then more from chosen turns of them.

Invariants. Every member ends in one attempt that counts, as in any group; who continues another has the turns that it
played itself, and no other. Nobody goes on before all first episodes have ended, and what is continued follows from
these, the predictor's weights and the run's seed alone. Where less can be continued than there are members for, the
rest play episodes of their own. A member that is tried again goes on from the same turn.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flexmarl.algorithms.branching import BRANCH_CONTROLLERS, Continuable, EchoTree, alike, checked_places, contradicted
from flexmarl.algorithms.prefix_predictor import features_of, predicted
from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.commands import PlayGroups
from flexmarl.contracts.specification.branch_controllers import EchoOptions
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.wire import Branch, EpisodeOutcome, EpisodeStatus, TokenSignal
from workers.rollout.engines import version_segments
from workers.rollout.engines.wire import UNCERTAINTIES, Done
from workers.rollout.episode import EpisodeAttempt
from workers.rollout.recorder import outcome_of
from workers.rollout.speech import Seat
from workers.rollout.tracks import Track, signals_of_reply


class Plays(Protocol):
    """Plays one member on its track."""

    async def __call__(self, member: int, *, track: Track) -> EpisodeAttempt: ...


@dataclass(frozen=True, slots=True)
class Tree:
    """A group by who plays when."""

    draw: int
    roots: Sequence[int]
    """Members that play episodes of their own."""
    others: Sequence[int]
    """Members that continue these."""


async def play_tree(
    tree: Tree, order: PlayGroups, spec: ExperimentSpec, seats: dict[str, Seat], play: Plays
) -> list[EpisodeAttempt]:
    """Play the members of a group, those that continue others once it is known how these ended."""
    controller = spec.sampling.branch_controller
    likeliest = controller.likeliest if isinstance(controller, EchoOptions) else 0
    tracks = {member: Track(keeps=True, likeliest=likeliest) for member in tree.roots}
    roots = await _played(tracks, play)
    finished = {one.order.member: one for one in roots if one.status is EpisodeStatus.FINISHED}
    if isinstance(controller, EchoOptions):
        chosen = starts_within(controller, tree, [(one, tracks[no]) for no, one in finished.items()], order)
    else:
        chosen = starts(spec, tree, [outcome_of(one, seats) for one in finished.values()], order)
    onwards = {member: Track() for member in tree.others}
    for member, branch in zip(tree.others, chosen, strict=False):
        kept = next(one for one in tracks[branch.root].kept if one.turns == branch.turns)
        onwards[member] = Track(start=kept, branch=branch, opening=opening_of(finished[branch.root], branch))
    return [*roots, *await _played(onwards, play)]


async def _played(tracks: dict[int, Track], play: Plays) -> list[EpisodeAttempt]:
    async with asyncio.TaskGroup() as tasks:
        members = [tasks.create_task(play(member, track=track)) for member, track in tracks.items()]
    return [one.result() for one in members]


def starts(spec: ExperimentSpec, tree: Tree, outcomes: Sequence[EpisodeOutcome], order: PlayGroups) -> list[Branch]:
    """Choose what is continued, for as many members as it is enough for, in the order of the episodes' turns."""
    best = spec.environment.facts().best_score
    prefixes = []
    for root in outcomes:
        own = root.branch.prefixes if root.branch is not None else ()
        known = features_of(root, own, [other for other in outcomes if other is not root], best)
        prefixes += [
            Continuable(root.member, prefix.turns, root.solved, predicted(order.predictor, features))
            for prefix, features in zip(own, known, strict=True)
        ]
    # Equal ones are taken by chance: by their order, continuations would gather at the first members.
    random.Random(derive(order.sampling_seed, "continued", tree.draw)).shuffle(prefixes)
    controller = BRANCH_CONTROLLERS.make(spec.sampling.branch_controller)
    found: list[Branch] = []
    budget = len(tree.others)
    counts = [0] * len(prefixes)
    for place in checked_places(controller.chosen(prefixes, budget), len(prefixes), budget):
        one, chance = prefixes[place], alike(prefixes[place])
        counts[place] += 1
        value = contradicted(chance, counts[place]) - contradicted(chance, counts[place] - 1)
        found.append(Branch(root=one.member, turns=one.turns, predicted=one.predicted, value=value))
    return sorted(found, key=lambda one: (one.root, one.turns, -one.value))


def starts_within(
    options: EchoOptions, tree: Tree, episodes: Sequence[tuple[EpisodeAttempt, Track]], order: PlayGroups
) -> list[Branch]:
    """Choose which replies are continued and at which token, at most one of each episode, for as many members as there
    are; of several who speak at once the first one's."""
    controller = BRANCH_CONTROLLERS.make(options)
    assert isinstance(controller, EchoTree)
    mixed = list(episodes)
    # By their order, continuations would gather at the first members.
    random.Random(derive(order.sampling_seed, "continued", tree.draw)).shuffle(mixed)
    found: list[Branch] = []
    for attempt, track in mixed:
        for turns in (kept.turns for kept in track.kept):
            signals = signals_of_reply(attempt.turns[turns].reply, options.likeliest)
            if doubted := controller.doubted(signals, order.predictor):
                token, width = doubted
                at = (TokenSignal._make(signals[token].tolist()),)
                found += [Branch(root=attempt.order.member, turns=turns, tokens=token, signals=at)] * width
                break
    return sorted(found[: len(tree.others)], key=lambda one: (one.root, one.turns))


def opening_of(root: EpisodeAttempt, branch: Branch) -> Done | None:
    """Return what the first reply of a continuation begins with; None where it goes on after a turn."""
    if not branch.tokens:
        return None
    said, end = root.turns[branch.turns].reply.choice, branch.tokens
    segments = version_segments.until(said.segments, end)
    return Done(said.token_ids[:end], said.logprobs[:end], segments, said.uncertainty[: UNCERTAINTIES * end])
