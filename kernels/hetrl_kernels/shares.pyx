# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""How a task's prompts are shared out to its replicas: in proportion to their speeds, or by the exact threshold fill."""

from libc.math cimport INFINITY, floor
from libc.stdlib cimport free, malloc

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.replica_times cimport ReplicaTimes, replica_key, replica_times
from hetrl_kernels.tables cimport Tables, fmax, fmin

cdef enum:
    NUM_TURNS = 40  # halvings of the threshold in the exact fill
    MOST_REPLICAS = 30000  # whose seconds are kept; then they are forgotten, and worked out anew


cdef class Shares:
    """Shares of replicas, with the seconds of every kind of replica kept."""

    def __init__(self, Tables tables):
        self.t = tables
        self.times = {}
        self.cutoff = INFINITY

    cdef ReplicaTimes times_of(self, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, double kv):
        key = replica_key(self.t, task, layout, c, shape, micro_batch, recompute, kv)
        found = self.times.get(key)
        if found is None:
            if len(self.times) >= MOST_REPLICAS:
                self.times.clear()
            found = self.times[key] = replica_times(self.t, task, layout, c, shape, micro_batch, recompute, kv)
        return found

    cdef double share(
        self, int task, Layout layout, int shape, int micro_batch, bint recompute, const double* kv, bint exact, int* base,
        int* extra) except? -1.0:
        """Prompts per class: ``base[c]`` for each replica and one more for ``extra[c]`` of them; returns the slowest's seconds.

        Shares in proportion to the speeds; with ``exact`` those of the threshold fill where these are faster, and below the
        cutoff.
        """
        cdef int c
        cdef int* filled
        cdef double slowest, seconds
        cdef list times = [
            self.times_of(task, layout, c, shape, micro_batch, recompute, 0.0 if kv == NULL else kv[c])
            for c in range(layout.num_classes)
        ]
        slowest = self.even_shares(layout, times, base, extra)
        if not exact or layout.num_classes == 1 or slowest == INFINITY:
            return slowest
        filled = <int*>malloc(2 * layout.num_classes * sizeof(int))
        seconds = self.threshold_shares(layout, times, slowest, filled, filled + layout.num_classes)
        if seconds < slowest:  # one prompt less may take longer: fewer but fuller micro-batches
            slowest = seconds
            for c in range(layout.num_classes):
                base[c], extra[c] = filled[c], filled[layout.num_classes + c]
        free(filled)
        return slowest

    cdef double even_shares(self, Layout layout, list times, int* base, int* extra):
        """Even shares, then three rounds in proportion to the speeds seen; the best round."""
        cdef int c, other, turn, rest, classes = layout.num_classes, total = self.t.num_prompts, most
        cdef double seconds, slowest, best = INFINITY, weight
        cdef double* speed = <double*>malloc(3 * classes * sizeof(double))
        cdef double* exact = speed + classes
        cdef double* left = exact + classes
        cdef int* now = <int*>malloc(2 * classes * sizeof(int))
        cdef int* more = now + classes
        for c in range(classes):
            speed[c] = 1.0
        for turn in range(1 if classes == 1 else 4):
            weight = 0.0
            for c in range(classes):
                weight += layout.class_size[c] * speed[c]
            rest = total
            for c in range(classes):
                exact[c] = total * speed[c] / weight
                now[c] = <int>floor(exact[c])
                left[c] = exact[c] - now[c]
                rest -= now[c] * layout.class_size[c]
                more[c] = 0
            while rest > 0:
                other = 0
                for c in range(1, classes):
                    if left[c] > left[other]:
                        other = c
                more[other] = min(rest, layout.class_size[other])
                rest -= more[other]
                left[other] = -1.0
            slowest = 0.0
            for c in range(classes):
                most = now[c] + (more[c] > 0)
                seconds = (<ReplicaTimes>times[c]).total(max(1, most))
                speed[c] = max(1, most) / seconds if seconds < INFINITY else 0.0
                if most > 0:
                    slowest = fmax(slowest, seconds)
                if 0 < more[c] < layout.class_size[c] and now[c] > 0:  # one prompt less may take longer
                    slowest = fmax(slowest, (<ReplicaTimes>times[c]).total(now[c]))
            if slowest < best:
                best = slowest
                for c in range(classes):
                    base[c], extra[c] = now[c], more[c]
            weight = 0.0
            for c in range(classes):
                weight += speed[c]
            if not weight > 0:
                break
        free(speed)
        free(now)
        return best

    cdef double threshold_shares(self, Layout layout, list times, double slowest, int* base, int* extra):
        """The smallest threshold below ``slowest`` that leaves room for all prompts.

        The surplus is taken from those that end last.
        """
        cdef int c, last, turn, classes = layout.num_classes, total = self.t.num_prompts, taken
        cdef long long room
        cdef double low = 0.0, high = slowest, middle, seconds, latest
        if self.cutoff < slowest and room_for(layout, times, self.cutoff) < total:
            return INFINITY
        for turn in range(NUM_TURNS):
            middle = (low + high) / 2
            if room_for(layout, times, middle) >= total:
                high = middle
            else:
                low = middle
            if high - low <= 1e-12 * high:
                break
        if high >= slowest:
            return INFINITY
        room = 0
        for c in range(classes):
            base[c], extra[c] = (<ReplicaTimes>times[c]).most(high), 0
            room += <long long>layout.class_size[c] * base[c]
        while room > total:
            last = -1
            latest = -1.0
            for c in range(classes):
                seconds = (<ReplicaTimes>times[c]).total(base[c])
                if base[c] > 0 and seconds >= latest:
                    last, latest = c, seconds
            taken = <int>min(<long long>layout.class_size[last], room - total)
            base[last] -= 1
            extra[last] = layout.class_size[last] - taken
            room -= taken
        seconds = 0.0
        for c in range(classes):
            seconds = fmax(seconds, (<ReplicaTimes>times[c]).total(base[c] + (extra[c] > 0)))
            if extra[c] > 0 and base[c] > 0:  # some keep one prompt less, which may take longer
                seconds = fmax(seconds, (<ReplicaTimes>times[c]).total(base[c]))
        return seconds


cdef long long room_for(Layout layout, list times, double threshold):
    """Prompts that all replicas together handle in ``threshold`` seconds."""
    cdef int c
    cdef long long room = 0
    for c in range(layout.num_classes):
        room += <long long>layout.class_size[c] * (<ReplicaTimes>times[c]).most(threshold)
    return room
