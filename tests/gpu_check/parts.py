"""The parts of a GPU check: what each does, what it needs, how it is run, and which figures it has to reach."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

BENCHMARKS = "tests/benchmarks"


class Model(StrEnum):
    """Which model a part is run with."""

    NONE = "none"
    CHAT = "SmolLM2-135M-Instruct"
    NAMED = "the folder of --model"


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure of a part's report and the value that is wanted."""

    figure: str
    least: float | None = None
    most: float | None = None

    @property
    def wanted(self) -> str:
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"

    def reached(self, value: float) -> bool:
        """Tell whether a value is one; no number never is."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    does: str
    command: tuple[str, ...]
    """Behind the interpreter; without the options that every benchmark has."""
    bounds: tuple[Bound, ...] = ()
    tells: tuple[str, ...] = ()
    """Beginnings of figures that are reported, and for which no value is wanted."""
    model: Model = Model.NONE
    devices: int = 1
    """GPUs that it needs."""
    vllm: bool = False
    """Whether it needs vLLM."""
    only_gpu: bool = False
    """It has no form for a CPU."""

    def arguments(self, device: str, model: Path | None, json: Path, quick: bool) -> list[str]:
        """Return what the interpreter is called with."""
        if self.only_gpu:
            return [*self.command, f"--junit-xml={json.with_suffix('.xml')}"]
        chosen = ["--model", str(model)] if model is not None and self.model is not Model.NONE else []
        return [*self.command, "--device", device, *chosen, *["--quick"] * quick, "--json", str(json)]


def _device(*parts: str, precision: str = "fp32", more: Sequence[str] = ()) -> tuple[str, ...]:
    return (f"{BENCHMARKS}/device.py", "--part", *parts, "--precision", precision, *more)


def _both(name: str, does: str, command: tuple[str, ...], bounds: tuple[Bound, ...], **more: Any) -> tuple[Part, ...]:
    """Return a part for the chat model and the same one for a named model."""
    return (
        Part(name, does, command, bounds, model=Model.CHAT, **more),
        Part(f"{name}_named", does, command, bounds, model=Model.NAMED, **more),
    )


PARTS: tuple[Part, ...] = (
    Part(
        "tests",
        "runs every test that is marked gpu: engine and trainer compute on a GPU what they compute on a CPU",
        ("-m", "pytest", "-m", "gpu", "-q", "tests/unit", "tests/integration", "tests/conformance"),
        (Bound("failed", most=0), Bound("passed", least=1)),
        only_gpu=True,
    ),
    *_both(
        "parity_fp32",
        "compares the trainer's log-probabilities with those that the torch engine reported for its replies, in fp32",
        _device("parity"),
        (Bound("logprob_gap_torch", most=1e-5),),
    ),
    *_both(
        "parity_bf16",
        "compares the trainer's log-probabilities in bf16 with those that vLLM reported for its own replies",
        _device("parity", precision="bf16", more=("--engines", "vllm")),
        (Bound("logprob_gap_vllm", most=0.05),),
        vllm=True,
    ),
    *_both(
        "rollout",
        "plays episodes through the platform on vLLM, in turns with vLLM alone and the same prompts",
        (f"{BENCHMARKS}/rollout.py", "--part", "vllm_alone", "--tokens", "128", "512"),
        (Bound("vllm_share_of_alone_128", least=0.95), Bound("vllm_share_of_alone_512", least=0.95)),
        tells=("vllm_beside_alone", "vllm_alone_tokens_per_s"),
        vllm=True,
    ),
    Part(
        "training",
        "trains on ragged rows in bf16: tokens per second, and the share of the GPU's matrix products that they use",
        _device("training", precision="bf16"),
        tells=("tokens_per_s", "flops_share"),
        model=Model.CHAT,
    ),
    Part(
        "training_named",
        "the same with a model of 0.5 to 1.7 billion weights, whose products are large enough for a GPU",
        _device("training", precision="bf16"),
        (Bound("flops_share", least=0.3),),
        tells=("tokens_per_s",),
        model=Model.NAMED,
    ),
    *_both(
        "suspending",
        "suspends a training state to host memory and resumes it, in turns with a plain copy there and back",
        _device("suspending"),
        (Bound("suspend_share_of_raw", least=0.8),),
        tells=("suspend_s", "suspended_mb"),
    ),
    *_both(
        "publication",
        "has two engines load version after version, in turns with plain reads of as many bytes onto the device",
        (f"{BENCHMARKS}/publish.py", "--parts", "engines", "--engines", "2"),
        (Bound("beyond_allowance_ms", most=0),),
        tells=("loaded_alone_", "load_share_fresh_"),
    ),
    Part(
        "gang",
        "holds one policy on all GPUs over NCCL: its gradient against that of one GPU, and its speed over it",
        _device("gang"),
        (Bound("gang_gradient_distance", most=1e-5),),
        tells=("gang_ranks", "gang_tokens_per_s", "gang_over_one"),
        model=Model.CHAT,
        devices=2,
    ),
    Part(
        "sleeping",
        "puts an engine to sleep and wakes it: it returns the memory that it held, and says what it said before",
        _device("sleeping"),
        (Bound("asleep_share_returned", least=0.9),),
        tells=("sleep_s", "wake_s"),
        model=Model.CHAT,
    ),
)
