"""All declared options of a task on given devices, for the exact solver."""

from hetrl_kernels.exact_order cimport OptionOrder
from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.options cimport Option


cdef class ExactFinder(OptionOrder):
    cdef list training(self, int task, list found, double cutoff, list front)
    cdef enter(self, list front, Option option)
    cdef list scoring(self, int task, list found, tuple residencies, double cutoff)
    cdef list engines(self, int task, Devices devices, double cutoff)
    cpdef list front(self, int task, bytes counts, double cutoff)
    cpdef list shared_pairs(self, int trainer, int scorer, bytes counts, double train_cutoff, double score_cutoff)


cdef bint shareable(Option trainer) noexcept
