"""Numbers drawn for many episodes at once are those that their keys give one by one."""

import numpy as np
import pytest

from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.draws import AGAIN, ENVIRONMENT, REWARD, ROUNDS, SCORE, SLOW, TWIN, Scripts, values
from flexmarl.simulator.scenarios.scenario import RoleLoad, Spread, Workload

ROLES = {"a": 0, "b": 1}
WORKLOAD = Workload(
    stages=(("a",), ("b", "a")),
    rounds=Spread(median=1.5, sigma=0.5, least=1, most=4),
    roles={"b": RoleLoad(prompt=Spread(mean=90, sigma=20, least=1), reply=Spread(median=40, sigma=1.0, least=2))},
    environment=Spread(mean=3, sigma=1, slow_share=0.2, slow=50),
    slow_start=Spread(slow_share=0.5, slow=7),
    reward=Spread(median=2, sigma=0.3),
)  # fmt: skip


def by_hand(seed: int, draw: int, member: int, attempt: int) -> tuple[list[object], list[float], float, float]:
    key = chance.mixed(chance.mixed(chance.mixed(0, seed), draw), member)
    key = chance.mixed(key, attempt) if attempt > 1 else key
    rounds = max(1, round(WORKLOAD.rounds.draw(chance.mixed(key, ROUNDS))))
    turns: list[object] = []
    asked = {"a": 0, "b": 0}
    for role in ("a", "b", "a") * rounds:
        here = chance.mixed(chance.mixed(key, 100 + ROLES[role]), asked[role])
        load = WORKLOAD.load(role)
        prompt, reply = load.prompt.draw(chance.mixed(here, 1)), load.reply.draw(chance.mixed(here, 2))
        turns.append((role, asked[role], prompt, max(1, round(reply))))
        asked[role] += 1
    return turns, *machines(key, 2 * rounds)


def machines(key: int, stages: int) -> tuple[list[float], float, float]:
    waits = [WORKLOAD.environment.draw(chance.mixed(key, ENVIRONMENT + 1000 * (n + 1))) for n in range(stages)]
    waits[0] += WORKLOAD.slow_start.draw(chance.mixed(key, SLOW))
    score = round(chance.uniform(chance.mixed(key, SCORE), 1), 3)
    return waits, WORKLOAD.reward.draw(chance.mixed(key, REWARD)), score


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_script_is_what_its_key_says(attempt: int):
    draws = Scripts(WORKLOAD, ROLES, seed=5)
    for draw, member in [(0, 0), (0, 1), (70, 3), (3, 2), (1 << 40, 1)]:
        script = draws.script(draw, member, 4, attempt, task=draw)
        turns, waits, reward_s, score = by_hand(5, draw, member, attempt)
        assert (list(script.turns), script.waits, script.reward_s, script.score) == (turns, waits, reward_s, score)


def test_it_does_not_matter_who_is_drawn_with_it_or_how_often():
    one, other = Scripts(WORKLOAD, ROLES, seed=5), Scripts(WORKLOAD, ROLES, seed=5)
    alone = list(one.script(9, 3, 64, 1, task=9).turns)
    assert alone == list(other.script(9, 3, 8, 1, task=9).turns)
    assert alone == list(one.script(9, 3, 64, 1, task=9).turns), "a group that is played again says the same"


def test_a_second_environment_takes_times_of_its_own():
    draws = Scripts(WORKLOAD, ROLES, seed=5)
    first = draws.script(2, 1, 4, 1, task=2)
    twin = draws.beside(first)
    assert (twin.waits, twin.reward_s, twin.score) == machines(chance.mixed(first.key, TWIN), len(first.waits))


def test_a_task_that_is_played_again_says_the_same_under_other_chances():
    draws = Scripts(WORKLOAD, ROLES, seed=5)
    first = draws.script(2, 1, 4, 1, task=77)
    again = draws.script(300, 1, 3, 1, task=77)
    assert list(again.turns) == list(first.turns) == by_hand(5, 2, 1, 1)[0]
    key = chance.mixed(chance.mixed(first.key, AGAIN), 300)
    assert (again.waits, again.reward_s, again.score) == machines(key, len(first.waits))
    assert again.waits != first.waits


def test_every_shape_of_a_spread():
    keys = [chance.mixed(7, number) for number in range(300)]
    shapes = [{}, {"least": 3}, {"mean": 5, "most": 4}, {"mean": 2, "sigma": 9}, {"median": 2, "sigma": 1, "most": 5}]
    for shape in shapes:
        spread = Spread(**shape, slow_share=0.1, slow=100)
        assert values(spread, np.array(keys, np.uint64)).tolist() == [spread.draw(key) for key in keys]


def lengths(alike: float) -> np.ndarray:
    """Stages of the episodes of 300 groups of 8, one row per group."""
    lasts = Spread(mean=6, sigma=2, least=1, most=99)
    told = {"rounds": Spread(mean=9), "lasts": lasts, "lasts_alike": alike}
    draws = Scripts(WORKLOAD.model_copy(update=told), ROLES, 5)
    return np.array([[len(draws.script(n, member, 8, 1, task=n).waits) for member in range(8)] for n in range(300)])


@pytest.mark.parametrize("alike", [0.0, 0.6, 1.0])
def test_groups_are_as_alike_in_length_as_is_said_and_all_together_no_different(alike: float):
    found = lengths(alike)
    assert (found.mean(), found.std()) == (pytest.approx(6.0, abs=0.25), pytest.approx(2.0, abs=0.2))
    inside = found.var(axis=1, ddof=1).mean() / found.var(ddof=1)
    assert 1.0 - inside == pytest.approx(alike, abs=0.08)
