"""A trajectory in the order in which it was played: a turn that goes on elsewhere than its seat's last turn says so."""

from typing import Any

from webui.views.trajectory_viewer import conversation


def turn(role: str, number: int, chain: int) -> dict[str, Any]:
    return {"role": role, "turn": number, "chain": chain}


def goes_on(*turns: dict[str, Any]) -> list[int | None]:
    by_key = {(one["role"], one["turn"]): one for one in turns}
    entries = conversation([[one["role"], one["turn"]] for one in turns], by_key)
    return [entry["goes_on"] for entry in entries]


def test_turns_of_one_chain_and_of_other_seats_say_nothing() -> None:
    assert goes_on(turn("a", 0, 0), turn("b", 0, 0), turn("a", 1, 0), turn("b", 1, 0)) == [None] * 4


def test_a_main_conversation_goes_on_behind_a_sub_agents() -> None:
    turns = (turn("a", 0, 0), turn("a", 1, 1), turn("a", 2, 1), turn("a", 3, 0), turn("a", 4, 0), turn("a", 5, 1))
    assert goes_on(*turns) == [None, None, None, 1, None, 3]


def test_a_chain_that_broke_begins_anew() -> None:
    assert goes_on(turn("a", 0, 0), turn("a", 1, 1), turn("a", 2, 1)) == [None, None, None]
