"""Models that ship inside an installed distribution, made into Hugging Face folders of this host.

`python -m workers.models.packaged <name> <folder>` makes one. It is a process of its own: it needs about 1.5 GB and ten
seconds of a processor for SmolLM2-135M, and its caller neither.

Invariants: a folder is named by the digest of the file that it was made of, and appears whole or not at all; processes
of a host that want it at the same time make it once. Weights are those of the file, de-quantised and rounded to bf16:
what the published models are in, half the bytes of fp32 to keep and to send, and finer than the file's own 4 or 5 bits.
"""

import argparse
import hashlib
import os
import subprocess
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from flexmarl.contracts.packaged_models import (
    PACKAGE_NAMES,
    PACKAGED_MODELS,
    READERS,
    PackageName,
    install_command,
)
from flexmarl.host.exits import last_words
from workers.children import child_environment
from workers.made_folders import make_once, wanted
from workers.models.cards import CARD, card_of
from workers.models.errors import UnsupportedModel
from workers.models.opening import making
from workers.roots import python_path

MAKE_S = 600.0
"""Longest time that a process waits until a model is made, by itself or by another one."""
REFUSED = 3
"""Exit code of a maker that says on its last line what is wrong."""
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}
NICENESS = 5


def place_name(name: PackageName) -> str:
    """Return the name of a packaged model's folder below `models` of a home."""
    return f"{PACKAGED_MODELS[name].sha256}-bf16"


def packaged_folder(name: PackageName) -> Path:
    """Return the folder of a packaged model; made first where it is not there yet. Raises UnsupportedModel."""
    models, python = making()
    place = models / place_name(name)
    if wanted(place):
        return place
    command = [python, "-m", __name__, name, str(place)]
    environment = child_environment({**QUIET, "PYTHONPATH": python_path()})
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=MAKE_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise UnsupportedModel(f"{name} was not made into a model within {MAKE_S:.0f} s") from late
    if done.returncode == 0 and place.is_dir():
        return place
    last = last_words(done.stderr, done.returncode)
    if done.returncode < 0:
        last = f"its process was ended by signal {-done.returncode}; it needs about 1.5 GB of memory"
    raise UnsupportedModel(last if done.returncode == REFUSED else f"{name} could not be made into a model: {last}")


def file_of(name: PackageName) -> Path:
    """Return the file of a packaged model in its installed distribution.

    Raises UnsupportedModel where it is not installed, or is not the file that is known.
    """
    known = PACKAGED_MODELS[name]
    try:
        shipped = distribution(name)
        for reader in READERS:
            distribution(reader)
    except PackageNotFoundError as absent:
        text = f"{absent.name} is not installed on this host; install it with: {install_command(name)}"
        raise UnsupportedModel(text) from absent
    if shipped.version != known.version:
        text = f"{name} {shipped.version} is installed, {known.version} is known; install it with: "
        raise UnsupportedModel(text + install_command(name))
    path = Path(str(shipped.locate_file(known.file)))
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != known.sha256:
            text = f"{known.file} is damaged; install it again with: {install_command(name)} --force-reinstall"
            raise UnsupportedModel(text)
    return path


def make(name: PackageName, place: Path) -> None:
    """Make the folder of a packaged model, unless it is there. Raises UnsupportedModel or OSError."""
    make_once(place, lambda temporary: _write(file_of(name), temporary, PACKAGED_MODELS[name].licence))


def _write(file: Path, folder: Path, licence: str) -> None:
    """Read a GGUF through transformers and write the model, its tokenizer, its chat template and its licence."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    torch.set_num_threads(1)
    # transformers reads the file three times, and makes the map of its names anew for each tensor.
    gguf: Any = import_module("gguf")
    gguf.GGUFReader = cache(gguf.GGUFReader)
    gguf.get_tensor_name_map = cache(gguf.get_tensor_name_map)
    tokens: Any = AutoTokenizer
    models: Any = AutoModelForCausalLM
    tokenizer = tokens.from_pretrained(str(file.parent), gguf_file=file.name)
    quantised = models.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    # The tensors are de-quantised, and yet transformers refuses to save this object: a clean one of the same weights.
    told = quantised.config.to_dict()
    for word in ("quantization_config", "_name_or_path", "_model_name_or_path", "pretraining_tp"):
        told.pop(word, None)
    config = type(quantised.config)(**{**told, "architectures": [type(quantised).__name__]})
    with torch.device("meta"):
        model = type(quantised)(config)
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    special = {f"{name}_token_id": getattr(config, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    model.generation_config = GenerationConfig(**special)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    (folder / CARD).write_text(card_of(licence), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PACKAGE_NAMES)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    os.nice(NICENESS)
    try:
        make(asked.name, asked.folder)
    except UnsupportedModel as error:
        parser.exit(REFUSED, f"{error}\n")
    except OSError as error:
        parser.exit(REFUSED, f"{asked.name} could not be written: {os.strerror(error.errno or 0)}\n")


if __name__ == "__main__":
    main()
