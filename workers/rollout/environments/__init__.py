"""Multi-agent protocols and their task sources. Packages have `base` without the rest: it imports little."""
