"""Rows of several turns: stored once, read as a row by trainers and turn by turn by people."""

import pytest

from flexmarl.contracts.commands import CutMicroBatch
from flexmarl.contracts.wire import CutSample, MicroBatchRef, SampleRef
from flexmarl.store.control import commands
from flexmarl.store.data import groups, micro_batches
from flexmarl.store.data.spans import Span
from flexmarl.store.reads import advisor_inputs, recorded, timings, trajectories
from flexmarl.store.reads.report import full_report
from tests.support.store_story import Story

pytestmark = pytest.mark.services

SPANS = [
    Span(3, 2, "stop", 0.5, "e1", 10.0),
    Span(2, 0, "abort", 0.0, "e1", 1.0, 1),
    Span(1, 3, "length", -1.0, "e2", 20.0, 3),
]
PROMPT, RESPONSE = [1, 2, 3, 11, 12, 21], [5, 6, 7, 8, 9]
LOGPROBS = [-0.5, -0.25, -1.0, -2.0, -4.0]
READ = [[1, 2, 3], [1, 2, 3, 5, 6, 11, 12], [1, 2, 3, 5, 6, 11, 12, 21]]
SAID = [[5, 6], [], [7, 8, 9]]
TURNS = {0: 2, 1: 0, 3: 3}
"""Number of a turn -> tokens; turn 2 belongs to another chain."""


def talked(story: Story, draw: int = 0) -> None:
    """Settle a group whose members each talked in a chain of three turns, and in another before its last one."""
    taken = story.take(story.play(draw))
    group = story.group(draw, taken)
    refs = tuple(
        SampleRef(role="solver", turn=turn, tokens=tokens, follows=turn, segments=()) for turn, tokens in TURNS.items()
    )
    refs = (*refs, SampleRef(role="solver", turn=2, tokens=1))
    episodes = tuple(one.model_copy(update={"samples": refs}) for one in group.event.episodes)
    rows = [
        row
        for member in range(story.members)
        for row in (
            groups.SampleRow(
                draw, member, 1, "solver", 0, "solver", 0, [0, 3, 1, 2], PROMPT, RESPONSE, LOGPROBS, [4, 5, 6], SPANS
            ),
            groups.SampleRow(
                draw, member, 1, "solver", 2, "solver", 1, [1, 1], [1, 2], [9], [-0.1], [], [Span(2, 1, "stop")]
            ),
        )
    ]
    settled = groups.SettledGroup(group.event.model_copy(update={"episodes": episodes}), group.episodes, rows)
    groups.put_groups(story.conn, taken, [settled])
    commands.finish(story.conn, taken)


def cut(story: Story, draw: int = 0) -> None:
    members = tuple(
        CutSample(draw=draw, member=member, attempt=1, role="solver", turn=turn, advantages=advantages)
        for member in (1, 0)
        for turn, advantages in ((2, (9.0 + member,)), (0, (1.0 + member, 2.0, 3.0)))
    )
    story.issue(CutMicroBatch(ref=MicroBatchRef(policy="solver", no=0), cohort=0, samples=members))


def test_a_micro_batch_reads_chains_with_the_advantages_of_their_turns(story: Story) -> None:
    talked(story)
    cut(story)
    rows = micro_batches.read(story.conn, 1, "solver", 0).rows
    assert [(row.member, row.turn, row.advantages) for row in rows] == [
        (1, 2, [10.0]), (1, 0, [2.0, 2.0, 3.0]), (0, 2, [9.0]), (0, 0, [1.0, 2.0, 3.0]),
    ]  # fmt: skip
    assert [row.spans for row in rows[:2]] == [[2, 1], [3, 2, 2, 0, 1, 3]]
    assert [row.offsets for row in rows[:2]] == [[], [0, 1, 3]]
    assert rows[1].arrays.prompt_ids().tolist() == PROMPT
    assert rows[1].arrays.response_ids().tolist() == RESPONSE
    assert rows[1].arrays.response_logprobs().tolist() == LOGPROBS
    assert rows[1].segments == [0, 3, 1, 2]


def test_people_read_turns(story: Story) -> None:
    talked(story)
    cut(story)
    turns = trajectories.episode(story.conn, 1, (0, 1, 1)).turns
    turns = sorted(turns, key=lambda one: (one.chain, one.turn))
    assert [one.arrays.prompt_ids().tolist() for one in turns] == [*READ, [1, 2]]
    assert [one.arrays.response_ids().tolist() for one in turns] == [*SAID, [9]]
    assert [one.arrays.response_logprobs().tolist() for one in turns][:3] == [LOGPROBS[:2], [], LOGPROBS[2:]]
    assert [one.arrays.allowed_ids().tolist() for one in turns] == [[4, 5, 6]] * 3 + [[]]
    assert [(one.turn, one.chain, one.cut.advantage) for one in turns] == [
        (0, 0, 2.0), (1, 0, 2.0), (3, 0, 3.0), (2, 2, 10.0),
    ]  # fmt: skip
    assert [(one.finish, one.reward, one.engine, one.latency_ms) for one in turns][:3] == [one[2:6] for one in SPANS]
    assert [(one.version, one.segments) for one in turns] == [
        (0, [0, 2]), (0, []), (0, [0, 1, 1, 2]), (1, [1, 1]),
    ]  # fmt: skip


def test_what_counts_turns_reads_each(story: Story) -> None:
    talked(story)
    lengths = {(3, 2), (7, 0), (8, 3), (2, 1)}
    turns = recorded.stretch(story.conn, 1, 10).turns
    assert {(prompt, reply) for _, _, _, _, prompt, reply, _ in turns} == lengths
    assert sorted({turn for _, _, _, turn, *_ in turns}) == [0, 1, 2, 3]
    (role,) = timings._roles(story.conn, 1, None)
    assert (role.prompt, role.reply) == (5.0, 1.5)
    (moment,) = advisor_inputs.moments(story.conn, [1], [])
    assert moment.samples == {"solver": (2, 8)}


def test_the_books_count_rows(story: Story) -> None:
    talked(story)
    story.settle(1)
    cut(story)
    report = full_report(story.conn, 1)
    rows = {check.name: (check.expected, check.found) for check in report.checks}
    assert rows["sample_rows_match_log"] == (6, 6)
    assert (report.counts.samples, report.counts.tokens) == (6, 2 * 6 + 2 * 3)
    story.conn.execute("UPDATE store.micro_batch SET status = 'applied', version = 1")
    report = full_report(story.conn, 1)
    rows = {check.name: (check.expected, check.found) for check in report.checks}
    assert rows["none_trained_twice"] == rows["trained_samples_exist"] == (4, 4)
    assert report.counts.samples_trained == 4
