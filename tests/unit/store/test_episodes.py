"""Lists of episodes: every order and filter against a plain sort, both ways, and read by an index of one partition."""

import itertools
import random

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EVALUATION_DRAWS, EpisodeStatus, Origin
from flexmarl.store.control import runs
from flexmarl.store.data.groups import EpisodeRow, _insert_episodes
from flexmarl.store.reads import episodes
from flexmarl.store.reads.episodes import EpisodeFilter, Ordering

pytestmark = pytest.mark.services
RUN, OTHER = 1, 1500


def row(rng, draw, member):
    failed = rng.random() < 0.1
    evaluation = draw >= EVALUATION_DRAWS
    score = 0.0 if failed else rng.choice((0.0, 0.1, 0.25, 0.7, 1.0))
    began = 1e9 + rng.randrange(100)
    return EpisodeRow(
        draw, member, 1, Origin.EVAL if evaluation else Origin.TRAIN,
        EpisodeStatus.FAILED if failed else EpisodeStatus.FINISHED, "",
        {} if failed else {"solver": score, "critic": 1 - score}, score, score == 1.0, rng.randrange(1, 5),
        rng.randrange(10, 14), {"solver": draw % 3}, {"title": f"tank {draw % 4} litres-{member}, \"quoted\" it's"},
        [["solver", 0], ["critic", 0]], began, began + rng.choice((0.3, 1.7, 2.1)), draw % EVALUATION_DRAWS // 4,
        said=[f"It's {draw}+1.Then\nÉtude_{member}\0 \u4f60\u597d", "I accept it"],
        breaks={"shortened": [("solver", 1)]} if draw % 3 == 0 else {},
    )  # fmt: skip


@pytest.fixture
def rows(store_conn):
    """Two runs, of which one is looked at: 24 groups and an evaluation of two members each."""
    rng = random.Random(5)
    for run in (RUN, OTHER):
        runs.create_run(store_conn, run, {}, RunStatus.RUNNING)
        made = [row(rng, draw, m) for draw in [*range(24), EVALUATION_DRAWS, EVALUATION_DRAWS + 1] for m in (0, 1)]
        _insert_episodes(store_conn, run, made)
        if run == RUN:
            kept = made
    return kept


def key(one):
    return (one.draw, one.member, one.attempt)


def seconds(one):
    return round(one.finished_at - one.started_at, 2)


MATCHES = {
    "all": (EpisodeFilter(), lambda e: True),
    "evaluation": (EpisodeFilter(origin=Origin.EVAL), lambda e: True),
    "cohort": (EpisodeFilter(cohort=2), lambda e: e.cohort == 2),
    "draw": (EpisodeFilter(draw=7), lambda e: e.draw == 7),
    "failed": (EpisodeFilter(status=EpisodeStatus.FAILED), lambda e: e.status is EpisodeStatus.FAILED),
    "unsolved": (EpisodeFilter(solved=False), lambda e: not e.solved),
    "score": (EpisodeFilter(score=(0.1, 0.7)), lambda e: 0.1 <= e.team_score <= 0.7),
    "turns": (EpisodeFilter(turns=(None, 2)), lambda e: e.turns <= 2),
    "tokens": (EpisodeFilter(tokens=(12, None)), lambda e: e.tokens >= 12),
    "seconds": (EpisodeFilter(seconds=(1.7, 1.7)), lambda e: seconds(e) == 1.7),
    "agent": (EpisodeFilter(role="critic", role_score=(0.3, None)), lambda e: e.scores.get("critic", -1) >= 0.3),
    "version": (EpisodeFilter(pins={"solver": 2}), lambda e: e.pins == {"solver": 2}),
    "words": (EpisodeFilter(text="Tank 3 lit"), lambda e: e.draw % 4 == 3),
    "odd_words": (EpisodeFilter(text="'); --& | it's"), lambda e: True),
    "said": (EpisodeFilter(said="it's 7 then Étu"), lambda e: e.draw == 7),
    "said_over_turns": (EpisodeFilter(said="étude ACC"), lambda e: True),
    "said_by": (EpisodeFilter(said="1 the", speaker="solver"), lambda e: True),
    "said_by_another": (EpisodeFilter(said="1 the", speaker="critic"), lambda e: False),
    "said_in_one_turn": (EpisodeFilter(said="then accept", speaker="solver"), lambda e: False),
    "said_in_signs": (EpisodeFilter(said="\u4f60\u597d"), lambda e: True),
    "said_letter": (EpisodeFilter(said="É"), lambda e: True),
    "said_letters": (EpisodeFilter(said="i q"), lambda e: False),
    "said_blanks": (EpisodeFilter(said=" -+ "), lambda e: True),
    "broken": (EpisodeFilter(broken="any"), lambda e: e.draw % 3 == 0),
    "broken_so": (EpisodeFilter(broken="shortened"), lambda e: e.draw % 3 == 0),
    "broken_otherwise": (EpisodeFilter(broken="other_end"), lambda e: False),
    "keys": (EpisodeFilter(keys=[(3, 0, 1), (5, 1, 1)]), lambda e: key(e) in {(3, 0, 1), (5, 1, 1)}),
    "no_keys": (EpisodeFilter(keys=[]), lambda e: False),
}
OWN = {
    "draw": lambda e: (),
    "score": lambda e: (e.team_score,),
    "tokens": lambda e: (e.tokens,),
    "seconds": lambda e: (seconds(e),),
}


