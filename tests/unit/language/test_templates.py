"""Chat templates render as transformers renders them, and what is wrong with one is said."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from flexmarl.language.chat_format import SAMPLE, ChatFormat
from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.templates import MAX_TEMPLATE, PLAIN, TemplateError, render_text
from tests.support.chat_templates import CHATML, FORGETTING, TRIMMING

WITH_TOOLS = (
    "{% if tools %}{{ 'tools: ' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '\n' }}{% endif %}"
    "{% for message in messages %}{{ message.role + ': ' + message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }})"
    "{% endfor %}{% generation %}{{ '\n' }}{% endgeneration %}{% endfor %}"
)
TOOLS = ({"type": "function", "function": {"name": "add", "description": "Adds <a> & „b“.", "strict": True}},)
CALLING = (*SAMPLE, Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1, "ok": True, "text": "ü<"}, "1"),)))


@pytest.mark.parametrize("template", [CHATML, TRIMMING, FORGETTING, PLAIN, WITH_TOOLS])
@pytest.mark.parametrize("reply", [True, False])
def test_a_template_renders_as_by_transformers(template: str, reply: bool) -> None:
    ours = render_text(template, CALLING, tools=TOOLS, reply=reply)
    (theirs,), _ = render_jinja_template(
        [[message.for_template() for message in CALLING]],
        tools=list(TOOLS),
        chat_template=template,
        add_generation_prompt=reply,
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "cannot be read: line 1"),
        ("{{ raise_exception('roles must alternate') }}", "refuses the conversation: roles must alternate"),
        ("{{ messages[7].content + 1 }}", "does not render"),
        ("{{ ''.__class__.__mro__ }}", "does not render: SecurityError"),
        ("{% set _ = messages.append(1) %}", "does not render: SecurityError"),
        ("x" * (MAX_TEMPLATE + 1), "longer than the limit"),
    ],
)
def test_what_is_wrong_with_a_template_is_said(template: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        ChatFormat(template=template).sample()


def test_a_chat_format_comes_back_as_it_was_stored() -> None:
    chat = ChatFormat(template=CHATML, special={"bos_token": "<|im_start|>"}, stop=(257,))
    assert ChatFormat.load(chat.dump()) == chat
