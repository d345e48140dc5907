"""The agents of runs in every dialect of agent programs, called by the official clients with a key of the project."""

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from django.core.handlers.wsgi import WSGIHandler

from flexmarl.controlplane.accounts.actions import create_token
from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.playground import keys, questions
from flexmarl.controlplane.playground.models import ServingCall, ServingDay
from flexmarl.controlplane.runs.models import Run
from tests.support import playground_stage
from tests.support.chat_templates import QWEN3, SMOLLM2
from tests.support.gateway_stand import CALL
from tests.support.playground_stage import MARKED, Stage

stage, client_for = playground_stage.stage, playground_stage.client_for
_one_connection = playground_stage._one_connection
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # under WSGI, in one piece
]
USER = {"role": "user", "content": "2+3?"}
THOUGHT = "<think>\nTwo and three.\n</think>\n\n"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
CHAT_TOOL: Any = {"type": "function", "function": FUNCTION}
RESPONSE_TOOL: Any = {"type": "function", **FUNCTION, "strict": False}
OWN_TOOL: Any = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
SAID = ["words", "I add." + CALL + CALL, CALL, THOUGHT + "5 é", THOUGHT + "So:\n" + CALL, "<tool_call>\n{broken"]
"""What agents say: words, calls, thoughts, and what looks like a call."""


def http() -> httpx2.Client:
    return httpx2.Client(transport=httpx2.WSGITransport(app=WSGIHandler()))


class Door:
    """A language model's agent, and clients with a key that may ask it alone."""

    def __init__(self, stage: Stage, key: str) -> None:
        self.stage, self.key = stage, key
        self.openai = openai.OpenAI(base_url="http://testserver/v1", api_key=key, max_retries=0, http_client=http())
        self.anthropic = anthropic.Anthropic(
            base_url="http://testserver", api_key=key, max_retries=0, http_client=http()
        )

    def message(self, *messages: Any, **more: Any) -> Any:
        asked = {"model": "speaker", "max_tokens": 300, "messages": list(messages) or [USER], **more}
        return self.anthropic.messages.create(**asked)

    def respond(self, *items: Any, **more: Any) -> Any:
        asked = {"model": "speaker", "max_output_tokens": 300, "input": list(items) or [USER], **more}
        return self.openai.responses.create(**asked)

    def chat(self, *messages: Any, **more: Any) -> Any:
        return self.openai.chat.completions.create(model="speaker", messages=list(messages) or [USER], **more)


@pytest.fixture
def make_key(stage, person) -> Any:
    boss = actor_of_user(person(ProjectRole.ADMIN, "boss"))

    def make(*models: str, tokens: int = 100_000) -> str:
        return keys.create(boss, "default", "app", 60, tokens, models)[1]

    return make


@pytest.fixture
def door(stage, make_key) -> Door:
    stage.speaks(QWEN3)
    stage.engine.parts = True
    return Door(stage, make_key(stage.name))


def used() -> tuple[int, int]:
    day = ServingDay.objects.get()
    assert not ServingCall.objects.exists()
    return day.prompt_tokens, day.completion_tokens


# chats


def test_a_chat_calls_tools_and_reads_what_they_answer(door) -> None:
    door.stage.will_say("I add." + CALL + CALL, "5")
    first = door.chat(tools=[CHAT_TOOL], max_tokens=300)
    [choice] = first.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I add.")
    calls = choice.message.tool_calls
    assert [(one.function.name, json.loads(one.function.arguments)) for one in calls] == [("add", {"a": 2, "b": 3})] * 2
    assert len({one.id for one in calls}) == 2
    answers = [{"role": "tool", "tool_call_id": one.id, "content": "5"} for one in calls]
    second = door.chat(USER, choice.message.to_dict(), *answers, tools=[CHAT_TOOL], max_tokens=300)
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("5", "stop")
    before, after = door.stage.prompts()
    assert '"description": "Adds."' in before
    assert "<tool_response>\n5\n</tool_response>" in after
    assert after.count('{"name": "add", "arguments": {"a": 2, "b": 3}}') == 2
    assert used() == (
        first.usage.prompt_tokens + second.usage.prompt_tokens,
        first.usage.completion_tokens + second.usage.completion_tokens,
    )
    assert first.usage.completion_tokens == len(MARKED.encode("I add." + CALL + CALL).ids) + 1


