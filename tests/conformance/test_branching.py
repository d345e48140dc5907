"""Branching (AT-GRPO): what a group that branches records, whose gradient it takes, and that it learns."""

import itertools
import random
from collections import Counter
from typing import Any

import pytest
import torch

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.rewards import answer_rewards
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.store.data.groups import SampleRow, SettledGroup
from tests.conformance.branching_team import Table, Team, branching_spec, play_groups, playing_of, settled
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.environments.registry import family_of

pytestmark = pytest.mark.slow

MEMBERS = 4
NAMES = ("speaker", "listener")
SMALL = {"type": "reference_game", "attributes": 1, "values": 2, "symbols": 2, "message_length": 1}
PLAYED_OUT = {"score": "played_out"}
SUMS = ("planner", "solver", "verifier")


def rows_of(group: SettledGroup) -> dict[tuple[str, int], list[SampleRow]]:
    found: dict[tuple[str, int], list[SampleRow]] = {}
    for row in group.samples:
        found.setdefault((row.role, row.turn), []).append(row)
    return found


def carried(group: SettledGroup) -> list[tuple[str, int, int]]:
    """Role, turn and member of the answers with which the episode went on."""
    return [
        (entry[0], entry[1], one.member)
        for one in group.episodes
        for entry in one.transcript
        if "went on" in "".join(map(str, entry[2:]))
    ]


def earned_by(row: SampleRow) -> float:
    """Return the reward of a row of one turn."""
    (span,) = row.spans
    return span.reward


async def test_all_members_answer_every_turn_from_the_same_state_and_the_best_answer_carries_it_on():
    playing = playing_of(branching_spec({"type": "arithmetic"}, SUMS, MEMBERS), Team())
    for draw in range(10):
        group = await settled(playing, draw)
        rows = rows_of(group)
        went_on = {(role, turn): member for role, turn, member in carried(group)}
        assert len(went_on) == len(rows) == len(carried(group)), "one answer of each turn, and only one"
        for key, own in rows.items():
            assert [row.member for row in own] == list(range(MEMBERS))
            assert len({tuple(row.prompt) for row in own}) == 1, "compared answers were given in the same state"
            best = max(range(MEMBERS), key=lambda n: earned_by(own[n]))
            assert went_on[key] == best, "among equals the first"
        assert {one.status for one in group.episodes} == {EpisodeStatus.FINISHED}
        episode = group.event.episodes[0]
        earned = {key: earned_by(own[went_on[key]]) for key, own in rows.items()}
        for role in SUMS:
            turns = [reward for (who, _), reward in earned.items() if who == role]
            assert episode.scores[role] == pytest.approx(sum(turns) / len(turns)), "what went on is what was scored"
        for told, row in zip(episode.samples, [r for r in group.samples if r.member == 0], strict=True):
            assert (told.role, told.turn, told.reward) == (row.role, row.turn, earned_by(row))


async def test_the_first_members_answer_carries_it_on_where_that_is_asked():
    spec = branching_spec({"type": "arithmetic"}, SUMS, MEMBERS, controller={"carry": "first"})
    group = await settled(playing_of(spec, Team()), 3)
    assert {member for _, _, member in carried(group)} == {0}


async def test_an_answer_is_scored_by_playing_on_and_what_is_said_there_is_nobodys_row():
    team = Team()
    group = await settled(playing_of(branching_spec(SMALL, NAMES, MEMBERS, controller=PLAYED_OUT), team), 0)
    rows = rows_of(group)
    assert {key: len(own) for key, own in rows.items()} == {("speaker", 0): MEMBERS, ("listener", 0): MEMBERS}
    assert team.asked == {"speaker": MEMBERS, "listener": 2 * MEMBERS}
    assert group.event.episodes[0].facts["played_out"] == MEMBERS
    assert {earned_by(row) for row in rows["listener", 0]} <= {0.0, 1.0}


async def test_evaluations_and_other_groups_do_not_branch():
    spec = branching_spec(SMALL, NAMES, MEMBERS, controller=PLAYED_OUT)
    group = await settled(playing_of(spec, Team(), origin=Origin.EVAL), 0)
    assert carried(group) == []
    assert len({tuple(row.prompt) for row in rows_of(group)["listener", 0]}) > 1


