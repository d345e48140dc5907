"""Replies that are held to a format by the torch engine: what may come next, what it is drawn from, and the bounds."""

import asyncio
import itertools
import json
import re
import threading
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from llguidance import LLParserLimits

from flexmarl.contracts.specification.sampling import ChoiceOutput, JsonOutput, RegexOutput, StructuredOutput
from tests.support.chat_model import SMOLLM2, chat_home, chat_model
from tests.support.chat_templates import END, small_chat_model, tokenizer
from tests.unit.workers.test_engine import finish
from workers import reply_masks
from workers.child import IntervalLog
from workers.models.architecture import parse_architecture
from workers.models.weights import initial_weights
from workers.rollout.engines import server
from workers.rollout.engines.requests import BadRequestError, Finished, Request
from workers.rollout.engines.tokenizers import Tokenizers
from workers.rollout.engines.torch_engine import TorchEngine
from workers.rollout.engines.wire import CompletionRequest, CompletionResponse, SamplingParameters

__all__ = ["chat_home", "chat_model"]

WORDS = tokenizer()
STOP = WORDS.token_to_id(END)
BODY = WORDS.to_str().encode()
PROMPT = tuple(WORDS.encode("Who?").ids)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
OUTPUTS: dict[str, StructuredOutput] = {
    "choice": ChoiceOutput(choices=("yes", 'a "b"\n', "yesterday")),
    "regex": RegexOutput(pattern="[a-c]{2,3}-[0-9]"),
    "json_schema": JsonOutput(of=PERSON),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    from transformers import LlamaForCausalLM

    folder = small_chat_model(tmp_path_factory.mktemp("small"))
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def engine_of(model: torch.nn.Module, body: bytes | None = BODY, rows: int = 16) -> TorchEngine:
    torch.set_num_threads(1)
    engine = TorchEngine("cpu", rows, tokenizer_of=lambda _: body)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    engine.load("p", 0, "d", engine.prepare(state, parse_architecture(model.config.to_dict())))
    return engine


def asking(name: str, output: StructuredOutput | str, **more: object) -> Request:
    structured = output if isinstance(output, str) else output.model_dump_json()
    sampling = SamplingParameters(structured=structured, **more.pop("sampling", {}))
    settings = {"max_tokens": 80, "seed": 0, "stop": (STOP,), **more}
    return Request(name, "p", PROMPT, sampling=sampling, **settings)


def text_of(answer: Finished) -> str:
    return WORDS.decode(answer.token_ids, skip_special_tokens=True)


def holds(output: StructuredOutput, text: str) -> bool:
    match output:
        case ChoiceOutput(choices=choices):
            return text in choices
        case RegexOutput(pattern=pattern):
            return re.fullmatch(pattern, text) is not None
        case JsonOutput(of=schema):
            jsonschema.validate(json.loads(text), schema)
            return True


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_whole_reply_is_what_it_must_be_and_one_that_is_cut_says_so(name: str, model: torch.nn.Module) -> None:
    output, engine = OUTPUTS[name], engine_of(model)
    engine.submit([asking(f"{seed}", output, seed=seed, temperature=(1.0, 0.0, 3.0)[seed % 3]) for seed in range(24)])
    ended = {"stop": 0, "length": 0}
    for answer in finish(engine).values():
        ended[answer.reason] += 1
        if answer.reason == "stop":
            assert answer.token_ids[-1] == STOP
            assert holds(output, text_of(answer)), text_of(answer)
    assert ended["stop"] > 12, "JSON may have any number of blanks; most replies end nonetheless"
    engine.submit([asking("cut", output, max_tokens=1)])
    assert finish(engine)["cut"].reason == "length"


def allowed_by_brute_force(said: str, pattern: str) -> list[int]:
    """Return the ids behind which a reply can still match an expression of at most five letters, all written out."""
    whole = [
        "".join(letters) + f"-{digit}"
        for length in (2, 3) for letters in itertools.product("abc", repeat=length) for digit in range(10)
    ]  # fmt: skip
    assert all(re.fullmatch(pattern, one) for one in whole)
    found = [
        number
        for number in range(WORDS.get_vocab_size())
        if number != STOP
        and (letter := WORDS.decode([number], skip_special_tokens=False))
        and any(one.startswith(said + letter) for one in whole)
    ]
    return found + [STOP] * (said in whole)


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.7}, {"repetition_penalty": 1.4}], ids=str)
def test_logprobs_are_those_of_the_masked_distribution(sampling: dict[str, float], model: torch.nn.Module) -> None:
    """Against masks that are made by writing out every reply that the expression allows."""
    from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TopPLogitsWarper

    output, engine = OUTPUTS["regex"], engine_of(model)
    assert isinstance(output, RegexOutput)
    heat = 0.7
    engine.submit([asking(f"{n}", output, seed=n, temperature=heat, sampling=dict(sampling)) for n in range(6)])
    for answer in finish(engine).values():
        ids = list(PROMPT)
        for place, (token, logprob) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
            said = WORDS.decode(answer.token_ids[:place], skip_special_tokens=False)
            allowed = allowed_by_brute_force(said, output.pattern)
            assert token in allowed
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[:, -1]
            masked = torch.full_like(logits, -torch.inf)
            masked[:, allowed] = logits[:, allowed]
            steps = LogitsProcessorList()
            if "repetition_penalty" in sampling:
                steps.append(RepetitionPenaltyLogitsProcessor(sampling["repetition_penalty"]))
            masked = steps(torch.tensor([ids]), masked) / heat
            if "top_p" in sampling:
                masked = TopPLogitsWarper(sampling["top_p"])(torch.tensor([ids]), masked)
            assert logprob == pytest.approx(float(masked.log_softmax(-1)[0, token]), abs=1e-4)
            ids.append(token)


