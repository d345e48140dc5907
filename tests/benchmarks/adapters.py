"""What an adapter saves and costs against training every weight of the same model.

`version_bytes_<size>_<tuning>`, `state_bytes_<size>_<tuning>`: what one step of one policy publishes, and the training
state it stores beside; `share_of_version_<size>`, `share_of_state_<size>`: the adapter's over the whole model's.
`engine_bytes_per_agent_<size>_<tuning>`: memory of weights that a further agent costs a torch engine. All of these are
counted, not timed. `gradient_<size>`: rows/s of the trainer's gradient, adapter over whole. `decode_<size>`: tokens/s
of the torch engine with an adapter over those without. Both by processor time, pinned to one core and interleaved.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import harness
import numpy as np
from training import make_rows

WORDS = 43
ROWS, PROMPT, RESPONSE = 128, 12, 8
REQUESTS, REPLY = 64, 64


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--core", type=int, default=0, help="core everything is pinned to, counted from the last")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)


def drawn_rows() -> list:
    return make_rows(np.random.default_rng(0), ROWS, PROMPT, RESPONSE)


def stored(home: Path, size: str, tuning: dict[str, object]) -> tuple[int, int]:
    """Return the bytes of a version and of its training state after one step."""
    from flexmarl.contracts.specification.experiment import ExperimentSpec
    from workers.child import IntervalLog
    from workers.training.trainer import CREATE, Trainer
    from workers.training.wire import AccumulateRequest, BindRequest, StepRequest
    from workers.transfer import LocalTier

    fields = {
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game", "symbols": 64},
        "policies": {role: {"model": {"size": size}, "tuning": tuning} for role in ("speaker", "listener")},
    }
    trainer = Trainer(ExperimentSpec.model_validate(fields), 1, "a", str(home), "cpu", IntervalLog())
    trainer.bind(BindRequest("speaker", CREATE))
    trainer.accumulate(AccumulateRequest("speaker", "0:a", 1, 0.0, drawn_rows()))
    reply = trainer.step(StepRequest("speaker", "0:a", [1], 1, 1e-3))
    trainer.settle()
    version, state = (LocalTier(home).locate(digest) for digest in (reply.digest, reply.state))
    return version.bytes, state.bytes


def gradients(size: str, lora: object) -> dict[str, Callable[[], float]]:
    from flexmarl.contracts.specification.losses import LOSS
    from flexmarl.contracts.specification.team import AdamW, FactoryModel
    from workers.models import architecture_of
    from workers.models.adapter import initial_adapter
    from workers.models.weights import initial_weights
    from workers.training.learner import Adapter, Learner, Objective

    source, objective, rows = FactoryModel(size=size), Objective.of(LOSS.options()), drawn_rows()
    weights = initial_weights(source, WORDS, 0)
    adapters = {"whole": None, "adapter": Adapter(lora, initial_adapter(weights, lora, 1))}

    def measured(learner: Learner) -> Callable[[], float]:
        def run() -> float:
            began = time.process_time()
            learner.gradient(rows, 0.05, objective)
            return ROWS / (time.process_time() - began)

        return run

    return {
        name: measured(Learner(weights, architecture_of(source), objective, AdamW(), adapter=adapter))
        for name, adapter in adapters.items()
    }


def engines(report: harness.Report, size: str, lora: object) -> dict[str, Callable[[], float]]:
    """Return decoding without and with an adapter; note what a further agent costs in memory."""
    import torch

    from flexmarl.contracts.specification.team import FactoryModel
    from workers.models import architecture_of
    from workers.models.adapter import initial_adapter
    from workers.models.weights import initial_weights
    from workers.rollout.engines.requests import Request
    from workers.rollout.engines.torch_engine import TorchEngine

    source = FactoryModel(size=size)
    state = initial_weights(source, WORDS, 0)
    engine = TorchEngine(rows=REQUESTS)
    whole = engine.prepare(state, architecture_of(source))
    adapted = engine.adapt(whole, initial_adapter(state, lora, 1), lora)
    report.figures[f"engine_bytes_per_agent_{size}_full"] = held(whole, set())
    report.figures[f"engine_bytes_per_agent_{size}_lora"] = held(adapted, set(tensors(whole)))
    for policy, weights in (("whole", whole), ("adapter", adapted)):
        engine.load(policy, 0, policy, weights)

    def decode(policy: str) -> float:
        engine.submit([Request(f"{policy}{i}", policy, (1, 3 + i % 30), REPLY, seed=i) for i in range(REQUESTS)])
        began = time.process_time()
        with torch.inference_mode():
            while engine.busy:
                engine.step()
        return REQUESTS * REPLY / (time.process_time() - began)

    return {policy: lambda policy=policy: decode(policy) for policy in ("whole", "adapter")}


def tensors(node: object) -> dict[int, int]:
    """Return the bytes of every tensor of prepared weights, by its address."""
    import dataclasses

    import torch

    if isinstance(node, torch.Tensor):
        return {node.data_ptr(): node.untyped_storage().nbytes()}
    parts = (
        [getattr(node, field.name) for field in dataclasses.fields(node)]
        if dataclasses.is_dataclass(node)
        else node if isinstance(node, tuple) else []
    )  # fmt: skip
    return {address: size for part in parts for address, size in tensors(part).items()}


def held(weights: object, shared: set[int]) -> float:
    return float(sum(size for address, size in tensors(weights).items() if address not in shared))


def main() -> None:
    report = harness.start("adapters", __doc__, options)
    harness.pin(report.settings["core"])
    import torch

    from flexmarl.contracts.specification.team import Lora

    torch.set_num_threads(1)
    repeats = 2 if report.quick else report.settings["repeats"]
    lora = Lora(rank=report.settings["rank"])
    for size in ("S", "M"):
        counted: dict[str, tuple[int, int]] = {}
        for name, tuning in (("full", {"type": "full"}), ("lora", lora.model_dump())):
            home = Path(tempfile.mkdtemp(prefix="flexmarl-adapters-"))
            try:
                counted[name] = stored(home, size, tuning)
            finally:
                shutil.rmtree(home)
            report.figures[f"version_bytes_{size}_{name}"] = counted[name][0]
            report.figures[f"state_bytes_{size}_{name}"] = counted[name][1]
        report.figures[f"share_of_version_{size}"] = counted["lora"][0] / counted["full"][0]
        report.figures[f"share_of_state_{size}"] = counted["lora"][1] / counted["full"][1]
        for key, runs in (("gradient", gradients(size, lora)), ("decode", engines(report, size, lora))):
            for run in runs.values():
                run()
            rates = harness.interleave(runs, repeats)
            report.ratio(f"{key}_{size}", harness.paired_ratios(rates["adapter"], rates["whole"]))
    report.finish()


if __name__ == "__main__":
    main()
