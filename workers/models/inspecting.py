"""What a model's folder holds, and every reason why no run may use it: known before anything computes with it.

`python -m workers.models.inspecting <folder> --model-root <root>` writes what it found as JSON.

Invariants: nothing is executed that the folder brings (no pickle, no code; its template renders in a sandbox, in
bounded time and memory), and no weight is read, only the headers of the files: a model of any size is inspected in the
memory of its tokenizer. Each refusal has a stable code and says what would be accepted. What passes has every weight of
its configuration, in its shape (where the own decoder computes it), and a tokenizer whose ids its embedding knows.
"""

import argparse
import math
import sys
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.templates import PLAIN, TemplateError
from flexmarl.store.data.model_roots import ModelRoots
from workers.models.architecture import Architecture, parse_architecture
from workers.models.errors import ModelRefused, UnsupportedModel
from workers.models.families import library_config, library_model_of
from workers.models.licences import licence_in
from workers.models.opening import TOKENIZER_BYTES, ModelFolder, allow
from workers.models.rendering import sample_of
from workers.models.tensors import tensor_files, tensor_shapes
from workers.models.token_texts import TokenText, token_texts
from workers.models.tokenizer import CHAT_TEMPLATE, chat_format

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MOST_LAYERS = 1000
REFUSED = 3
"""Exit code with which a refusal is written, as JSON."""


class ModelFacts(msgspec.Struct, frozen=True):
    """What is known of a model that runs may use."""

    architecture: str
    """`model_type` of its configuration."""
    licence: str
    """As its configuration or its card says it; empty: unknown."""
    parameters: int
    bytes: int
    """Size of its weights."""
    dtypes: list[str]
    context: int
    """Longest conversation in tokens; 0 where the configuration does not say."""
    vocabulary: int
    """Ids that its embedding knows; those that its tokenizer names may be fewer."""
    tokenizer: str
    """SHA-256 of tokenizer.json."""
    template: str
    """SHA-256 of its chat template; of the plain one where it has none."""
    plain_template: bool
    special: dict[str, str]
    stop: list[str]
    """Tokens that end the assistant's turn."""
    sample: str
    """A small conversation as the model is shown it."""
    shape: dict[str, int]
    """Sides of its matrices, by the fields of `ModelShape`; empty for a mixture of experts, and where they are not
    told."""
    sample_tokens: list[TokenText]
    """The sample as its tokenizer cuts it; none, where it has no tokens for some of its words."""
    warnings: list[str] = []
    commit: str = ""
    """Of the hub's repository that it was fetched from; empty: it is of none."""


def inspect(path: str) -> ModelFacts:
    """Return what a folder holds. Raises ModelRefused with a code, or UnsupportedModel for a folder of no kind."""
    with ModelFolder(path) as folder:
        return _inspected(folder)


def check_kind(path: str) -> None:
    """Raise ModelRefused for a folder whose files are not those of a whole model."""
    with ModelFolder(path) as folder:
        _config(folder)


def _inspected(folder: ModelFolder) -> ModelFacts:
    config = _config(folder)
    native = _native(config)
    context = native.max_positions if native else _context(config)
    shapes, dtypes, size = _headers(folder)
    tied = bool(config.get("tie_word_embeddings"))
    if tied:
        shapes.pop(HEAD, None)
    if native is not None:  # of other families the trainer knows the names when it loads them
        _fits(expected_shapes(config, native, tied), shapes)
    words = shapes.get(EMBEDDING, (0,))[0] or int(str(config.get("vocab_size", 0)))
    tokenizer, chat = _spoken(folder, words)
    sample = _sample(chat)
    return ModelFacts(
        architecture=str(config["model_type"]),
        licence=licence_in(folder, config),
        parameters=sum(map(math.prod, shapes.values())),
        bytes=size,
        dtypes=sorted(dtypes),
        context=context,
        vocabulary=words,
        tokenizer=sha256(tokenizer).hexdigest(),
        template=sha256(chat.template.encode()).hexdigest(),
        plain_template=chat.plain,
        special=chat.special,
        stop=_stops(chat, tokenizer, words),
        sample=sample,
        shape=_shape(config, words),
        sample_tokens=token_texts(_opened(tokenizer), sample),
        warnings=_warnings(folder, chat),
    )


