"""Plug-ins of one's own: what a distribution with some of six kinds looks like."""
