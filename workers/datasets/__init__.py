"""Datasets of a hub: what a repository has, and its files fetched as one archive."""
