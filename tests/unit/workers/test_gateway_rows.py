"""A session trained by conversations or by calls: the same loss, from one row or as many as there are calls."""

from collections.abc import AsyncIterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import psycopg
import pytest
from openai import AsyncOpenAI

from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW
from tests.support.gateway_stand import WORDS, Stand, standing
from tests.unit.workers.test_train_equality import SOURCE, relative
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.rollout.episode import EpisodeAttempt
from workers.rollout.recorder import chains_of
from workers.rollout.turns import Turn
from workers.training.learner import Learner, Objective
from workers.training.wire import TrainRow

pytestmark = pytest.mark.services
CALLS = 20


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        yield made


async def going_on(client: AsyncOpenAI, calls: int) -> None:
    """Ask again and again, each time with all that was said before."""
    messages: list[Any] = [{"role": "system", "content": "You count."}]
    for number in range(calls):
        messages.append({"role": "user", "content": f"And behind {number}?"})
        answer = await client.chat.completions.create(model="solver", messages=messages)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))


def row_of(turns: Sequence[Turn], advantage: float) -> TrainRow:
    """Return the row that is trained of turns of one chain."""
    said = [turn.reply.choice.token_ids for turn in turns]
    ends = [0, *(len(turn.prompt) + len(ids) for turn, ids in zip(turns, said, strict=True))]
    read = [turn.prompt[end:] for turn, end in zip(turns, ends, strict=False)]
    return TrainRow(
        prompt=np.array(list(chain(*read)), "<i4").tobytes(),
        response=np.array(list(chain(*said)), "<i4").tobytes(),
        logprobs=np.array(list(chain(*(turn.reply.choice.logprobs for turn in turns))), "<f4").tobytes(),
        allowed=b"",
        temperature=1.0,
        advantages=[advantage] * len(turns),
        weight=1.0,
        spans=list(chain(*((len(a), len(b)) for a, b in zip(read, said, strict=True)))),
    )


def rows_of(attempt: EpisodeAttempt) -> list[TrainRow]:
    return [row_of(turns, 0.5) for turns in chains_of(attempt.turns)]


async def test_a_session_of_twenty_calls_is_one_row_or_twenty_of_the_same_loss(stand: Stand) -> None:
    found = {}
    for key, kind in (("a", "conversation"), ("b", "call")):
        stand.key = "fms_" + key * 43
        await going_on(await stand.begin(rows=kind), CALLS)
        attempt = await stand.finished(reward=1)
        found[kind] = attempt
        stand.engine.asked.clear()
    whole, by_call = (rows_of(found[kind]) for kind in ("conversation", "call"))
    assert (len(whole), len(by_call)) == (1, CALLS)
    assert found["call"].breaks == {"each_call": [("solver", turn) for turn in range(1, CALLS)]}
    assert found["conversation"].breaks == {}
    read = [sum(len(row.prompt) + len(row.response) for row in rows) // 4 for rows in (whole, by_call)]
    print(f"{CALLS} calls: {len(whole)} row of {read[0]} tokens, or {len(by_call)} rows of {read[1]}")

    vocabulary, objective = WORDS.get_vocab_size(), Objective.of(LOSS.options(), AlgorithmSpec())
    learner = Learner(
        initial_weights(SOURCE, vocabulary, seed=4), architecture_of(SOURCE), objective, AdamW(), "fp64", epoch="0:a"
    )
    first, said = learner.gradient(whole, 0.1, objective)
    first = first.clone()
    second, said_by_call = learner.gradient(by_call, 0.1, objective)
    assert relative(second, first) < 1e-6
    assert said_by_call.loss_sum == pytest.approx(said.loss_sum, abs=1e-6)
    assert said_by_call.tokens == said.tokens == sum(len(turn.reply.choice.token_ids) for turn in found["call"].turns)


async def test_calls_by_themselves_read_what_the_program_sent(stand: Stand) -> None:
    """What it changed in a reply is read as it sent it; what it began anew is told apart from what it went on with."""
    client = await stand.begin(rows="call")
    user = {"role": "user", "content": "2+3?"}
    answer = await client.chat.completions.create(model="solver", messages=[user])
    said = answer.choices[0].message.model_dump(exclude_none=True)
    await client.chat.completions.create(model="solver", messages=[user, said, user])
    changed = [user, {**said, "content": "7"}, user]
    last = await client.responses.create(model="solver", input=changed)
    await client.responses.create(model="reviser", input="Sum up.", previous_response_id=last.id)
    attempt = await stand.finished(reward=1)
    assert attempt.breaks == {"each_call": [("solver", 1)], "other_history": [("solver", 2)]}
    texts = [WORDS.decode(list(turn.prompt), skip_special_tokens=False) for turn in attempt.turns]
    assert ["7" in text for text in texts] == [False, False, True, True]
    assert "answer 3" in texts[3]
    assert [turn.begins for turn in attempt.turns] == [0, 1, 2, 0]
