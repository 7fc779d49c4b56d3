"""Lower bounds that hold for every plan of the declared space (docs/search.md), at any size.

`fluid` bounds tasks and phases by work alone, in microseconds: the search screens with it. `training`, `scoring` and
`generation` bound a task on given numbers of devices by type, strategy class by strategy class; `problem` puts them
together over groupings and device counts, and `dollars` prices the work. All bounds are valid on their own, and the
largest counts.
"""

from hetrl.search.bounds.dollars import dollar_bound
from hetrl.search.bounds.fluid import FluidBounds, fluid_bounds, phases
from hetrl.search.bounds.problem import lower_bound

__all__ = ["FluidBounds", "dollar_bound", "fluid_bounds", "lower_bound", "phases"]
