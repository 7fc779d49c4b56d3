"""What the hybrid search is compared with: simpler planners of the same job, costed by the same kernels.

`greedy` fills groups by speed, `random_restarts` draws assignments and keeps the best, and `pinned` runs the hybrid
search with one level held at a textbook choice.
"""
