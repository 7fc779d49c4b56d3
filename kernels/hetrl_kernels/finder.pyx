# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Options of all tasks, found once."""

from hetrl_kernels.tables cimport SCORE, TRAIN, Tables


cdef class Finder:
    """Finds and keeps the options of every task on every set of devices it is asked for.

    Parameters
    ----------
    tables
        The lowered job.
    allowed
        int32 ``[3, 8]``: which features plans may use, by task kind (train, score, generate): pipelines, tensor
        parallelism, ZeRO-1, FSDP, recomputation, optimizer states on the host, weights on the host, dropped weights.
    max_options
        Length at which a front is cut.
    engine_limit
        Sequences that an engine runs at once at most.
    """

    def __init__(self, Tables tables, int[:, ::1] allowed, int max_options, int engine_limit):
        EngineOptions.__init__(self, tables, allowed, max_options, engine_limit)
        self.known = {}
        self.shared = {}

    cpdef tuple options(self, int task, Devices devices):
        """Undominated options with the devices to themselves, fastest first."""
        key = (task, devices.key)
        found = self.known.get(key)
        if found is None:
            if self.t.task_kind[task] == TRAIN:
                found = self.train_options(task, devices)
            elif self.t.task_kind[task] == SCORE:
                found = self.score_options(task, self.layouts_of(task, devices), self.score_residencies(devices))
            else:
                found = self.engine_options(task, devices)
            self.known[key] = found
        return found

    cdef bint knows(self, int task, bytes counts):
        """Whether a task's options on these devices have been worked out."""
        return (task, counts) in self.known
