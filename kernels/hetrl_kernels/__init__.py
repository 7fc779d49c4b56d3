"""Compiled kernels of the search, in Cython. Arrays in, arrays out; nothing of hetrl is imported here.

`tables` holds a lowered job; `timing`, `memory` and `rings` its times and bytes; `layouts` and `*_options` are
level 2, put together by `finder`; `combiner` is level 3; `groups` costs steps (with `transfers` and `schedule`) and
`anneal` is level 4. `plan_anneal` is level 5: it moves blocks of a whole plan, whose state (`plan_state`) consists of
`replicas` (with `signatures` and `pipelines`), `contributions` of blocks to nodes (with `train_rings` and `spread`) and
`orders`, on the fleet's `links`, all writing through `undo`. `training_bound` and `training_bound_*` are one of the
lower bounds. `fronts` and `exact_*` serve the exact solver, `refills` both, `forest` evaluates the operators' trees.
A `.pyx` placed in this folder is built by setup.py. Bad plans never raise: they are infinite or None.
"""