def _config(folder: ModelFolder) -> dict[str, object]:
    if not folder.has("config.json"):
        if folder.has("adapter_config.json"):
            text = "the folder is an adapter; set it as tuning.adapter and name its base model here"
            raise ModelRefused("is_adapter", text)
        raise ModelRefused("no_config", "the folder has no config.json; name a folder of Hugging Face transformers")
    return folder.json("config.json")


def _shape(config: Mapping[str, object], words: int) -> dict[str, int]:
    sides = {
        "hidden": "hidden_size", "layers": "num_hidden_layers", "mlp": "intermediate_size",
        "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head": "head_dim",
    }  # fmt: skip
    found = {side: config.get(name) for side, name in sides.items()}
    found["kv_heads"] = found["kv_heads"] or found["heads"]
    found["head"] = found["head"] or 0
    if any("expert" in name for name in config) or not all(isinstance(side, int) for side in found.values()):
        return {}
    return {**{side: int(str(value)) for side, value in found.items()}, "vocabulary": words}


def _native(config: dict[str, object]) -> Architecture | None:
    """Return the architecture of a model that the own decoder computes; None where only the library may."""
    try:
        return parse_architecture(config)
    except UnsupportedModel:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, ZeroDivisionError) as error:
        raise ModelRefused("bad_config", f"config.json does not describe a model: {error!r}") from error


def _context(config: dict[str, object]) -> int:
    """Return the longest context of a model that the library computes. Raises ModelRefused where it cannot."""
    try:
        known = library_config(library_model_of(config), 0)
    except UnsupportedModel as error:
        if config.get("auto_map"):
            raise ModelRefused("own_code", str(error)) from error
        raise ModelRefused("unknown_architecture", str(error)) from error
    return int(getattr(known, "max_position_embeddings", None) or 0)


def _headers(folder: ModelFolder) -> tuple[dict[str, tuple[int, ...]], set[str], int]:
    """Read names, shapes and types of all weights, and their size in bytes, from the heads of their files."""
    names = tensor_files(folder)
    if not names:
        pickled = [name for name in folder.names() if name.endswith(PICKLED)]
        if pickled:
            text = f"{pickled[0]} is a pickle, which can run code when it is read; save the weights as *.safetensors"
            raise ModelRefused("pickle", text)
        raise ModelRefused("no_weights", "the folder has no *.safetensors; put the weights in it")
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: set[str] = set()
    size = 0
    for name in names:
        try:
            for key, (shape, dtype, length) in tensor_shapes(folder, name).items():
                if key in shapes:
                    raise ModelRefused("wrong_weights", f"{key} is in two files; keep one of them")
                shapes[key] = shape
                dtypes.add(dtype)
                size += length
        except ModelRefused:
            raise
        except UnsupportedModel as error:
            raise ModelRefused("unreadable_weights", f"{error}; copy the file again") from error
    return shapes, dtypes, size


