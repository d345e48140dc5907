"""Members of tar archives, laid into a folder and nowhere else: the rules of the filter `data` of PEP 706.

Python has it since 3.11.4; before, as in Debian 12, the same is done here.
"""

import copy
import os
import tarfile


def extract(packed: tarfile.TarFile, member: tarfile.TarInfo, folder: str | os.PathLike[str]) -> None:
    """Lay out one member. Raises OSError for one that leads out of the folder or is neither file, folder nor link."""
    if hasattr(tarfile, "data_filter"):
        try:
            packed.extract(member, folder, filter="data")
        except tarfile.FilterError as error:
            raise OSError(str(error)) from None
        return
    packed.extract(_harmless(member, os.path.realpath(folder)), folder)


def _harmless(member: tarfile.TarInfo, root: str) -> tarfile.TarInfo:
    """Return a member as it may be laid below a folder. Raises OSError."""
    kept = copy.copy(member)
    kept.name = member.name.lstrip("/")
    _check_below(root, kept.name)
    if member.issym() or member.islnk():
        if os.path.isabs(member.linkname):
            raise OSError(f"{member.name} is a link to an absolute path")
        _check_below(root, os.path.join(os.path.dirname(kept.name) if member.issym() else "", member.linkname))
    elif not (member.isfile() or member.isdir()):
        raise OSError(f"{member.name} is neither a file, a folder nor a link")
    kept.mode = (member.mode & 0o755) | 0o600 if member.isfile() else 0o755
    kept.uid, kept.gid, kept.uname, kept.gname = os.getuid(), os.getgid(), "", ""
    return kept


def _check_below(root: str, name: str) -> None:
    place = os.path.realpath(os.path.join(root, name))
    if os.path.commonpath([root, place]) != root:
        raise OSError(f"{name} leads out of its folder")
