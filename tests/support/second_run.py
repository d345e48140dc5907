"""Which failed tests `./scripts/test` runs a second time, and whether that may make the result good.

A test that failed has said something: what fails now and then is how a wedged run or a lost row shows. So what failed
stays failed, but for tests that start whole installations or a browser: these wait for real processes, which a crowded
machine makes late, and what they meet is held by tests in the other folders, under kills among them. A few of them may
pass by themselves; more are no matter of a crowd.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 5
MAY_PASS_ALONE = ("tests/browser/", "tests/integration/")


def may_pass_alone(failed: Sequence[str]) -> bool:
    """Tell whether a second run of these tests, given by their ids, decides the result of all."""
    return 0 < len(failed) <= MOST and all(test.startswith(MAY_PASS_ALONE) for test in failed)


def main(cache: str) -> int:
    """Print the failed tests of pytest's cache; the status is 0 where they are to run once more."""
    failed = sorted(json.loads(Path(cache).read_text()))
    print(*failed, sep="\n")
    return 0 if may_pass_alone(failed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
