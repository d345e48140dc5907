"""How samples pass through a run: pipeline, cohorts, lag, decisions, transitions, places of rows, the plan."""
