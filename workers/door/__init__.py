"""The road of a node that has a token instead of the installation's secrets: the store and the broker over HTTP."""
