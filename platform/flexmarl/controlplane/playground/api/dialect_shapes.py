"""Shapes of OpenAI's responses and Anthropic's messages, as the document tells them. What is refused of a body is
decided in `questions` and `flexmarl.language.dialects`.
"""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import one_of
from flexmarl.controlplane.playground.questions import MOST_STOPS

_OBJECTS = {"type": "array", "items": {"type": "object"}}
_MODEL = "As `GET /v1/models` names it."


class _SampledSerializer(serializers.Serializer[Any]):
    model = serializers.CharField(help_text=_MODEL)
    temperature = serializers.FloatField(required=False, allow_null=True, min_value=0)
    top_p = serializers.FloatField(required=False, allow_null=True, min_value=0, max_value=1)
    top_k = serializers.IntegerField(required=False, allow_null=True, min_value=0, help_text="0: all tokens.")
    stream = serializers.BooleanField(required=False)


class FunctionToolSerializer(serializers.Serializer[Any]):
    type = serializers.CharField(help_text="`function`.")
    name = serializers.CharField()
    description = serializers.CharField(required=False)
    parameters = serializers.DictField(required=False, help_text="A JSON schema.")


class ResponseRequestSerializer(_SampledSerializer):
    input = one_of({"type": "string"}, _OBJECTS, required=True)
    instructions = serializers.CharField(required=False, allow_null=True)
    tools = FunctionToolSerializer(many=True, required=False)
    tool_choice = serializers.ChoiceField(["auto", "none"], required=False)
    max_output_tokens = serializers.IntegerField(required=False, allow_null=True, min_value=1)
    store = serializers.BooleanField(required=False, help_text="Nothing is stored, whatever it says.")


class ResponseUsageSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    total_tokens = serializers.IntegerField()


class ResponseSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    object = serializers.ChoiceField(["response"])
    created_at = serializers.IntegerField()
    model = serializers.CharField(help_text="The version that answered.")
    status = serializers.ChoiceField(["completed", "incomplete"])
    output = serializers.ListField(
        child=serializers.DictField(), help_text="Items: `reasoning`, a `message`, each `function_call`."
    )
    usage = ResponseUsageSerializer()


class OwnToolSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    description = serializers.CharField(required=False)
    input_schema = serializers.DictField()


class SpokenTurnSerializer(serializers.Serializer[Any]):
    role = serializers.CharField(help_text="`user`, `assistant` or `system`.")
    content = one_of({"type": "string"}, _OBJECTS, required=True)


class CountRequestSerializer(serializers.Serializer[Any]):
    model = serializers.CharField(help_text=_MODEL)
    messages = SpokenTurnSerializer(many=True)
    system = one_of({"type": "string"}, _OBJECTS)
    tools = OwnToolSerializer(many=True, required=False)
    tool_choice = serializers.DictField(required=False, help_text="Its `type` is `auto` or `none`.")


class MessagesRequestSerializer(CountRequestSerializer, _SampledSerializer):
    max_tokens = serializers.IntegerField(min_value=1)
    stop_sequences = serializers.ListField(child=serializers.CharField(), required=False, max_length=MOST_STOPS)


class MessageUsageSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()


class MessageAnswerSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    type = serializers.CharField(help_text="`message`.")
    role = serializers.CharField(help_text="`assistant`.")
    model = serializers.CharField(help_text="The version that answered.")
    content = serializers.ListField(
        child=serializers.DictField(), help_text="Blocks: `thinking`, `text`, each `tool_use`."
    )
    stop_reason = serializers.ChoiceField(["end_turn", "max_tokens", "stop_sequence", "tool_use"])
    stop_sequence = serializers.CharField(allow_null=True)
    usage = MessageUsageSerializer()


class CountSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()


class MessageErrorSerializer(serializers.Serializer[Any]):
    type = serializers.CharField()
    message = serializers.CharField()


class MessageRefusalSerializer(serializers.Serializer[Any]):
    type = serializers.CharField(help_text="`error`.")
    error = MessageErrorSerializer()
    request_id = serializers.CharField()
