"""Chat templates: the Jinja text by which a model's maker says how messages stand in its prompt.

Invariant: a template is foreign code. It renders in Jinja's immutable sandbox, sees only the messages, the tools and
the special tokens. Whatever it raises is a `TemplateError`. Its length, its time and what it makes are bounded
(`flexmarl.language.bounded_templates`), so it cannot hold up a rollout worker. A model is taken only after its template
rendered a small conversation in a process that may be killed (`workers.models.rendering`).
Source of the dialect: the chat templates of Hugging Face transformers.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.meta
from jinja2.ext import Extension, loopcontrols

from flexmarl.language.bounded_templates import BoundedEnvironment, OutOfBounds, bounded_filter, render_bounded
from flexmarl.language.messages import Message

MAX_TEMPLATE = 256 * 1024
"""Most characters of a template."""
PLAIN = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""Template of models that come without one: a line per message."""


class TemplateError(ValueError):
    """A template cannot be read, or does not render these messages; the text says why."""


class _Generation(Extension):
    """The block `{% generation %}`, which marks an assistant's words for training and renders as what it holds."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_text(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[dict[str, Any]] = (),
    special: dict[str, str] | None = None,
    settings: dict[str, Any] | None = None,
    reply: bool = True,
) -> str:
    """Return the prompt of a conversation as text; with `reply` it ends where the assistant begins to speak."""
    try:
        return render_bounded(
            _compiled(template),
            messages=[message.for_template() for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=reply,
            **(settings or {}),
            **(special or {}),
        )
    except TemplateError:
        raise
    except OutOfBounds as error:
        raise TemplateError(f"the chat template is out of bounds: {error}") from error
    except Exception as error:  # a template is foreign code: it may raise anything
        raise TemplateError(f"the chat template does not render: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=64)
def reads_tools(template: str) -> bool:
    """Whether a template writes the tools of a conversation. Raises TemplateError."""
    _compiled(template)
    return "tools" in jinja2.meta.find_undeclared_variables(_environment().parse(template))


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = bounded_filter("tojson", _as_json)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


@lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    if len(template) > MAX_TEMPLATE:
        raise TemplateError(f"the chat template is longer than the limit of {MAX_TEMPLATE} characters")
    try:
        return _environment().from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template cannot be read: line {error.lineno}: {error.message}") from error


def _as_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **_: object) -> str:
    """Write JSON as templates expect it: characters as they are, none escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(text: str) -> None:
    raise TemplateError(f"the chat template refuses the conversation: {text}")


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - templates ask for the local date
