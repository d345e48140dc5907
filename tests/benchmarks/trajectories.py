"""Server time of pages of a run with a million episodes: first, middle and last page, in every order, under filters.

One partition of the embedded PostgreSQL is filled by the server itself; scores rise with the draw, as they do when a
team learns, so that filters by score match far from where an order begins. A second run has replies of words that are
as frequent as in a language, written as rollout workers write them, and is searched by words that all, some, one or
none of its episodes say. Each figure is the time of the store's own
function as the web process calls it, on one warm connection. The cost of the indexes is the paired ratio of writing
settled groups with all of them and with the primary key alone, that of the text the ratio with it and without.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import psycopg
from harness import Report, interleave, paired_ratios, start

from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.store import schema
from flexmarl.store.control import runs
from flexmarl.store.data.groups import EpisodeRow, _insert_episodes
from flexmarl.store.reads import episodes
from flexmarl.store.reads.episodes import EpisodeFilter, Ordering

RUN, OTHER, SPOKEN, MEMBERS = 1, 2, 31, 8

SECONDARY = (
    "episode_by_score",
    "episode_by_tokens",
    "episode_by_seconds",
    "episode_unfinished",
    "episode_broken",
    "episode_title",
    "episode_pins",
)

FILL = """
INSERT INTO store.episode (run_id, draw, member, attempt, origin, status, reason, cohort, scores, team_score, solved,
  turns, tokens, pins, task, transcript, started_at, finished_at)
SELECT %(run)s, draw, member, 1, CASE WHEN draw < 1 << 30 THEN 'train' ELSE 'eval' END,
  CASE WHEN r < 0.0005 THEN 'failed' ELSE 'finished' END, '', cohort,
  jsonb_build_object('planner', score, 'solver', least(1, score * 1.1), 'verifier', score * 0.9), score, score >= 0.8,
  3 + (r * 5)::int, 200 + (r2 * 900)::int,
  jsonb_build_object('planner', cohort, 'solver', cohort, 'verifier', cohort),
  jsonb_build_object('title', format('A tank of %%s litres is filled by %%s pipes in %%s hours', draw %% 997,
    draw %% 7 + 2, draw %% 31), 'facts', jsonb_build_object('answer', draw %% 31)),
  '[["planner", 0], ["solver", 0], ["verifier", 0]]', at, at + (2 + 20 * r2) * interval '1 second'
