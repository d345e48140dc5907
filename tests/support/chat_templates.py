"""A small byte-pair tokenizer with ChatML's special tokens, and chat templates that behave as real ones do."""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.renderer import Renderer

START, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Writes what was said as it was said."""
SMOLLM2 = CHATML.replace("You help.", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
"""SmolLM2-Instruct's own."""
TRIMMING = CHATML.replace("message['content']", "(message['content'] | trim)")
"""Trims blanks around what was said."""
FORGETTING = CHATML.replace(
    "message['content']",
    "(message['content'].split('</think>')[-1] if message['role'] == 'assistant' else message['content'])",
)
"""Leaves out what the assistant thought, in all its earlier turns."""
QWEN3 = (Path(__file__).parent / "qwen3_chat_template.jinja").read_text(encoding="utf-8")
"""Qwen3's own, letter by letter, out of the distribution trl 1.16.0 (Apache-2.0), as the model's is."""
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""What Qwen3's tokenizer has a token for that is not a special one."""


def tokenizer(marks: Sequence[str] = ()) -> Tokenizer:
    """Return one that has a token for each byte, one for each end of a message, and one for each mark."""
    found = Tokenizer(BPE({letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}, []))
    found.pre_tokenizer = ByteLevel(add_prefix_space=False)
    found.decoder = Decoder()
    found.add_special_tokens([AddedToken(START, special=True), AddedToken(END, special=True)])
    found.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return found


def renderer(template: str = CHATML, marks: Sequence[str] = (), **settings: JsonValue) -> Renderer:
    words = tokenizer(marks)
    return Renderer(words, ChatFormat(template=template, stop=(words.token_to_id(END),), settings=settings))


def small_chat_model(folder: Path, seed: int = 0, width: int = 64) -> Path:
    """Write a small Llama of random weights with this tokenizer and ChatML, as Hugging Face folders are."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = tokenizer()
    config = LlamaConfig(
        vocab_size=words.get_vocab_size(), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=words.token_to_id(START), eos_token_id=words.token_to_id(END), pad_token_id=words.token_to_id(END),
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": START, "eos_token": END, "pad_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    return folder
