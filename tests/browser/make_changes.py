"""Makes random changes in the database that DATABASE_URL names, to the run and from the seed that CHANGES names."""

import os

from tests.browser import preloaded

if __name__ == "__main__":
    preloaded.begin()
    from tests.browser.changes import make

    key, seed = os.environ["CHANGES"].split()
    make(key, int(seed))
