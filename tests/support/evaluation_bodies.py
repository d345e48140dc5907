"""Bodies of requests for suites and evaluations."""

HOME = "alpha"
"""Project of the table of permissions."""
SUITE_ID = "01900000-0000-7000-8000-0000000000e1"
PART = {"name": "games", "environment": {"type": "hot_cold"}}
SUITE = {"name": "games", "project": HOME, "content": {"parts": [PART]}}
EVALUATION = {"name": "e", "suite": SUITE_ID, "entries": [{"model": {"type": "factory"}}]}
