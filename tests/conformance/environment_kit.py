"""What every environment family must keep, built in or plugged in. Call `check_family` with a family and its facts."""

import copy
import json
import random
from collections.abc import Callable

from flexmarl.contracts.specification.environment_base import EnvironmentFacts
from workers.rollout.environments.base import Ask, Environment, Family, Outcome, Reply, RewardsTurns

Answer = Callable[[Ask, random.Random], str]


def random_legal(ask: Ask, rng: random.Random) -> str:
    """Play uniformly among the allowed words."""
    if ask.messages:
        return rng.choice(
            ["7", "The answer is 12.", "I accept", "reject", "ask worker_1: 2?\nask a: 3?", "next: speaker_2"]
        )
    return " ".join(rng.choice(ask.allowed) for _ in range(ask.max_tokens))


def hostile(ask: Ask, rng: random.Random) -> str:
    """Play what a broken model could say: nothing, foreign words, too many words."""
    return rng.choice(["", "<eos>", "no such word", " ".join([*ask.allowed, *ask.allowed])])


def play(environment: Environment, rng: random.Random, answer: Answer = random_legal) -> tuple[list[Ask], Outcome]:
    """Play an episode to its end and return everything it asked."""
    seen: list[Ask] = []
    while asks := environment.asks():
        seen += asks
        environment.act([Reply(ask.role, answer(ask, rng), tokens=ask.max_tokens) for ask in asks])
    return seen, environment.outcome()


def check_family(family: Family, facts: EnvironmentFacts, episodes: int = 200) -> None:
    """Run all checks of the kit."""
    assert tuple(family.roles) == tuple(role.name for role in facts.roles)
    check_vocabulary(family)
    check_determinism(family)
    check_isolation(family)
    for answer in (random_legal, hostile):
        check_episodes(family, facts, answer, episodes)
    check_demonstrations(family)
    check_turn_rewards(family, facts)


def check_vocabulary(family: Family) -> None:
    words = family.vocabulary()
    if not words:
        return  # it speaks in messages
    assert words[:3] == ("<pad>", "<bos>", "<eos>")
    assert len(set(words)) == len(words), "a word occurs twice"
    assert all(word and " " not in word for word in words)
    assert words == family.vocabulary()


def check_determinism(family: Family) -> None:
    """Equal task seed, generator and replies give the same episode, held out or not."""
    for seed in range(20):
        for held_out in (False, True):
            runs = [play(family.make(seed, held_out, random.Random(seed)), random.Random(7)) for _ in range(2)]
            assert runs[0] == runs[1]


def check_isolation(family: Family) -> None:
    """Two interleaved episodes do not touch each other."""
    alone = [play(family.make(seed, False, random.Random(seed)), random.Random(seed))[1] for seed in (1, 2)]
    episodes = [(family.make(seed, False, random.Random(seed)), random.Random(seed)) for seed in (1, 2)]
    running = True
    while running:
        running = False
        for environment, rng in episodes:
            if asks := environment.asks():
                environment.act([Reply(ask.role, random_legal(ask, rng), tokens=ask.max_tokens) for ask in asks])
                running = True
    assert [environment.outcome() for environment, _ in episodes] == alone


def check_episodes(family: Family, facts: EnvironmentFacts, answer: Answer, episodes: int) -> None:
    """Asks name known roles and words, turns keep their bounds, scores their range, and the task can be described."""
    words, rng = set(family.vocabulary()), random.Random(3)
    bounds = {role.name: (role.min_turns, role.max_turns) for role in facts.roles}
    lengths = {role.name: role.reply_tokens for role in facts.roles}
    for number in range(episodes):
        environment = family.make(rng.getrandbits(62), bool(number % 2), random.Random(number))
        assert environment.asks() == environment.asks(), "asking twice changes nothing"
        described = environment.describe()
        assert json.loads(json.dumps(described)) == described
        assert isinstance(described["title"], str)
        asked, outcome = play(environment, rng, answer)
        turns = {role: [ask for ask in asked if ask.role == role] for role in bounds}
        for role, (fewest, most) in bounds.items():
            assert fewest <= len(turns[role]) <= most, (role, len(turns[role]))
        if answer is random_legal:
            assert all(set(ask.observation.split()) <= words for ask in asked)
        for ask in asked:
            assert bool(ask.messages) == (not words), "in words or in messages, never both"
            assert bool(ask.observation) == bool(words)
            assert ask.max_tokens >= 1
            if lengths[ask.role] is not None:
                assert (ask.max_tokens, ask.stop, bool(ask.allowed)) == (lengths[ask.role], (), True), ask.role
            assert set(ask.allowed) | set(ask.stop) <= words
        check_outcome(outcome, facts, {role: len(asks) for role, asks in turns.items()})


def check_outcome(outcome: Outcome, facts: EnvironmentFacts, turns: dict[str, int]) -> None:
    assert set(outcome.scores) == set(turns)
    assert 0.0 <= outcome.team_score <= facts.best_score
    assert all(abs(score) < 1e6 for score in outcome.scores.values())
    assert all(0 <= turn < turns[role] for role, turn in outcome.turn_rewards), "a reward names no turn"
    assert all(isinstance(value, float) for value in outcome.facts.values())


def check_turn_rewards(family: Family, facts: EnvironmentFacts) -> None:
    """It is declared that turns are rewarded as they end; then such rewards only grow by new turns, up to the account.

    A copy in the middle goes its own way.
    """
    for seed in range(10):
        environment, rng = family.make(seed, False, random.Random(seed)), random.Random(seed)
        assert isinstance(environment, RewardsTurns) == facts.rewards_turns
        if not facts.rewards_turns:
            return
        before: dict[tuple[str, int], float] = {}
        while asks := environment.asks():
            twin, twin_rng = copy.deepcopy(environment), random.Random(0)
            play(twin, twin_rng, hostile)
            assert environment.asks() == asks, "a copy moved its original"
            assert environment.turn_rewards() == before, "a copy moved its original"
            environment.act([Reply(ask.role, random_legal(ask, rng), tokens=ask.max_tokens) for ask in asks])
            before = environment.turn_rewards()
        assert before == environment.outcome().turn_rewards


def check_demonstrations(family: Family) -> None:
    """Demonstrations speak the language of the game and come from the generator alone."""
    words = set(family.vocabulary())
    shown = family.demonstrations(random.Random(5), 100)
    assert shown == family.demonstrations(random.Random(5), 100)
    assert len(shown) in (0, 100)
    for demonstration in shown:
        assert demonstration.role in family.roles
        assert set(demonstration.observation.split()) <= words
        assert set(demonstration.reply.split()) <= set(demonstration.allowed) <= words
