"""Shapes of chats and completions, as the document tells them. What is refused of a body is decided in `questions`."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import one_of
from flexmarl.controlplane.playground.questions import MOST_REPLIES, MOST_STOPS

_WORDS = {"type": "array", "items": {"type": "string"}}


class ModelSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="`<run>/<agent>`, of one version with `@<version>`.")
    object = serializers.ChoiceField(["model"])
    created = serializers.IntegerField()
    owned_by = serializers.CharField(help_text="Project of the run.")
    version = serializers.IntegerField()


class ModelListSerializer(serializers.Serializer[Any]):
    object = serializers.ChoiceField(["list"])
    data = ModelSerializer(many=True)  # type: ignore[assignment]


class _AskSerializer(serializers.Serializer[Any]):
    model = serializers.CharField(help_text="As `GET /v1/models` names it.")
    max_tokens = serializers.IntegerField(required=False, allow_null=True, min_value=1)
    temperature = serializers.FloatField(required=False, allow_null=True, min_value=0)
    top_p = serializers.FloatField(required=False, allow_null=True, min_value=0, max_value=1)
    top_k = serializers.IntegerField(required=False, allow_null=True, min_value=0, help_text="0: all tokens.")
    min_p = serializers.FloatField(required=False, allow_null=True, min_value=0, max_value=1)
    repetition_penalty = serializers.FloatField(required=False, allow_null=True, min_value=0, max_value=4)
    n = serializers.IntegerField(required=False, min_value=1, max_value=MOST_REPLIES)
    seed = serializers.IntegerField(required=False, allow_null=True)
    stop = one_of({"type": "string"}, {**_WORDS, "maxItems": MOST_STOPS}, {"type": "null"})
    stream = serializers.BooleanField(required=False)
    stream_options = one_of({"type": "object", "properties": {"include_usage": {"type": "boolean"}}}, {"type": "null"})
    user = serializers.CharField(required=False)
    allowed_words = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="Words that a reply may consist of; all when absent."
    )


class ToolCallFunctionSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    arguments = serializers.CharField(help_text="A JSON object, as a text.")


class ToolCallSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    type = serializers.CharField(help_text="`function`.")
    function = ToolCallFunctionSerializer()


class MessageSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(["system", "developer", "user", "assistant", "tool"])
    content = one_of({"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"})
    reasoning_content = serializers.CharField(required=False)
    tool_calls = ToolCallSerializer(many=True, required=False)
    tool_call_id = serializers.CharField(required=False, help_text="Of a tool's message: the call that it answers.")


class ToolFunctionSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    description = serializers.CharField(required=False)
    parameters = serializers.DictField(required=False, help_text="A JSON schema.")


class ToolSerializer(serializers.Serializer[Any]):
    type = serializers.CharField(help_text="`function`.")
    function = ToolFunctionSerializer()


class ChatSerializer(_AskSerializer):
    messages = MessageSerializer(many=True)
    tools = ToolSerializer(many=True, required=False)
    tool_choice = serializers.ChoiceField(["auto", "none"], required=False)
    max_completion_tokens = serializers.IntegerField(required=False, allow_null=True, min_value=1)
    logprobs = serializers.BooleanField(required=False)


class CompletionRequestSerializer(_AskSerializer):
    prompt = one_of({"type": "string"}, _WORDS, {"type": "array", "items": {}}, required=True)
    logprobs = serializers.IntegerField(required=False, allow_null=True, min_value=0, max_value=1)


class UsageSerializer(serializers.Serializer[Any]):
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    total_tokens = serializers.IntegerField()


class _ChoiceSerializer(serializers.Serializer[Any]):
    index = serializers.IntegerField()
    finish_reason = serializers.CharField(allow_null=True)
    token_ids = serializers.ListField(child=serializers.IntegerField())
    logprobs = serializers.JSONField(allow_null=True)


class ReplySerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(["assistant"])
    content = serializers.CharField(allow_blank=True, allow_null=True)
    reasoning_content = serializers.CharField(required=False)
    tool_calls = ToolCallSerializer(many=True, required=False)
    refusal = serializers.CharField(allow_null=True)


class ChatChoiceSerializer(_ChoiceSerializer):
    message = ReplySerializer()


class CompletionChoiceSerializer(_ChoiceSerializer):
    text = serializers.CharField(allow_blank=True)


class _AnswerSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    created = serializers.IntegerField()
    model = serializers.CharField(help_text="The version that answered.")
    system_fingerprint = serializers.CharField(help_text="Digest of its weights, in short.")
    usage = UsageSerializer()


class ChatAnswerSerializer(_AnswerSerializer):
    object = serializers.ChoiceField(["chat.completion"])
    choices = ChatChoiceSerializer(many=True)


class CompletionAnswerSerializer(_AnswerSerializer):
    object = serializers.ChoiceField(["text_completion"])
    choices = CompletionChoiceSerializer(many=True)


class ErrorSerializer(serializers.Serializer[Any]):
    message = serializers.CharField()
    type = serializers.CharField()
    param = serializers.CharField(allow_null=True)
    code = serializers.CharField()
    request_id = serializers.CharField()


class RefusalSerializer(serializers.Serializer[Any]):
    error = ErrorSerializer()
