"""What happens now: topics, the live socket, server-sent events, the log and the feed of a run."""
