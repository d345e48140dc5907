"""Puts this process where foreign code can do no harm: limits always, and where the kernel allows it name spaces of
its own, in which it sees no network, no other process, and of the file system only what it needs, read-only.

Invariants: called once, before anything foreign runs and while there is one thread. The process that returns
from `enter` is the confined one; the one that called it waits for its end outside.
"""

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .hosting import ends_with_parent

NAMESPACES, LIMITS = "namespaces", "limits"
"""How a process is confined: the second leaves network and files open."""
MOST_PROCESSES = 512
MOST_FILES = 256
MOST_FILE_BYTES = 2**26
FIRST_ID = 2_000_000
"""Users that nobody else is, one for each confined process, where it was started by root."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
ETC = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
NETWORK = ("/etc", "/opt", "/srv", "/mnt")
"""What a process with a network sees beside: how names are found and trusted, and folders of packages."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_NEW_USER, _NEW_MOUNT, _NEW_PID, _NEW_NET, _NEW_IPC = 0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000
_NO_SUID, _NO_DEVICES, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 4096, 16384, 1 << 18
_READ_ONLY_ATTRIBUTES = 0x1 | 0x2
"""Read-only, no set-uid."""
_DETACH = 2
_MOUNT_SETATTR, _AT_RECURSIVE, _AT_HERE = 442, 0x8000, -100
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SET_DUMPABLE, _DROP_BOUNDING, _NO_NEW_PRIVILEGES = 4, 24, 38
_CAPABILITIES = 64
_SET_FLAGS, _UP = 0x8914, 0x1


@dataclass(frozen=True)
class Confinement:
    """What a confined process may use."""

    memory: int
    """Bytes of address space of each process."""
    visible: tuple[str, ...]
    """Folders that it may read, beside those of the system."""
    writable: tuple[str, ...] = ()
    """Folders that it may also write to, and that lie nowhere else than where they are visible."""
    hidden: tuple[str, ...] = ()
    """Folders of which it sees nothing but what of them is visible or writable."""
    network: bool = False
    file_bytes: int = MOST_FILE_BYTES
    scratch: int = MOST_FILE_BYTES
    """Bytes of /tmp."""
    files: int = MOST_FILES
    loopback: bool = False
    """Without a network: whether it may speak to itself, and to whoever holds a socket that it listens at."""
    placed: tuple[tuple[str, str], ...] = ()
    """Folders that it may write to: where it finds one, and where it lies."""
    user: int = 0
    """User that it becomes where it was started by root; 0: one that nobody else is."""


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user")]


def enter(confinement: Confinement) -> str:
    """Confine this process; return how. The process that called it stays outside and ends when the other one does."""
    _limit(confinement)
    if not _allowed(confinement):
        return LIMITS
    _apart(confinement)
    inside = os.fork()
    if inside:
        wait_outside(inside)
    _settle(confinement)
    return NAMESPACES


def make_room(folder: str, size: int) -> None:
    """Leave the host's name spaces but for its users, with all of its files, and with so many bytes at a folder. What
    is forked next is the first process there. Raises OSError."""
    _call(_libc().unshare, _NEW_MOUNT | _NEW_PID | _NEW_IPC | _NEW_NET)
    _raise_loopback()
    _mount("", "/", "", _RECURSIVE | _PRIVATE)
    for place in ("/run", "/dev/shm"):
        in_memory(place, 2**24)
    in_memory(folder, size)


def in_memory(folder: str, size: int) -> None:
    """Have a file system of its own at a folder."""
    _mount("tmpfs", folder, "tmpfs", _NO_SUID | _NO_DEVICES, f"mode=755,size={size}")


def show_processes() -> None:
    """Have /proc be of this name space."""
    _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES)


def enter_within(confinement: Confinement) -> None:
    """Confine this process, which is in a room already, to files. Raises OSError."""
    _limit(confinement)
    _call(_libc().unshare, _NEW_MOUNT)
    _new_root(confinement)
    _settle(confinement)


def _settle(confinement: Confinement) -> None:
    """Finish confining the process that has a root of its own."""
    with suppress(OSError):  # where the host hides parts of its own
        show_processes()
    _set_read_only("/", 0)
    # Counted for this process's user alone; outside, it would count whatever the user has.
    resource.setrlimit(resource.RLIMIT_NPROC, (MOST_PROCESSES, MOST_PROCESSES))
    _give_up_rights(confinement.writable, confinement.user)
    ends_with_parent()
    os.chdir("/tmp")


