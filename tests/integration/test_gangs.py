"""Several trainer processes hold one policy: the same training as in one process, whoever comes, goes or is killed.

Real children, gloo between them. Gradients are read from what a first step leaves: Adam's first moment is the clipped
mean gradient but for a factor.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from flexmarl.contracts.specification.experiment import ExperimentSpec
from tests.support.machine import slowness
from tests.support.trainer_child import Refused, TrainerChild, bind, start_trainer
from tests.support.training_rows import rows_of
from workers.training.wire import (
    AccumulateReply,
    AccumulateRequest,
    BindReply,
    BindRequest,
    StepReply,
    StepRequest,
    SuspendReply,
    SuspendRequest,
    TrainRow,
)
from workers.transfer import LocalTier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SPEC = ExperimentSpec.model_validate(
    {
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "policies": {"speaker": {"precision": "fp64", "activations": "recompute"}, "listener": {"precision": "fp32"}},
        "algorithm": {"kl": {"coefficient": 0.3, "estimator": "k3", "reference": {"type": "renewed", "every": 3}}},
    }
).model_dump(mode="json")
EQUAL = {"speaker": 1e-12, "listener": 1e-5}
STEP = {"speaker": 1e-12, "listener": 1e-3}
"""Of a step: Adam's first one divides each gradient by its own size, the rounding of the smallest ones included."""
BATCHES = {1: rows_of(1, 23), 2: rows_of(2, 1), 3: rows_of(3, 10, longest=30)}
"""Micro-batches of a step: one has fewer rows than there are ranks, one has rows of very unlike lengths."""
RATE = 1e-2


class Ranks:
    """Trainers of one host, and the next number of a gang's forming."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.children = [start_trainer(home, lease, SPEC) for lease in (1, 2, 3)]
        self.meeting = 0

    def hold(self, policy: str, ranks: int, known: BindReply, first: str) -> TrainerChild:
        """Bind a policy to so many ranks at a version; returns their leader."""
        self.meeting += 1
        bind(self.children[:ranks], policy, self.meeting, known, first)
        return self.children[0]

    def start_again(self, number: int) -> None:
        former = self.children[number]
        life = int(former.incarnation.split(".")[1]) + 1
        self.children[number] = start_trainer(self.home, former.lease, SPEC, life=life)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    found = Ranks(tmp_path_factory.mktemp("home"))
    yield found
    for child in found.children:
        child.stop()


@pytest.fixture(scope="module")
def first(ranks: Ranks) -> dict[str, BindReply]:
    """Version 0 of both policies, made by a gang of two and by one trainer."""
    ranks.meeting += 1
    speaker = bind(ranks.children[:2], "speaker", ranks.meeting)
    listener = bind(ranks.children[:1], "listener")
    assert (speaker.created, listener.created) == (True, True)
    keeper = LocalTier(ranks.home, "keeper")  # trainers keep the training states of the newest versions alone
    assert keeper.claim(speaker.state)
    assert keeper.claim(listener.state)
    return {"speaker": speaker, "listener": listener}


def accumulate(leader: TrainerChild, policy: str, version: int, number: int, rows: list[TrainRow]) -> dict[str, float]:
    asked = AccumulateRequest(policy, f"{version}:{leader.incarnation}", number, 0.05, rows)
    return leader.ask("/accumulate", asked, AccumulateReply).stats


def step(leader: TrainerChild, policy: str, version: int, numbers: Sequence[int]) -> StepReply:
    asked = StepRequest(policy, f"{version}:{leader.incarnation}", list(numbers), version + 1, RATE)
    return leader.ask("/step", asked, StepReply)


def trained(leader: TrainerChild, policy: str, version: int) -> tuple[StepReply, list[dict[str, float]]]:
    """Take a step on all micro-batches."""
    stats = [accumulate(leader, policy, version, number, rows) for number, rows in BATCHES.items()]
    return step(leader, policy, version, list(BATCHES)), stats


def held(reply: StepReply) -> BindReply:
    return BindReply("", reply.version, reply.digest, reply.state, False, b"", {})


def contents(ranks: Ranks, reply: StepReply) -> dict[str, torch.Tensor]:
    """Read a version, weights and training state: before long, newer ones take its place on the shelf."""
    tier = LocalTier(ranks.home, "reader")
    return {**tier.get(reply.digest), **tier.get(reply.state)}


def apart(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return how far the farthest buffers are apart, relatively."""
    assert found.keys() == expected.keys()
    return max(
        float((found[name].double() - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-300))
        for name, theirs in expected.items()
    )


