"""Django's PostgreSQL backend with one pool per purpose; see `base`."""