def test_a_template_without_tools_gets_them_in_words(stage, make_key) -> None:
    stage.speaks(SMOLLM2)
    door = Door(stage, make_key(stage.name))
    stage.will_say(CALL)
    assert door.chat(tools=[CHAT_TOOL], max_tokens=300).choices[0].message.tool_calls[0].function.name == "add"
    assert "<tools>" in stage.prompts()[0]


def test_formats_of_each_dialect_hold_the_reply_and_tools_do_not_go_with_them(door) -> None:
    shape: Any = {"type": "json_schema", "schema": SCHEMA}
    door.chat(response_format={"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}, max_tokens=9)
    door.respond(text={"format": {**shape, "name": "sum"}})
    door.message(output_config={"format": shape})
    door.chat(response_format={"type": "json_object"}, tools=[CHAT_TOOL], tool_choice="none", max_tokens=9)
    held = [json.loads(asked["sampling"]["structured"])["of"] for asked in door.stage.engine.asked]
    assert held == [SCHEMA, SCHEMA, SCHEMA, {"type": "object"}]
    with pytest.raises(openai.BadRequestError, match="response_format: a reply that is held to a format calls no tool"):
        door.chat(response_format={"type": "json_object"}, tools=[CHAT_TOOL])
    assert len(door.stage.engine.asked) == 4


def test_a_reply_that_begins_within_a_thought_is_not_held_to_a_format(stage, make_key) -> None:
    stage.speaks(QWEN3.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}"))
    with pytest.raises(openai.BadRequestError, match="text/format: the agent's replies begin within a thought"):
        Door(stage, make_key(stage.name)).respond(text={"format": {"type": "json_object"}})
    assert stage.engine.asked == []


@pytest.mark.parametrize("said", SAID)
def test_a_stream_of_a_chat_says_what_the_whole_says(door, said) -> None:
    door.stage.will_say(said, said)
    whole = door.chat(tools=[CHAT_TOOL], max_tokens=300).choices[0]
    content, thought, calls, finish = "", "", [], ""
    for chunk in door.chat(tools=[CHAT_TOOL], max_tokens=300, stream=True):
        [choice] = chunk.choices
        content += choice.delta.content or ""
        thought += getattr(choice.delta, "reasoning_content", None) or ""
        calls += choice.delta.tool_calls or []
        finish = choice.finish_reason or finish
    message = whole.message
    assert (content, thought) == (message.content or "", getattr(message, "reasoning_content", ""))
    assert [one.function.arguments for one in calls] == [one.function.arguments for one in message.tool_calls or []]
    assert [one.index for one in calls] == list(range(len(calls)))
    assert finish == whole.finish_reason


# responses


def test_responses_are_answered_and_go_on(door) -> None:
    door.stage.will_say(THOUGHT + "I add." + CALL, "5")
    options: Any = {"tools": [RESPONSE_TOOL], "instructions": "You add.", "store": True, "reasoning": {"effort": "low"}}
    first = door.respond(**options)
    assert [one.type for one in first.output] == ["reasoning", "message", "function_call"]
    assert (first.status, first.model, first.instructions) == ("completed", f"{door.stage.name}@1", "You add.")
    output = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "5"}
    items = [one.to_dict() for one in first.output]
    second = door.respond(USER, *items, output, **options)
    assert second.output_text == "5"
    before, after = door.stage.prompts()
    assert "You add." in before
    assert "<tool_response>\n5\n</tool_response>" in after
    assert used() == (
        first.usage.input_tokens + second.usage.input_tokens,
        first.usage.output_tokens + second.usage.output_tokens,
    )


@pytest.mark.parametrize("said", SAID)
def test_a_stream_of_responses_says_what_the_whole_says(door, said) -> None:
    door.stage.will_say(said, said)
    whole = door.respond(tools=[RESPONSE_TOOL])
    events = list(door.respond(tools=[RESPONSE_TOOL], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = events[-1].response
    said_in = lambda answer: [  # noqa: E731
        (one.type, getattr(one, "arguments", None), [part.text for part in getattr(one, "content", None) or []])
        for one in answer.output
    ]
    assert said_in(done) == said_in(whole)
    assert done.usage == whole.usage
    pieces: dict[int, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            pieces[event.output_index] = pieces.get(event.output_index, "") + event.delta
    texts = [one.arguments if one.type == "function_call" else one.content[0].text for one in whole.output]
    assert list(pieces.values()) == texts
    deltas = [one for one in events if one.type == "response.output_text.delta"]
    assert len(deltas) > 1 or "words" not in said, "words come as they are made"


def test_no_response_is_kept(door) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        door.respond(previous_response_id="resp_1")
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    assert "send the whole conversation" in caught.value.message


# messages


def test_messages_use_tools_and_read_their_results(door) -> None:
    door.stage.will_say(THOUGHT + "I add." + CALL, "5")
    options: Any = {"tools": [OWN_TOOL], "system": "You add.", "thinking": {"type": "enabled", "budget_tokens": 1024}}
    first = door.message(**options)
    assert [one.type for one in first.content] == ["thinking", "text", "tool_use"]
    assert (first.stop_reason, first.model) == ("tool_use", f"{door.stage.name}@1")
    result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "5"}
    blocks = [one.to_dict() for one in first.content]
    second = door.message(
        USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}, **options
    )
    assert (second.content[0].text, second.stop_reason) == ("5", "end_turn")
    assert "<tool_response>\n5\n</tool_response>" in door.stage.prompts()[1]
    assert used() == (
        first.usage.input_tokens + second.usage.input_tokens,
        first.usage.output_tokens + second.usage.output_tokens,
    )


@pytest.mark.parametrize("said", SAID)
def test_a_stream_of_messages_says_what_the_whole_says(door, said) -> None:
    door.stage.will_say(said, said)
    whole = door.message(tools=[OWN_TOOL])
    with door.anthropic.messages.stream(
        model="speaker", max_tokens=300, messages=[USER], tools=[OWN_TOOL], extra_query={"beta": "true"}
    ) as stream:
        events = list(stream)
        final = stream.get_final_message()
    plain = lambda message: [{**one.to_dict(), "id": ""} for one in message.content]  # noqa: E731
    assert plain(final) == plain(whole)
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert final.usage.input_tokens == whole.usage.input_tokens
    deltas = [one for one in events if one.type == "content_block_delta" and one.delta.type == "text_delta"]
    assert len(deltas) > 1 or "words" not in said, "words come as they are made"


def test_sampling_is_the_callers_and_a_stop_sequence_is_named(door) -> None:
    door.stage.will_say("one, two, three")
    answer = door.message(stop_sequences=["two"], extra_body={"temperature": 0.5, "top_k": 3})
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("one, ", "stop_sequence", "two")
    [asked] = door.stage.engine.asked
    assert (asked["temperature"], asked["sampling"]["top_k"], asked["sampling"]["stop"]) == (0.5, 3, ["two"])


def test_ceilings_of_programs_are_more_than_is_replied(door) -> None:
    door.message(max_tokens=20_000)
    door.respond(max_output_tokens=20_000)
    assert [asked["max_tokens"] for asked in door.stage.engine.asked] == [questions.MOST_TOKENS] * 2
    door.stage.will_say("words")
    cut = door.message(max_tokens=3)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)


def test_tokens_are_counted_without_an_engine_or_a_quota(door) -> None:
    asked: Any = {"model": "speaker", "messages": [USER], "tools": [OWN_TOOL], "system": "You add."}
    counted = door.anthropic.messages.count_tokens(**asked)
    assert door.stage.engine.asked == []
    assert not ServingDay.objects.exists()
    answer = door.message(tools=[OWN_TOOL], system="You add.")
    assert counted.input_tokens == answer.usage.input_tokens


# who may ask, and what is refused


def test_keys_and_tokens_are_read_from_either_header(door, editor) -> None:
    bearer = anthropic.Anthropic(base_url="http://testserver", auth_token=door.key, max_retries=0, http_client=http())
    _, token = create_token(actor_of_user(editor), "t", ["models:use"])
    person = anthropic.Anthropic(base_url="http://testserver", api_key=token, max_retries=0, http_client=http())
    for asker, model in ((bearer, "speaker"), (person, door.stage.name)):
        assert asker.messages.count_tokens(model=model, messages=[USER]).input_tokens > 0
    for sent, model in ((door.key, "speaker"), (token, door.stage.name)):
        plain, body = http(), {"model": model, "messages": [USER]}
        plain.headers["X-Api-Key"] = sent
        assert plain.post("http://testserver/v1/messages/count_tokens", json=body).status_code == 200
        assert plain.get("http://testserver/v1/models").status_code == 200
        assert plain.get("http://testserver/api/v1/me").status_code == 401, "below /v1/ alone"
    for wrong in (door.key[:-1] + ("a" if door.key[-1] != "a" else "b"), "fmx_no", "sk-ant-1"):
        stranger = anthropic.Anthropic(base_url="http://testserver", api_key=wrong, max_retries=0, http_client=http())
        with pytest.raises(anthropic.AuthenticationError) as caught:
            stranger.messages.count_tokens(model="speaker", messages=[USER])
        assert caught.value.body["error"]["type"] == "authentication_error"


def test_an_agents_name_is_enough_where_the_key_may_ask_one(stage, make_key) -> None:
    stage.speaks(QWEN3)
    other = f"{stage.run.key}/listener"
    assert Door(stage, make_key(f"{stage.name}@1", other)).chat(max_tokens=1).model == f"{stage.name}@1"
    with pytest.raises(openai.NotFoundError, match="'speaker' is not a model name"):
        Door(stage, make_key(other)).chat()
    with pytest.raises(openai.NotFoundError, match=f"may be one of {stage.name}, {stage.name}@1"):
        Door(stage, make_key(stage.name, f"{stage.name}@1")).chat()


def test_an_agent_is_told_its_own_instructions_as_in_training(door) -> None:
    run = Run.objects.get(pk=door.stage.run.pk)
    run.spec["agents"]["speaker"]["instructions"] = "You are {{ role }}. {{ environment }}"
    run.save(update_fields=["spec"])
    door.chat({"role": "system", "content": "Add."}, USER, max_tokens=1)
    [prompt] = door.stage.prompts()
    assert "You are speaker. Add." in prompt


MESSAGES: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": 0}, "max_tokens", "send one"),
    ({"messages": []}, "messages", "send"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages/0", "role is one of"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools/0", "send"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "leave it out"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config/format/schema", "is not a JSON schema"),
    ({"output_config": {"depth": 2}}, "output_config", "leave out all but effort"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "leave it out"),
    ({"temperature": 3}, "temperature", "0 takes the likeliest token"),
    ({"stop_sequences": ["a"] * 5}, "stop_sequences", "at most 4"),
    ({"colour": 1}, "colour", "known are"),
    ({"messages": [{"role": "user", "content": "x" * 500_001}]}, "prompt is too long: messages", "at most 500000"),
]
RESPONSES: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "input", "invalid_value"),
    ({"text": {"format": {"type": "grammar"}}}, "text/format", "invalid_value"),
    ({"tools": [{"type": "web_search"}]}, "tools/0", "invalid_value"),
    ({"background": True}, "background", "unsupported_parameter"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"colour": 1}, "colour", "unknown_parameter"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input/0", "invalid_value"),
]