@pytest.mark.parametrize("policy", EQUAL)
def test_any_number_of_ranks_takes_the_gradient_and_the_step_of_one(
    ranks: Ranks, first: dict[str, BindReply], policy: str
) -> None:
    leader = ranks.hold(policy, 1, first[policy], first[policy].digest)
    alone, expected = trained(leader, policy, 0)
    whole = contents(ranks, alone)
    assert any(stats["kl_reference_sum"] == pytest.approx(0.0, abs=1e-9) for stats in expected)
    for number in (2, 3):
        leader = ranks.hold(policy, number, first[policy], first[policy].digest)
        shared, found = trained(leader, policy, 0)
        assert shared.grad_norm == pytest.approx(alone.grad_norm, rel=EQUAL[policy])
        after = contents(ranks, shared)
        gradient, theirs = ({"first": each["first"]} for each in (after, whole))
        assert apart(gradient, theirs) < EQUAL[policy]
        assert apart(after, whole) < STEP[policy]
        for ours, theirs in zip(found, expected, strict=True):
            assert {name: ours[name] for name in ("rows", "tokens", "z")} == {
                name: theirs[name] for name in ("rows", "tokens", "z")
            }
            for name in ("loss_sum", "entropy_sum", "kl_engine_sum", "logprob_gap_sum", "logprob_gap_max"):
                assert ours[name] == pytest.approx(theirs[name], rel=10 * EQUAL[policy]), name


def test_training_goes_on_at_any_size_from_what_another_size_left(ranks: Ranks, first: dict[str, BindReply]) -> None:
    """2, then 1, then 3 ranks, each from disk, against one process all along; the reference is in the objective.

    Version 3 is the next reference, for a gang as for one.
    """
    known = first["speaker"]
    leader = ranks.hold("speaker", 1, known, known.digest)
    for version in range(3):
        alone, stats = trained(leader, "speaker", version)
    assert stats[0]["kl_reference_sum"] > 0
    whole = contents(ranks, alone)
    assert accumulate(leader, "speaker", 3, 1, BATCHES[1])["kl_reference_sum"] == pytest.approx(0.0, abs=1e-9)
    former = known
    for version, number in enumerate((2, 1, 3)):
        leader = ranks.hold("speaker", number, former, known.digest)
        reply, _ = trained(leader, "speaker", version)
        former = held(reply)
    assert apart(contents(ranks, reply), whole) < 1e-12
    assert accumulate(leader, "speaker", 3, 1, BATCHES[1])["kl_reference_sum"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 1), (1, 2)])
def test_what_a_gang_had_gathered_is_suspended_and_goes_on_at_another_size(
    ranks: Ranks, first: dict[str, BindReply], sizes: tuple[int, int]
) -> None:
    known = first["speaker"]
    leader = ranks.hold("speaker", 1, known, known.digest)
    whole = contents(ranks, trained(leader, "speaker", 0)[0])
    leader = ranks.hold("speaker", sizes[0], known, known.digest)
    for number in (1, 2):
        accumulate(leader, "speaker", 0, number, BATCHES[number])
    epoch = f"0:{leader.incarnation}"
    left = leader.ask("/suspend", SuspendRequest("speaker", epoch), SuspendReply)
    with pytest.raises(Refused, match="not_bound"):
        accumulate(leader, "speaker", 0, 3, BATCHES[3])
    ranks.meeting += 1
    gang = ranks.children[: sizes[1]]
    asked = BindRequest(
        "speaker", 0, known.digest, known.state, references=[known.digest], resume=left.ticket, accumulator=epoch
    )
    back = bind(gang, "speaker", ranks.meeting, asked=asked)
    assert back.resumed
    accumulate(gang[0], "speaker", 0, 3, BATCHES[3])
    reply = step(gang[0], "speaker", 0, list(BATCHES))
    assert apart(contents(ranks, reply), whole) < 1e-12


