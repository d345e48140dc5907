"""Word-level tokenizers of factory models, as `tokenizer.json` that plain transformers loads.

Words are separated by blanks; `<bos>` opens every encoded text; a word outside the vocabulary is an error, because it
would silently teach the policy nothing. Every word is listed as an added token too: `AutoTokenizer` rebuilds the
tokenizer of a qwen2 folder as its own byte-pair class and keeps of ours only the added tokens and the opening `<bos>`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from flexmarl.contracts.specification.team import FactoryModel, OwnSource
from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.templates import PLAIN
from workers.models.opening import TOKENIZER_BYTES, ModelFolder
from workers.models.places import folder_of

CHAT_TEMPLATE = "chat_template.jinja"
SPECIAL_WORDS = ("<pad>", "<bos>", "<eos>")


@dataclass(frozen=True, slots=True)
class Spoken:
    """By which files a model reads and writes."""

    tokenizer: bytes
    """tokenizer.json"""
    chat: str = ""
    """Its chat format as JSON; empty: it knows no messages."""


def folder_spoken(path: str) -> Spoken:
    """Read tokenizer and chat format of a model's folder that was inspected. Raises UnsupportedModel."""
    with ModelFolder(path) as folder:
        tokenizer = folder.read("tokenizer.json", TOKENIZER_BYTES)
        return Spoken(tokenizer, chat_format(folder, tokenizer).dump())


def chat_format(folder: ModelFolder, tokenizer_json: bytes) -> ChatFormat:
    """Return how the model of a folder is spoken to; without a template of its own by the plain one."""
    from tokenizers import Tokenizer

    config = folder.json("tokenizer_config.json") if folder.has("tokenizer_config.json") else {}
    generation = folder.json("generation_config.json") if folder.has("generation_config.json") else {}
    template = folder.read(CHAT_TEMPLATE).decode() if folder.has(CHAT_TEMPLATE) else config.get("chat_template")
    if isinstance(template, list):  # several by name, of which one is for talking
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    special = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            special[name] = token
    ends = generation.get("eos_token_id", folder.json("config.json").get("eos_token_id", []))
    stop = [end for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int)]
    end = Tokenizer.from_str(tokenizer_json.decode()).token_to_id(special.get("eos_token", ""))
    stop += [] if end is None or end in stop else [end]
    text = template if isinstance(template, str) else ""
    return ChatFormat(template=text or PLAIN, plain=not text, special=special, stop=tuple(stop))


def tokenizer_json(vocabulary: tuple[str, ...]) -> bytes:
    """Return `tokenizer.json` of a vocabulary; its first three words must be the special ones."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing

    _check(vocabulary)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL_WORDS])
    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in vocabulary[3:]])
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return tokenizer.to_str().encode()


def tokenizer_of(source: OwnSource, vocabulary: tuple[str, ...]) -> bytes:
    """Return `tokenizer.json` of a policy's model source."""
    if not isinstance(source, FactoryModel):
        with ModelFolder(folder_of(source)) as folder:
            return folder.read("tokenizer.json", TOKENIZER_BYTES)
    return tokenizer_json(vocabulary)


def write_tokenizer(folder: Path, tokenizer: bytes, max_length: int = 4096) -> None:
    """Write the two files from which `AutoTokenizer` loads a factory tokenizer."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<pad>",
        "padding_side": "left",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _check(vocabulary: tuple[str, ...]) -> None:
    if vocabulary[:3] != SPECIAL_WORDS:
        raise ValueError(f"a vocabulary begins with {SPECIAL_WORDS}, not with {vocabulary[:3]}")
    if len(set(vocabulary)) != len(vocabulary):
        raise ValueError("a vocabulary contains each word once")
    for word in vocabulary:
        if not word or word.split() != [word]:
            raise ValueError(f"{word!r} is not a word: words are not empty and contain no spaces")
