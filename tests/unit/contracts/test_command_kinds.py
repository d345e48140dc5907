"""What is said of kinds of commands agrees with the commands, the facts, and those who carry them out."""

from typing import get_args
from unittest.mock import MagicMock
from uuid import uuid4

import pytest

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.store.control.commands import Taken
from workers.nodes.carrying_out import prepare
from workers.training.trainer import Trainer
from workers.training.wire import VERBS, SuspendRequest, VacateRequest

COMMANDS = get_args(get_args(c.Command)[0])
EVENTS = get_args(get_args(e.Event)[0])


def test_every_command_is_described_once_and_answered_by_facts() -> None:
    assert {about.command for about in c.COMMAND_KINDS.values()} == set(COMMANDS)
    answers = [about.answer for about in c.COMMAND_KINDS.values() if about.answer]
    assert set(answers) <= set(EVENTS)
    assert len(set(answers)) == len(answers), "a fact answers one kind"


@pytest.mark.parametrize("kind", c.COMMAND_KINDS)
def test_what_a_child_carries_out_has_a_phase_an_answer_and_a_lease(kind: str) -> None:
    about = c.COMMAND_KINDS[kind]
    assert about.word
    assert (about.route is c.Route.NODE) == (about.child is not None)
    if about.child is not None:
        assert about.phase
        assert about.answer is not None
        assert "lease_id" in about.command.model_fields


def test_a_trainer_has_a_method_for_every_command_of_its_child() -> None:
    asked = {kind for kind, about in c.COMMAND_KINDS.items() if about.child is e.DeviceUse.TRAINER}
    assert set(VERBS) == asked
    for verb in VERBS.values():
        assert callable(getattr(Trainer, verb.name))


def test_an_answer_says_what_its_command_and_its_end_say() -> None:
    order = c.SuspendPolicy(lease_id=3, policy="solver", accumulator="4:t1", reach="host")
    about = c.COMMAND_KINDS[order.kind]
    said = {"incarnation": "t1", "command_no": 7, "ticket": "x", "bytes": 9, "seconds": 0.5, "else": 1}
    assert about.answered(order, **said) == e.PolicySuspended(
        lease_id=3,
        incarnation="t1",
        policy="solver",
        accumulator="4:t1",
        ticket="x",
        bytes=9,
        seconds=0.5,
        command_no=7,
    )
    with pytest.raises(ValueError, match="ticket"):
        about.answered(order, incarnation="t1", command_no=7)
    with pytest.raises(AssertionError, match="no single fact"):
        c.COMMAND_KINDS["play_groups"].answered(order)


@pytest.mark.parametrize(
    ("order", "request_"),
    [
        (
            c.SuspendPolicy(lease_id=3, policy="solver", accumulator="4:t1", reach="host"),
            SuspendRequest("solver", "4:t1", "host"),
        ),
        (c.VacateTrainer(lease_id=3), VacateRequest(7)),
    ],
)
def test_a_request_says_what_its_command_says(order: c.Command, request_: object) -> None:
    taken = Taken(run_id=1, no=7, token=uuid4(), takes=1, epoch=1, command=order)
    assert prepare(MagicMock(), taken).request == request_