def test_a_row_that_is_none_is_refused_by_all_and_the_gang_goes_on(ranks: Ranks, first: dict[str, BindReply]) -> None:
    known = first["speaker"]
    leader = ranks.hold("speaker", 3, known, known.digest)
    rows = rows_of(4, 9)
    rows[4].advantages = [float("nan")]
    with pytest.raises(Refused, match="nonfinite_row"):
        accumulate(leader, "speaker", 0, 7, rows)
    rows = rows_of(4, 9)
    rows[8].advantages = [1e308]
    rows[7].advantages = [1e308]
    with pytest.raises(Refused, match="nonfinite_gradient"):
        accumulate(leader, "speaker", 0, 7, rows)
    assert accumulate(leader, "speaker", 0, 8, rows_of(5, 9))["rows"] == 9
    step(leader, "speaker", 0, [8])


def test_two_trainers_lead_each_other(ranks: Ranks, first: dict[str, BindReply]) -> None:
    """Each works for its own gang while the other's wants it."""
    ranks.meeting += 1
    one, other, _ = ranks.children
    bind([one, other], "speaker", ranks.meeting, first["speaker"], first["speaker"].digest)
    bind([other, one], "listener", ranks.meeting, first["listener"], first["listener"].digest)
    for number in range(20):
        accumulate(one, "speaker", 0, number, rows_of(number, 8))
        accumulate(other, "listener", 0, number, rows_of(number, 8))
    assert step(one, "speaker", 0, range(20)).version == step(other, "listener", 0, range(20)).version == 1


def test_a_killed_follower_is_noticed_and_training_goes_on_without_it(
    ranks: Ranks, first: dict[str, BindReply]
) -> None:
    known = first["speaker"]
    leader = ranks.hold("speaker", 3, known, known.digest)
    accumulate(leader, "speaker", 0, 1, BATCHES[1])
    ranks.children[2].kill()
    began = time.monotonic()
    with pytest.raises(Refused, match="rank_lost"):
        accumulate(leader, "speaker", 0, 2, BATCHES[2])
    assert time.monotonic() - began < 20 * slowness(), "broken connections are told at once"
    with pytest.raises(Refused, match="not_bound"):
        step(leader, "speaker", 0, [1])
    leader = ranks.hold("speaker", 2, known, known.digest)
    with pytest.raises(Refused, match="other_micro_batches"):
        step(leader, "speaker", 0, [1])
    assert trained(leader, "speaker", 0)[0].version == 1
    ranks.start_again(2)


def test_a_killed_leader_ends_its_followers_part_and_another_leads(ranks: Ranks, first: dict[str, BindReply]) -> None:
    known = first["speaker"]
    leader = ranks.hold("speaker", 3, known, known.digest)
    reply, _ = trained(leader, "speaker", 0)
    follower = ranks.children[1]
    before = follower.log.read_text().count("the gang is over")
    leader.process.send_signal(signal.SIGKILL)
    leader.process.wait(60)
    until = time.monotonic() + 60 * slowness()
    while follower.log.read_text().count("the gang is over") == before:
        assert time.monotonic() < until, "a follower that waits for orders notices that its leader is gone"
        time.sleep(0.05)
    ranks.meeting += 1
    gang = ranks.children[1:]
    bind(gang, "speaker", ranks.meeting, held(reply), known.digest)
    assert trained(gang[0], "speaker", 1)[0].version == 2
    ranks.start_again(0)


def test_a_gang_that_ended_leaves_no_connection(ranks: Ranks, first: dict[str, BindReply]) -> None:
    """Bound anew again and again, no rank holds more connections than after the first times."""
    known = first["speaker"]
    counts = []
    for _ in range(8):
        ranks.hold("speaker", 2, known, known.digest)
        ranks.hold("speaker", 1, known, known.digest)
        counts.append([len(list(Path(f"/proc/{c.process.pid}/fd").iterdir())) for c in ranks.children[:2]])
    assert max(counts[-1][0] - counts[1][0], counts[-1][1] - counts[1][1]) <= 6, counts
