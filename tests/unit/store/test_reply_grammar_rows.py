"""What replies were held to is kept once in a run, and comes with the rows whose turns name it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flexmarl.contracts.commands import CutMicroBatch
from flexmarl.contracts.reply_grammars import ReplyGrammar, digest_of
from flexmarl.contracts.wire import CutSample, MicroBatchRef, SampleRef
from flexmarl.controlplane.runs import row_files
from flexmarl.store.control import commands, deletions
from flexmarl.store.data import groups, micro_batches
from flexmarl.store.data.spans import Span, step_digits
from flexmarl.store.errors import Refused
from flexmarl.store.reads import recorded, trajectories
from flexmarl.store.reads.trained_rows import trained_rows
from tests.support.store_story import Story
from workers.nodes.carrying_out import _taken_in

pytestmark = pytest.mark.services

BODIES = [
    ReplyGrammar(structured=text, stop=(2, 1), tokenizer="a" * 64).model_dump_json()
    for text in ('{"type":"regex","pattern":"a"}', '{"type":"choice","choices":["ü"]}')
]
FIRST, SECOND = map(digest_of, BODIES)
ALONE = Span(2, 1, "stop", 0.25, "e1", 4.0, 0, FIRST)
FREE = Span(2, 1, "stop")
CHAIN = [
    Span(3, 2, "stop", 0.5, "e1", 10.0, 0, SECOND),
    Span(2, 0, "abort", 0.0, "e1", 1.0, 1),
    ALONE._replace(offset=3),
]


def played(story: Story, draw: int, bodies: list[str] = BODIES, free: Span = FREE) -> None:
    """Settle a group whose members said a held turn, a chain of which two turns were held, and a free turn."""
    taken = story.take(story.play(draw))
    group = story.group(draw, taken)
    refs = [SampleRef(role="solver", turn=turn, tokens=1) for turn in (9, 10)]
    refs += [SampleRef(role="solver", turn=turn, tokens=n, follows=turn) for turn, n in ((0, 2), (1, 0), (3, 1))]
    episodes = tuple(one.model_copy(update={"samples": tuple(refs)}) for one in group.event.episodes)
    rows = [
        groups.SampleRow(draw, member, 1, "solver", turn, "solver", 0, [0, len(said)], read, said, lps, [], spans)
        for member in range(story.members)
        for turn, read, said, lps, spans in (
            (9, [1, 2], [9], [-0.1], [ALONE]),
            (10, [1, 2], [9], [-0.1], [free]),
            (0, [1, 2, 3, 4, 5, 6, 7], [8, 9, 9], [-0.5] * 3, CHAIN),
        )
    ]
    settled = replace(group, event=group.event.model_copy(update={"episodes": episodes}), samples=rows, grammars=bodies)
    groups.put_groups(story.conn, taken, [settled])
    commands.finish(story.conn, taken)


def cut(story: Story, draw: int, no: int, turns: tuple[int, ...] = (0, 9, 10)) -> micro_batches.MicroBatch:
    members = tuple(
        CutSample(draw=draw, member=0, attempt=1, role="solver", turn=turn, advantages=(1.0,) * (1 if turn else 3))
        for turn in turns
    )
    story.issue(CutMicroBatch(ref=MicroBatchRef(policy="solver", no=no), cohort=0, samples=members))
    return micro_batches.read(story.conn, 1, "solver", no)


def test_rows_come_with_the_texts_that_their_turns_name(story: Story) -> None:
    played(story, 0)
    played(story, 1)
    assert story.conn.execute("SELECT digest, body FROM store.reply_grammar ORDER BY digest").fetchall() == sorted(
        zip((FIRST, SECOND), BODIES, strict=True)
    ), "each once, however many groups name it"
    batch = cut(story, 0, 0)
    assert [row.grammars for row in batch.rows] == [[SECOND, "", FIRST], [FIRST], []]
    assert [row.offsets for row in batch.rows] == [[0, 1, 3], [0], []]
    assert batch.grammars == {FIRST: BODIES[0], SECOND: BODIES[1]}
    rows, _, texts = _taken_in(batch)
    assert [row.grammars for row in rows] == [row.grammars for row in batch.rows]
    assert texts == batch.grammars
    free = cut(story, 1, 1, (10,))
    assert (free.rows[0].grammars, free.grammars) == ([], {})
    kept = story.conn.execute("SELECT DISTINCT spans IS NULL FROM store.sample WHERE turn = 10").fetchall()
    assert kept == [(True,)], "a row without a grammar is written as ever"


def test_a_step_map_comes_with_its_row_and_into_its_export(story: Story, tmp_path: Path) -> None:
    played(story, 0, free=Span(2, 1, "length", 0.25, "e1", 4.0, steps=step_digits([17])))
    batch = cut(story, 0, 0)
    rows, _, _ = _taken_in(batch)
    assert [row.steps for row in rows] == [b"", b"", (17).to_bytes(2, "little")]
    told = {one.turn: one for one in trajectories.episode(story.conn, 1, (0, 1, 1)).turns}[10]
    assert (told.finish, told.reward, told.engine, told.latency_ms) == ("length", 0.25, "e1", 4.0)
    story.conn.execute("UPDATE store.micro_batch SET status = 'applied', version = 1")
    row_files.write(tmp_path, trained_rows(story.conn, 1), {})
    lines = [json.loads(line) for line in (tmp_path / "rows-00000.jsonl").read_text().splitlines()]
    assert [line.get("steps") for line in lines] == [None, None, [17]]


def test_people_and_figures_read_such_rows_as_any(story: Story) -> None:
    played(story, 0)
    turns = {one.turn: one for one in trajectories.episode(story.conn, 1, (0, 1, 1)).turns}
    assert (turns[9].arrays.prompt_ids().tolist(), turns[9].arrays.response_ids().tolist()) == ([1, 2], [9])
    assert (turns[9].finish, turns[9].reward, turns[9].engine, turns[9].latency_ms) == ALONE[2:6]
    said = {(turn, prompt, reply) for _, _, _, turn, prompt, reply, _ in recorded.stretch(story.conn, 1, 10).turns}
    assert {(9, 2, 1), (10, 2, 1), (0, 3, 2), (3, 9, 1)} <= said


def test_an_export_has_the_texts_once(story: Story, tmp_path: Path) -> None:
    played(story, 0)
    cut(story, 0, 0)
    story.conn.execute("UPDATE store.micro_batch SET status = 'applied', version = 1")
    row_files.write(tmp_path, trained_rows(story.conn, 1), {})
    assert json.loads((tmp_path / "export.json").read_text())["grammars"] == dict(
        zip((FIRST, SECOND), BODIES, strict=True)
    )
    lines = [json.loads(line) for line in (tmp_path / "rows-00000.jsonl").read_text().splitlines()]
    assert [line.get("grammars") for line in lines] == [[SECOND, "", FIRST], [FIRST], None]


def test_a_row_whose_text_is_gone_is_not_trained(story: Story) -> None:
    played(story, 0, BODIES[:1])
    with pytest.raises(Refused, match=SECOND) as refused:
        cut(story, 0, 0)
    assert refused.value.code == "missing_grammar"


def test_the_texts_leave_with_their_run() -> None:
    assert "reply_grammar" in deletions.BY_RUN
