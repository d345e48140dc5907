"""A loss, an advantage and a router: what a distribution with plug-ins of its own looks like."""
