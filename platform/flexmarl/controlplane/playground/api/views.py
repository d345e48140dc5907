"""The routes of the dialects that agents are asked in. They change nothing and keep no answers."""

import re
from typing import Any

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.playground import answers, models_of, questions, refusals, speaking
from flexmarl.controlplane.playground.api import dialect_shapes, shapes
from flexmarl.controlplane.playground.api.authentication import (
    ServingKeyAuthentication,
    TokenAsApiKey,
    asker_of,
    key_of,
    limits_of,
)
from flexmarl.controlplane.playground.questions import Question
from flexmarl.controlplane.playground.talk import WAIT_S, Talk
from flexmarl.language.dialects import chat, messages, responses
from flexmarl.language.dialects.dialect import Dialect

_WAIT = re.compile(r"\bwait=(\d{1,2})\b")


class DialectView(ApiView):
    """Permission, limits and strictness as everywhere; refusals in the dialect. Serving keys open these alone."""

    authentication_classes = (ServingKeyAuthentication, TokenAsApiKey, *ApiView.authentication_classes)
    stores_answers = False
    refusal: type[Serializer[Any]] = shapes.RefusalSerializer

    def get_exception_handler(self) -> Any:
        """Return the function that answers what a method raised."""
        return refusals.refused


class ModelsView(DialectView):
    scopes = {"GET": Scope.MODELS_USE}

    @extend_schema(operation_id="openai_models", responses=shapes.ModelListSerializer)
    def get(self, request: Request) -> Response:
        """List the agents that the caller may talk to."""
        return Response({"object": "list", "data": models_of.listed(asker_of(request), limits_of(request))})


class ModelView(DialectView):
    scopes = {"GET": Scope.MODELS_USE}

    @extend_schema(operation_id="openai_model", responses=shapes.ModelSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Describe one agent, or one version of it."""
        model = models_of.find(asker_of(request), name, limits_of(request))
        return Response(models_of.described(name, model))


class _AskView(DialectView):
    scopes = {"POST": Scope.MODELS_USE}
    rate_class = "models"
    dialect: Dialect = chat
    """In which it is answered."""

    def question(self, body: Any) -> Question:
        """Read what is asked. Raises ValidationProblem."""
        return questions.read_call(body, self.dialect)

    def post(self, request: Request) -> HttpResponseBase:
        """Ask an agent. `Prefer: wait=<seconds>` says how long to wait for an engine to start."""
        question = self.question(request.data)
        talk = Talk(asker_of(request), question, _wait_s(request), key_of(request))
        left = talk.meter.headers if talk.meter else None
        if not question.stream:
            return Response(answers.whole(talk, self.dialect, talk.replies()), headers=left)
        answer = StreamingHttpResponse(
            AnswerStream(talk, self.dialect, request_id_of(request)),
            content_type="text/event-stream",
            headers={"Cache-Control": "no-store", **(left or {})},
        )
        answer.headers["X-Accel-Buffering"] = "no"
        return answer


_STREAM = {(200, "text/event-stream"): OpenApiTypes.STR}


@extend_schema_view(
    post=extend_schema(
        operation_id="openai_chat",
        request=shapes.ChatSerializer,
        responses={(200, "application/json"): shapes.ChatAnswerSerializer, **_STREAM},
    )
)
class ChatView(_AskView):
    pass


@extend_schema_view(
    post=extend_schema(
        operation_id="openai_completions",
        request=shapes.CompletionRequestSerializer,
        responses={(200, "application/json"): shapes.CompletionAnswerSerializer, **_STREAM},
    )
)
class CompletionsView(_AskView):
    def question(self, body: Any) -> Question:
        """Read what is asked. Raises ValidationProblem."""
        return questions.read_completion(body)


@extend_schema_view(
    post=extend_schema(
        operation_id="openai_responses",
        request=dialect_shapes.ResponseRequestSerializer,
        responses={(200, "application/json"): dialect_shapes.ResponseSerializer, **_STREAM},
    )
)
class ResponsesView(_AskView):
    dialect = responses


_BETA = Parameter("beta", "Sent by Anthropic's clients; it changes nothing.", choices=("true", "false"))


class _MessagesParameters(DialectView):
    refusal = dialect_shapes.MessageRefusalSerializer

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Take what clients put behind the path."""
        return (_BETA,) if method == "POST" else super().parameters_of(method)


@extend_schema_view(
    post=extend_schema(
        operation_id="anthropic_messages",
        request=dialect_shapes.MessagesRequestSerializer,
        responses={(200, "application/json"): dialect_shapes.MessageAnswerSerializer, **_STREAM},
    )
)
class MessagesView(_MessagesParameters, _AskView):
    dialect = messages


class CountView(_MessagesParameters):
    scopes = {"POST": Scope.MODELS_USE}
    rate_class = "models"

    @extend_schema(
        operation_id="anthropic_count_tokens",
        request=dialect_shapes.CountRequestSerializer,
        responses=dialect_shapes.CountSerializer,
    )
    def post(self, request: Request) -> Response:
        """Count the tokens that an agent would read. No engine is asked, and no quota is used."""
        question = questions.read_count(request.data)
        model = models_of.find(asker_of(request), question.model, limits_of(request))
        return Response(messages.counted(speaking.count(model, question)))


class AnswerStream:
    """A talk's events. `close` is what the server calls for an answer that nobody came to read."""

    def __init__(self, talk: Talk, dialect: Dialect, request_id: str) -> None:
        self._talk, self._events = talk, answers.streamed(talk, dialect, request_id)

    def __aiter__(self) -> Any:
        return self._events

    def close(self) -> None:
        """End the talk: give its place back and charge what was made."""
        self._talk.close()


def _wait_s(request: Request) -> float:
    found = _WAIT.search(request.headers.get("Prefer", ""))
    return min(WAIT_S, float(found[1])) if found else WAIT_S
