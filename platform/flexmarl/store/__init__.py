"""The experience store and the registry: PostgreSQL through psycopg, no Django. Owns schema `store` and all its SQL."""
