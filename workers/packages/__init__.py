"""Foreign packages: built in virtual environments of their own, described by a manifest, played without credentials."""
