"""Fitted coefficients from published measurements, with sources and licences, and the figures they need.

``published.zip`` holds ``models.json`` (for people too) and arrays; ``python -m hetrl_profiler.fit.library`` makes it.
"""
