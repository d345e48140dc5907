"""The node agent: what this machine has, and what its children are told to do."""
