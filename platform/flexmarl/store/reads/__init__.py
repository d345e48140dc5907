"""Queries for pages, the API and the advisor: lists, activity, pipeline, load and the consistency report.

Invariants: every statement names the runs that it reads; only the measured sizes of `storage` are written.
"""
