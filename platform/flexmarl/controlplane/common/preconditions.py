"""Optimistic concurrency: a change may be bound to the version that its caller read.

Invariant: a version is compared while the row that carries it is locked, in the transaction that writes it. An action
therefore takes a `Precondition`, locks its row and calls it with the version it found there; nobody compares before.
`common.api.conditional.if_match` makes one of a request. Of any number of parallel changes under one version exactly
one is made.
"""

from collections.abc import Callable

Precondition = Callable[[int], None]
"""Called with the locked row's version; raises PreconditionFailed or PreconditionRequired."""


def any_version(version: int) -> None:
    """Stand in for a precondition where the caller named no version."""
