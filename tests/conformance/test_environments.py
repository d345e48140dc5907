"""Every environment of this installation, under its defaults and at the ends of its difficulty knobs.

Games of other packages keep the same contract twice: played here, and in processes of their own as runs play them.
"""

import asyncio
import random
from collections.abc import Iterator

import pytest

from flexmarl.contracts.games import GAMES
from flexmarl.contracts.specification.environment import (
    Arithmetic,
    EnvironmentSpec,
    GameOptions,
    HotCold,
    Kitchen,
    PettingZoo,
    ReasoningGym,
    ReferenceGame,
    Shop,
    Sums,
    TextArena,
)
from flexmarl.contracts.specification.environment_base import IsolatedEnvironmentOptions
from flexmarl.contracts.specification.graphs import GRAPH, GraphOptions, SequenceGraph
from tests.conformance.environment_kit import check_family, check_isolation, play
from tests.conformance.played_elsewhere import Elsewhere
from tests.support.forms import form
from workers.rollout.environments.registry import family_of
from workers.rollout.isolation import EnvironmentPool

pytestmark = pytest.mark.slow
EPISODES = form(short=16, full=40)

COOKS = [Kitchen(), Kitchen(cooks=3), Kitchen(cooks=4, turns=16)]
DEFAULTS: list[EnvironmentSpec] = [ReferenceGame(), HotCold(), Arithmetic(), *COOKS]
KNOBS: list[EnvironmentSpec] = [
    ReferenceGame(attributes=1, values=2, symbols=2, message_length=1),
    ReferenceGame(attributes=4, values=8, symbols=64, message_length=8),
    HotCold(numbers=2, guesses=1, symbols=2),
    HotCold(numbers=32, guesses=16, symbols=32),
    Arithmetic(modulus=3, corrupt_share=0.0),
    Arithmetic(modulus=11, operands=4, corrupt_share=1.0),
    Arithmetic(operands=form(short=4, full=5), held_out_share=0.5),
    Kitchen(turns=64, actions_per_turn=4, dishes=16),
    Sums(),
    Sums(largest=4, held_out=8),
    Sums(graph=SequenceGraph(rounds=3)),
    Shop(),
    Shop(assistant="category", goods=1, figures=1, rounds=1, held_out=1, largest=9),
    Sums(terms=4, largest=9, held_out=200, reply_tokens=1),
    Kitchen(cooks=4, turns=16, actions_per_turn=1, dishes=1, recipes=1),
]

GRAPHS: list[GraphOptions] = [
    *(GRAPH.options(name) for name in GRAPH.variants()),
    GRAPH.options("debate", judge="judge", rounds=3),
    GRAPH.options("mixture", layers=2, tokens=40),
    GRAPH.options("hub", workers=["a", "b"], rounds=1),
    GRAPH.options(
        "sequence", order=[{"name": "a", "does": "plan"}, "b", {"name": "c", "does": "verify"}], tokens=30, rounds=2
    ),
]
GAMES_OF_PACKAGES: list[GameOptions] = [
    PettingZoo(game="tictactoe"),
    PettingZoo(game="tictactoe", opponent="random"),
    PettingZoo(game="connect_four"),
    PettingZoo(game="rps"),
    PettingZoo(game="rps", opponent="random"),
    PettingZoo(game="pursuit"),
    TextArena(game="nim"),
    TextArena(game="nim", opponent="random"),
    TextArena(game="tic_tac_toe"),
    TextArena(game="guess_the_number"),
]
GENERATORS: list[ReasoningGym] = [
    ReasoningGym(),
    ReasoningGym(dataset="gcd", config={"max_value": 9}, held_out=1, training=1, answer="number", reply_tokens=1),
    ReasoningGym(dataset="rush_hour", held_out=5, answer="tag", graph=SequenceGraph()),
]
MEASURED: list[GameOptions] = [
    PettingZoo(game="tictactoe", opponent="random"),
    PettingZoo(game="pursuit"),
    TextArena(game="nim", opponent="random"),
    TextArena(game="tic_tac_toe", opponent="random"),
    TextArena(game="guess_the_number"),
]
"""Cheap enough to play often; the figure of connect four comes from the same measurement."""


