"""The rules of the built-in games, one table per rule."""

import itertools
import math
import random
from importlib.metadata import EntryPoint
from typing import ClassVar, Literal

import pytest
from pydantic import ValidationError

from flexmarl.contracts.plugins import discover
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.environment import ENVIRONMENT, Arithmetic, HotCold, Kitchen, ReferenceGame, Sums
from flexmarl.contracts.specification.environment_base import EnvironmentFacts, IsolatedEnvironmentOptions, RoleFacts
from flexmarl.contracts.specification.graphs import SequenceGraph
from flexmarl.language.answers import last_number
from flexmarl.orchestrator.plan import make_plan
from workers.rollout.environments.arithmetic import ArithmeticFamily, legal_positions, reduce
from workers.rollout.environments.base import Environment, Outcome, Reply
from workers.rollout.environments.kitchen import collaboration_score, stations
from workers.rollout.environments.registry import FAMILIES, family_of

RNG = random.Random(0)


def script(environment: Environment, replies: list[str]) -> Outcome:
    """Play the replies in order and return the outcome; all must be used."""
    left = list(replies)
    while asks := environment.asks():
        environment.act([Reply(ask.role, left.pop(0)) for ask in asks])
    assert left == []
    return environment.outcome()


def test_reference_game_scores_the_share_of_attributes() -> None:
    family = family_of(ReferenceGame())
    assert family.make(0, False, RNG).describe()["title"] == "Name the red circle"
    assert script(family.make(0, False, RNG), ["ba da", "red circle"]).solved
    half = script(family.make(0, False, RNG), ["ba da", "red star"])
    assert (half.team_score, half.solved) == (0.5, False)
    assert script(family.make(0, False, RNG), ["ba da", ""]).team_score == 0.0


def test_reference_game_listener_sees_the_message_alone() -> None:
    episode = family_of(ReferenceGame()).make(5, False, RNG)
    episode.act([Reply("speaker", "ba da")])
    assert [ask.observation for ask in episode.asks()] == ["hear ba da"]


def test_reference_game_task_seeds_walk_through_all_objects() -> None:
    family = family_of(ReferenceGame())
    assert len({str(family.make(seed, False, RNG).describe()) for seed in range(16)}) == 16


def test_reference_game_without_a_perfect_code_is_refused_with_a_neighbour() -> None:
    with pytest.raises(ValidationError, match="message_length: 4 fits"):
        ReferenceGame(symbols=2, message_length=3)


@pytest.mark.parametrize(
    ("replies", "score", "solved"),
    [(["3"], 1.0, True), (["1", "ba", "3"], 0.9, True), (["1", "ba", "2", "da", "0", "fa", "4"], 0.0, False)],
)
def test_hot_cold_scores_by_guesses(replies: list[str], score: float, solved: bool) -> None:
    outcome = script(family_of(HotCold()).make(3, False, RNG), replies)
    assert (outcome.team_score, outcome.solved) == (pytest.approx(score), solved)


def test_hot_cold_optimum_is_reached_by_a_hinter_who_tells_the_number() -> None:
    family, scores = family_of(HotCold()), []
    for secret in range(8):
        replies = ["0"] if secret == 0 else ["0", "ba", str(secret)]
        scores.append(script(family.make(secret, False, RNG), replies).team_score)
    assert sum(scores) / 8 == pytest.approx(HotCold().facts().optimum)


@pytest.mark.parametrize(
    ("expression", "legal"),
    [("2 + 3 * 4", (1,)), ("2 * 3 + 4", (0,)), ("2 + 3 + 4", (0, 1)), ("2 * 3 * 4", (0, 1)), ("1 + 2 + 3 * 4", (0, 2))],
)
def test_arithmetic_pairs_that_keep_the_value(expression: str, legal: tuple[int, ...]) -> None:
    assert legal_positions(tuple(expression.split())) == legal


def test_arithmetic_reduces_a_pair_to_its_result() -> None:
    assert reduce(("2", "+", "3", "*", "4"), 1, "2") == ("2", "+", "2")


def test_arithmetic_value_is_that_of_the_expression() -> None:
    family = ArithmeticFamily(Arithmetic(operands=4))
    for expression in family.training[:500]:
        assert family.evaluate(expression) == str(eval(" ".join(expression)) % 5)


