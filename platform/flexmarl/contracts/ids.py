"""Identities that travel between processes.

A run is a number (`run_id`) in the data plane and a UUID only towards people. Everything below a run is named by
small integers and role names, so that a key can be compared, sorted and rendered without a lookup.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

RunId = Annotated[int, Field(ge=1)]
"""Number of a run, assigned once by the control plane."""

NAME = r"^[a-z][a-z0-9_]{0,31}$"
Name = Annotated[str, StringConstraints(pattern=NAME)]
"""A role, policy, environment or plug-in name: lower-case letters, digits and underscore, at most 32 characters."""

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a content, in lower-case hexadecimal."""
