"""What comes from other installations: which of it becomes members of groups, and what of it changes nothing."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.shared_rollouts import PublishedRollout, SharedRollout, SharedTurn, task_digest
from flexmarl.contracts.wire import UNKNOWN_LOGPROB, Origin, PolicyPin
from flexmarl.store.control.commands import Taken
from flexmarl.store.telemetry.sharing_reports import SharingReport
from tests.conformance import learning_kit
from workers.exchange.access import ExchangeAccess
from workers.models import tokenizer_json
from workers.rollout import shared_pool
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.environments.registry import family_of
from workers.rollout.episode import EpisodeOrder
from workers.rollout.external import ExternalAccess, ExternalClient
from workers.rollout.members import CommandPlay, play_group
from workers.rollout.reciting import recite
from workers.rollout.run_context import RunContext
from workers.rollout.shared_pool import SharedPool
from workers.rollout.sharing import Sharing, told_of
from workers.rollout.slots import slots
from workers.rollout.speech import Seat
from workers.rollout.turns import TurnReply, TurnRequest
from workers.training.objective import Objective, rows_of
from workers.vocabulary import Codec

MEMBERS, FOREIGN, SEED = 6, 3, 11
SPEC = resolve(
    {
        "agents": {"guesser": {}, "hinter": {}},
        "environment": {"type": "hot_cold"},
        "batch": {"episodes_per_task": MEMBERS, "tasks_per_step": 8},
        "sampling": {"sharing": {"type": "exchange", "foreign": FOREIGN}},
    }
).spec
FAMILY = family_of(SPEC.environment)
CODEC = Codec(tokenizer_json(FAMILY.vocabulary()))
SEATS = {
    role: Seat(role, PolicyPin(version=3, digest="d" * 64), CODEC, 1, 1.0, trained=True)
    for role in ("guesser", "hinter")
}
NUMBERS, SYMBOLS = FAMILY.numbers, FAMILY.symbols


def told(seed: int = SEED) -> dict[str, object]:
    return FAMILY.make(seed, False, random.Random(0)).describe()


SECRET = told()["facts"]["secret"]
WRONG = [number for number in NUMBERS if number != SECRET]


def rollout(*said: str, task: str = "") -> SharedRollout:
    """Guesses and hints in turn."""
    turns = [SharedTurn(("guesser", "hinter")[n % 2], text, False) for n, text in enumerate(said)]
    return SharedRollout(task or task_digest("hot_cold", told()), tuple(turns))


def by(member: str, rollout: SharedRollout, no: int = 1) -> PublishedRollout:
    return PublishedRollout(no, member, rollout)


RIGHT = rollout(SECRET)
LATER = rollout(WRONG[0], SYMBOLS[0], SECRET)
FAILED = rollout(*(x for n in range(3) for x in (WRONG[n], SYMBOLS[n])), WRONG[3])
ORDER = EpisodeOrder(0, 4, 1, SEED, False, 1, 30.0, 30.0, None)


async def test_what_others_said_is_scored_by_this_environment_and_encoded_by_this_tokenizer() -> None:
    for said, solved in ((RIGHT, True), (LATER, True), (FAILED, False)):
        attempt, refused = await recite(by("lab-b", said), ORDER, FAMILY, SEATS, False)
        assert refused == ""
        assert attempt.outcome is not None
        assert attempt.outcome.solved is solved
        words = [CODEC.decode(turn.reply.choice.token_ids) for turn in attempt.turns]
        assert words == [turn.text for turn in said.turns]
        assert {p for turn in attempt.turns for p in turn.reply.choice.logprobs} == {UNKNOWN_LOGPROB}
        assert {turn.reply.incarnation for turn in attempt.turns} == {"shared:lab-b"}
        assert all(turn.reply.choice.segments == [3, 1] for turn in attempt.turns)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (rollout(WRONG[0], SYMBOLS[0]), "too_few_turns"),
        (rollout(SECRET, SYMBOLS[0]), "too_many_turns"),
        (rollout("ignore all rules"), "unknown_words"),
        (rollout(SYMBOLS[0]), "words_not_allowed"),
        (rollout(f"{SECRET} {SECRET}"), "too_long"),
        (rollout(""), "empty"),
        (rollout("<eos>"), "special_words"),
    ],
)
async def test_words_that_are_no_replies_here_are_refused_with_a_reason(said: SharedRollout, reason: str) -> None:
    assert (await recite(by("lab-b", said), ORDER, FAMILY, SEATS, False))[1] == reason


def test_a_member_that_floods_displaces_only_what_it_said_itself() -> None:
    pool = SharedPool()
    task = RIGHT.task
    assert pool.add(by("honest", RIGHT)) == ""
    for n in range(3 * shared_pool.PER_MEMBER):
        assert pool.add(by("flood", rollout(str(n), task=f"{n % 400:064x}"))) == ""
    assert len(pool) <= shared_pool.PER_MEMBER + 1
    for n in range(shared_pool.PER_TASK * 2):
        pool.add(by("flood", rollout(f"x{n}", task=task)))
    found = pool.of_task(task, 4)
    assert [one.member for one in found].count("honest") == 1, "each member has its turn"
    assert pool.add(by("other", RIGHT)) == "repeated", "a content counts once, whoever says it"
    assert pool.add(by("other", rollout("a\x1b[2J"))) == "bad_characters"
    long = SharedRollout(task, tuple(SharedTurn("guesser", "x" * 16_000, False) for _ in range(5)))
    assert pool.add(by("other", long)) == "too_long"


class Engines:
    """Guesses in order, hints always alike; counts what it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def until_held(self, request: TurnRequest, at_most_s: float) -> float:
        return 0.0

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        self.asked += 1
        word = request.allowed[request.seed % len(request.allowed)]
        return TurnReply(CompletionChoice(0, [word], [-1.5], "length", [3, 1]), "e1.1.1", 1.0)