FROM (
  SELECT draw, member, draw %% (1 << 30) / 16 AS cohort, r, random() AS r2,
    round(least(1, greatest(0, 0.9 * (draw %% (1 << 30))::float8 / %(draws)s + (r - 0.5) * 0.3))::numeric, 3)::float8
      AS score,
    now() - interval '30 days' + (draw %% (1 << 30)) * interval '20 seconds' AS at
  FROM (
    SELECT CASE WHEN n < %(draws)s THEN n ELSE (1 << 30) + n - %(draws)s END AS draw, member, random() AS r
    FROM generate_series(0, %(draws)s + %(draws)s / 50 - 1) AS n, generate_series(0, %(members)s - 1) AS member
  ) drawn
) scored
"""


def main() -> None:
    """Fill a run, time its pages and the writing of groups."""
    report = start("trajectories", __doc__ or "", _options)
    rows = 20_000 if report.quick else int(str(report.settings["rows"]))
    repeats = 5 if report.quick else int(str(report.settings["repeats"]))
    with tempfile.TemporaryDirectory(prefix="flexmarl-trajectories-") as folder:
        server = EmbeddedPostgres(Home(Path(folder)), settings={"fsync": "off", "shared_buffers": "256MB"})
        server.start()
        try:
            with psycopg.connect(server.url, autocommit=True) as conn:
                schema.apply(conn)
                _fill(conn, report, rows)
                _time_pages(conn, report, rows // MEMBERS, repeats)
                _time_search(conn, report, 4_000 if report.quick else int(str(report.settings["said"])), repeats)
                _time_writes(server, report, repeats)
        finally:
            server.stop()
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help="training episodes of the run")
    parser.add_argument("--said", type=int, default=100_000, help="episodes of the run whose replies are searched")
    parser.add_argument("--repeats", type=int, default=40, help="timings per page")


def _fill(conn: psycopg.Connection, report: Report, rows: int) -> None:
    for run in (RUN, OTHER, SPOKEN):
        runs.create_run(conn, run, {}, RunStatus.RUNNING)
    begun = time.perf_counter()
    conn.execute(FILL, {"run": RUN, "draws": rows // MEMBERS, "members": MEMBERS})
    conn.execute("VACUUM (ANALYZE) store.episode")
    report.figures["fill_s"] = time.perf_counter() - begun
    for figure, size in (("heap_mb", "pg_table_size"), ("indexes_mb", "pg_indexes_size")):
        leaves = "SELECT relid FROM pg_partition_tree('store.episode') WHERE isleaf"
        row = conn.execute(f"SELECT sum({size}(relid))::float8 FROM ({leaves}) t").fetchone()  # type: ignore[arg-type]
        assert row is not None
        report.figures[figure] = row[0] / 1e6


def _questions(draws: int) -> dict[str, tuple[EpisodeFilter, Ordering]]:
    newest = Ordering()
    old = {"planner": draws // 16 // 3}
    return {
        "newest": (EpisodeFilter(), newest),
        "evaluation": (EpisodeFilter(origin=Origin.EVAL), newest),
        "step": (EpisodeFilter(cohort=draws // 32), newest),
        "solved": (EpisodeFilter(solved=True), newest),
        "unsolved_far": (EpisodeFilter(solved=False, score=(None, 0.05)), newest),
        "nothing_matches": (EpisodeFilter(score=(2.0, None)), newest),
        "failed": (EpisodeFilter(status=EpisodeStatus.FAILED), newest),
        "turns_tokens": (EpisodeFilter(turns=(7, None), tokens=(None, 300)), newest),
        "by_score": (EpisodeFilter(), Ordering("score")),
        "by_score_unsolved": (EpisodeFilter(solved=False), Ordering("score")),
        "by_tokens": (EpisodeFilter(), Ordering("tokens")),
        "by_seconds_solved": (EpisodeFilter(solved=True), Ordering("seconds")),
        "agent_score": (EpisodeFilter(role="solver", role_score=(0.99, None)), newest),
        "agent_score_nothing": (EpisodeFilter(role="solver", role_score=(3.0, None)), newest),
        "version": (EpisodeFilter(pins=old), newest),
        "rare_words": (EpisodeFilter(text="tank of 413 litres"), newest),
        "common_words": (EpisodeFilter(text="tank fill"), newest),
    }


def _time_pages(conn: psycopg.Connection, report: Report, draws: int, repeats: int) -> None:
    slowest = 0.0
    for name, (wanted, ordering) in _questions(draws).items():
        places = {"": None}
        if name in ("newest", "by_score", "by_tokens"):
            places |= _places(conn, ordering)
        for place, position in places.items():
            key = f"{name}_{place}" if place else name

            def ask(wanted=wanted, ordering=ordering, position=position) -> object:  # type: ignore[no-untyped-def]
                return episodes.page(conn, RUN, wanted, ordering, limit=50, position=position)

            slowest = max(slowest, _record(report, f"page_{key}", ask, repeats))
        slowest = max(slowest, _record(report, f"facets_{name}", lambda w=wanted: episodes.tallies(conn, RUN, w), 10))
    report.figures["slowest_p95_ms"] = slowest


def _time_search(conn: psycopg.Connection, report: Report, rows: int, repeats: int) -> None:
    """Write replies of 150 words each episode, then search them; each figure is the list and its facets together."""
    words = Words()
    begun = time.perf_counter()
    for first in range(0, rows // MEMBERS, 32):
        _insert_episodes(conn, SPOKEN, [row for i in range(32) for row in _group(first + i, words.replies())])
    report.figures["said_fill_s"] = time.perf_counter() - begun
    conn.execute("VACUUM (ANALYZE) store.episode")
    questions = {
        "all": EpisodeFilter(said=words.known[0]),
        "some": EpisodeFilter(said=f"{words.known[200]} {words.known[2000]}"),
        "by_one": EpisodeFilter(said=words.known[2000], speaker="solver"),
        "rare": EpisodeFilter(said="zanzibar zyzzyva"),
        "none": EpisodeFilter(said="antidisestablishmentarianism"),
        "none_short": EpisodeFilter(said="qj"),
    }
    slowest = 0.0
    for name, wanted in questions.items():

        def ask(wanted=wanted) -> object:  # type: ignore[no-untyped-def]
            found = episodes.page(conn, SPOKEN, wanted, limit=40)
            return found, episodes.tallies(conn, SPOKEN, wanted), episodes.looks_at_all(conn, SPOKEN, wanted)

        slowest = max(slowest, _record(report, f"said_{name}", ask, min(repeats, 10)))
    report.figures["slowest_search_p95_ms"] = slowest


class Words:
    """Words as frequent as in a language: the n-th one in n occurs."""

    def __init__(self) -> None:
        self._chances = random.Random(1)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self.known = ["".join(self._chances.choices(letters, k=self._chances.randrange(3, 10))) for _ in range(30_000)]
        self._weights = list(accumulate(1 / (place + 1) for place in range(len(self.known))))

    def replies(self, turns: int = 3, words: int = 50) -> list[str]:
        drawn = self._chances.choices(self.known, cum_weights=self._weights, k=turns * words)
        if self._chances.random() < 0.00005:
            drawn[7:9] = ["Zanzibar", "zyzzyva"]
        return [" ".join(drawn[turn * words : (turn + 1) * words]) for turn in range(turns)]


def _places(conn: psycopg.Connection, ordering: Ordering) -> dict[str, episodes.Position]:
    """Positions in the middle and just before the end of an order."""
    last = episodes.page(conn, RUN, EpisodeFilter(), Ordering(ordering.by, not ordering.descending), limit=40).rows[-1]
    row = conn.execute(
        "SELECT draw, member, attempt, team_score, tokens FROM store.episode WHERE run_id = %s AND origin = 'train' "
        f"ORDER BY {'draw' if ordering.by == 'draw' else 'team_score' if ordering.by == 'score' else 'tokens'} "
        "OFFSET (SELECT count(*) / 2 FROM store.episode WHERE run_id = %s AND origin = 'train') LIMIT 1",  # type: ignore[arg-type]
        [RUN, RUN],
    ).fetchone()
    assert row is not None
    own = {"draw": (), "score": (row[3],), "tokens": (row[4],)}[ordering.by]  # type: ignore[index]
    return {"middle": (*own, *row[:3]), "last": episodes.position_of(last, ordering)}


def _record(report: Report, key: str, ask: Callable[[], object], repeats: int) -> float:
    ask()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        ask()
        times.append(1000 * (time.perf_counter() - begun))
    times.sort()
    report.figures[f"{key}_p50_ms"] = statistics.median(times)
    report.figures[f"{key}_p95_ms"] = times[min(len(times) - 1, round(0.95 * len(times)))]
    return report.figures[f"{key}_p95_ms"]


def _time_writes(server: EmbeddedPostgres, report: Report, repeats: int) -> None:
    """Write 32 groups per transaction with all indexes, and with the plain primary key and the cohort alone."""
    sides = {}
    for name in ("indexed", "plain", "silent"):
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        sides[name] = psycopg.connect(server.url_of(name), autocommit=True)
        schema.apply(sides[name])
    replies = Words().replies()
    for index in SECONDARY:
        sides["plain"].execute(f"DROP INDEX store.{index}")  # type: ignore[arg-type]
    sides["plain"].execute(
        "ALTER TABLE store.episode DROP CONSTRAINT episode_pkey, ADD PRIMARY KEY (run_id, draw, member, attempt)"
    )
    for conn in sides.values():
        runs.create_run(conn, RUN, {}, RunStatus.RUNNING)
    written = dict.fromkeys(sides, 0)

    def write(name: str) -> float:
        values = [row for i in range(32) for row in _group(written[name] + i, () if name == "silent" else replies)]
        written[name] += 32
        begun = time.perf_counter()
        with sides[name].transaction():
            _insert_episodes(sides[name], RUN, values)
        return 1000 * (time.perf_counter() - begun)

    timed = interleave({name: lambda name=name: write(name) for name in sides}, 5 * repeats)  # type: ignore[misc]
    for name, values in timed.items():
        report.figures[f"write_256_episodes_{name}_ms"] = statistics.median(values)
        sides[name].close()
    report.ratio("write_ratio", paired_ratios(timed["indexed"], timed["plain"]))
    report.ratio("said_ratio", paired_ratios(timed["indexed"], timed["silent"]))


def _group(draw: int, replies: Sequence[str] = ()) -> list[EpisodeRow]:
    task = {"title": f"A tank of {draw % 997} litres is filled by {draw % 7 + 2} pipes", "facts": {"answer": draw % 31}}
    return [
        EpisodeRow(
            draw, member, 1, Origin.TRAIN, EpisodeStatus.FINISHED, "", {"planner": 0.5, "solver": 0.6, "verifier": 0.7},
            draw * member % 1000 / 1000, False, 5, 200 + draw * member % 900, {"planner": draw // 16}, task,
            [["planner", 0], ["solver", 0], ["verifier", 0]], 1e9 + draw, 1e9 + draw + member, draw // 16,
            said=replies,
        )
        for member in range(MEMBERS)
    ]  # fmt: skip


if __name__ == "__main__":
    main()