def hide() -> None:
    """Have no other process look into this one, which a program that it becomes would allow again."""
    if sys.platform == "linux":
        _libc().prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _limit(confinement: Confinement) -> None:
    limits = {
        resource.RLIMIT_AS: confinement.memory,
        resource.RLIMIT_FSIZE: confinement.file_bytes,
        resource.RLIMIT_NOFILE: confinement.files,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _allowed(confinement: Confinement) -> bool:
    """Try it in a process that ends with that: half of it cannot be undone."""
    trying = os.fork()
    if not trying:
        status = 1
        try:
            _apart(confinement)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(trying, 0)[1] == 0


def wait_outside(inside: int, left: Callable[[], None] = lambda: None) -> NoReturn:
    """Wait outside, and end as the confined process did, once what it left was seen to."""
    for descriptor in range(3, MOST_FILES):
        with suppress(OSError):
            os.close(descriptor)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(inside, signal.SIGKILL))
    _, status = os.waitpid(inside, 0)
    left()
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _apart(confinement: Confinement) -> None:
    """Leave the host's name spaces for new ones with a root of their own. Raises OSError where that is not allowed."""
    uid, gid = os.geteuid(), os.getegid()
    rooted = uid == 0
    apart = _NEW_MOUNT | _NEW_PID | _NEW_IPC | (0 if confinement.network else _NEW_NET) | (0 if rooted else _NEW_USER)
    _call(_libc().unshare, apart)
    if not rooted:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    if confinement.loopback and not confinement.network:
        _raise_loopback()
    _mount("", "/", "", _RECURSIVE | _PRIVATE)
    _new_root(confinement)


def _raise_loopback() -> None:
    """Have this name space's own interface, which is down at first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", _UP)
        fcntl.ioctl(any_socket, _SET_FLAGS, request)


def _opened(paths: Sequence[str]) -> dict[str, int]:
    """Return descriptors of those paths that there are."""
    found = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path] = os.open(path, os.O_PATH)
    return found


def _new_root(confinement: Confinement) -> None:
    """Make a file system of some paths alone the root."""
    links = {path: str(Path(path).readlink()) for path in SYSTEM if Path(path).is_symlink()}
    # Opened before anything covers them.
    system = _opened([path for path in (*(NETWORK if confinement.network else ETC), *SYSTEM) if path not in links])
    visible, writable = _opened(confinement.visible), _opened(confinement.writable)
    placed = [(inside, os.open(folder, os.O_PATH)) for inside, folder in confinement.placed]
    devices = _opened(DEVICES)
    root = "/tmp"
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755,size=16m")
    for folder in ("proc", "tmp"):
        Path(root, folder).mkdir()
    _mount("tmpfs", f"{root}/tmp", "tmpfs", _NO_SUID | _NO_DEVICES, f"mode=1777,size={confinement.scratch}")
    for path, descriptor in placed:
        _bind(descriptor, f"{root}{path}")
    _show(root, system)
    for path in confinement.hidden:
        if Path(f"{root}{path}").is_dir():
            _mount("tmpfs", f"{root}{path}", "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755,size=1m")
    _show(root, visible)
    for path, descriptor in writable.items():
        _bind(descriptor, f"{root}{path}")
    for path, target in links.items():
        Path(f"{root}{path}").symlink_to(target)
    for path, descriptor in devices.items():
        _bind(descriptor, f"{root}{path}")
    os.chdir(root)
    _call(_libc().syscall, _PIVOT_ROOT[os.uname().machine], b".", b".")
    _call(_libc().umount2, b".", _DETACH)
    os.chdir("/")


def _show(root: str, opened: Mapping[str, int]) -> None:
    for path, descriptor in opened.items():
        _bind(descriptor, f"{root}{path}")
        _set_read_only(f"{root}{path}", _AT_RECURSIVE)


def _bind(descriptor: int, target: str) -> None:
    """Make what a descriptor stands for appear at a path."""
    source = f"/proc/self/fd/{descriptor}"
    if Path(source).is_dir():
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    _mount(source, target, "", _BIND | _RECURSIVE)
    os.close(descriptor)


def _set_read_only(path: str, flags: int) -> None:
    attributes = _Attributes(set=_READ_ONLY_ATTRIBUTES)
    size = ctypes.sizeof(attributes)
    _call(_libc().syscall, _MOUNT_SETATTR, _AT_HERE, path.encode(), flags, ctypes.byref(attributes), size)


def own_user() -> int:
    """Return a user that nobody else is."""
    return FIRST_ID + int.from_bytes(os.urandom(3), "big")


def _give_up_rights(writable: Sequence[str], user: int) -> None:
    """Be a user that nobody else is, where that can be; have no capability, and never get one again."""
    libc = _libc()
    for number in range(_CAPABILITIES):
        libc.prctl(_DROP_BOUNDING, number, 0, 0, 0)
    if os.geteuid() == 0:
        own = user or own_user()
        with suppress(OSError):  # a user name space of the host may have no such user
            for folder in writable:
                _give(folder, own)
            os.setgroups([])
            os.setresgid(own, own, own)
            os.setresuid(own, own, own)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def _give(folder: str, own: int) -> None:
    os.chown(folder, own, own)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(place, name), own, own, follow_symlinks=False)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    _call(_libc().mount, source.encode() or None, target.encode(), kind.encode() or None, flags, data.encode() or None)


def _libc() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise OSError("name spaces are Linux's")
    return ctypes.CDLL(None, use_errno=True)


def _call(function: "ctypes._NamedFuncPointer", *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
