"""From a job to a plan. One module per level; the compiled kernels do the counting.

`level1_grouping` partitions tasks, `level2_parallelism` and `level3_colocation` say what strategies may be and turn the
kernels' options into task plans, `level4_assignment` makes starting points, `level5_placement` fixes device ids and
`level5_polish` anneals whole plans (lowered by `plan_arrays`).
`hybrid` is the solver behind ``solver: hybrid``; `bounds`, `constraints`, `infeasible` and `explain` go with it, and
`written_plan` reads plans written by hand. docs/search.md says what the space leaves out.
"""
