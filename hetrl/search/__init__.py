"""From a job to a plan. One module per level, and the solvers that drive them.

`level1_grouping` partitions tasks, `level2_parallelism` and `level3_colocation` find strategies and residency of a
group's tasks on given devices, `level4_assignment` moves devices between groups, `level5_placement` fixes device ids.
`halving` spends the budget over level-1 candidates, `hybrid` is the solver behind ``solver: hybrid``.
"""
