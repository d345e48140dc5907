"""Makes random changes in the database that DATABASE_URL names: `make_changes.py KEY SEED`."""

import sys

import django

if __name__ == "__main__":
    django.setup()
    from tests.browser.changes import make

    make(sys.argv[1], int(sys.argv[2]))
