"""A team of tables of logits in place of engines: what a group says is drawn by request seeds, as engines draw."""

import asyncio
import math
import random
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import Origin, PolicyPin
from flexmarl.store.control.commands import Taken
from flexmarl.store.data.groups import SettledGroup
from workers.external_access import ExternalAccess
from workers.models import tokenizer_json
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.environments.registry import family_of
from workers.rollout.external import ExternalClient
from workers.rollout.members import CommandPlay, begin, play_group
from workers.rollout.run_context import RunContext
from workers.rollout.slots import slots
from workers.rollout.stages import Stage, stage_of
from workers.rollout.turns import TurnReply, TurnRequest
from workers.vocabulary import Codec

PIN = PolicyPin(version=0, digest="a" * 64)
Table = dict[tuple[int, ...], dict[int, float]]
"""Prompt -> word -> logit; what is not there is 0."""


class Team:
    """Answers turns by the tables of their roles; `asked` counts turns by role."""

    def __init__(self, tables: Mapping[str, Table] | None = None) -> None:
        self.tables = dict(tables or {})
        self.asked: dict[str, int] = {}

    async def until_held(self, request: TurnRequest, limit_s: float) -> float:
        return 0.0

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        self.asked[request.role] = self.asked.get(request.role, 0) + 1
        rng, words, said = random.Random(request.seed), sorted(request.allowed), []
        for _ in range(request.max_tokens):
            chances = self.chances(request.role, request.prompt, words)
            said.append(rng.choices(words, [chances[word] for word in words])[0])
        logprobs = [math.log(self.chances(request.role, request.prompt, words)[word]) for word in said]
        return TurnReply(CompletionChoice(0, said, logprobs, "length", [0, len(said)]), "one", 1.0)

    def chances(self, role: str, prompt: tuple[int, ...], words: list[int]) -> dict[int, float]:
        logits = self.tables.get(role, {}).get(prompt, {})
        raised = {word: math.exp(logits.get(word, 0.0)) for word in words}
        return {word: value / sum(raised.values()) for word, value in raised.items()}


def branching_spec(game: Mapping[str, Any], roles: tuple[str, ...], members: int = 4, **changes: Any) -> ExperimentSpec:
    controller = {"type": "at_grpo_tree", **changes.pop("controller", {})}
    sampling = {"branch_controller": controller, **changes.pop("sampling", {})}
    algorithm = {"group_key": "agent_turn", **changes.pop("algorithm", {})}
    batch = {"episodes_per_task": members, **changes.pop("batch", {})}
    document = {
        "agents": {role: {} for role in roles},
        "environment": dict(game),
        "sampling": sampling,
        "algorithm": algorithm,
        "batch": batch,
        **changes,
    }
    return resolve(document).spec


def playing_of(
    spec: ExperimentSpec, client: Any, seed: int = 7, stage: Stage | None = None, origin: Origin = Origin.TRAIN
) -> CommandPlay:
    """Seat a team; `stage` may be an environment of the test's own, which speaks the specification's words."""
    codec = Codec(tokenizer_json(family_of(spec.environment).vocabulary()))
    context = RunContext(
        1, spec, stage or stage_of(spec.environment), dict.fromkeys(spec.policies, codec), client,
        ExternalClient(ExternalAccess()), slots(None),
    )  # fmt: skip
    pins = dict.fromkeys(spec.policies, PIN)
    order = PlayGroups(pool="p", epoch=1, origin=origin, groups=(), pins=pins, sampling_seed=seed)
    return begin(Taken(1, 1, uuid4(), 1, 1, order), order, context)


async def settled(playing: CommandPlay, draw: int) -> SettledGroup:
    members = playing.context.spec.batch.episodes_per_task
    return await play_group(playing, GroupOrder(draw=draw, task_seed=draw, members=members))


def play_groups(playing: CommandPlay, draws: range) -> list[SettledGroup]:
    async def play() -> list[SettledGroup]:
        return [await settled(playing, draw) for draw in draws]

    return asyncio.run(play())
