"""Shared by tests: a textbook operator library and small jobs."""
