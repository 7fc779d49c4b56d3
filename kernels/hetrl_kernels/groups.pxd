"""Costs of groups and of whole steps."""

from hetrl_kernels.layouts cimport Devices
from hetrl_kernels.finder cimport Finder
from hetrl_kernels.options cimport Option
from hetrl_kernels.schedule cimport Activities
from hetrl_kernels.tables cimport Tables


cdef class Choice:
    """The chosen options of a group's tasks, in the group's order."""

    cdef readonly tuple options
    cdef readonly double seconds
    cdef Devices devices


cdef class Steps:
    cdef readonly Finder finder
    cdef Tables t
    cdef readonly dict groups
    cdef dict costs, bounds, transfers, areas
    cdef bint dollars
    cdef bint drops_idle  # engines and scorers without prompts do not enter the plan
    cdef double most_dollars
    cdef double[:, ::1] fluid  # [A, Y] device-seconds of a task on devices of one type
    cdef double[::1] latency  # [A] seconds that no number of devices undercuts
    cdef double[::1] fixed  # [A] seconds on top of the fluid part
    cdef readonly long long num_screened
    cdef readonly long long num_costed, num_combined

    cdef Devices area(self, bytes key)
    cpdef group(self, tuple tasks, bytes counts)
    cpdef Choice choice(self, tuple options, bytes counts)
    cpdef double placed(self, list choices)
    cpdef double price(self, list choices)
    cpdef double weight_sync(self, Option source, Option target)
    cpdef tuple alone(self, int task, bytes counts)
    cpdef double screen(self, tuple grouping, tuple assignment)
    cpdef double rank(self, tuple grouping, tuple assignment)
    cdef double fluid_seconds(self, tuple grouping, tuple assignment)
    cdef void fluid_activities(self, tuple grouping, tuple assignment, Activities* activities)
    cdef double scheduled(self, const Activities* activities) noexcept
    cpdef double bound(self, tuple grouping, tuple assignment, double cutoff=*)
    cdef void at_fastest(self, Activities* activities, int task, bytes counts)
    cdef bint trained_in(self, tuple tasks, int task)
    cpdef double cost(self, tuple grouping, tuple assignment, double cutoff)
    cdef void edges(self, Activities* activities) noexcept
    cdef double exact(self, tuple grouping, tuple assignment)
    cpdef double objective(self, list choices)
    cdef double objective_of(self, list choices)
    cdef double shortage(self, tuple tasks, bytes counts)
    cdef bint hosts_fit(self, list choices)
    cdef double dollars_per_second(self, list choices)
    cdef double step_seconds(self, list choices)
    cdef double data_seconds(self, Option source, Option target, bint same_group)
    cdef double sync_seconds(self, Option source, Option target)
