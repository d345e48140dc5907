"""Commands in flight by key: issued and not answered, with indexes that spare a walk over all of them.

Invariants: it is a dictionary and goes into a snapshot as one; the indexes follow every change and are rebuilt from
the entries when it is read back; a command's number belongs to one key; entries stand in the order of their numbers.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

_NONE: dict[str, None] = {}
_NOT_OF_A_LEASE = frozenset({"load", "play"})
"""Families that are not looked through for a lease: large ones, whose keys name the lease, or that have none."""


def _about(key: str) -> tuple[str, str]:
    """Return a key's family and subject: the last word, but the policy where a micro-batch's number follows it."""
    family, _, subject = key.partition(":")
    return family, subject.partition(":")[0] if family == "accumulate" else subject.rpartition(":")[2]


class Outstanding(msgspec.Struct, gc=False):
    """A command that was issued and has not been answered. A leaf: there are as many as engines times policies."""

    no: int
    kind: str
    lease_id: int = 0
    version: int = -1
    left: int = 1
    """Answers still expected: the groups of a rollout command."""


class InFlightCommands(dict[str, Outstanding]):
    """Key -> command without a reply. A key is its family and its subject: "load:7:solver" is of the family "load"."""

    __slots__ = ("_families", "_keys", "_subjects")

    def __init__(self, entries: Mapping[str, Outstanding] | None = None) -> None:
        super().__init__()
        self._families: dict[str, dict[str, None]] = {}
        self._keys: dict[int, str] = {}
        self._subjects: dict[tuple[str, str], dict[str, None]] = {}
        for key, command in (entries or {}).items():
            self[key] = command

    def __setitem__(self, key: str, command: Outstanding) -> None:
        former = self.get(key)
        dict.__setitem__(self, key, command)
        if former is not None:
            self._keys.pop(former.no, None)
        self._keys[command.no] = key
        if former is not None:
            return
        about = _about(key)
        members = self._subjects.get(about)
        if members is None:
            members = self._subjects[about] = {}
        members[key] = None
        members = self._families.get(about[0])
        if members is None:
            members = self._families[about[0]] = {}
        members[key] = None

    def __delitem__(self, key: str) -> None:
        command = self[key]
        dict.__delitem__(self, key)
        self._forget(key, command)

    def pop(self, key: str, default: Outstanding | None = None) -> Outstanding | None:  # type: ignore[override]
        """Remove a key; returns its command, `default` when there is none."""
        command = dict.pop(self, key, None)
        if command is None:
            return default
        self._forget(key, command)
        return command

    def clear(self) -> None:
        """Remove everything."""
        dict.clear(self)
        self._families.clear()
        self._keys.clear()
        self._subjects.clear()

    def _forget(self, key: str, command: Outstanding) -> None:
        if self._keys.get(command.no) == key:
            del self._keys[command.no]
        about = _about(key)
        del self._families[about[0]][key]
        members = self._subjects[about]
        del members[key]
        if not members:
            del self._subjects[about]

    def any_of(self, family: str) -> bool:
        """Tell whether a command of a family is on its way."""
        return bool(self._families.get(family))

    def any_for(self, family: str, subject: str, version: int | None) -> bool:
        """Tell whether a command of a family is on its way that concerns a subject at a version."""
        return any(self[key].version == version for key in self._subjects.get((family, subject), _NONE))

    def count_about(self, family: str, subject: str) -> int:
        """Count the commands of a family on their way that concern a subject."""
        return len(self._subjects.get((family, subject), _NONE))

    def keys_about(self, family: str, subject: str) -> list[str]:
        """List the keys of a family that concern a subject, oldest first."""
        return list(self._subjects.get((family, subject), _NONE))

    def keys_of(self, prefix: str) -> Iterator[str]:
        """List the keys that start so, oldest first; the prefix holds a whole family's name."""
        family = prefix.partition(":")[0]
        return (key for key in list(self._families.get(family, ())) if key.startswith(prefix))

    def newest_of(self, family: str) -> tuple[str, Outstanding] | None:
        """Return the command of a family that was issued last."""
        key = next(reversed(self._families.get(family, _NONE)), None)
        return None if key is None else (key, self[key])

    def of_lease(self, lease_id: int, policies: Iterable[str]) -> list[str]:
        """List the keys of what a lease was asked for, oldest first; of loads only those of the policies named.

        An engine's loads are found by their names: there are as many of others as the run has engines.
        """
        loads = self._families.get("load", _NONE)
        found = [key for name in policies if (key := f"load:{lease_id}:{name}") in loads]
        for family, members in self._families.items():
            if family not in _NOT_OF_A_LEASE:
                found += [key for key in members if self[key].lease_id == lease_id]
        return sorted(found, key=lambda key: self[key].no)

    def key_of(self, no: int) -> str | None:
        """Return the key of a command's number."""
        return self._keys.get(no)

    def indexed(self) -> bool:
        """Tell whether the indexes are those of the entries, by making them anew."""
        anew = InFlightCommands(self)
        families = {family: list(members) for family, members in self._families.items() if members}
        same = families == {family: list(members) for family, members in anew._families.items()}
        return same and self._keys == anew._keys and self._subjects == anew._subjects

    def agrees(self) -> bool:
        """Tell whether every command has a number of its own; costs nothing."""
        return len(self._keys) == len(self)
