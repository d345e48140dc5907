"""Which folders of a server may be named: those below roots that the operator allowed. Pure: paths as text.

Invariant: every refusal of a folder outside the allowed roots is one text, whatever lies there, so that nobody learns
from it what a server's file system holds. Whether a folder that passes can be read is known where it is opened. Every
process reads the roots with its settings, so that this is apart from the specification, which takes longer to load.
"""

from collections.abc import Sequence

from flexmarl.contracts.problems import Problem

SETTING = "FLEXMARL_MODEL_ROOTS"
NOT_ALLOWED = "This folder may not be used: models and adapters are read only below folders that the operator allowed."


def not_allowed(where: str, roots: Sequence[str]) -> Problem:
    """Return the refusal of a folder outside the allowed roots."""
    return Problem(pointer=where, code="folder_not_allowed", detail=NOT_ALLOWED, hint=legal(roots))


def legal(roots: Sequence[str]) -> str:
    """Say what may be named instead."""
    if not roots:
        return f"No folder is allowed here; the operator sets {SETTING}. Use type: factory, or type: checkpoint."
    return f"Name a folder below {' or '.join(roots)} ({SETTING}), or use type: checkpoint."


def parts_below(path: str, root: str) -> tuple[str, ...] | None:
    """Return the names that lead from a root to a folder, none for the root itself; None when it is not below it."""
    inner, outer = _parts(path), _parts(root)
    if inner is None or outer is None or inner[: len(outer)] != outer:
        return None
    return inner[len(outer) :]


def check_root(root: str) -> str:
    """Return an allowed root as it is written. Raises ValueError that says what is legal."""
    if not _parts(root):
        raise ValueError(f"{root!r} cannot be allowed; use an absolute folder below /, without ..")
    return root


def _parts(path: str) -> tuple[str, ...] | None:
    """Return the names of an absolute path; None for one that is relative or leads upwards."""
    names = tuple(name for name in path.split("/") if name)
    if not path.startswith("/") or "\0" in path or any(name in (".", "..") for name in names):
        return None
    return names
