"""Words that senders say through the broker, so that whoever they are about looks at its rows at once."""

WAKE_CHANNEL = "flexmarl:wake"
"""Begins the Redis channel of each word (`wake_channel`). A sender says the name of the queue that it just put a
message into, so that an idle worker of it looks at once, and nobody else hears of it."""


def wake_channel(word: str) -> str:
    """Name the Redis channel of a word."""
    return f"{WAKE_CHANNEL}:{word}"


def held_word(pool: str) -> str:
    """Name what is said in place of a queue, none of which is called so: other rollout commands of a pool are held."""
    return f"held.{pool}"


def node_word(node: str) -> str:
    """Name what is said in place of a queue: there are commands for children of a node that has no address.

    The message is the lease of the child in decimal digits, or empty where it is about all of them."""
    return f"nodes.{node}"