@pytest.mark.parametrize("name", MATCHES)
def test_pages_are_the_sorted_matches_cut_up(store_conn, rows, name):
    wanted, matches = MATCHES[name]
    for by, descending in itertools.product(OWN, (True, False)):
        ordering = Ordering(by, descending)
        expected = sorted(
            (key(e) for e in rows if e.origin is wanted.origin and matches(e)),
            key=lambda k: next((*OWN[by](e), *key(e)) for e in rows if key(e) == k),
            reverse=descending,
        )
        pages, position = [], None
        while True:
            page = episodes.page(store_conn, RUN, wanted, ordering, limit=7, position=position)
            pages.append(page)
            if page.behind is None:
                break
            position = page.behind
        assert [r.key for page in pages for r in page.rows] == expected
        backwards, place = list(pages[-1].rows), pages[-1].before
        while place is not None:
            page = episodes.page(store_conn, RUN, wanted, ordering, limit=7, position=place, back=True)
            backwards = [*page.rows, *backwards]
            place = page.before
        assert [r.key for r in backwards] == expected


def test_a_search_for_a_role_says_where_it_stopped(store_conn, rows, monkeypatch):
    monkeypatch.setattr(episodes, "WINDOW", 10)
    wanted = EpisodeFilter(role="solver", role_score=(2.0, None))
    first = episodes.page(store_conn, RUN, wanted, limit=5)
    assert first.rows == []
    assert first.behind == (19, 0, 1), "ten episodes were examined, the newest first"
    seen, position = 1, first.behind
    while position is not None:
        position = episodes.page(store_conn, RUN, wanted, limit=5, position=position).behind
        seen += 1
    assert seen == 5, "48 episodes, ten at a time"
    assert not episodes.looks_at_all(store_conn, RUN, wanted)
    assert episodes.looks_at_all(store_conn, RUN, EpisodeFilter(score=(2.0, None)))
    monkeypatch.setattr(episodes, "WINDOW", 50)
    assert episodes.looks_at_all(store_conn, RUN, wanted)


def test_tallies_count_the_newest_matching(store_conn, rows):
    found = episodes.tallies(store_conn, RUN, EpisodeFilter())
    assert sum(one.count for one in found) == 48
    for one in found:
        same = [e for e in rows if e.origin is Origin.TRAIN and (e.status.value, e.solved) == (one.status, one.solved)]
        assert one.count == sum(abs(e.team_score - one.score) < 1e-6 for e in same)
    newest = episodes.tallies(store_conn, RUN, EpisodeFilter(), bound=6)
    assert sum(one.count for one in newest) == 6


INDEXES = {
    "newest": (EpisodeFilter(score=(0.9, None)), Ordering(), "Index Only Scan Backward using episode_block_0_pkey"),
    "by_score": (EpisodeFilter(solved=True), Ordering("score"), "using episode_block_0_run_id_team_score"),
    "by_tokens": (EpisodeFilter(turns=(2, None)), Ordering("tokens", False), "using episode_block_0_run_id_tokens"),
    "by_seconds": (EpisodeFilter(), Ordering("seconds"), "using episode_block_0_run_id_seconds"),
    "version": (EpisodeFilter(pins={"solver": 77}), Ordering(), "episode_block_0_pins_idx"),
    "failed": (
        EpisodeFilter(status=EpisodeStatus.CANCELLED),
        Ordering(),
        "episode_block_0_run_id_draw_member_attempt_idx",
    ),
    "words": (EpisodeFilter(text="rare"), Ordering(), "episode_block_0_to_tsvector_idx"),
}


@pytest.fixture
def many(store_conn):
    """Enough rows that a plan matters."""
    for run in (RUN, OTHER):
        runs.create_run(store_conn, run, {}, RunStatus.RUNNING)
    rng = random.Random(6)
    for first in range(0, 3000, 500):
        _insert_episodes(store_conn, RUN, [row(rng, draw, m) for draw in range(first, first + 500) for m in range(4)])
    store_conn.execute("VACUUM (ANALYZE) store.episode_block_0")
    return store_conn


@pytest.mark.parametrize("name", INDEXES)
def test_a_page_is_cut_from_one_index_of_one_partition(many, name):
    wanted, ordering, index = INDEXES[name]
    position = {"draw": (2000, 0, 1), "score": (0.7, 900, 0, 1), "tokens": (12, 900, 0, 1), "seconds": (1.7, 9, 0, 1)}
    source = episodes._ordered(RUN, wanted, ordering, position[ordering.by])
    statement = episodes._narrowed(source, wanted, 50)
    plan = "\n".join(r[0] for r in many.execute("EXPLAIN " + statement.as_string(many)).fetchall())
    assert index in plan, plan
    assert "Seq Scan" not in plan
    assert "episode_block_1" not in plan, "the other run's partition was read"
