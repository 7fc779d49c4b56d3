"""From amounts to seconds: operator and link models, and the one readable evaluator of plans.

`model` holds the coefficients with their provenance, `unit` the seconds of one layer or one decode iteration,
`collectives` and `pipeline` the communication and schedule formulas, `generation`, `scoring` and `training` the
seconds of a task's replica, `residency` the memory of a plan, `evaluate` composes all of it into an `Estimate`.
"""
