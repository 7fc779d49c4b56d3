"""Fitted coefficients from published measurements, with sources and licences, and the figures they need.

``published.zip`` holds ``models.json`` (for people too) and arrays; it is made by ``python -m hetrl_profiler.fit.library``.
"""
