"""From a job to a plan. One module per level; the compiled kernels do the counting.

`level1_grouping` partitions tasks, `level2_parallelism` and `level3_colocation` say what strategies may be and turn the
kernels' options into task plans, `level4_assignment` makes starting points, `level5_placement` fixes device ids and
`level5_polish` anneals whole plans (lowered by `plan_arrays`).
`solvers` chooses the solver that a job names. `hybrid` is one, `halving` its rounds, `chains` the work that they hand
to the lanes of a crew (`crew`, `process_crew`, `ray_crew`); `exact` holds the other. `constraints`, `bounds`,
`infeasible` and `explain` go with both; `written_plan` reads plans written by hand. docs/search.md says what the space
leaves out.
"""
