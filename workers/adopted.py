"""Runs a module as a child that cannot outlive its parent: `python -m workers.adopted MODULE`.

Invariant (Linux): the kernel kills the process when the thread that started it ends, however it ends. A parent that
was gone before that was arranged is noticed by its changed process id. Elsewhere the child's end of standard input
does the same a little later. Whatever the child starts carries its process id, so that it can be found without it.
"""

import ctypes
import os
import runpy
import signal
import sys

from flexmarl.host.output import protect

PARENT = "FLEXMARL_PARENT_PID"
LEADER = "FLEXMARL_LEADER_PID"
"""Names the child in the environment of the processes that it starts."""
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent and make its output unfailing, then become the module."""
    protect()
    tie_to(int(os.environ.pop(PARENT, os.getppid())))
    become(sys.argv[1], *sys.argv[2:])


def tie_to(parent: int) -> None:
    """Have this process killed when its parent ends; it ends here where that is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent != os.getppid():
        sys.exit("the parent is gone")


def become(module: str, *arguments: str) -> None:
    """Run a module as if this process had been started for it."""
    os.environ[LEADER] = str(os.getpid())
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