@pytest.mark.parametrize("spec", [*DEFAULTS, *KNOBS], ids=str)
def test_family_keeps_the_contract(spec: EnvironmentSpec) -> None:
    check_family(family_of(spec), spec.facts(), episodes=EPISODES)


@pytest.mark.parametrize("graph", GRAPHS, ids=str)
def test_a_team_keeps_the_contract_in_every_graph(graph: GraphOptions) -> None:
    spec = Sums(graph=graph)
    check_family(family_of(spec), spec.facts(), episodes=EPISODES)


@pytest.mark.parametrize("spec", DEFAULTS, ids=str)
def test_random_legal_play_earns_the_declared_score(spec: EnvironmentSpec) -> None:
    family, rng, episodes = family_of(spec), random.Random(11), form(short=2000, full=6000)
    scores = [play(family.make(rng.getrandbits(62), False, rng), rng)[1].team_score for _ in range(episodes)]
    declared = spec.facts().random_score
    mean = sum(scores) / episodes
    spread = (sum((score - mean) ** 2 for score in scores) / episodes) ** 0.5
    assert declared is not None
    # Four standard errors, and the rounding of figures that were themselves measured.
    assert abs(mean - declared) <= 4 * spread / episodes**0.5 + 0.005


@pytest.mark.parametrize("spec", GAMES_OF_PACKAGES, ids=lambda spec: f"{spec.type}-{spec.game}-{spec.opponent}")
def test_a_game_of_a_package_keeps_the_contract(spec: GameOptions) -> None:
    pytest.importorskip(spec.type)
    check_family(family_of(spec), spec.facts(), episodes=4)


@pytest.mark.parametrize("spec", GENERATORS, ids=lambda spec: spec.dataset)
def test_questions_of_a_generator_keep_the_contract(spec: ReasoningGym) -> None:
    pytest.importorskip("reasoning_gym")
    check_family(family_of(spec), spec.facts(), episodes=EPISODES)


def test_every_game_of_a_package_is_tested() -> None:
    assert {f"{spec.type}/{spec.game}" for spec in GAMES_OF_PACKAGES} == set(GAMES)


@pytest.mark.parametrize("spec", MEASURED, ids=lambda spec: f"{spec.type}-{spec.game}")
def test_random_play_of_a_game_of_a_package_earns_the_declared_score(spec: GameOptions) -> None:
    pytest.importorskip(spec.type)
    family, rng, episodes = family_of(spec), random.Random(11), form(short=100, full=200)
    scores = [play(family.make(rng.getrandbits(62), False, rng), rng)[1].team_score for _ in range(episodes)]
    mean, declared = sum(scores) / episodes, spec.facts().random_score
    spread = (sum((score - mean) ** 2 for score in scores) / episodes) ** 0.5
    assert declared is not None
    assert abs(mean - declared) <= 4 * spread / episodes**0.5 + 0.005


@pytest.fixture
def elsewhere() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.mark.parametrize(
    "spec",
    [PettingZoo(game="pursuit"), TextArena(game="guess_the_number"), ReasoningGym(graph=SequenceGraph())],
    ids=lambda spec: spec.type,
)
def test_a_game_plays_the_same_in_a_process_of_its_own(
    spec: IsolatedEnvironmentOptions, elsewhere: asyncio.AbstractEventLoop
) -> None:
    """Also when others play beside it: the package of one of them seeds the whole process."""
    pytest.importorskip(spec.type)
    here, pool = family_of(spec), EnvironmentPool(spec)
    there = Elsewhere(pool, here, elsewhere)
    try:
        for seed in range(4):
            once = [play(family.make(seed, False, random.Random(seed)), random.Random(7)) for family in (here, there)]
            assert once[0] == once[1]
        check_isolation(there)
    finally:
        elsewhere.run_until_complete(pool.close())