async def test_a_group_of_equal_seeds_is_played_again_alike():
    spec = branching_spec({"type": "kitchen"}, ("cook_1", "cook_2"), MEMBERS)
    first, again = [(await settled(playing_of(spec, Team()), 5)).samples for _ in range(2)]
    plain = [(row.member, row.role, row.turn, row.prompt, row.response, earned_by(row)) for row in first]
    assert plain == [(row.member, row.role, row.turn, row.prompt, row.response, earned_by(row)) for row in again]


async def test_an_engine_that_refuses_ends_all_members_and_they_are_tried_again():
    class Broken(Team):
        async def turn(self, request: Any, deadline: float) -> Any:
            if self.asked.get("verifier", 0) == 2:
                self.asked["verifier"] += 1
                raise RuntimeError("no")
            return await super().turn(request, deadline)

    playing = playing_of(branching_spec({"type": "arithmetic"}, SUMS, MEMBERS), Broken())
    group = await settled(playing, 1)
    assert [(one.status, one.attempt) for one in group.episodes] == [(EpisodeStatus.FINISHED, 2)] * MEMBERS
    assert {row.attempt for row in group.samples} == {2}


class Additive:
    """Two roles say a word at once; what the team earns is what one word is worth to one plus the other's."""

    roles = ("cook_1", "cook_2")

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        rng = random.Random(3)
        self.worth = {(role, word): rng.gauss(0.0, 1.0) for role in self.roles for word in words}

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Any:
        return AdditiveEpisode(self)


class AdditiveEpisode:
    def __init__(self, family: Additive) -> None:
        self.family, self.earned = family, None

    def asks(self) -> list[Ask]:
        family = self.family
        return [] if self.earned is not None else [Ask(role, "counter", 1, family.words) for role in family.roles]

    def act(self, replies: list[Reply]) -> None:
        self.earned = sum(self.family.worth[reply.role, reply.text] for reply in replies)

    def turn_rewards(self) -> dict[tuple[str, int], float]:
        return {} if self.earned is None else {("cook_1", 0): self.earned}

    def outcome(self) -> Outcome:
        return Outcome(dict.fromkeys(self.family.roles, self.earned), self.earned, False, self.turn_rewards())

    def describe(self) -> dict[str, object]:
        return {"title": "two words", "facts": {}}


@pytest.mark.parametrize("joint", ["cross", "aligned"])
async def test_crossed_answers_are_rid_of_what_their_partners_said(joint: str):
    """MAGRPO: with additive rewards an answer's advantage is exactly its own worth less the mean of its peers'."""
    spec = branching_spec({"type": "kitchen"}, Additive.roles, MEMBERS, controller={"joint": joint})
    family = Additive(family_of(spec.environment).vocabulary()[3:8])
    playing = playing_of(spec, Team(), stage=family)
    own = []
    for draw in range(6):
        group = await settled(playing, draw)
        episodes = group.event.episodes
        rewards = [answer_rewards(one) for one in episodes]
        values = ADVANTAGES.make(ADVANTAGE.options()).estimate(GROUP_KEYS["agent_turn"], episodes, rewards)
        codec = playing.seats["cook_1"].codec
        said = {(row.member, row.role): codec.decode(row.response) for row in group.samples}
        for role in family.roles:
            worth = [family.worth[role, said[member, role]] for member in range(MEMBERS)]
            mean = sum(worth) / MEMBERS
            for one, advantages in zip(episodes, values, strict=True):
                place = [sample.role for sample in one.samples].index(role)
                own.append(abs(advantages[place] - (worth[one.member] - mean)))
    assert (max(own) < 1e-12) == (joint == "cross")


def encode(playing: Any, text: str) -> tuple[int, ...]:
    return tuple(playing.seats["speaker"].codec.encode(text))


