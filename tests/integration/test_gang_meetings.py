"""Ranks that do not come, come late, come twice, come uninvited or fall silent: every wait has an end, nobody harms.

The leader is in this process, with short patience for ranks that do not come; its ranks are real trainer children. A
process that is in a gang for the first time builds for seconds: only gangs of processes that were in one before take
silence for loss as soon.
"""

import itertools
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexmarl.contracts.specification.experiment import ExperimentSpec
from tests.support.machine import slowness
from tests.support.trainer_child import Refused, TrainerChild, start_trainer
from tests.support.training_rows import rows_of
from workers.child import IntervalLog
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.gangs.group import SILENT_S
from workers.training.gangs.membership import Gangs
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import AccumulateRequest, BindRequest, JoinReply, JoinRequest, rendezvous_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPEC = ExperimentSpec.model_validate(
    {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
)
LEASE, SECRET = 9, "of the leader"
PATIENCE_S = 2.0
_bases = itertools.count(0, 10)


class Leader:
    def __init__(self, home: Path, *, hasty: bool = False) -> None:
        intervals = IntervalLog()
        self.trainer = Trainer(SPEC, 1, f"t{LEASE}.1.1", str(home), "cpu", intervals)
        self.patience_s = PATIENCE_S * slowness()
        silent_s = self.patience_s if hasty else SILENT_S
        self.trainer.gangs = Gangs(SPEC, "cpu", intervals, join_s=self.patience_s, silent_s=silent_s)
        self.port = self.trainer.gangs.listen("127.0.0.1", SECRET)
        self.base = next(_bases)
        """Meetings of a policy are numbered through, whoever leads: each test has ten."""

    def invite(self, child: TrainerChild, rank: int, ranks: int, meeting: int, **changes: str) -> None:
        meeting += self.base
        asked = {"leader": f"127.0.0.1:{self.port}", "key": rendezvous_key(SECRET, "speaker", meeting), **changes}
        child.ask("/join", JoinRequest("speaker", rank, ranks, meeting, **asked), JoinReply)

    def bind(self, *others: int, meeting: int) -> None:
        self.trainer.bind(BindRequest("speaker", CREATE, gang=[LEASE, *others], meeting=self.base + meeting))

    def train(self, number: int) -> None:
        epoch = f"0:t{LEASE}.1.1"
        self.trainer.accumulate(AccumulateRequest("speaker", epoch, number, 0.0, rows_of(number, 6)))


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TrainerChild]]:
    home = tmp_path_factory.mktemp("ranks")
    found = [start_trainer(home, lease, SPEC.model_dump(mode="json")) for lease in (1, 2)]
    yield found
    for child in found:
        child.stop()


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    found = Leader(tmp_path)
    yield found
    found.trainer.gangs.close()


def test_a_leader_waits_for_so_long_and_says_who_is_missing(leader: Leader, children: list[TrainerChild]) -> None:
    leader.invite(children[0], 1, 3, meeting=1)
    began = time.monotonic()
    with pytest.raises(TrainerRefusal, match=r"rank 2 of 3 did not come") as refused:
        leader.bind(1, 2, meeting=1)
    assert refused.value.code == RefusalCode.GANG_INCOMPLETE
    assert time.monotonic() - began < 10 * leader.patience_s
    with pytest.raises(TrainerRefusal, match="not held"):
        leader.train(1)


def test_who_comes_late_finds_its_meeting_over_and_the_next_one_whole(
    leader: Leader, children: list[TrainerChild]
) -> None:
    with pytest.raises(TrainerRefusal, match="did not come"):
        leader.bind(1, meeting=1)
    with pytest.raises(Refused, match=r"is over|has ended"):
        leader.invite(children[0], 1, 2, meeting=1)
    with pytest.raises(TrainerRefusal, match=r"is over|has ended"):
        leader.bind(1, meeting=1)
    leader.invite(children[0], 1, 2, meeting=2)
    leader.bind(1, meeting=2)
    leader.train(1)
    with pytest.raises(Refused, match=r"is over|has ended"):
        leader.invite(children[0], 1, 2, meeting=1)
    leader.invite(children[0], 1, 2, meeting=2)  # the same words again change nothing
    leader.train(2)


def test_who_waits_in_an_older_meeting_is_no_part_of_a_newer_one(leader: Leader, children: list[TrainerChild]) -> None:
    leader.invite(children[1], 1, 2, meeting=5)  # its leader never forms this one
    leader.invite(children[0], 1, 2, meeting=6)
    leader.bind(1, meeting=6)
    leader.train(1)
    leader.invite(children[1], 1, 2, meeting=7)
    leader.bind(2, meeting=7)
    leader.train(1)


def test_a_stranger_at_the_rendezvous_reaches_no_gang(leader: Leader, children: list[TrainerChild]) -> None:
    leader.invite(children[0], 1, 2, meeting=1)
    leader.invite(children[1], 1, 2, meeting=1, key="guessed")
    with socket.create_connection(("127.0.0.1", leader.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        leader.bind(1, meeting=1)
        leader.train(1)


def test_a_leader_that_is_not_there_is_refused_by_who_should_join(leader: Leader, children: list[TrainerChild]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Refused, match="gang_incomplete"):
        leader.invite(children[0], 1, 2, meeting=1, leader=f"127.0.0.1:{port}")


@pytest.fixture
def hasty(leader: Leader, children: list[TrainerChild], tmp_path: Path) -> Iterator[Leader]:
    """A leader that takes silence for loss soon, once both children have been in a gang."""
    for rank, child in enumerate(children, 1):
        leader.invite(child, rank, 3, meeting=1)
    leader.bind(1, 2, meeting=1)
    leader.train(1)
    found = Leader(tmp_path / "hasty", hasty=True)
    yield found
    found.trainer.gangs.close()


def test_a_rank_that_falls_silent_is_lost_within_the_bound(hasty: Leader, children: list[TrainerChild]) -> None:
    leader = hasty
    leader.invite(children[0], 1, 2, meeting=1)
    leader.bind(1, meeting=1)
    leader.train(1)
    children[0].process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(TrainerRefusal) as refused:
            leader.train(2)
        assert refused.value.code == RefusalCode.RANK_LOST
        assert time.monotonic() - began < 10 * leader.patience_s
    finally:
        children[0].process.send_signal(signal.SIGCONT)
    leader.trainer.let_go("speaker")
    leader.invite(children[1], 1, 2, meeting=2)
    leader.bind(2, meeting=2)
    leader.train(1)
