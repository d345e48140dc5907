"""The advisor: rules over series and open work, findings that last, and what limits a run in one sentence."""
