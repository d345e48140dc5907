"""Runs pip in a package's own interpreter, confined to the folder of the build: what a source distribution runs while
it is built sees the network, since it fetches what it needs, and no file of the product."""

import runpy
import sys
from collections.abc import Sequence

from . import sandbox


def main(arguments: Sequence[str]) -> None:
    """Run pip with arguments; before them comes the home that it does not see, after them how it is confined."""
    _, *asked, how = arguments
    sandbox.hide()
    sys.stderr.write(f"confined by {how}\n")
    sys.argv[:] = ["pip", *asked]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
