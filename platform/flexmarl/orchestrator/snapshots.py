"""A run's state as JSON and back, states of earlier schemas included."""

from typing import Any

import msgspec

from flexmarl.orchestrator.on_its_way import OnItsWay, Outstanding
from flexmarl.orchestrator.state import STATE_SCHEMA_VERSION, RunState


def _read_own(kind: type, value: Any) -> Any:
    """Read the one type that is no plain value."""
    assert kind is OnItsWay
    return OnItsWay(msgspec.convert(value, dict[str, Outstanding]))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RunState, dec_hook=_read_own)


def encode(state: RunState) -> bytes:
    """Serialise a state as JSON."""
    return _encoder.encode(state)


def _upgraded(raw: bytes) -> bytes:
    """Bring older states here: 2 knew no places, 1 had one cohort at most, and ordered slices of it cannot be told."""
    document = msgspec.json.decode(raw)
    if isinstance(document, dict) and document.get("schema") == 2:
        return msgspec.json.encode(document | {"schema": STATE_SCHEMA_VERSION})
    if not isinstance(document, dict) or document.get("schema") != 1:
        return raw
    cohort = document.pop("cohort", None)
    if cohort is not None:
        if cohort.pop("next_slice", 0):
            raise ValueError("an ordered cohort of schema 1 cannot be continued")
        for own in cohort["policies"].values():
            if own["stepped"]:
                own |= {"trained": own.pop("totals"), "steps": int(not own["null_step"])}
                for micro_batch in own["micro_batches"]:
                    micro_batch["applied"] = True
    return msgspec.json.encode(document | {"schema": STATE_SCHEMA_VERSION, "cohorts": [cohort] if cohort else []})


def decode(raw: bytes) -> RunState:
    """Restore a state. Raises ValueError when it was written by a schema this core does not know."""
    try:
        state = _decoder.decode(_upgraded(raw))
    except msgspec.ValidationError as error:
        raise ValueError(f"state does not fit schema {STATE_SCHEMA_VERSION}: {error}") from error
    if state.schema != STATE_SCHEMA_VERSION:
        raise ValueError(f"state has schema {state.schema}, this core reads {STATE_SCHEMA_VERSION}")
    _find_homes(state)
    return state


def _find_homes(state: RunState) -> None:
    """Older states did not say where a policy is: there was one trainer."""
    for policy in state.policies.values():
        if policy.accumulator and not policy.home.gang and not policy.home.ticket:
            life = policy.accumulator.partition(":")[2]
            policy.home.gang = [lease.lease_id for lease in state.leases.values() if lease.incarnation == life]
