"""Scores that take long or read what may hang: computed in processes that can be killed, beside play."""
