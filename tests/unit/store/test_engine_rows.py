"""An engine's state is read from its lease, its life and its loads; figures are those of the life that answers."""

from dataclasses import replace
from itertools import pairwise

import pytest

from flexmarl.contracts.commands import LoadWeights
from flexmarl.contracts.engine_states import (
    GONE_FOR_GOOD,
    MOVES,
    EngineDoubt,
    EngineFacts,
    EngineState,
    doubt_of,
    state_of,
)
from flexmarl.contracts.events import DeviceUse
from flexmarl.store.control import engines, leases
from flexmarl.store.reads import engine_rows
from flexmarl.store.telemetry.load_reports import EngineReport, put_engines
from tests.support.store_story import DIGEST

LIVES = EngineFacts(lease="held", started=True, answers=True, held=1, lease_late_s=-4.0, node_late_s=-9.0, told_s=1.0)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (replace(LIVES, started=False, answers=False, held=0), EngineState.REGISTERED),
        (replace(LIVES, answers=False, held=0), EngineState.WARMING),
        (replace(LIVES, held=0), EngineState.SYNCING),
        (replace(LIVES, loads=1), EngineState.SYNCING),
        (LIVES, EngineState.ACTIVE),
        (replace(LIVES, lease="releasing"), EngineState.DRAINING),
        (replace(LIVES, lease="ended", answers=False), EngineState.GONE),
    ],
)
def test_a_state_follows_from_what_the_rows_say(facts, state):
    assert state_of(facts) is state


def test_only_the_end_is_left_by_nothing():
    assert set(MOVES) == set(EngineState)
    assert {state for state, after in MOVES.items() if not after} == GONE_FOR_GOOD


def test_who_is_not_heard_is_doubted_and_the_widest_silence_is_the_reason():
    assert doubt_of(LIVES) is EngineDoubt.NONE
    silent = replace(LIVES, told_s=11.0)
    assert doubt_of(silent) is EngineDoubt.ENGINE_SILENT
    assert doubt_of(replace(silent, lease_late_s=0.5)) is EngineDoubt.HOST_SILENT
    assert doubt_of(replace(silent, lease_late_s=0.5, node_late_s=0.5)) is EngineDoubt.NODE_SILENT
    assert doubt_of(replace(silent, lease="ended", node_late_s=0.5)) is EngineDoubt.NONE
    assert doubt_of(replace(LIVES, told_s=None)) is EngineDoubt.NONE, "it has not been asked yet"


def only(story):
    [row] = engine_rows.engines(story.conn, story.run_id)
    return row


@pytest.mark.services
def test_a_life_is_told_state_by_state(story):
    seen = []

    def look():
        seen.append(only(story).state)
        return only(story)

    lease_id = story.granted()[DeviceUse.ENGINE]
    assert look().incarnation == ""
    taken, hosting = story.hosted(lease_id, DeviceUse.ENGINE, "e1.1.1")
    leases.child_lost(story.conn, hosting, "e1.1.1", "died")
    leases.child_started(story.conn, hosting, 4711, 1.0)
    look()
    leases.child_ready(story.conn, hosting, "e1.1.2", "http://127.0.0.1:9", "secret")
    assert look().incarnation == "e1.1.2"
    assert look().losses == 0, "the driver has not heard of it yet"
    story.decide()
    lost = look()
    assert (lost.losses, lost.lost_reason) == (1, "died")
    assert lost.lost_at is not None

    def loads(version):
        order = LoadWeights(lease_id=lease_id, policy="solver", version=version, digest=DIGEST)
        taken = story.take(story.issue(order))
        assert look().loading == (("solver", version),)
        engines.served(
            story.conn, taken, lease_id, "e1.1.2", policy="solver", version=version, digest=DIGEST, seconds=0.1
        )

    loads(0)
    assert look().serves == (engine_rows.Served("solver", 0, None),)
    loads(1)
    assert look().serves == (engine_rows.Served("solver", 1, 0),)
    leases.request_release(story.conn, story.run_id, lease_id)
    look()
    leases.end(story.conn, taken, hosting, "released")
    assert look().reason == "released"
    assert list(dict.fromkeys(seen)) == list(EngineState)
    steps = [(one, other) for one, other in pairwise(seen) if one is not other]
    assert all(other in MOVES[one] for one, other in steps)


def load(lease_id, incarnation="e1.1.1", **figures):
    usual = {"running": 3, "waiting": 1, "slots": 8, "generated": 100, "prompts": 40, "cached": None, "cache_use": None}
    return EngineReport(1, lease_id, incarnation, **{**usual, **figures})


def back(story, seconds):
    """Let what was told be older, in its own slot."""
    story.conn.execute(
        "UPDATE store.engine_load SET at = at - make_interval(secs => %(s)s), "
        "slot = (slot - %(s)s::int / 2 + 900) %% 900",
        {"s": seconds},
    )


@pytest.mark.services
def test_figures_are_of_the_life_that_answers_and_what_is_not_known_is_not_told(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    story.hosted(lease_id, DeviceUse.ENGINE, "e1.1.1")
    put_engines(story.conn, [])
    assert only(story).told is None
    put_engines(story.conn, [load(lease_id), load(lease_id + 77)])
    assert story.count("engine_load") == 1, "nobody has that lease"
    told = only(story).told
    assert (told.running, told.waiting, told.slots) == (3, 1, 8)
    assert (told.cache_use, told.hit_rate, told.tokens_per_s) == (None, None, None)
    back(story, 10)
    put_engines(story.conn, [load(lease_id, generated=600, prompts=80, cached=20, cache_use=0.5)])
    told = only(story).told
    assert told.cache_use == 0.5
    assert told.hit_rate == 0.25
    assert told.tokens_per_s == pytest.approx(50, rel=0.3)
    back(story, 20)
    assert only(story).doubt is EngineDoubt.ENGINE_SILENT
    story.conn.execute("UPDATE store.lease SET incarnation = 'e1.2.1' WHERE id = %s", [lease_id])
    assert only(story).told is None, "another life, which has told nothing"
    assert only(story).doubt is EngineDoubt.NONE


@pytest.mark.services
def test_what_is_told_twice_in_a_slot_is_one_point(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    story.hosted(lease_id, DeviceUse.ENGINE, "e1.1.1")
    for running in range(6):
        put_engines(story.conn, [load(lease_id, running=running)])
    assert story.count("engine_load") <= 2, "six reports at once fall into one slot, or two"
    assert only(story).told.running == 5
