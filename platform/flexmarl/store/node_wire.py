"""How an operation of a node crosses the wire: names of parameters and their values, as MessagePack.

Invariants: both ends read values by the function's own annotations, so what arrives is what the function was written
for, or it is refused by the name of the parameter. Numbers keep every bit; bytes stay bytes. A refusal of the store
arrives as the error that it was.
"""

import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from flexmarl.store import errors
from flexmarl.store.control import (
    checkpoint_rows,
    commands,
    deletions,
    demand,
    engines,
    host_jobs,
    leases,
    model_rows,
    node_beats,
    nodes,
    package_rows,
    process_heartbeats,
    program_sessions,
    runs,
)
from flexmarl.store.data import (
    checkpoints,
    dataset_contents,
    groups,
    lineage,
    micro_batches,
    ready_commands,
    references,
    rewards,
    steps,
    tokenizers,
    tool_listings,
)
from flexmarl.store.node_operations import OPERATIONS, NodeOperation
from flexmarl.store.telemetry import intervals, load_reports, logs

DECLARING = (
    checkpoint_rows, checkpoints, commands, dataset_contents, deletions, demand, engines, groups, host_jobs, intervals,
    leases, lineage, load_reports, logs, micro_batches, model_rows, node_beats, nodes, package_rows, process_heartbeats,
    program_sessions, ready_commands, references, rewards, runs, steps, tokenizers, tool_listings,
)  # fmt: skip
"""Modules that declare operations; loaded here, so that the table is complete."""
MEDIA_TYPE = "application/msgpack"
_ANY_TYPE = ConfigDict(arbitrary_types_allowed=True)


class Unreadable(Exception):
    """A message is not what its operation is written for; the text names the parameter."""


class StoreRefusal(msgspec.Struct):
    """An error of the store, on its way."""

    kind: str
    code: str
    text: str
    facts: dict[str, Any]


def operation(name: str) -> NodeOperation | None:
    """Return an operation by its name."""
    return OPERATIONS.get(name)


def encode(value: Any) -> bytes:
    """Write a value down: dataclasses and models by the names of their members, arrays as lists."""
    return msgspec.msgpack.encode(value, enc_hook=_plain)


def arguments_of(one: NodeOperation, body: bytes) -> dict[str, Any]:
    """Read what a call says. Raises Unreadable."""
    said = _decoded(body)
    if not isinstance(said, dict):
        raise Unreadable("the body must be a map of parameters")
    model = _request(one.name)
    read = _valid(model, said)
    return {name: getattr(read, name) for name in model.model_fields if name in said}


def reply_of(one: NodeOperation, body: bytes) -> Any:
    """Read what an operation replied. Raises Unreadable."""
    return _valid(_reply(one.name), {"value": _decoded(body)}).value  # type: ignore[attr-defined]


def refusal_of(error: errors.StoreError) -> bytes:
    """Write an error of the store down."""
    facts = {name: value for name, value in vars(error).items() if name != "code"}
    return encode(StoreRefusal(type(error).__name__, error.code, str(error), facts))


def error_of(body: bytes) -> errors.StoreError:
    """Read an error of the store, of the class that it had. Raises Unreadable."""
    try:
        told = msgspec.msgpack.decode(body, type=StoreRefusal)
    except msgspec.MsgspecError as error:
        raise Unreadable(str(error)) from error
    kind = getattr(errors, told.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.StoreError)):
        raise Unreadable(f"no refusal of the store is called {told.kind}")
    made = kind.__new__(kind)  # its text is made already: the parts that it was made of stayed there
    errors.StoreError.__init__(made, told.text)
    made.code = told.code
    vars(made).update(told.facts)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="python")
    if hasattr(value, "tolist"):  # an array, or a number out of one
        return value.tolist()
    if hasattr(value, "__iter__"):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} does not cross the wire")


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(body, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreadable(f"the body is not MessagePack: {error}") from error


def _valid(model: type[BaseModel], said: Mapping[str, Any]) -> BaseModel:
    try:
        return model.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Unreadable(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@cache
def _request(name: str) -> type[BaseModel]:
    one = OPERATIONS[name]
    hints = get_type_hints(one.function, include_extras=True)
    hints.pop("return")
    parameters = [hint for hint in list(hints)[1:] if hint not in one.given]
    defaults = one.function.__defaults__ or ()
    named = one.function.__code__.co_varnames[: one.function.__code__.co_argcount]
    optional = set(named[len(named) - len(defaults) :]) | set(one.function.__kwdefaults__ or ())
    fields: Any = {
        hint: (_wire_type(hints[hint]), Field(default=None) if hint in optional else ...) for hint in parameters
    }
    return create_model(f"{name} request", __config__=ConfigDict(**_ANY_TYPE, extra="forbid"), **fields)


@cache
def _reply(name: str) -> type[BaseModel]:
    kind = get_type_hints(OPERATIONS[name].function, include_extras=True)["return"]
    fields: Any = {"value": (_wire_type(kind), ...)}
    return create_model(f"{name} reply", __config__=_ANY_TYPE, **fields)


def _wire_type(kind: Any) -> Any:
    """Return the type that a value is read as: rows that were read a piece at a time arrive as a list."""
    if get_origin(kind) in (typing.Iterator, typing.get_origin(typing.Iterator[int])):
        return list[get_args(kind)[0]]  # type: ignore[misc]
    return kind
