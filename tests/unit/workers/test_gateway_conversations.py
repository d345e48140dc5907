"""Several conversations of one seat in a session: sub-agents, calls at the same time, answers that are followed."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from openai import AsyncOpenAI

from flexmarl.language.messages import Message
from tests.support.gateway_stand import Stand, standing
from workers.rollout.gateway.calls import ProgramCall
from workers.rollout.gateway.histories import MOST_CONVERSATIONS, SeatHistories
from workers.rollout.recorder import chains_of
from workers.rollout.turns import TurnRequest

pytestmark = pytest.mark.services


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        yield made


class Talk:
    """A conversation as a program keeps it."""

    def __init__(self, client: AsyncOpenAI, system: str) -> None:
        self.client = client
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    async def ask(self, text: str, **more: Any) -> Any:
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = await self.client.chat.completions.create(model="solver", messages=messages, **more)
        self.messages = [*messages, answer.choices[0].message.model_dump(exclude_none=True)]
        return answer


def reads_all_that_was_said(asked: list[TurnRequest], turns: list[Any]) -> bool:
    """Tell whether the prompts of a chain each begin with all that came before."""
    before: tuple[int, ...] = ()
    for turn in turns:
        if asked[turn.turn].prompt[: len(before)] != before:
            return False
        before = (*asked[turn.turn].prompt, *turn.reply.choice.token_ids)
    return True


async def test_a_sub_agent_has_a_chain_of_its_own_and_the_main_one_goes_on(stand: Stand) -> None:
    client = await stand.begin()
    main, helper = Talk(client, "You plan."), Talk(client, "You search.")
    for talk in (main, helper, main, main, helper, main):
        await talk.ask("And now?")
    attempt = await stand.finished(reward=1)
    rows = [[turn.turn for turn in turns] for turns in chains_of(attempt.turns)]
    assert rows == [[0, 2, 3, 5], [1, 4]]
    assert all(reads_all_that_was_said(stand.engine.asked, turns) for turns in chains_of(attempt.turns))
    assert attempt.breaks == {"other_history": [("solver", 1)]}, "counted once, where it begins"


async def test_calls_of_a_seat_at_the_same_time_are_answered_together(stand: Stand) -> None:
    client = await stand.begin()
    main = Talk(client, "You plan.")
    stand.engine.free.clear()
    planning = asyncio.create_task(main.ask("Plan."))
    while not stand.engine.asked:
        await asyncio.sleep(0.02)
    helpers = [Talk(client, f"You search {no}.") for no in range(3)]
    searching = [asyncio.create_task(helper.ask("Find it.")) for helper in helpers]
    await asyncio.sleep(0.3)
    stand.engine.free.set()
    await planning
    stand.engine.free.clear()
    while len(stand.engine.asked) < 4:
        await asyncio.sleep(0.02)
    assert not any(one.done() for one in searching), "all three are asked before one is answered"
    stand.engine.free.set()
    await asyncio.gather(*searching)
    await asyncio.gather(*(helper.ask("Sure?") for helper in helpers), main.ask("Done?"))
    attempt = await stand.finished(reward=1)
    assert sorted(len(turns) for turns in chains_of(attempt.turns)) == [2, 2, 2, 2]
    assert sorted(turn.turn for turn in attempt.turns) == list(range(8))
    assert len({request.seed for request in stand.engine.asked}) == 8, "no two calls draw the same"
    assert all(reads_all_that_was_said(stand.engine.asked, turns) for turns in chains_of(attempt.turns))


async def test_the_same_question_at_the_same_time_is_sampled_each_time(stand: Stand) -> None:
    client = await stand.begin()
    talks = [Talk(client, "You add.") for _ in range(4)]
    answers = await asyncio.gather(*(talk.ask("2+3?") for talk in talks))
    assert len({answer.id for answer in answers}) == 4
    await talks[2].ask("Sure?")
    attempt = await stand.finished(reward=1)
    assert sorted(len(turns) for turns in chains_of(attempt.turns)) == [1, 1, 1, 2]


async def test_a_lost_answer_is_given_again_though_others_came_between(stand: Stand) -> None:
    client = await stand.begin()
    main, helper = Talk(client, "You plan."), Talk(client, "You search.")
    first = await main.ask("Plan.")
    await helper.ask("Find it.")
    main.messages = main.messages[:1]
    again = await main.ask("Plan.", extra_headers={"X-Stainless-Retry-Count": "1"})
    assert again == first
    attempt = await stand.finished(reward=1)
    assert len(attempt.turns) == 2


async def test_a_response_is_followed_though_its_seat_answered_others_since(stand: Stand) -> None:
    client = await stand.begin()
    respond = client.responses.create
    main = await respond(model="solver", input="Plan.", instructions="You plan.")
    helper = await respond(model="solver", input="Find it.")
    more = await respond(model="solver", input="Sure?", instructions="You plan.", previous_response_id=main.id)
    await respond(model="solver", input="And where?", previous_response_id=helper.id)
    await respond(model="solver", input="Done?", instructions="You plan.", previous_response_id=more.id)
    attempt = await stand.finished(reward=1)
    assert [[turn.turn for turn in turns] for turns in chains_of(attempt.turns)] == [[0, 2, 4], [1, 3]]


async def test_the_conversation_that_rested_longest_makes_room(stand: Stand) -> None:
    client = await stand.begin(max_calls=100)
    talks = [Talk(client, f"You search {no}.") for no in range(MOST_CONVERSATIONS + 1)]
    for talk in talks:
        await talk.ask("Find it.")
    await talks[1].ask("Sure?")
    await talks[0].ask("Sure?")
    attempt = await stand.finished(reward=1)
    length = defaultdict(int)
    for turns in chains_of(attempt.turns):
        length[len(turns)] += 1
    assert length == {1: MOST_CONVERSATIONS + 1, 2: 1}, "the first was forgotten, the second was not"
    assert all(reads_all_that_was_said(stand.engine.asked, turns) for turns in chains_of(attempt.turns))


async def test_a_call_beyond_the_most_waits_until_another_one_is_answered() -> None:
    def call(no: int) -> ProgramCall:
        return ProgramCall("solver", (Message("user", str(no)),))

    histories = SeatHistories()
    places = [histories.begin(call(no).messages) for no in range(MOST_CONVERSATIONS)]
    assert sorted(place.conversation for place in places if place) == list(range(MOST_CONVERSATIONS))
    assert histories.begin(call(99).messages) is None
    histories.answered(3, call(3), Message("assistant", "three"))
    place = histories.begin(call(99).messages)
    assert place is not None
    assert (place.conversation, place.new) == (3, None)
