"""Every environment of this installation, under its defaults and at the ends of its difficulty knobs."""

import random

import pytest

from flexmarl.contracts.environments import environment_facts
from flexmarl.contracts.spec.environment import Arithmetic, EnvironmentSpec, HotCold, Kitchen, ReferenceGame
from tests.conformance.environment_kit import check_family, play
from workers.rollout.environments import family_of

COOKS = [Kitchen(), Kitchen(cooks=3), Kitchen(cooks=4, turns=16)]
DEFAULTS: list[EnvironmentSpec] = [ReferenceGame(), HotCold(), Arithmetic(), *COOKS]
KNOBS: list[EnvironmentSpec] = [
    ReferenceGame(attributes=1, values=2, symbols=2, message_length=1),
    ReferenceGame(attributes=4, values=8, symbols=64, message_length=8),
    HotCold(numbers=2, guesses=1, symbols=2),
    HotCold(numbers=32, guesses=16, symbols=32),
    Arithmetic(modulus=3, corrupt_share=0.0),
    Arithmetic(modulus=11, operands=4, corrupt_share=1.0),
    Arithmetic(operands=5, held_out_share=0.5),
    Kitchen(turns=64, actions_per_turn=4, dishes=16),
    Kitchen(cooks=4, turns=16, actions_per_turn=1, dishes=1, recipes=1),
]


@pytest.mark.parametrize("spec", [*DEFAULTS, *KNOBS], ids=str)
def test_family_keeps_the_contract(spec: EnvironmentSpec) -> None:
    check_family(family_of(spec), environment_facts(spec), episodes=40)


@pytest.mark.parametrize("spec", DEFAULTS, ids=str)
def test_random_legal_play_earns_the_declared_score(spec: EnvironmentSpec) -> None:
    family, rng, episodes = family_of(spec), random.Random(11), 6000
    scores = [play(family.make(rng.getrandbits(62), False, rng), rng)[1].team_score for _ in range(episodes)]
    declared = environment_facts(spec).random_score
    mean = sum(scores) / episodes
    spread = (sum((score - mean) ** 2 for score in scores) / episodes) ** 0.5
    assert declared is not None
    # Four standard errors, and the rounding of figures that were themselves measured.
    assert abs(mean - declared) <= 4 * spread / episodes**0.5 + 0.005
