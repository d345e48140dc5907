"""Rows of a dataset as episodes: their own messages, their own order, scores by part, and rows checked by digest."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from flexmarl.contracts.specification.dataset import DatasetTasks, NamedDataset
from flexmarl.language.dataset_rows import DatasetRow, digest_of, to_line
from flexmarl.language.messages import Message
from tests.conformance.environment_kit import check_family
from workers.rollout import datasets
from workers.rollout.datasets import DatasetMissing
from workers.rollout.environments.base import Reply
from workers.rollout.environments.dataset_questions import DatasetFamily
from workers.rollout.environments.registry import family_of

SYSTEM, QUESTION = Message("system", "Be brief."), Message("user", "What is 3+4?")
EXAMPLE = (Message("user", "What is 1+1?"), Message("assistant", "2"))
HELD_OUT = 4
PAIR = {"type": "sequence", "order": ["solver", "reviser"]}
TWICE = {"type": "sequence", "order": ["solver", "reviser"], "rounds": 2}


def lines(count: int, messages: tuple[Message, ...] = (QUESTION,)) -> list[tuple[bool, bytes]]:
    rows = [DatasetRow(messages, str(number), {"no": number}) for number in range(count)]
    return [(number < HELD_OUT, to_line(row)) for number, row in enumerate(rows)]


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    datasets._kept.clear()


def family(rows: list[tuple[bool, bytes]], **options: Any) -> DatasetFamily:
    made = family_of(DatasetTasks.model_validate({"scores": [{"type": "number"}], **options}))
    assert isinstance(made, DatasetFamily)
    made.lines = datasets.keep(digest_of(rows), rows)
    return made


@pytest.mark.parametrize(
    "options", [{}, {"graph": PAIR}, {"graph": TWICE}, {"scores": ["exact", "length", "format"]}], ids=str
)
def test_it_keeps_the_contract_of_environments(options: dict[str, Any]) -> None:
    made = family(lines(30), **options)
    check_family(made, made.options.facts(), episodes=30)


def test_each_seat_reads_what_the_row_says_and_system_messages_become_one() -> None:
    alone = family(lines(9, (SYSTEM, *EXAMPLE, QUESTION))).make(0, False, random.Random(0))
    assert alone.asks()[0].messages == (SYSTEM, *EXAMPLE, QUESTION)
    pair = family(lines(9, (SYSTEM, *EXAMPLE, QUESTION)), graph=PAIR).make(0, False, random.Random(0))
    told = pair.asks()[0].messages
    assert pair.asks()[0].messages == told, "asking twice changes nothing"
    assert told[0] == Message("system", "Be brief.\n\nYou are the solver of a team of two.")
    assert told[1:] == (*EXAMPLE, QUESTION)
    pair.act([Reply("solver", "7")])
    heard = pair.asks()[0].messages
    assert heard[:3] == (Message("system", "Be brief.\n\nYou are the reviser of a team of two."), *EXAMPLE)
    assert heard[3].content == "What is 3+4? A colleague said: 7"


def test_a_seat_reads_what_the_row_says_once() -> None:
    team = family(lines(9, (SYSTEM, *EXAMPLE, QUESTION)), graph=TWICE).make(0, False, random.Random(0))
    for seat in ("solver", "reviser"):
        team.act([Reply(seat, "7")])
    assert [message.role for message in team.asks()[0].messages] == ["user"]


def test_the_parts_of_the_last_reply_are_facts_and_so_is_the_epoch() -> None:
    rows = lines(14)
    options = {"graph": PAIR, "scores": [{"type": "number"}, {"type": "format", "name": "form", "weight": 3}]}
    made = family(rows, **options)
    for index, epoch in ((3, 0.0), (13, 1.0)):
        episode = made.make(index, False, random.Random(0))
        wanted = episode.describe()["facts"]["answer"]  # type: ignore[index]
        episode.act([Reply("solver", "none")])
        episode.act([Reply("reviser", f"It is {wanted}")])
        outcome = episode.outcome()
        assert outcome.team_score == 0.25
        facts = {"number": 1.0, "form": 0.0, "epoch": epoch, "revised": 0.25, "not_scored": 0.0}
        assert outcome.facts == facts
    evaluated = made.make(2, True, random.Random(0))
    assert evaluated.describe()["facts"]["answer"] == "2"  # type: ignore[index]


@pytest.mark.parametrize(
    ("form", "reply", "answer"),
    [
        ({}, " It is 7. ", "It is 7."),
        ({"answer": "number"}, "3+4 is 7.", "7"),
        ({"answer": "number"}, "I do not know", ""),
        ({"answer": "boxed"}, "So \\boxed{7}", "7"),
        ({"answer": "boxed", "graph": PAIR}, "7", ""),
    ],
    ids=str,
)
def test_the_teams_answer_is_what_the_setting_reads_of_its_last_reply(
    form: dict[str, str], reply: str, answer: str
) -> None:
    episode = family(lines(9), **form).make(0, False, random.Random(0))
    said = [reply, ""] if "graph" in form else [reply]
    for seat, text in zip(("solver", "reviser"), said, strict=False):
        episode.act([Reply(seat, text)])
    assert episode.outcome().answer == answer


def test_training_draws_play_every_row_once_per_epoch_and_never_a_held_out_one() -> None:
    made = family(lines(24))
    played = [made.make(draw, False, random.Random(0)).describe()["facts"]["answer"] for draw in range(40)]  # type: ignore[index]
    for epoch in (played[:20], played[20:]):
        assert sorted(epoch, key=int) == [str(number) for number in range(HELD_OUT, 24)]
    assert played[:20] != played[20:]


def test_rows_that_are_not_those_of_the_digest_are_not_played() -> None:
    rows = lines(9)
    with pytest.raises(DatasetMissing, match="holds 8 rows"):
        datasets.keep(digest_of(rows), rows[:-1])
    with pytest.raises(DatasetMissing, match="were not read"):
        DatasetFamily(DatasetTasks(dataset=NamedDataset(name="x"))).make(0, False, random.Random(0))


def test_a_process_keeps_the_datasets_that_it_read_last() -> None:
    made = [lines(count) for count in range(5, 6 + datasets.KEPT)]
    for rows in made:
        datasets.keep(digest_of(rows), rows)
    assert datasets.kept(digest_of(made[0])) is None
    assert all(datasets.kept(digest_of(rows)) for rows in made[1:])
