"""Messages reach an agent by the chat template of its model, and are refused by name where that does not take them."""

from typing import Any

import pytest

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry.trajectories.decoding import decoder_of
from flexmarl.language.chat_format import ChatFormat
from tests.support import playground_stage
from tests.support.playground_stage import refused

stage, client_for = playground_stage.stage, playground_stage.client_for
_one_connection = playground_stage._one_connection
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # under WSGI, in one piece
]


def test_a_chat_is_rendered_by_the_template_of_the_agents_model(stage) -> None:
    marks = {"system": "big", "user": "round", "assistant": "square"}
    said = "".join(f"{{% if m.role == '{role}' %}}{word}{{% endif %}}" for role, word in marks.items())
    template = f"{{% for m in messages %}}{said}{{{{ ' ' + m.content + ' ' }}}}{{% endfor %}}square"
    chat = ChatFormat(template=template, stop=(5,)).dump()
    store_connection().execute("UPDATE store.tokenizer SET chat = %s WHERE run_id = %s", [chat, stage.run.no])
    messages: list[Any] = [
        {"role": "developer", "content": "red"},
        {"role": "user", "content": [{"type": "text", "text": "blue"}]},
        {"role": "assistant", "content": "red"},
        {"role": "user", "content": "blue"},
    ]
    stage.client.chat.completions.create(model=stage.name, messages=messages, max_tokens=1)
    stage.client.completions.create(model=stage.name, prompt="red blue", max_tokens=1)
    chatted, completed = stage.engine.asked
    words = decoder_of(stage.run.no, "solver")
    assert words is not None
    assert words.decode(chatted["prompt"][0]) == "big red round blue square red round blue square"
    assert 5 in chatted["stop_token_ids"]
    assert completed["prompt"] == [[1, 2]]


def test_messages_that_the_template_refuses_are_refused_by_name(stage) -> None:
    chat = ChatFormat(template="{{ raise_exception('roles must alternate') }}").dump()
    store_connection().execute("UPDATE store.tokenizer SET chat = %s WHERE run_id = %s", [chat, stage.run.no])
    body = refused(stage.chat)
    assert (body["param"], body["code"]) == ("messages", "invalid_value")
    assert "roles must alternate" in body["message"]
