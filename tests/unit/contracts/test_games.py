"""Games of other packages in the specification: seats, scores, and what is refused."""

import pytest

from flexmarl.contracts.availability import not_installed
from flexmarl.contracts.games import GAMES
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.environment import PettingZoo, TextArena


@pytest.mark.parametrize(
    ("kind", "game", "role"), [("pettingzoo", "pursuit", "pursuer_0"), ("textarena", "guess_the_number", "player_0")]
)
def test_who_has_no_second_side_cannot_play_against_chance(kind: str, game: str, role: str) -> None:
    environment = {"type": kind, "game": game, "opponent": "random"}
    with pytest.raises(SpecProblems) as refused:
        resolve({"environment": environment, "agents": {role: {}}})
    (problem,) = refused.value.problems
    assert problem.pointer.startswith("/environment")
    assert "opponent: agent fits" in f"{problem.detail} {problem.hint}"


def test_a_random_opponent_has_no_agent() -> None:
    with pytest.raises(SpecProblems) as refused:
        resolve({"agents": {"player_1": {}, "player_2": {}}}, template="tictactoe")
    assert [(p.pointer, p.code) for p in refused.value.problems] == [("/agents/player_2", "unknown_role")]


def test_missing_packages_are_named_with_what_installs_them() -> None:
    (problem,) = not_installed("pettingzoo", lambda module: module != "pygame")
    assert problem.detail == "pettingzoo needs packages that are not installed: pygame."
    assert "flexmarl[environments]" in problem.hint
    assert "pettingzoo" not in problem.hint
    assert not_installed("pettingzoo", lambda module: True) == []
    assert not_installed("kitchen", lambda module: False) == []


def test_the_score_lies_between_the_worst_and_the_best_reward() -> None:
    for game in GAMES.values():
        assert game.score([game.worst]) == 0.0
        assert game.score([game.best, game.best]) == 1.0
        assert game.score([game.worst - 1.0, game.best]) == 0.5


def test_what_one_side_wins_the_other_loses() -> None:
    both, one = (TextArena(game="nim", opponent=who).facts() for who in ("agent", "random"))
    assert (both.random_score, both.optimum, both.best_score) == (0.5, 0.5, 0.5)
    assert (one.random_score, one.optimum, one.best_score) == (0.5, 1.0, 1.0)
    assert [role.name for role in both.roles] == ["player_0", "player_1"]
    assert [role.name for role in one.roles] == ["player_0"]


def test_who_moves_at_once_opens_together() -> None:
    assert [role.opens for role in PettingZoo(game="rps").facts().roles] == [True, True]
    assert [role.opens for role in PettingZoo(game="tictactoe").facts().roles] == [True, False]
