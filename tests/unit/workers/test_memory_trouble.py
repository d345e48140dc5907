"""Memory that runs out is called by its name, and what broke off in the middle is not gone on with."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import msgspec
import pytest
import structlog
import torch
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.store.control.leases import LeaseHold
from flexmarl.store.control.nodes import DeviceRow
from workers import memory
from workers.child import IntervalLog
from workers.hosting import ChildLife, LeaseHost
from workers.log_tail import LAST_CHARACTERS
from workers.nodes.child_client import _refusal
from workers.nodes.lanes import RETRYABLE
from workers.training.learner import Learner
from workers.training.optimizer import FlatAdamW
from workers.training.serve import TrainerServer
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import AccumulateRequest, BindReply, BindRequest, StepReply, StepRequest, TrainRow

ROOT = Path(__file__).resolve().parents[3]
GPU = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
CPU = "[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory"
IDS = bytes([5, 0, 0, 0, 6, 0, 0, 0])
ROWS = [TrainRow(IDS, IDS, bytes(8), b"", 1.0, [1.0], 1.0)] * 4


async def ask(client: TestClient, verb: str, asked: msgspec.Struct, reply: type = BindReply) -> tuple[int, object]:
    """Return the status with the reply, or with the refusal as a node understands it."""
    answer = await client.post(f"/{verb}", data=msgspec.msgpack.encode(asked))
    body = await answer.read()
    if answer.status == 200:
        return 200, msgspec.msgpack.decode(body, type=reply)
    return answer.status, _refusal(answer.status, body, "application/msgpack")


@pytest.mark.parametrize("spoilt", ["accumulate", "step"])
async def test_a_trainer_without_memory_says_so_and_goes_on_from_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    """A step that breaks off has moved part of the weights: the next one must not start from these."""
    spec = ExperimentSpec.model_validate(
        {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
    )
    trainer = Trainer(spec, 1, "a", str(tmp_path), "cpu", IntervalLog())
    app = web.Application()
    thread = ThreadPoolExecutor(1)
    app.add_routes(TrainerServer(trainer, thread, IntervalLog().progress).routes())
    accumulate = AccumulateRequest("speaker", "0:a", 1, 0.05, ROWS)
    step = StepRequest("speaker", "0:a", [1], 1, 2e-3)
    async with TestClient(TestServer(app)) as client:
        digests = []
        for lacking in (False, True):
            _, bound = await ask(client, "bind", BindRequest("speaker", CREATE))
            if lacking:
                with monkeypatch.context() as little:
                    little.setattr(*(_gradient() if spoilt == "accumulate" else _half_a_step()))
                    if spoilt == "step":
                        await ask(client, "accumulate", accumulate, dict)
                    status, refused = await ask(client, spoilt, accumulate if spoilt == "accumulate" else step, dict)
                assert (status, refused.code) == (503, "out_of_memory")
                assert CPU in refused.detail
                assert refused.code in RETRYABLE
                status, refused = await ask(client, "accumulate", accumulate, dict)
                assert (status, refused.code) == (409, "not_bound")
                _, bound = await ask(client, "bind", BindRequest("speaker", 0, bound.digest, bound.state))
            assert (await ask(client, "accumulate", accumulate, dict))[0] == 200
            digests.append((await ask(client, "step", step, StepReply))[1].digest)
            trainer.let_go("speaker")
    assert digests[0] == digests[1]
    thread.shutdown()


def _gradient() -> tuple[object, str, object]:
    def lacking(*_: object) -> None:
        raise RuntimeError(CPU)

    return Learner, "backward", lacking


def _half_a_step() -> tuple[object, str, object]:
    def lacking(self: FlatAdamW, mean: torch.Tensor, learning_rate: float) -> None:
        self._master[:7] += 1.0
        raise RuntimeError(CPU)

    return FlatAdamW, "step", lacking


DYING = """
import sys
from workers.rollout.engines import serve_vllm
async def breaks(*_):
    raise RuntimeError(sys.argv[1])
serve_vllm.serve_engine = breaks
serve_vllm._serve(None, None, None, 1)
"""


@pytest.mark.parametrize("words", [GPU, CPU + "\nframe #0: c10::Error::Error + 0x96\nframe #1: <unknown function>"])
def test_a_vllm_engine_that_lacks_memory_in_a_step_ends_with_that_reason(tmp_path: Path, words: str) -> None:
    log_file = tmp_path / "engine.log"
    with log_file.open("wb") as log:
        command = [sys.executable, "-c", DYING, words]
        paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}", "PATH": "/usr/bin:/bin"}
        code = subprocess.run(command, env=paths, stderr=log, check=False).returncode
    life = ChildLife(child=_Ended(log_file), secret="", ready_by=0.0)
    said = f"RuntimeError: {words.splitlines()[0]}"[:LAST_CHARACTERS]
    assert life.reason(code) == f"out_of_memory: the child ended with code 1, saying: {said}"


class _Ended:
    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file


def test_a_run_is_told_once_when_a_child_takes_clearly_more_than_was_leased() -> None:
    hold = LeaseHold(3, "box.cpu0", 7, DeviceUse.TRAINER, 1, uuid4(), False, None, 0.0, memory_bytes=2**30)
    device = DeviceRow("box.cpu0", "box", "cpu", 0, "default", {})
    with structlog.testing.capture_logs() as lines:
        host = LeaseHost(*[SimpleNamespace()] * 3, hold, {}, [device])  # type: ignore[arg-type]
        for held in (0, 2**30, int(1.2 * 2**30), int(1.5 * 2**30), 2**31):
            host._compare(SimpleNamespace(watchman=SimpleNamespace(held=held)))  # type: ignore[arg-type]
        host._compare(SimpleNamespace(watchman=None))  # type: ignore[arg-type]
    (line,) = lines
    assert (line["event"], line["run_id"]) == ("memory above what was leased", 7)
    assert (line["held"], line["leased"], line["use"]) == ("1.5 GiB", "1.0 GiB", "trainer")


def test_a_process_that_has_grown_much_returns_what_is_free_and_one_that_has_not_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, returned = [100 * 2**20], []
    monkeypatch.setattr(memory, "resident", lambda: held[0])

    def give_back(device: str) -> None:
        returned.append((device, held[0]))
        held[0] = 110 * 2**20

    monkeypatch.setattr(memory, "give_back", give_back)
    spare = memory.Spare()
    for now in (160, 500, 170, 500):
        held[0] = now * 2**20
        spare.return_much("cpu")
    assert returned == [("cpu", 500 * 2**20)] * 2, "60 MiB above the least are kept"
    assert memory.resident() > 0
