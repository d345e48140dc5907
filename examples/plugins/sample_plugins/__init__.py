"""An environment, a loss, an advantage, a router, a mover and a reward: what a distribution with plug-ins of its own looks like."""
