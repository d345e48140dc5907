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
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.pop(PARENT, str(os.getppid())) != str(os.getppid()):
        sys.exit("the parent is gone")
    os.environ[LEADER] = str(os.getpid())
    module = sys.argv[1]
    sys.argv[:] = [module, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
