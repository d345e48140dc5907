"""Starts and supervises what one machine needs: embedded PostgreSQL and Valkey, and the platform's own processes.

Imports the standard library, psutil, psycopg and structlog only: it runs before any setting or database exists.
"""
