"""Compiled kernels of the search: Numba for batch scoring and pruning, Cython for annealing and delta cost.

Arrays in, arrays out; nothing of hetrl is imported here. A `.pyx` placed in this folder is built by setup.py.
"""
