# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of weights and data that move between two tasks, term by term as in the readable evaluator."""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.tables cimport PHASE_SYNC, fmax, fmin


cdef double add_received(Tables t, int task, Layout layout, const int* prompts, double* received) noexcept:
    """Add to ``received`` (``[N]``) the bytes of a task's weights that each node needs, none of them twice.

    Replicas without ``prompts`` are left out; with NULL none is. Returns the seconds of the slowest copy inside a node.
    """
    cdef double whole = t.transfer_weights[task], each, local = 0.0
    cdef int i, d, slot, first, node, model = t.task_model[task]
    for i in range(layout.num_replicas):
        if prompts != NULL and prompts[i] == 0:
            continue
        first = 0
        for slot in range(layout.first[i], layout.first[i + 1]):
            node = layout.node[slot]
            each = t.stage_parameters(model, first, layout.layers[slot]) * t.bytes_per_element / layout.degree
            first += layout.layers[slot]
            for d in range(layout.degree):
                received[node] = fmin(whole, received[node] + each)
            local = fmax(local, t.link_latency[node, node] + each / t.link_bandwidth[node, node])
    return local


cdef double sync_from(Tables t, const int* sources, Option target, bint drops_idle=False) noexcept:
    """A weight sync from the nodes with any ``sources`` to an option of the role.

    With ``drops_idle`` replicas without prompts are left out, as the placed plan leaves them out.
    """
    cdef double* received = <double*>calloc(2 * t.num_nodes, sizeof(double))
    cdef double* sent = received + t.num_nodes
    cdef double local = add_received(t, target.task, target.layout, target.prompts if drops_idle else NULL, received)
    cdef double slowest = 0.0, worst = 0.0
    cdef int node, other, nearest, kind
    for node in range(t.num_nodes):
        if received[node] == 0 or sources[node]:
            continue
        nearest = -1
        for other in range(t.num_nodes):
            if sources[other] and (
                nearest < 0
                or t.link_bandwidth[other, node] > t.link_bandwidth[nearest, node]
                or (t.link_bandwidth[other, node] == t.link_bandwidth[nearest, node] and sent[other] < sent[nearest])
            ):
                nearest = other
        if nearest < 0:
            continue  # nothing sends
        sent[nearest] += received[node]
        slowest = fmax(slowest, t.link_latency[nearest, node] + received[node] / t.link_bandwidth[nearest, node])
    for node in range(t.num_nodes):
        if sent[node] > 0:
            slowest = fmax(slowest, sent[node] / t.node_nic[node])
    for node in range(t.num_nodes):
        if received[node] > 0:
            kind = t.node_type[node]
            worst = fmax(worst, t.calibration[kind, PHASE_SYNC, 0] * (slowest + local) + t.calibration[kind, PHASE_SYNC, 1])
    free(received)
    return worst


cdef double data_seconds(Tables t, Option source, Option target) noexcept:
    """Rollouts or scores over the best link between the two tasks' nodes."""
    cdef int a, b
    cdef double bandwidth = 0.0, latency = INFINITY
    for a in range(t.num_nodes):
        if not source.used[a]:
            continue
        for b in range(t.num_nodes):
            if target.used[b] and (
                t.link_bandwidth[a, b] > bandwidth or (t.link_bandwidth[a, b] == bandwidth and t.link_latency[a, b] < latency)
            ):
                bandwidth, latency = t.link_bandwidth[a, b], t.link_latency[a, b]
    return latency + t.transfer_bytes[target.task, source.task] / bandwidth
