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

from flexmarl.algorithms.branching import BRANCH_CONTROLLERS, Continuable, alike, checked_places, contradicted
from flexmarl.algorithms.prefix_predictor import features_of, predicted
from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.commands import PlayGroups
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.wire import Branch, EpisodeOutcome, EpisodeStatus
from workers.rollout.episode import EpisodeAttempt
from workers.rollout.recorder import outcome_of
from workers.rollout.speech import Seat
from workers.rollout.tracks import Track


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
    tracks = {member: Track(keeps=True) for member in tree.roots}
    roots = await _played(tracks, play)
    outcomes = [outcome_of(one, seats) for one in roots if one.status is EpisodeStatus.FINISHED]
    chosen = starts(spec, tree, outcomes, order)
    onwards = {member: Track() for member in tree.others}
    for member, branch in zip(tree.others, chosen, strict=False):
        kept = next(one for one in tracks[branch.root].kept if one.turns == branch.turns)
        onwards[member] = Track(start=kept, branch=branch)
    return [*roots, *await _played(onwards, play)]


async def _played(tracks: dict[int, Track], play: Plays) -> list[EpisodeAttempt]:
    async with asyncio.TaskGroup() as tasks:
        members = [tasks.create_task(play(member, track=track)) for member, track in tracks.items()]
    return [one.result() for one in members]


def starts(spec: ExperimentSpec, tree: Tree, outcomes: Sequence[EpisodeOutcome], order: PlayGroups) -> list[Branch]:
    """Choose what is continued, for as many members as it is enough for, in the order of the episodes' turns."""
    best = spec.environment.facts().best_score
    prefixes = [
        Continuable(one.member, prefix.turns, one.solved, predicted(order.predictor, features))
        for one in outcomes
        for prefix in (one.branch.prefixes if one.branch is not None else ())
        for features in (features_of(one, prefix, [other for other in outcomes if other is not one], best),)
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
