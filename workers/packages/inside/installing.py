"""Runs pip in a package's own interpreter, confined to the folder of the build: what a source distribution runs while
it is built sees the network, since it fetches what it needs, and no file of the product."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from . import sandbox
from .hosting import ends_with_parent

MEMORY = 8 * 2**30
FILE_BYTES = 8 * 2**30
FILES = 4096


def main(arguments: Sequence[str]) -> None:
    """Run pip with arguments; the first ones are the folder of the build and the home that it must not see."""
    folder, hidden, *asked = arguments
    ends_with_parent()
    visible = (sys.base_prefix, str(Path(__file__).resolve().parent))
    confinement = sandbox.Confinement(MEMORY, visible, (folder,), (hidden,), True, FILE_BYTES, FILES)
    how = sandbox.enter(confinement)
    sys.stderr.write(f"confined by {how}\n")
    sys.argv[:] = ["pip", *asked]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