def test_rows_that_move_and_rows_beside_them_keep_their_own_grammars(model: torch.nn.Module) -> None:
    """Four formats and none, of different lengths, in few rows: each reply is the one that it is alone."""
    outputs: list[StructuredOutput | str] = [*OUTPUTS.values(), ""]
    requests = [asking(f"{n}", outputs[n % 4], seed=n, max_tokens=40) for n in range(20)]
    engine = engine_of(model, rows=5)
    engine.submit(requests)
    together = finish(engine)
    for request in requests:
        alone = engine_of(model)
        alone.submit([request])
        assert finish(alone)[request.request_id].token_ids == together[request.request_id].token_ids


def test_a_reply_that_is_carried_on_goes_on_in_its_grammar(model: torch.nn.Module) -> None:
    engine = engine_of(model)
    request = asking("a", OUTPUTS["json_schema"], seed=4)
    engine.submit([request])
    whole = finish(engine)["a"]
    for made in (1, 5, len(whole.token_ids) - 1):
        done = {
            "done": tuple(whole.token_ids[:made]),
            "done_logprobs": tuple(whole.logprobs[:made]),
            "done_segments": (0, made),
        }
        engine.submit([asking("b", OUTPUTS["json_schema"], seed=4, **done)])
        assert finish(engine)["b"].token_ids == whole.token_ids
    letters = tuple(WORDS.encode("no").ids)
    wrong = {"done": letters, "done_logprobs": (0.0,) * len(letters), "done_segments": (0, len(letters))}
    with pytest.raises(BadRequestError, match="structured: its tokens so far"):
        engine.submit([asking("c", OUTPUTS["json_schema"], **wrong)])
    assert not engine.busy