def test_arithmetic_never_trains_on_a_held_out_expression() -> None:
    family = ArithmeticFamily(Arithmetic())
    assert (len(family.training), len(family.held_out)) == (400, 100)
    assert not set(family.training) & set(family.held_out)
    shown = {d.observation for d in family.demonstrations(random.Random(0), 20_000) if d.role == "planner"}
    assert not shown & {f"plan {' '.join(expression)}" for expression in family.held_out}
    evaluated = {str(family.make(seed, True, RNG).describe()["title"]) for seed in range(2000)}
    assert evaluated == {f"{' '.join(expression)} modulo 5" for expression in family.held_out}


@pytest.mark.parametrize("careless", [False, True])
def test_arithmetic_lines_are_balanced_and_judged_by_their_truth(careless: bool) -> None:
    family, labels = ArithmeticFamily(Arithmetic()), []
    for seed in range(1000):
        episode = family.make(seed, False, RNG)
        while asks := episode.asks():
            reply = episode.perfect_reply()  # type: ignore[attr-defined]
            if asks[0].role == "verifier":
                pair, result = asks[0].observation.removeprefix("check ").split(" = ")
                labels.append(str(eval(pair) % 5) == result)
                assert reply == ("accept" if labels[-1] else "reject")
            episode.act([Reply(asks[0].role, "0" if careless and asks[0].role == "solver" else reply)])
    assert 0.47 < sum(labels) / len(labels) < 0.53


@pytest.mark.parametrize("verdict", ["accept", "reject"])
def test_arithmetic_constant_verdicts_have_balanced_accuracy_one_half(verdict: str) -> None:
    family = ArithmeticFamily(Arithmetic(corrupt_share=0.2))
    facts = [script(family.make(seed, False, RNG), ["", "0", verdict, "0", verdict]).facts for seed in range(4000)]
    assert sum(fact["balanced_accuracy"] for fact in facts) / 4000 == pytest.approx(0.5, abs=0.05)


def test_arithmetic_rewards_each_turn_by_its_own_question() -> None:
    family = ArithmeticFamily(Arithmetic(corrupt_share=0.0))
    seed = next(s for s in range(500) if family.make(s, False, RNG).describe()["title"] == "2 + 3 * 4 modulo 5")
    right = script(family.make(seed, False, RNG), ["3 * 4", "2", "accept", "4", "accept"])
    assert (right.team_score, set(right.scores.values())) == (1.0, {1.0})
    misled = script(family.make(seed, False, RNG), ["2 + 3", "0", "accept", "0", "accept"])
    assert misled.scores == {"planner": 0.0, "solver": 1.0, "verifier": 1.0}
    assert misled.turn_rewards["planner", 0] == 0.0
    assert misled.team_score == 0.0


def kitchen(load: float, ordered: tuple[str, ...]) -> Environment:
    """Return the episode of a task, training or held out."""
    family = family_of(Kitchen())
    for seed in range(2000):
        for held_out in (False, True):
            episode = family.make(seed, held_out, RNG)
            if episode.describe()["title"] == f"Serve {' and '.join(ordered)} at load {load:g}":
                return episode
    raise AssertionError("no such task")


def test_kitchen_hands_over_within_a_tick_and_serves() -> None:
    turns = ["fetch_fish put", "wait grab", "fetch_fish put", "cook serve", "wait wait", "grab cook"]
    outcome = script(kitchen(1.0, ("fish", "fish")), [*turns, "wait wait", "serve wait", *["wait wait"] * 8])
    assert (outcome.team_score, outcome.solved, outcome.facts["cos"]) == (2.0, True, 1.0)
    assert outcome.turn_rewards["cook_1", 1] == pytest.approx(1.2)
    assert outcome.turn_rewards["cook_2", 3] == pytest.approx(1.0)


def test_kitchen_cooks_see_hands_counters_and_open_orders() -> None:
    episode = kitchen(1.0, ("fish", "onion"))
    assert episode.asks()[1].observation == "cook_2 nothing counter nothing nothing orders fish"
    episode.act([Reply("cook_1", "fetch_fish put"), Reply("cook_2", "wait grab")])
    episode.act([Reply("cook_1", "fetch_onion wait"), Reply("cook_2", "cook wait")])
    assert episode.asks()[0].observation == "cook_1 onion counter nothing fish_soup orders fish onion"