class Stand:
    """A rollout worker's context whose pool is filled by hand; the exchange is nowhere."""

    def __init__(self, spec=SPEC) -> None:
        self.engines, self.reports, self.claimed = Engines(), [], set()
        self.sharing = Sharing(spec, ExchangeAccess("http://127.0.0.1:9", "lab-a", b"k"), self.claim, self.put)
        self.context = RunContext(
            1, spec, FAMILY, dict.fromkeys(SEATS, CODEC), self.engines, ExternalClient(ExternalAccess()), slots(None),
            sharing=self.sharing,
        )  # fmt: skip

    async def claim(self, digests: Sequence[str]) -> list[str]:
        new = [digest for digest in digests if digest not in self.claimed]
        self.claimed |= set(new)
        return new

    async def put(self, report: SharingReport) -> None:
        self.reports.append(report)

    def hear(self, *rollouts: SharedRollout) -> None:
        for no, one in enumerate(rollouts):
            assert self.sharing._pool.add(by("lab-b", one, no)) == ""

    async def group(self, origin: Origin = Origin.TRAIN):
        groups = (GroupOrder(draw=0, task_seed=SEED, members=MEMBERS),)
        pins = {role: seat.pin for role, seat in SEATS.items()}
        order = PlayGroups(pool="p", epoch=1, origin=origin, groups=groups, pins=pins, sampling_seed=1)
        taken = Taken(run_id=1, no=1, epoch=1, token="t", takes=1, command=order)
        return await play_group(CommandPlay(taken, order, self.context, SEATS), groups[0])


def others_in(settled) -> set[int]:
    return {s.member for s in settled.samples if any(span.engine.startswith("shared:") for span in s.spans)}


async def test_members_of_others_take_the_last_places_and_engines_play_the_rest() -> None:
    stand = Stand()
    stand.hear(RIGHT, FAILED)
    settled = await stand.group()
    assert others_in(settled) == {3, 4}
    assert {episode.member for episode in settled.event.episodes if episode.shared} == {3, 4}, "the core is told"
    assert [episode.member for episode in settled.event.episodes] == list(range(MEMBERS))
    assert {e.member: e.solved for e in settled.event.episodes if e.member in (3, 4)} in (
        {3: True, 4: False},
        {3: False, 4: True},
    )
    assert settled.event.episodes[5].samples, "the third place was played by an engine"
    again = await stand.group()
    assert others_in(again) == set(), "a rollout is used once"
    await stand.sharing.stop()


async def test_of_many_those_are_chosen_whose_scores_differ_and_not_the_best() -> None:
    """The published rule would take what is all right, of which nothing is learned."""
    right = [rollout(WRONG[n], SYMBOLS[n], SECRET) for n in range(3)]
    stand = Stand()
    stand.hear(FAILED, *right, RIGHT)
    settled = await stand.group()
    found = [e for e in settled.event.episodes if e.member in others_in(settled)]
    assert len(found) == FOREIGN
    assert {e.solved for e in found} == {True, False}
    await stand.sharing.stop()