class Enumerated:
    """The smallest reference game with tables: its true gradients by adding up everything there is."""

    def __init__(self, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        self.logits = {name: torch.randn(2, 2, generator=made, dtype=torch.float64) for name in NAMES}
        spec = branching_spec(SMALL, NAMES, MEMBERS, controller=PLAYED_OUT)
        game = playing_of(spec, Team()).context.stage
        assert not isinstance(game, type)
        self.meant, self.symbols = game.attributes[0], game.symbols

    def team(self, playing: Any) -> Team:
        ids = playing.seats["speaker"].codec.ids_of
        heard = {"speaker": [f"name {word}" for word in self.meant], "listener": [f"hear {s}" for s in self.symbols]}
        said = {"speaker": ids(self.symbols), "listener": ids(self.meant)}
        tables: dict[str, Table] = {
            name: {
                encode(playing, text): dict(zip(said[name], self.logits[name][place].tolist(), strict=True))
                for place, text in enumerate(heard[name])
            }
            for name in NAMES
        }
        return Team(tables)

    def states(self, name: str, best: bool) -> torch.Tensor:
        """Chances [target, what the role hears]."""
        if name == "speaker":
            return torch.eye(2, dtype=torch.float64) / 2
        speaker, listener = (self.logits[n].softmax(-1) for n in NAMES)
        if not best:
            return speaker / 2
        found = torch.zeros(2, 2, dtype=torch.float64)
        for target in (0, 1):
            for said in itertools.product(range(2), repeat=MEMBERS):
                for guessed in itertools.product(range(2), repeat=MEMBERS):
                    chance = 0.5
                    for symbol, guess in zip(said, guessed, strict=True):
                        chance *= float(speaker[target, symbol] * listener[symbol, guess])
                    first = next((n for n in range(MEMBERS) if guessed[n] == target), 0)
                    found[target, said[first]] += chance
        return found

    def truth(self, name: str, best: bool = False) -> torch.Tensor:
        """Gradient of the expected score by a role's logits, over the states in which it is asked."""
        own = {n: self.logits[n].clone().requires_grad_(n == name) for n in NAMES}
        speaker, listener = (own[n].softmax(-1) for n in NAMES)
        value = speaker @ listener if name == "speaker" else listener
        states = self.states(name, best)
        total = torch.zeros((), dtype=torch.float64)
        for target in (0, 1):
            total = total + (states[target] * value[:, target]).sum()
        (gradient,) = torch.autograd.grad(total, own[name])
        return gradient


def gradients(tables: Enumerated, playing: Any, groups: list[SettledGroup]) -> dict[str, torch.Tensor]:
    """Each group's ascent direction by role: [groups, 4]."""
    found = {name: torch.zeros(len(groups), 2, 2, dtype=torch.float64) for name in NAMES}
    chances = {name: tables.logits[name].softmax(-1) for name in NAMES}
    codec = playing.seats["speaker"].codec
    heard = {"speaker": list(tables.meant), "listener": list(tables.symbols)}
    said = {"speaker": list(tables.symbols), "listener": list(tables.meant)}
    for number, group in enumerate(groups):
        episodes = group.event.episodes
        rewards = [answer_rewards(one) for one in episodes]
        values = ADVANTAGES.make(ADVANTAGE.options("rloo")).estimate(GROUP_KEYS["agent_turn"], episodes, rewards)
        rows = {(row.member, row.role): row for row in group.samples}
        for one, advantages in zip(episodes, values, strict=True):
            for sample, advantage in zip(one.samples, advantages, strict=True):
                row, name = rows[one.member, sample.role], sample.role
                place = heard[name].index(codec.decode(row.prompt).split()[-1])
                word = said[name].index(codec.decode(row.response))
                direction = -chances[name][place]
                direction[word] += 1.0
                found[name][number, place] += advantage * direction / MEMBERS
    return {name: value.flatten(1) for name, value in found.items()}


def distance(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest distance of the mean from the truth, in standard errors."""
    error = found.std(0) / len(found) ** 0.5
    assert (truth.flatten().abs() > 8.0 * error).any(), "too few groups to tell the truth from nothing"
    return float(((found.mean(0) - truth.flatten()).abs() / error).max())


@pytest.mark.parametrize("carry", [pytest.param("first", marks=pytest.mark.full), "best"])
def test_the_gradient_is_the_enumerated_one_of_the_states_it_meets(carry: str):
    """A plain draw that carries on gives the policy's own gradient; the best one that of the states it leads to."""
    tables = Enumerated(6)
    spec = branching_spec(SMALL, NAMES, MEMBERS, controller={**PLAYED_OUT, "carry": carry})
    playing = playing_of(spec, Team())
    object.__setattr__(playing.context, "client", tables.team(playing))
    groups = play_groups(playing, range(3000))
    assert Counter(group.event.episodes[0].status for group in groups) == {EpisodeStatus.FINISHED: 3000}
    found = gradients(tables, playing, groups)
    assert distance(found["speaker"], tables.truth("speaker")) < 3.0
    assert distance(found["listener"], tables.truth("listener", best=carry == "best")) < 3.0
    if carry == "best":
        assert distance(found["listener"], tables.truth("listener")) > 3.0, "its states are better than the policy's"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_trains_the_reference_game(seed: int):
    """GRPO over answers to the same state, the best carrying on, against tables in place of models."""
    tables = Enumerated(seed)
    for name in NAMES:
        tables.logits[name] *= 0.3
    tables.logits["speaker"] += 0.7 * torch.eye(2, dtype=torch.float64)  # else both may share a name for good
    spec = branching_spec(SMALL, NAMES, MEMBERS, controller=PLAYED_OUT)
    for step in range(40):
        playing = playing_of(spec, Team(), seed=seed)
        object.__setattr__(playing.context, "client", tables.team(playing))
        found = gradients(tables, playing, play_groups(playing, range(8 * step, 8 * step + 8)))
        for name in NAMES:
            tables.logits[name] = tables.logits[name] + 3.0 * found[name].mean(0).view(2, 2)
    speaker, listener = (tables.logits[name].softmax(-1) for name in NAMES)
    assert float((speaker @ listener).trace() / 2) > 0.9


REFUSED = {
    "per_turn": ({"algorithm": {"advantage": {"per_turn": True}}}, "/algorithm/advantage/per_turn"),
    "group_key": ({"algorithm": {"group_key": "episode_group"}}, "/algorithm/group_key"),
    "gae": ({"algorithm": {"advantage": {"type": "gae"}}}, "/algorithm/advantage/type"),
    "keep_members": ({"sampling": {"keep_members": 2}}, "/sampling/keep_members"),
    "reward": ({"reward": {"type": "brevity"}}, "/reward/type"),
    "members": ({"mechanisms": {"parallel": {"members": 2}}}, "/mechanisms/parallel/members"),
    "spares": (
        {"mechanisms": {"redundancy": {"type": "extra_members", "extra": 1}}},
        "/mechanisms/redundancy/type",
    ),
    "extra_members": (
        {"mechanisms": {"redundancy": {"type": "extra_groups", "extra": 1, "extra_members": 1}}},
        "/mechanisms/redundancy/extra_members",
    ),
    "turns": ({"mechanisms": {"parallel": {"turns": "together"}}}, "/mechanisms/parallel/turns"),
    "settle": ({"batch": {"settle": "episode"}, "algorithm": {"advantage": {"type": "reinforce"}}}, "/batch/settle"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_speaks_of_episodes_of_ones_own_is_refused(name: str):
    changes, pointer = REFUSED[name]
    with pytest.raises(SpecProblems) as refused:
        branching_spec({"type": "arithmetic"}, SUMS, MEMBERS, **changes)
    found = {problem.pointer: problem for problem in refused.value.problems}
    assert found[pointer].code == "not_with_branches"
    assert "Set " in found[pointer].hint


@pytest.mark.parametrize(
    ("game", "roles", "controller", "pointer", "code", "says"),
    [
        (SMALL, NAMES, {}, "/sampling/branch_controller/score", "needs_turn_rewards", "arithmetic, kitchen"),
        (
            {"type": "pettingzoo", "game": "rps"},
            ("player_0", "player_1"),
            {},
            "/environment/type",
            "not_copyable",
            "reference_game",
        ),
        (
            {"type": "arithmetic"},
            SUMS,
            {"joint": "cross"},
            "/sampling/branch_controller/joint",
            "nothing_to_cross",
            "aligned",
        ),
        (
            {"type": "kitchen", "cooks": 5, "turns": 32},
            tuple(f"cook_{n}" for n in range(1, 6)),
            {"joint": "cross"},
            "/batch/episodes_per_task",
            "out_of_range",
            "Set 5",
        ),
        (
            {"type": "arithmetic"},
            SUMS,
            {"type": "none", "carry": "first"},
            "/sampling/branch_controller/carry",
            "not_read",
            "at_grpo_tree",
        ),
    ],
)
def test_what_cannot_branch_is_refused(
    game: dict, roles: tuple[str, ...], controller: dict, pointer: str, code: str, says: str
):
    with pytest.raises(SpecProblems) as refused:
        branching_spec(game, roles, 8, controller=controller)
    found = {problem.pointer: problem for problem in refused.value.problems}
    assert found[pointer].code == code
    assert says in found[pointer].hint