def test_kitchen_serves_only_what_is_ordered() -> None:
    turns = ["fetch_onion put", "wait grab", "fetch_fish put", "cook serve", "wait wait", "grab cook"]
    outcome = script(kitchen(1.0, ("fish", "fish")), [*turns, "wait wait", "serve serve", *["wait wait"] * 8])
    assert outcome.team_score == 1.0


def test_kitchen_orders_expire() -> None:
    late = ["wait wait", "wait wait"] * 6 + ["fetch_fish put", "wait grab", "wait wait", "cook serve"]
    assert script(kitchen(1.0, ("fish", "fish")), late).team_score == 0.0


def test_kitchen_progress_reward_cannot_be_farmed() -> None:
    outcome = script(kitchen(2.0, ("tomato", "tomato")), ["fetch_tomato put", "grab cook"] * 8)
    assert outcome.team_score == 0.0
    assert outcome.scores["cook_1"] <= 0.4 + 1e-9


def test_kitchen_never_trains_on_a_held_out_task() -> None:
    family = family_of(Kitchen())
    seen = [{str(family.make(seed, held_out, RNG).describe()["title"]) for seed in range(1000)} for held_out in (0, 1)]
    assert not seen[0] & seen[1]
    assert (len(seen[0]), len(seen[1])) == (34, 11)


@pytest.mark.parametrize(
    "spec", [Kitchen(), Kitchen(recipes=1), Kitchen(cooks=4, turns=16), Kitchen(cooks=5, turns=24)], ids=str
)
def test_kitchen_habits_serve_every_order(spec: Kitchen) -> None:
    family = family_of(spec)
    for seed in range(60):
        episode = family.make(seed, bool(seed % 2), RNG)
        while asks := episode.asks():
            habits = [" ".join(episode.habit(cook)) for cook in range(spec.cooks)]  # type: ignore[attr-defined]
            episode.act([Reply(ask.role, habit) for ask, habit in zip(asks, habits, strict=True)])
        assert episode.outcome().team_score == 2.0


@pytest.mark.parametrize("cooks", [2, 3, 4, 5])
def test_kitchen_stations_pass_things_on(cooks: int) -> None:
    row = stations(cooks)
    assert [before.makes == after.takes for before, after in itertools.pairwise(row)] == [True] * (cooks - 1)
    assert (row[0].give, row[-1].give) == ("put", "serve")


def test_kitchen_order_windows_follow_cuisineworld() -> None:
    assert Kitchen().order_windows(1.0) == ((1, 8), (4, 11))
    assert Kitchen().order_windows(3.0) == ((1, 16), (10, 16))


def test_kitchen_with_too_many_dishes_is_refused_with_a_neighbour() -> None:
    with pytest.raises(ValidationError, match="dishes: 2 fits"):
        Kitchen(dishes=9)


def test_collaboration_score_is_the_mean_share_over_loads() -> None:
    assert collaboration_score((3, 2, 2, 1, 1), (0, 0, 1, 1, 3)) == pytest.approx(0.68333, abs=1e-5)
    assert collaboration_score((3, 0), (0, 0)) == 1.0


class Elsewhere(IsolatedEnvironmentOptions):
    """An environment of another distribution."""

    type: Literal["elsewhere"] = "elsewhere"

    implementation: ClassVar[str] = "others.games:Elsewhere"

    def facts(self) -> EnvironmentFacts:
        return EnvironmentFacts("Elsewhere", (RoleFacts("a", 1, 1),), None, 1.0, 1.0, "it ends")


class Here(HotCold):
    """An environment of another distribution that wants to play in the worker's own loop, where it blocks others."""

    type: Literal["here"] = "here"

    implementation: ClassVar[str] = "others.games:Here"


class WithoutFacts(IsolatedEnvironmentOptions):
    """An environment of another distribution of which nothing is known."""

    type: Literal["without_facts"] = "without_facts"

    implementation: ClassVar[str] = "others.games:WithoutFacts"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("hot_cold", "workers.rollout.environments.hot_cold:HotColdFamily", "the name is taken by flexmarl"),
        ("here", f"{__name__}:Here", "it must derive from IsolatedEnvironmentOptions"),
        ("without_facts", f"{__name__}:WithoutFacts", "NotImplementedError: WithoutFacts has no facts()"),
    ],
)
def test_an_environment_that_cannot_be_played_is_left_out(name: str, value: str, reason: str) -> None:
    found, broken = discover(ENVIRONMENT, [EntryPoint(name, value, "flexmarl.environment")])
    assert (found, [one.reason for one in broken]) == ({}, [reason])


