"""What a store of contents is to keep is what rows speak of, and no more."""

import json

import pytest

from flexmarl.store.control import runs
from flexmarl.store.data import references
from workers.training.version_store import RESTORABLE

pytestmark = pytest.mark.services


def put(story, version: int, state: bool = True, policy: str = "solver") -> None:
    parent = version - 1 if version else None
    story.conn.execute(
        "INSERT INTO store.policy_version (run_id, policy, version, parent, digest, state) "
        "VALUES (1, %s, %s, %s, %s, %s)",
        [policy, version, parent, f"{policy}-{version}", f"{policy}-s{version}" if state else ""],
    )


def checkpoint(story, step: int, versions: str) -> None:
    story.conn.execute(
        "INSERT INTO store.checkpoint (run_id, label, step, versions, path, bytes) VALUES (1, 'step', %s, %s, '', 0)",
        [step, versions],
    )


def kept(story) -> set[str]:
    return {name for name in references.contents(story.conn) if name.startswith(("a-", "b-"))}


def test_the_first_the_newest_and_those_of_checkpoints_are_kept(story):
    for version in range(10):
        put(story, version, policy="a")
    checkpoint(story, 4, '{"a": 4, "b": 2}')
    assert kept(story) == {f"a-{v}" for v in (0, 4, 7, 8, 9)} | {f"a-s{v}" for v in (0, 4, 8, 9)}


def test_no_training_state_is_asked_for_that_trainers_have_let_go(story):
    for version in range(9):
        put(story, version, policy="b")
    on_disk = [f"b-s{version}" for version in range(10)][-RESTORABLE:]  # the last step was stored, its run killed then
    assert {name for name in kept(story) if name.startswith("b-s")} - {"b-s0"} <= set(on_disk)


def test_versions_behind_the_newest_training_state_are_kept_until_they_can_be_redone_no_more(story):
    for version in range(12):
        put(story, version, state=version in (0, 4), policy="b")
    assert kept(story) == {"b-0", "b-s0", *(f"b-{v}" for v in range(4, 12)), "b-s4"}


def test_a_run_says_what_other_hosts_receive(story):
    assert runs.publication_content(story.conn, 1) == "auto"
    for said, meant in (('{"type": "cohort", "content": "full"}', "full"), ('"wavefront"', "auto")):
        story.conn.execute(
            "UPDATE store.run_state SET spec = jsonb_set(spec, '{mechanisms}', "
            "jsonb_build_object('publication', %s::jsonb)) WHERE run_id = 1",
            [said],
        )
        assert runs.publication_content(story.conn, 1) == meant


@pytest.mark.parametrize(
    ("algorithm", "kept_versions"),
    [
        ({"kl": {"reference": {"type": "first"}}}, {0, 17, 18, 19}),
        ({"kl": {"reference": {"type": "version", "version": 6}}}, {0, 6, 17, 18, 19}),
        ({"kl": {"reference": {"type": "renewed", "every": 4}}}, {0, 8, 12, 16, 17, 18, 19}),
        ({"loss": {"form": "mnpo", "round_steps": 3}}, {0, 9, 12, 15, 17, 18, 19}),
        ({"loss": {"form": "ipo", "round_steps": 3}}, {0, 17, 18, 19}),
    ],
)
def test_what_a_policy_is_compared_with_is_kept(story, algorithm: dict, kept_versions: set[int]):
    story.conn.execute(
        "UPDATE store.run_state SET spec = spec || jsonb_build_object('algorithm', %s::jsonb) WHERE run_id = 1",
        [json.dumps(algorithm)],
    )
    for version in range(20):
        put(story, version, policy="a")
    assert kept(story) == {name for v in kept_versions for name in (f"a-{v}", f"a-s{v}")} - {"a-s17"}