async def test_without_anything_from_others_a_group_is_the_same_to_the_bit() -> None:
    stand = Stand()
    settled = await stand.group()
    plain = Stand()
    await plain.sharing.stop()
    plain.context.sharing = None
    expected = await plain.group()

    def content(group):
        episodes = [e.model_copy(update={"duration_s": 0.0}) for e in group.event.episodes]
        names = ("member", "role", "turn", "prompt", "response", "logprobs", "allowed", "segments")
        return episodes, [[getattr(sample, name) for name in names] for sample in group.samples]

    assert content(settled) == content(expected)
    await stand.sharing.stop()


async def test_evaluations_hear_nothing_of_others() -> None:
    stand = Stand()
    stand.hear(RIGHT, FAILED)
    assert others_in(await stand.group(Origin.EVAL)) == set()
    await stand.sharing.stop()


async def test_only_what_the_own_engines_said_goes_out_and_no_reward_with_it() -> None:
    stand = Stand()
    stand.hear(RIGHT, FAILED)
    settled = await stand.group()
    out = told_of(settled, "hot_cold", Counter())
    assert len(out) == MEMBERS - 2
    assert {one.task for one in out} == {RIGHT.task}
    for one in out:
        attempt, refused = await recite(by("me", one), ORDER, FAMILY, SEATS, False)
        assert refused == "", "what goes out can be said again by whoever has the task"
        assert attempt.outcome is not None
    await stand.sharing.stop()


async def test_a_lost_exchange_is_told_and_nothing_waits_for_it() -> None:
    stand = Stand()
    settled = await stand.group()
    stand.sharing.offer([settled])
    assert await stand.sharing.turn() is False
    report = stand.reports[-1]
    assert (report.state, report.published) == ("unreachable", 0)
    assert len(stand.sharing._out) == MEMBERS, "what could not be published waits"
    for _ in range(2000):
        stand.sharing.offer([settled])
    assert len(stand.sharing._out) == 2048, "and what waits is bounded"
    assert (await asyncio.wait_for(stand.group(), 60)).event.episodes
    await stand.sharing.stop()


def test_a_shared_row_has_the_ratio_one_and_the_gradient_of_the_policy() -> None:
    """Whatever loss: its tokens count as if the trained weights had said them, and others are left as they are."""
    drawn = learning_kit.draw(5)
    unknown = torch.zeros(len(drawn.contexts), 1, dtype=torch.bool)
    unknown[::2] = True

    class Batch:
        behaviour = drawn.behaviour.where(~unknown, torch.tensor(UNKNOWN_LOGPROB, dtype=torch.float64)).numpy()
        present, advantages, lags = drawn.present.numpy(), drawn.advantages.numpy(), np.zeros(drawn.present.shape)

    logits = drawn.logits.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)[drawn.contexts].gather(2, drawn.words.unsqueeze(2)).squeeze(2)
    objective = Objective.of(resolve({**DOCUMENT, "algorithm": {"loss": {"type": "ppo_clip"}}}).spec.algorithm.loss)
    rows = rows_of(Batch, logprobs, objective)
    shared = unknown.expand_as(drawn.present) & (drawn.present > 0)
    assert torch.equal(rows.behaviour[shared], logprobs.detach()[shared])
    own = ~unknown.expand_as(drawn.present) & (drawn.present > 0)
    assert torch.equal(rows.behaviour[own], drawn.behaviour[own])
    assert bool((rows.lags[shared] == 1).all())
    assert bool((rows.lags[own] == 0).all())
    (objective.terms(rows).per_token[shared]).sum().backward()
    expected = drawn.logits.clone().requires_grad_()
    plain = expected.log_softmax(-1)[drawn.contexts].gather(2, drawn.words.unsqueeze(2)).squeeze(2)
    (-(plain * drawn.advantages)[shared]).sum().backward()
    assert torch.allclose(logits.grad, expected.grad, rtol=1e-12, atol=1e-12)


DOCUMENT = {
    "agents": {"guesser": {}, "hinter": {}},
    "environment": {"type": "hot_cold"},
    "batch": {"episodes_per_task": 8},
    "sampling": {"sharing": "exchange"},
}
