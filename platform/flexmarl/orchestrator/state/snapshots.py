"""A run's state as JSON and back."""

from typing import Any

import msgspec

from flexmarl.orchestrator.state.in_flight import InFlightCommands, Outstanding
from flexmarl.orchestrator.state.tree import STATE_SCHEMA_VERSION, RunState


def _read_own(kind: type, value: Any) -> Any:
    """Read the one type that is no plain value."""
    assert kind is InFlightCommands
    return InFlightCommands(msgspec.convert(value, dict[str, Outstanding]))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RunState, dec_hook=_read_own)


def encode(state: RunState) -> bytes:
    """Serialise a state as JSON."""
    return _encoder.encode(state)


def decode(raw: bytes) -> RunState:
    """Restore a state. Raises ValueError when it was written by a schema this core does not know."""
    try:
        state = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise ValueError(f"state does not fit schema {STATE_SCHEMA_VERSION}: {error}") from error
    if state.schema != STATE_SCHEMA_VERSION:
        raise ValueError(f"state has schema {state.schema}, this core reads {STATE_SCHEMA_VERSION}")
    return state
