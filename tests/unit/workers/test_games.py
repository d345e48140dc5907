"""The adapter from a game in words to an environment: seats at once or in turn, chance opponents, illegal replies."""

import random
from collections.abc import Mapping

from flexmarl.contracts.specification.environment import PettingZoo
from workers.rollout.environments.base import Ask, Reply
from workers.rollout.environments.games import GameEpisode, table_of
from workers.rollout.environments.textarena_games import READINGS, lexed


class Pennies:
    """Both show a side at once, twice: the first wins when they agree."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def acting(self) -> tuple[str, ...]:
        return ("player_0", "player_1") if len(self.shown) < 2 else ()

    def observation(self, seat: str) -> str:
        return f"round {len(self.shown)}"

    def legal(self, seat: str) -> tuple[str, ...]:
        return ("heads", "tails")

    def act(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        self.shown.append(dict(moves))
        won = 1.0 if len(set(moves.values())) == 1 else -1.0
        return {"player_0": won, "player_1": -won}


class Turns:
    """One moves after the other; the end rewards everybody."""

    def __init__(self) -> None:
        self.moved: list[str] = []

    def acting(self) -> tuple[str, ...]:
        return (("player_1", "player_2")[len(self.moved) % 2],) if len(self.moved) < 4 else ()

    def observation(self, seat: str) -> str:
        return " ".join(["moved", *self.moved])

    def legal(self, seat: str) -> tuple[str, ...]:
        return ("0", "1")

    def act(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        self.moved += moves.values()
        return {"player_1": 1.0, "player_2": -1.0} if len(self.moved) == 4 else {}


def episode(game: Pennies | Turns, opponent: str = "agent") -> GameEpisode:
    name = "rps" if isinstance(game, Pennies) else "tictactoe"
    return GameEpisode(game, table_of(PettingZoo(game=name, opponent=opponent)), random.Random(1))


def test_all_seats_are_asked_at_once_and_moved_at_once() -> None:
    game = Pennies()
    env = episode(game)
    words = ("heads", "tails")
    assert env.asks() == [Ask("player_0", "round 0", 1, words), Ask("player_1", "round 0", 1, words)]
    env.act([Reply("player_0", "heads"), Reply("player_1", "heads")])
    env.act([Reply("player_1", "heads"), Reply("player_0", "tails")])
    assert env.asks() == []
    assert game.shown == [{"player_0": "heads", "player_1": "heads"}, {"player_0": "tails", "player_1": "heads"}]
    outcome = env.outcome()
    assert outcome.scores == {"player_0": 0.0, "player_1": 0.0}
    assert outcome.turn_rewards == {
        ("player_0", 0): 1.0, ("player_0", 1): -1.0, ("player_1", 0): -1.0, ("player_1", 1): 1.0,
    }  # fmt: skip


def test_chance_takes_the_second_seat_at_once_and_in_turn() -> None:
    pennies, turns = Pennies(), Turns()
    for env in (episode(pennies, "random"), episode(turns, "random")):
        seat, count = env.asks()[0].role, 0
        while asks := env.asks():
            assert [ask.role for ask in asks] == [seat]
            env.act([Reply(seat, asks[0].allowed[0])])
            count += 1
        assert count == 2
        assert set(env.outcome().scores) == {seat}
    assert [set(shown) for shown in pennies.shown] == [{"player_0", "player_1"}] * 2
    assert len(turns.moved) == 4


def test_a_reward_belongs_to_the_last_turn_of_its_seat() -> None:
    env = episode(Turns())
    while asks := env.asks():
        env.act([Reply(asks[0].role, "0")])
    assert env.outcome().turn_rewards == {("player_1", 1): 1.0, ("player_2", 1): -1.0}


def test_an_illegal_reply_loses_on_the_spot_and_is_counted() -> None:
    game = Turns()
    env = episode(game)
    env.act([Reply("player_1", "0")])
    env.act([Reply("player_2", "no such move")])
    assert env.asks() == []
    outcome = env.outcome()
    assert game.moved == ["0"], "the game never hears of it"
    assert outcome.scores == {"player_1": 0.0, "player_2": -1.0}
    assert outcome.facts == {"illegal": 1.0, "moves": 2.0}
    assert not outcome.solved


def test_what_textarena_writes_is_read_as_words() -> None:
    board = "Current Board:\n\n 0 | O | 2 \n---+---+---\n 3 | X | 5 \n\nAvailable Moves: '[0]', '[2]', '[3]', '[5]'"
    squares = READINGS["tic_tac_toe"]
    assert squares.told([board], 0) == ["free", "own", "free", "free", "other", "free"]
    assert squares.told([board], 1) == ["free", "other", "free", "free", "own", "free"]
    assert [word for word in squares.moves if squares.legal([board])(word)] == ["0", "2", "3", "5"]
    nim = READINGS["nim"]
    piles = "Current Pile:\n  pile 0: 1\n  pile 1: 0\n  pile 2: 2"
    assert nim.told(["pile 0: 9", piles], 0) == ["pile", "1", "0", "2"]
    assert [word for word in nim.moves if nim.legal([piles])(word)] == ["0x1", "2x1", "2x2"]
    assert lexed("The target number is higher. [5]") == [
        "the", "target", "number", "is", "higher", ".", "[", "5", "]",
    ]  # fmt: skip