def test_newer_weights_take_a_reply_over_in_its_grammar(model: torch.nn.Module) -> None:
    engine = engine_of(model)
    engine.submit([asking(way, OUTPUTS["json_schema"], seed=3, follow=way) for way in ("continue", "resume")])
    for _ in range(6):
        engine.step()
    state = {name: value + 0.01 * torch.randn_like(value) for name, value in model.state_dict().items()}
    engine.load("p", 1, "d1", engine.prepare(state, parse_architecture(model.config.to_dict())))
    for answer in finish(engine).values():
        assert answer.version == 1
        if answer.reason == "stop":
            assert holds(OUTPUTS["json_schema"], text_of(answer))


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (asking("a", '{"type": "grammar"}'), "structured: is not known"),
        (asking("a", JsonOutput(of={"type": "word"})), "structured: Invalid type: word"),
        (asking("a", JsonOutput(of={"not": {}})), "structured: Unimplemented keys"),
        (asking("a", JsonOutput(of={"minItems": 10**7, "type": "array"})), "structured: minItems is 10000000; at most"),
        (asking("a", RegexOutput(pattern="(a)\\1")), "structured: "),
        (asking("a", OUTPUTS["regex"], allowed=(1, 2)), "structured: does not go with allowed_token_ids"),
        (asking("a", OUTPUTS["regex"], stop=()), "structured: needs an id that ends a whole reply"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_what_no_reply_can_be_held_to_is_refused_by_name(request_: Request, named: str, model: torch.nn.Module) -> None:
    engine = engine_of(model)
    with pytest.raises(BadRequestError) as refused:
        engine.submit([request_])
    assert str(refused.value).startswith(named)
    assert refused.value.request_ids == ["a"]
    assert not engine.busy


def test_a_model_without_text_is_refused(model: torch.nn.Module) -> None:
    with pytest.raises(BadRequestError, match="structured: the model of p has no tokenizer of text"):
        engine_of(model, body=None).submit([asking("a", OUTPUTS["regex"])])


def test_a_reply_beyond_the_limits_of_grammars_is_given_up_and_no_other(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_masks, "LIMITS", LLParserLimits(max_lexer_states=60))
    engine = engine_of(model)
    engine.submit(
        [asking("grows", RegexOutput(pattern="[ab]{200}"), max_tokens=300), asking("plain", OUTPUTS["regex"])]
    )
    done = finish(engine)
    assert done["plain"].reason == "stop"
    assert done["grows"].reason == "too_complex"
    assert 20 < len(done["grows"].token_ids) == len(done["grows"].logprobs) < 200
    assert np.isfinite(done["grows"].logprobs).all()


def test_a_grammar_is_compiled_once(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    compiled = reply_masks.grammar_of

    def compiling(output: StructuredOutput) -> str:
        made.append(threading.current_thread().name)
        return compiled(output)

    monkeypatch.setattr(reply_masks, "grammar_of", compiling)
    engine = engine_of(model)
    requests = [asking(f"{n}", OUTPUTS["json_schema"], seed=n) for n in range(5)]
    aside = threading.Thread(target=engine.understand, args=(requests,), name="aside")
    aside.start()
    aside.join()
    engine.submit(requests)
    finish(engine)
    assert made == ["aside"]


async def test_nobody_waits_while_a_format_is_compiled_and_one_that_takes_too_long_is_refused(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP: the library's compiler is held up, as a hostile schema would hold it."""
    engine, may_end = engine_of(model), threading.Event()
    compiled = engine.understand

    def held_up(requests: list[Request]) -> None:
        assert may_end.wait(60)
        compiled(requests)

    monkeypatch.setattr(engine, "understand", held_up)
    serving = server.EngineServer(engine, lambda *_: None, "life", IntervalLog(), Tokenizers({}))
    app = web.Application()
    app.add_routes(serving.routes())

    def body(**more: object) -> bytes:
        settings = {"max_tokens": 60, "seeds": [1], "stop_token_ids": [STOP], **more}
        return msgspec.json.encode(CompletionRequest("p", [list(PROMPT)], **settings))

    async with TestClient(TestServer(app)) as client:
        generating = asyncio.create_task(serving.generate())
        shaped = body(sampling=SamplingParameters(structured=OUTPUTS["regex"].model_dump_json()))
        waits = asyncio.create_task(client.post("/v1/completions", data=shaped))
        plain = await client.post("/v1/completions", data=body())
        assert plain.status == 200
        assert not waits.done(), "its format is not compiled yet"
        may_end.set()
        answer = msgspec.json.decode(await (await waits).read(), type=CompletionResponse)
        assert holds(OUTPUTS["regex"], WORDS.decode(answer.choices[0].token_ids, skip_special_tokens=True))
        may_end.clear()
        monkeypatch.setattr(server, "UNDERSTAND_S", 0.1)
        late = await client.post("/v1/completions", data=shaped)
        assert late.status == 422
        assert "structured: it was not compiled within 0.1 s" in (await late.json())["detail"]
        assert not engine.busy
        may_end.set()
        generating.cancel()


def test_a_real_vocabulary_gives_json_of_a_schema(chat_model: Path) -> None:
    from tokenizers import Tokenizer

    from workers.models import architecture_of

    body = (chat_model / "tokenizer.json").read_bytes()
    words = Tokenizer.from_str(body.decode())
    engine = TorchEngine("cpu", 8, tokenizer_of=lambda _: body)
    engine.load("p", 0, "d", engine.prepare(initial_weights(SMOLLM2, 0, 0), architecture_of(SMOLLM2), "fp32"))
    text = "<|im_start|>user\nGive me a person as JSON.<|im_end|>\n<|im_start|>assistant\n"
    prompt, stop = tuple(words.encode(text).ids), words.token_to_id("<|im_end|>")
    sampling = SamplingParameters(structured=JsonOutput(of=PERSON).model_dump_json())
    engine.submit(
        [Request(f"{n}", "p", prompt, 32, seed=n, temperature=heat, stop=(stop,), sampling=sampling)
         for n, heat in enumerate((0.0, 1.0))]
    )  # fmt: skip
    done = finish(engine)
    assert done["0"].reason == "stop"
    for answer in done.values():
        if answer.reason == "stop":
            jsonschema.validate(json.loads(words.decode(answer.token_ids, skip_special_tokens=True)), PERSON)
