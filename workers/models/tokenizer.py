"""Word-level tokenizers of factory models, as `tokenizer.json` that plain transformers loads.

Words are separated by blanks; `<bos>` opens every encoded text; a word outside the vocabulary is an error, because it
would silently teach the policy nothing. Every word is listed as an added token too: `AutoTokenizer` rebuilds the
tokenizer of a qwen2 folder as its own byte-pair class and keeps of ours only the added tokens and the opening `<bos>`.
"""

import json
from pathlib import Path

from flexmarl.contracts.specification.team import FactoryModel, OwnSource
from workers.models.opening import TOKENIZER_BYTES, ModelFolder
from workers.models.packaged import folder_of

SPECIAL_WORDS = ("<pad>", "<bos>", "<eos>")


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