def test_an_environment_of_another_distribution_is_taken() -> None:
    found, broken = discover(ENVIRONMENT, [EntryPoint("elsewhere", f"{__name__}:Elsewhere", "flexmarl.environment")])
    assert (list(found), broken) == (["elsewhere"], ())


def test_every_built_in_environment_has_a_family() -> None:
    assert FAMILIES.names() == tuple(ENVIRONMENT.variants())
    for options in ENVIRONMENT.builtins:
        assert [role.name for role in options().facts().roles] == list(family_of(options()).roles)


def test_sums_are_split_so_that_no_mirror_is_on_the_other_side():
    family = family_of(Sums(largest=9, held_out=20))
    kinds = [{tuple(sorted(numbers)) for numbers in side} for side in (family.training, family.held_out)]
    assert not kinds[0] & kinds[1]
    assert 20 <= len(family.held_out) <= 21
    assert len({*family.training, *family.held_out}) == 100
    assert len(set(family.held_out)) == len(family.held_out)


def test_evaluations_of_sums_go_through_all_that_are_held_out():
    plan = make_plan(resolve({}, template="chat_sums").spec)
    family = family_of(Sums(held_out=20))
    seeds = [plan.evaluation_seed(index) for index in range(20)]
    titles = {family.make(seed, True, random.Random(0)).describe()["title"] for seed in seeds}
    assert len(titles) == 20


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("7 + 5 = 12.", 12), ("-3", -3), ("none", None), ("", None), ("1" * 5000, math.inf)],
)
def test_the_last_number_of_a_reply_is_its_answer(text, number):
    assert last_number(text) == number


def test_a_reviser_reads_what_the_solver_said_and_each_is_paid_for_its_own_answer():
    family = family_of(Sums())
    episode = family.make(3, False, random.Random(0))
    answer = str(sum(family.training[3]))
    (ask,) = episode.asks()
    assert [message.role for message in ask.messages] == ["system", "user"]
    episode.act([Reply("solver", " no idea ")])
    (ask,) = episode.asks()
    assert ask.messages[1].content.endswith("A colleague said: no idea")
    episode.act([Reply("reviser", f"It is {answer}")])
    assert episode.asks() == []
    outcome = episode.outcome()
    assert (outcome.scores, outcome.team_score, outcome.solved) == ({"solver": 0.0, "reviser": 1.0}, 1.0, True)


def test_in_rounds_each_reads_what_is_new_to_it_and_is_paid_for_its_last_answer():
    family = family_of(Sums(graph=SequenceGraph(rounds=2)))
    episode = family.make(3, False, random.Random(0))
    answer, asked = str(sum(family.training[3])), []
    for said in ("no idea", "-1", answer, "-2"):
        (ask,) = episode.asks()
        asked.append((ask.role, [message.role for message in ask.messages], ask.messages[-1].content))
        episode.act([Reply(ask.role, said)])
    assert episode.asks() == []
    assert [role for role, _, _ in asked] == ["solver", "reviser"] * 2
    assert [roles for _, roles, _ in asked] == [["system", "user"]] * 2 + [["user"]] * 2
    assert [text.split(". ")[0] for _, _, text in asked[2:]] == ["A colleague said: -1", f"A colleague said: {answer}"]
    outcome = episode.outcome()
    assert (outcome.scores, outcome.team_score, outcome.solved) == ({"solver": 1.0, "reviser": 0.0}, 0.0, False)
    assert outcome.turn_rewards == {("solver", 0): 0, ("reviser", 0): 0, ("solver", 1): 1, ("reviser", 1): 0}


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"largest": 999, "terms": 4}, "largest: 16 fits"), ({"largest": 4, "held_out": 20}, "held_out: 10 fits")],
)
def test_sums_that_cannot_be_split_name_what_fits(settings, said):
    with pytest.raises(ValidationError, match=said):
        Sums(**settings)
