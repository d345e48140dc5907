"""The trainer child over HTTP, as its node hosts it."""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from flexmarl.contracts.specification.experiment import ExperimentSpec
from tests.support.forked import Process, started
from workers.child import ChildConfig, ReadyLine
from workers.training.trainer import CREATE
from workers.training.wire import (
    AccumulateReply,
    AccumulateRequest,
    BindReply,
    BindRequest,
    Refusal,
    StepReply,
    StepRequest,
    TrainRow,
    VacateReply,
    VacateRequest,
)
from workers.transfer import LocalTier

pytestmark = pytest.mark.slow

SECRET = "of this test"
WAIT_S = 60
"""How long a process may take to end on a machine that has other work."""
ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Client:
    process: Process
    port: int

    def ask(self, path: str, body: object = None, kind: type = Refusal, secret: str = SECRET) -> tuple[int, object]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        method = "GET" if path == "/health" else "POST"
        packed = msgspec.json.encode(body) if path == "/intervals" else msgspec.msgpack.encode(body)
        connection.request(method, path, packed, {"Authorization": f"Bearer {secret}"})
        response = connection.getresponse()
        raw = response.read()
        connection.close()
        if path in ("/health", "/intervals") or response.status == 401:
            return response.status, json.loads(raw)
        return response.status, msgspec.msgpack.decode(raw, type=kind if response.status == 200 else Refusal)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def _start(home: Path) -> Client:
    spec = ExperimentSpec.model_validate(
        {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
    )
    config = ChildConfig(
        use="trainer", run_id=1, lease_id=2, fence=3, incarnation="a", device="cpu", threads=1, host="127.0.0.1",
        secret=SECRET, home=str(home), spec=spec.model_dump(mode="json"),
    )  # fmt: skip
    process = started("workers.training.serve", {})
    process.stdin.write(msgspec.json.encode(config) + b"\n")
    process.stdin.flush()
    ready = msgspec.json.decode(process.stdout.readline(), type=ReadyLine)
    assert ready.incarnation == "a"
    return Client(process, ready.port)


@pytest.fixture(scope="module")
def child(home: Path) -> Iterator[Client]:
    client = _start(home)
    yield client
    client.process.stdin.close()
    assert client.process.wait(WAIT_S) == 0


def _rows(count: int, tokens: int = 2) -> list[TrainRow]:
    rng = np.random.default_rng(count)
    ids = [rng.integers(1, 20, tokens).astype("<i4").tobytes() for _ in range(count)]
    return [TrainRow(one, one, bytes(4 * tokens), b"", 1.0, [1.0], 1.0) for one in ids]


def test_a_policy_is_bound_trained_and_stepped_over_http(child: Client, home: Path):
    status, bound = child.ask("/bind", BindRequest("speaker", CREATE), BindReply)
    assert (status, bound.version) == (200, 0)
    assert json.loads(bound.tokenizer)["model"]["vocab"]["<bos>"] == 1
    status, added = child.ask("/accumulate", AccumulateRequest("speaker", "0:a", 1, 0.05, _rows(8)), AccumulateReply)
    assert (status, added.stats["tokens"], added.stats["z"]) == (200, 16, 16)
    asked = StepRequest("speaker", "0:a", [1], 1, 2e-3)
    status, stepped = child.ask("/step", asked, StepReply)
    assert (status, stepped.version) == (200, 1)
    assert child.ask("/step", asked, StepReply) == (200, stepped)
    assert LocalTier(home, "reader").get(stepped.digest)


def test_refusals_say_why_and_what_is_held(child: Client):
    child.ask("/bind", BindRequest("listener", CREATE), BindReply)
    assert child.ask("/accumulate", AccumulateRequest("listener", "0:a", 4, 0.05, _rows(2)), AccumulateReply)[0] == 200
    status, refused = child.ask("/step", StepRequest("listener", "0:a", [4, 5], 1, 2e-3))
    assert (status, refused.code, refused.micro_batches) == (409, "other_micro_batches", [4])
    status, refused = child.ask("/accumulate", AccumulateRequest("listener", "7:a", 5, 0.05, []))
    assert (status, refused.code, refused.accumulator) == (409, "other_accumulator", "0:a")
    row = _rows(1)[0]
    row.advantages = [float("nan")]
    status, refused = child.ask("/accumulate", AccumulateRequest("listener", "0:a", 5, 0.05, [row]))
    assert (status, refused.code) == (422, "nonfinite_row")
    assert child.ask("/bind", {"policy": "speaker", "wish": 1})[1].code == "bad_request"
    assert child.ask("/bind", BindRequest("stranger", CREATE))[1].code == "not_bound"


def test_a_trainer_that_gave_its_device_up_holds_nothing_and_binds_nothing_that_was_asked_before(child: Client):
    bound = child.ask("/bind", BindRequest("listener", CREATE), BindReply)[1]
    assert "listener" in child.ask("/vacate", VacateRequest(9), VacateReply)[1].left
    assert child.ask("/accumulate", AccumulateRequest("listener", "0:a", 4, 0.05, _rows(2)))[1].code == "not_bound"
    again = BindRequest("listener", 0, bound.digest, bound.state, references=[bound.digest])
    status, refused = child.ask("/bind", msgspec.structs.replace(again, order=8))
    assert (status, refused.code) == (409, "superseded")
    assert child.ask("/bind", msgspec.structs.replace(again, order=10), BindReply)[0] == 200


def test_nothing_is_done_without_the_secret(child: Client):
    for path, body in (("/bind", BindRequest("speaker", CREATE)), ("/health", None), ("/intervals", {})):
        assert child.ask(path, body, secret="wrong")[0] == 401


def test_health_and_intervals_answer_while_training_runs(child: Client):
    child.ask("/bind", BindRequest("listener", CREATE), BindReply)
    done: list[tuple[int, object]] = []
    asked = AccumulateRequest("listener", "0:a", 9, 0.05, _rows(1500, 40))
    training = threading.Thread(target=lambda: done.append(child.ask("/accumulate", asked, AccumulateReply)))
    training.start()
    answered = 0
    while training.is_alive():
        began = time.monotonic()
        assert child.ask("/health")[0] == 200
        assert time.monotonic() - began < 30
        answered += not done
    training.join()
    assert done[0][0] == 200
    assert answered >= 3
    status, intervals = child.ask("/intervals", {"acknowledged": -1})
    assert status == 200
    assert "train" in {interval["phase"] for interval in intervals}
    newest = intervals[-1]["ord"]
    rest = child.ask("/intervals", {"acknowledged": newest})[1]
    assert all(interval["ord"] > newest for interval in rest)


@pytest.mark.parametrize("end", ["stdin", "sigterm"])
def test_the_child_leaves_with_its_parent(end: str, tmp_path: Path):
    client = _start(tmp_path)
    if end == "stdin":
        client.process.stdin.close()
    else:
        client.process.send_signal(signal.SIGTERM)
    assert client.process.wait(WAIT_S) == 0
    assert client.process.stdout.read() == b""
    client.process.stdout.close()


def test_the_child_does_without_transformers(tmp_path: Path):
    """It would take more memory than everything the trainer holds."""
    code = """
import sys
from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers.child import IntervalLog
from workers.training import serve, trainer
from workers.training.wire import BindRequest, CheckpointRequest
spec = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
held = trainer.Trainer(ExperimentSpec.model_validate(spec), 1, "a", sys.argv[1], "cpu", IntervalLog())
digest = held.bind(BindRequest("speaker", trainer.CREATE)).digest
held.checkpoint(CheckpointRequest("last", 0, {"speaker": 0}, {"speaker": digest}))
sys.exit(7 if "transformers" in sys.modules else 0)
"""
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=False).returncode == 0
