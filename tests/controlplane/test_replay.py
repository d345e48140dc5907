"""`manage.py replay`: what it prints and how it exits. What a replay finds is tested where runs are driven."""

import pytest
from django.core.management import CommandError, call_command

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver.replaying import Replay
from flexmarl.controlplane.runs.management.commands import replay as command

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(make_run, editor):
    return make_run(editor)


@pytest.fixture
def found(monkeypatch):
    """Let the next replays find this."""
    asked = []

    def let(*differences):
        def replay(conn, run_id, tasks):
            asked.append(run_id)
            return Replay(run_id, RunStatus.RUNNING, 12, 34, 10, differences, ("task 0: not played yet",) * tasks)

        monkeypatch.setattr(command, "replay", replay)
        return asked

    return let


def test_equality_is_said_in_one_line(run, found, capsys):
    asked = found()
    call_command("replay", run.key)
    call_command("replay", str(run.no))
    assert asked == [run.no, run.no]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[1]
    told = "12 events, 34 commands, the state after event 10: the replay equals the stored rows exactly"
    assert lines[0] == f"run {run.no} (running): {told}"


def test_what_is_believed_of_each_task_is_listed_on_demand(run, found, capsys):
    found()
    call_command("replay", run.key, "--tasks")
    assert capsys.readouterr().out.splitlines()[0] == "task 0: not played yet"


def test_a_difference_is_named_and_the_exit_code_says_so(run, found, capsys):
    found("step is 9, the log leads to 2", "command 5 differs")
    with pytest.raises(SystemExit) as exit_:
        call_command("replay", run.key)
    assert exit_.value.code == 1
    assert capsys.readouterr().out.splitlines() == [
        f"run {run.no} (running): 12 events, 34 commands: the replay differs from the stored rows",
        "  step is 9, the log leads to 2",
        "  command 5 differs",
    ]


def test_an_unknown_run_is_refused():
    with pytest.raises(CommandError, match="there is no run nobody"):
        call_command("replay", "nobody")
