"""The routes of OpenAI's dialect. They change nothing and keep no answers."""

import re
from typing import Any

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.playground import answers, models_of, questions, refusals
from flexmarl.controlplane.playground.api import shapes
from flexmarl.controlplane.playground.api.authentication import ServingKeyAuthentication, asker_of, key_of, limits_of
from flexmarl.controlplane.playground.talk import WAIT_S, Talk

_WAIT = re.compile(r"\bwait=(\d{1,2})\b")


class OpenAIView(ApiView):
    """Permission, limits and strictness as everywhere; refusals in OpenAI's shape. Serving keys open these alone."""

    authentication_classes = (ServingKeyAuthentication, *ApiView.authentication_classes)
    stores_answers = False
    refusal = shapes.RefusalSerializer

    def get_exception_handler(self) -> Any:
        """Return the function that answers what a method raised."""
        return refusals.refused


class ModelsView(OpenAIView):
    scopes = {"GET": Scope.MODELS_USE}

    @extend_schema(operation_id="openai_models", responses=shapes.ModelListSerializer)
    def get(self, request: Request) -> Response:
        """List the agents that the caller may talk to."""
        return Response({"object": "list", "data": models_of.listed(asker_of(request), limits_of(request))})


class ModelView(OpenAIView):
    scopes = {"GET": Scope.MODELS_USE}

    @extend_schema(operation_id="openai_model", responses=shapes.ModelSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Describe one agent, or one version of it."""
        model = models_of.find(asker_of(request), name, limits_of(request))
        return Response(models_of.described(name, model))


class _AskView(OpenAIView):
    scopes = {"POST": Scope.MODELS_USE}
    rate_class = "models"
    chat = False

    def post(self, request: Request) -> HttpResponseBase:
        """Ask an agent. `Prefer: wait=<seconds>` says how long to wait for an engine to start."""
        question = questions.read(request.data, chat=self.chat)
        talk = Talk(asker_of(request), question, _wait_s(request), key_of(request))
        left = talk.meter.headers if talk.meter else None
        if not question.stream:
            return Response(answers.whole(talk, talk.replies()), headers=left)
        answer = StreamingHttpResponse(
            AnswerStream(talk, request_id_of(request)),
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
    chat = True


@extend_schema_view(
    post=extend_schema(
        operation_id="openai_completions",
        request=shapes.CompletionRequestSerializer,
        responses={(200, "application/json"): shapes.CompletionAnswerSerializer, **_STREAM},
    )
)
class CompletionsView(_AskView):
    pass


class AnswerStream:
    """A talk's events. `close` is what the server calls for an answer that nobody came to read."""

    def __init__(self, talk: Talk, request_id: str) -> None:
        self._talk, self._events = talk, answers.streamed(talk, request_id)

    def __aiter__(self) -> Any:
        return self._events

    def close(self) -> None:
        """End the talk: give its place back and charge what was made."""
        self._talk.close()


def _wait_s(request: Request) -> float:
    found = _WAIT.search(request.headers.get("Prefer", ""))
    return min(WAIT_S, float(found[1])) if found else WAIT_S