def test_what_is_wrong_is_refused_by_name_in_the_dialect(door) -> None:
    for more, field, rule in MESSAGES:
        with pytest.raises(anthropic.BadRequestError) as caught:
            door.message(extra_body=more)
        body = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert body["error"]["message"].startswith(f"{field}: "), more
        assert rule in body["error"]["message"]
        assert body["request_id"]
    for more, field, code in RESPONSES:
        with pytest.raises(openai.BadRequestError) as refused:
            door.respond(extra_body=more)
        assert (refused.value.param, refused.value.code) == (field, code)
        assert f"{field}: " in refused.value.message
    assert door.stage.engine.asked == []
    assert not ServingDay.objects.exists()


def test_what_ends_an_answer_on_the_way_is_told_in_the_dialect(door) -> None:
    door.stage.engine.give_up = True
    with pytest.raises(anthropic.APIStatusError, match="stopped the reply"):
        list(door.message(stream=True))
    with pytest.raises(openai.APIError, match="stopped the reply"):
        list(door.respond(stream=True))
    with pytest.raises(anthropic.InternalServerError) as caught:
        door.message()
    assert (caught.value.status_code, caught.value.body["error"]["type"]) == (503, "api_error")


def test_quotas_and_contexts_are_refused_in_the_dialect(stage, make_key) -> None:
    stage.speaks(QWEN3)
    door = Door(stage, make_key(stage.name, tokens=50))
    with pytest.raises(anthropic.RateLimitError) as caught:
        door.message(max_tokens=50)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    assert "tokens_per_day" in caught.value.body["error"]["message"]
    with pytest.raises(openai.RateLimitError):
        door.respond(max_output_tokens=50)
    door = Door(stage, make_key(stage.name))
    stage.engine.refuse.append(
        (422, {"code": "bad_request", "detail": "prompt and max_tokens: 900 positions exceed 64"})
    )
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        door.message()


def test_a_path_that_is_not_there_is_refused_in_its_dialect(client) -> None:
    answer = client.post("/v1/messages/batches", b"{}", content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert "/v1/messages/count_tokens" in answer.json()["error"]["message"]