def expected_shapes(config: Mapping[str, object], shape: Architecture, tied: bool) -> dict[str, tuple[int, ...]]:
    """Return the weights that a configuration calls for: name -> shape. Raises ModelRefused."""
    try:
        words, hidden, layers, mlp = (
            int(str(config[key])) for key in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")
        )
    except (KeyError, ValueError) as error:
        raise ModelRefused("bad_config", f"config.json does not describe a model: {error!r}") from error
    if layers > MOST_LAYERS:
        raise ModelRefused("bad_config", f"config.json says {layers} layers; at most {MOST_LAYERS} layers are legal")
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    biased = shape.model_type == "qwen2" or bool(config.get("attention_bias"))
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (words, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        shapes[HEAD] = (words, hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for part, outputs in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            shapes[f"{prefix}self_attn.{part}.weight"] = (outputs, hidden)
            if biased:
                shapes[f"{prefix}self_attn.{part}.bias"] = (outputs,)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, queries)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (mlp, hidden)
        shapes[f"{prefix}mlp.up_proj.weight"] = (mlp, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, mlp)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    return shapes


def _fits(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            given, wanted = (str(shapes.get(name, "absent")) for shapes in (found, expected))
            text = f"{name} is {given}, by config.json it is {wanted}; the files are not of one model"
            raise ModelRefused("wrong_weights", text)


def _spoken(folder: ModelFolder, words: int) -> tuple[bytes, ChatFormat]:
    """Return tokenizer and chat format of a model whose embedding knows so many ids."""
    if not folder.has("tokenizer.json"):
        raise ModelRefused("no_tokenizer", "the folder has no tokenizer.json; save the model's fast tokenizer in it")
    tokenizer = folder.read("tokenizer.json", TOKENIZER_BYTES)
    highest = max(_vocabulary(tokenizer).values(), default=-1)
    if highest >= words:
        text = f"the tokenizer names ids up to {highest}, the embedding knows {words}; use the model's own tokenizer"
        raise ModelRefused("vocabulary_too_large", text)
    chat = chat_format(folder, tokenizer)
    for name, token in chat.special.items():
        if token not in _vocabulary(tokenizer):
            text = f"{name} is {token!r}, which the tokenizer does not know; use the model's own tokenizer files"
            raise ModelRefused("special_token_unknown", text)
    return tokenizer, chat


def _vocabulary(tokenizer: bytes) -> dict[str, int]:
    return _opened(tokenizer).get_vocab(with_added_tokens=True)


def _opened(tokenizer: bytes) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(tokenizer.decode())
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelRefused("bad_tokenizer", f"tokenizer.json cannot be read: {error}") from error


def _sample(chat: ChatFormat) -> str:
    try:
        return sample_of(chat)
    except TemplateError as error:
        text = f"{error}; put a {CHAT_TEMPLATE} in the folder that renders messages of system, user and assistant"
        raise ModelRefused("template_fails", text) from error


def _stops(chat: ChatFormat, tokenizer: bytes, words: int) -> list[str]:
    named = {number: token for token, number in _vocabulary(tokenizer).items()}
    for number in chat.stop:
        if not 0 <= number < words or number not in named:
            text = f"eos_token_id {number} of generation_config.json is not a token; the tokenizer has {len(named)}"
            raise ModelRefused("special_token_unknown", text)
    return [named[number] for number in chat.stop]


def _warnings(folder: ModelFolder, chat: ChatFormat) -> list[str]:
    warnings = []
    if not chat.stop:
        warnings.append("No token ends the assistant's turn; set eos_token_id in generation_config.json.")
    if chat.plain:
        warnings.append(f"The model has no chat template; messages are shown to it by the plain one: {PLAIN!r}.")
    pickled = [name for name in folder.names() if name.endswith(PICKLED)]
    if pickled:
        warnings.append(f"Pickles are never read: {', '.join(pickled)}.")
    return warnings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--model-root", action="append", default=[], help="folder below which the model may lie")
    asked = parser.parse_args()
    allow(ModelRoots(tuple(asked.model_root)))
    try:
        sys.stdout.write(msgspec.json.encode(inspect(asked.folder)).decode() + "\n")
    except UnsupportedModel as error:
        code = error.code if isinstance(error, ModelRefused) else "unreadable_folder"
        sys.stdout.write(msgspec.json.encode({"code": code, "detail": str(error)}).decode() + "\n")
        raise SystemExit(REFUSED) from error


if __name__ == "__main__":
    main()
