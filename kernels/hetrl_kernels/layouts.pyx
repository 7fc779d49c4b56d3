# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Level 2: the parallel layouts of one task on given devices.

Tensor groups stay inside a node. Sorted by speed they are chained into pipelines, or dealt so that every stage has its
own speed class; training replicas share one split of layers, engines and scorers may differ per replica.
"""

import cython

from libc.math cimport INFINITY, floor
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from hetrl_kernels.tables cimport fmax, fmin
from hetrl_kernels.tables cimport MAX_STAGES, TRAIN, Tables

cdef int[5] DEGREES = [1, 2, 4, 8, 16]
cdef int[10] PIPELINES = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16]
cdef enum:
    MANY_GROUPS = 96  # with more tensor groups than that only powers of two are tried as pipeline lengths
    SINGLE_NODE_CELLS = 32  # in fleets up to this size every node is its own cell
SPLIT_BYTES[:] = [0.0, 5.0, 9.0, 18.0]


@cython.no_gc
cdef class Devices:
    def __cinit__(self, Tables t, const int[::1] counts):
        cdef int node, other, n = t.num_nodes
        if counts.shape[0] != n:
            raise ValueError("one count per node")
        self.counts = <int*>malloc(n * sizeof(int))
        self.cell = <int*>malloc(n * sizeof(int))
        self.cell_node = <int*>malloc(n * sizeof(int))
        self.num_cells = 0
        self.num_devices = 0
        for node in range(n):
            self.counts[node] = counts[node]
            self.num_devices += counts[node]
            self.cell[node] = -1
            if counts[node] == 0:
                continue
            if n > SINGLE_NODE_CELLS:
                for other in range(self.num_cells):
                    if t.node_kind[self.cell_node[other]] == t.node_kind[node] and counts[self.cell_node[other]] == counts[node]:
                        self.cell[node] = other
                        break
            if self.cell[node] < 0:
                self.cell[node] = self.num_cells
                self.cell_node[self.num_cells] = node
                self.num_cells += 1
        self.key = (<char*>self.counts)[: n * sizeof(int)]

    def __dealloc__(self):
        free(self.counts)
        free(self.cell)
        free(self.cell_node)


@cython.no_gc
cdef class Layout:
    def __dealloc__(self):
        free(self.first)  # and all that follows it
        free(self.rings)
        free(self.steppers)

    cdef Replica replica(self, int index) noexcept nogil:
        cdef Replica result
        result.num_stages = self.first[index + 1] - self.first[index]
        result.node = self.node + self.first[index]
        result.layers = self.layers + self.first[index]
        return result


cdef bint split_layers(
    int num_stages, const double* per_layer, const double* fixed, const int* caps, int num_layers, int* split) noexcept nogil:
    """Give every layer to the stage that is then fastest: the slowest stage is as fast as the caps admit."""
    cdef int j, best, left = num_layers - num_stages
    cdef double finished, best_finished
    if left < 0:
        return False
    for j in range(num_stages):
        split[j] = 1
    while left > 0:
        best = -1
        best_finished = INFINITY
        for j in range(num_stages):
            if split[j] < caps[j]:
                finished = fixed[j] + (split[j] + 1) * per_layer[j]
                if finished < best_finished:
                    best, best_finished = j, finished
        if best < 0:
            return False
        split[best] += 1
        left -= 1
    return True


cdef class Splitter:
    """Layer splits of pipelines by the device types of their stages, each worked out once."""

    cdef bint split(self, int num_stages, const unsigned long long* kinds, int* layers) except? -1:
        """Layers of stages on devices of these types, a set for each, whose worst ones decide; False if there is no split."""
        cdef double[MAX_STAGES] per_layer, fixed
        cdef int[MAX_STAGES] caps
        cdef int j, kind, all_layers = self.t.model_layers[self.t.task_model[self.task]]
        cdef bytes found
        key = (<char*>kinds)[: num_stages * sizeof(kinds[0])]
        found = self.known.get(key)
        if found is not None:
            memcpy(layers, <char*>found, len(found))
            return len(found) > 0
        for j in range(num_stages):
            per_layer[j] = fixed[j] = 0.0
            caps[j] = all_layers
            for kind in range(self.t.num_types):
                if kinds[j] >> kind & 1:
                    per_layer[j] = fmax(per_layer[j], self.per_layer[kind])
                    caps[j] = min(caps[j], self.caps[kind])
                    if j == num_stages - 1:
                        fixed[j] = fmax(fixed[j], self.head[kind])
        if split_layers(num_stages, per_layer, fixed, caps, all_layers, layers):
            self.known[key] = (<char*>layers)[: num_stages * sizeof(int)]
            return True
        self.known[key] = b""
        return False

    cdef bint caps_hold(self, Layout layout) noexcept nogil:
        """Whether no stage of a layout has more layers than this splitter's memory caps admit."""
        cdef int c, slot
        for c in range(layout.num_classes):
            for slot in range(layout.first[layout.representative[c]], layout.first[layout.representative[c] + 1]):
                if self.caps[self.t.node_type[layout.node[slot]]] < layout.layers[slot]:
                    return False
        return True


cdef void add_kinds(Tables t, int num_stages, const int* nodes, unsigned long long* kinds) noexcept nogil:
    """Add the device types of a pipeline to the sets of its stages."""
    cdef int j
    for j in range(num_stages):
        kinds[j] |= <unsigned long long>1 << t.node_type[nodes[j]]


cdef Splitter new_splitter(Tables t, int task, int degree_index, double state_bytes):
    """A splitter whose stages have room for ``state_bytes`` per parameter (0: for the weights) in 80 % of their memory."""
    cdef Splitter splitter = Splitter.__new__(Splitter)
    cdef int kind, model = t.task_model[task], degree = DEGREES[degree_index]
    cdef int layers = t.model_layers[model]
    cdef int others = layers - 1 if layers > 1 else 1
    cdef double each, fits
    splitter.t, splitter.task, splitter.degree_index, splitter.degree = t, task, degree_index, degree
    splitter.known = {}
    if t.num_types > MAX_TYPES:
        raise ValueError(f"the kernels are built for at most {MAX_TYPES} device types")
    for kind in range(t.num_types):
        each = t.stage_seconds(model, kind, degree_index, 0, 0, others)
        if layers == 1:
            each -= t.head_seconds[model, kind, degree_index, 0]
        splitter.per_layer[kind] = each / others
        splitter.head[kind] = t.head_seconds[model, kind, degree_index, 0]
        each = t.model_parameters[model] * (state_bytes if state_bytes > 0 else t.weight_bytes) / layers / degree
        fits = floor(t.type_memory[kind] * (0.8 if state_bytes > 0 else 1.0) / fmax(each, 1.0))
        splitter.caps[kind] = <int>fmin(fmax(fits, 1.0), layers)
    return splitter


cdef Splitter known_splitter(Tables t, dict known, int task, int degree_index, int number):
    """The splitter with ``SPLIT_BYTES[number]`` out of those known by (task, tensor degree's index, number)."""
    key = (task, degree_index, number)
    found = known.get(key)
    if found is None:
        found = known[key] = new_splitter(t, task, degree_index, SPLIT_BYTES[number])
    return found


cdef bint same_layers(Layout a, Layout b) noexcept:
    return a.num_slots == b.num_slots and memcmp(a.layers, b.layers, a.num_slots * sizeof(int)) == 0


cdef bint alike(Tables t, Devices devices, const int* a, const int* b, int num_stages) noexcept nogil:
    """Whether two pipelines stand on nodes of the same cells behind links of the same kinds."""
    cdef int j
    if memcmp(a, b, num_stages * sizeof(int)) == 0:
        return True
    for j in range(num_stages):
        if devices.cell[a[j]] != devices.cell[b[j]] or (j > 0 and t.link_kind[a[j - 1], a[j]] != t.link_kind[b[j - 1], b[j]]):
            return False
    return True


cdef Layout build(
    Tables t, Splitter splitter, Devices devices, int num_replicas, const int* first, const int* nodes, const int* layers=NULL,
    const int* shared=NULL):
    """A layout with classes of equal replicas. None if no split fits.

    Its layers are split here, unless those of all slots are given or those of the stages, shared by all replicas.
    """
    cdef Layout layout = Layout.__new__(Layout)
    cdef int num_slots = first[num_replicas]
    cdef int i, c, stages, other
    cdef unsigned long long[MAX_STAGES] kinds
    layout.degree = splitter.degree
    layout.degree_index = splitter.degree_index
    layout.num_replicas = num_replicas
    layout.num_slots = num_slots
    layout.devices = devices
    layout.first = <int*>malloc((4 * num_replicas + 1 + 2 * num_slots) * sizeof(int))
    layout.node = layout.first + num_replicas + 1
    layout.layers = layout.node + num_slots
    layout.class_of = layout.layers + num_slots
    layout.representative = layout.class_of + num_replicas
    layout.class_size = layout.representative + num_replicas
    memcpy(layout.first, first, (num_replicas + 1) * sizeof(int))
    memcpy(layout.node, nodes, num_slots * sizeof(int))
    for i in range(num_replicas):
        stages = first[i + 1] - first[i]
        if stages > layout.max_stages:
            layout.max_stages = stages
    for i in range(num_replicas):
        stages = first[i + 1] - first[i]
        if (
            i > 0 and layers == NULL and first[i] - first[i - 1] == stages
            and alike(t, devices, nodes + first[i - 1], nodes + first[i], stages)
        ):
            memcpy(layout.layers + first[i], layout.layers + first[i - 1], stages * sizeof(int))
            layout.class_of[i] = layout.class_of[i - 1]
            layout.class_size[layout.class_of[i]] += 1
            continue
        if layers != NULL:
            memcpy(layout.layers + first[i], layers + first[i], stages * sizeof(int))
        elif shared != NULL:
            memcpy(layout.layers + first[i], shared, stages * sizeof(int))
        else:
            memset(kinds, 0, sizeof(kinds))
            add_kinds(t, stages, nodes + first[i], kinds)
            if not splitter.split(stages, kinds, layout.layers + first[i]):
                return None
        for c in range(layout.num_classes):
            other = first[layout.representative[c]]
            if (
                first[layout.representative[c] + 1] - other == stages
                and memcmp(layout.layers + other, layout.layers + first[i], stages * sizeof(int)) == 0
                and alike(t, devices, nodes + other, nodes + first[i], stages)
            ):
                break
        else:
            c = layout.num_classes
            layout.representative[c] = i
            layout.class_size[c] = 0
            layout.num_classes += 1
        layout.class_of[i] = c
        layout.class_size[c] += 1
    return layout


cdef Layout given_layout(Tables t, int task, Devices devices, int degree, list replicas):
    """The layout with these stages, per replica a list of (node, layers); None if the devices do not have room for it."""
    cdef int i, j, slots = sum([len(stages) for stages in replicas])
    cdef int degree_index = [DEGREES[i] for i in range(5)].index(degree)
    cdef int* first = <int*>malloc((len(replicas) + 1 + 2 * slots) * sizeof(int))
    cdef int* nodes = first + len(replicas) + 1
    cdef int* layers = nodes + slots
    cdef Layout layout = None
    needed = [0] * t.num_nodes
    first[0] = 0
    for i, stages in enumerate(replicas):
        first[i + 1] = first[i] + len(stages)
        for j, stage in enumerate(stages):
            nodes[first[i] + j], layers[first[i] + j] = stage[0], stage[1]
            needed[stage[0]] += degree
    if not any([needed[i] > devices.counts[i] for i in range(t.num_nodes)]):
        layout = build(t, new_splitter(t, task, degree_index, 0.0), devices, len(replicas), first, nodes, layers)
    free(first)
    return layout


cdef list layouts(Tables t, dict splitters, int task, Devices devices, bint pipelines, bint tensors):
    """All layouts of a task on a group's devices that the hard rules admit.

    ``splitters`` are those known, as in `known_splitter`.
    """
    cdef list found = []
    cdef int* order = <int*>malloc(t.num_nodes * sizeof(int))
    cdef int* groups = <int*>malloc((devices.num_devices + 1) * sizeof(int))
    cdef int* turned = <int*>malloc((devices.num_devices + 1) * sizeof(int))
    cdef int* nodes = <int*>malloc((devices.num_devices + 1) * sizeof(int))
    cdef int* first = <int*>malloc((devices.num_devices + 2) * sizeof(int))
    cdef int i, d, p, start, stop, use, num_nodes, num_groups, model = t.task_model[task]
    cdef bint train = t.task_kind[task] == TRAIN
    num_nodes = ordered_nodes(t, task, devices, order)
    for d in range(t.num_degrees):
        if not t.tensor_allowed[model, d] or (d > 0 and not tensors):
            continue
        num_groups = tensor_groups(devices, order, num_nodes, DEGREES[d], groups)
        if num_groups == 0:
            continue
        for start, stop in vendor_runs(t, groups, num_groups, train):
            for use in prefixes(t, groups, start, stop):
                varied = t.node_type[groups[start]] != t.node_type[groups[start + use - 1]]
                mine = [known_splitter(t, splitters, task, d, i) for i in range(4 if varied and train else 1)]
                for p in range(10):
                    if PIPELINES[p] > use or PIPELINES[p] > t.model_layers[model] or (p > 0 and not pipelines):
                        break
                    if use > MANY_GROUPS and PIPELINES[p] & (PIPELINES[p] - 1):
                        continue
                    chain(t, mine if p else mine[:1], devices, groups + start, use, PIPELINES[p], nodes, first, found, train)
                    if p and train and varied:
                        # slowest first: late stages keep fewer micro-batches, which leaves fast devices room for layers
                        for i in range(use):
                            turned[i] = groups[start + use - 1 - i]
                        chain(t, mine, devices, turned, use, PIPELINES[p], nodes, first, found, train)
        if not train:
            per_type(t, known_splitter(t, splitters, task, d, 0), devices, groups, num_groups, nodes, first, found, pipelines)
    free(order)
    free(groups)
    free(turned)
    free(nodes)
    free(first)
    return found


cdef int ordered_nodes(Tables t, int task, Devices devices, int* order):
    """Usable nodes of the group, fastest device types first."""
    cdef int node
    keyed = []
    for node in range(t.num_nodes):
        if devices.counts[node] == 0 or not t.type_supported[t.node_type[node]] >> t.task_kind[task] & 1:
            continue
        keyed.append((-t.type_flops[t.node_type[node]], -t.type_memory[t.node_type[node]], t.node_type[node], node))
    keyed.sort()
    for node, each in enumerate(keyed):
        order[node] = each[3]
    return len(keyed)


cdef int tensor_groups(Devices devices, const int* order, int num_nodes, int degree, int* groups):
    cdef int i, each, number = 0
    for i in range(num_nodes):
        for each in range(devices.counts[order[i]] // degree):
            groups[number] = order[i]
            number += 1
    return number


cdef list vendor_runs(Tables t, int* groups, int num_groups, bint train):
    """(start, stop) of the groups of each vendor, made consecutive for training; otherwise all of them."""
    cdef int i, start
    if not train:
        return [(0, num_groups)]
    for i in range(1, num_groups):
        if t.type_vendor[t.node_type[groups[i]]] < t.type_vendor[t.node_type[groups[i - 1]]]:
            keyed = sorted([(t.type_vendor[t.node_type[groups[i]]], i, groups[i]) for i in range(num_groups)])
            for i in range(num_groups):
                groups[i] = keyed[i][2]
            break
    runs = []
    start = 0
    for i in range(1, num_groups + 1):
        if i == num_groups or t.type_vendor[t.node_type[groups[i]]] != t.type_vendor[t.node_type[groups[start]]]:
            runs.append((start, i))
            start = i
    return runs


cdef list prefixes(Tables t, const int* groups, int start, int stop):
    """Numbers of groups to use: all, and those of the fastest device types only."""
    cdef int i
    found = [stop - start]
    for i in range(start + 1, stop):
        if t.node_type[groups[i]] != t.node_type[groups[i - 1]]:
            found.append(i - start)
    return found


cdef bint one_vendor(Tables t, const int* nodes, int num_stages):
    cdef int j
    for j in range(1, num_stages):
        if t.type_vendor[t.node_type[nodes[j]]] != t.type_vendor[t.node_type[nodes[0]]]:
            return False
    return True


cdef void chain(
    Tables t, list splitters, Devices devices, const int* groups, int num_groups, int num_stages, int* nodes, int* first,
    list found, bint train):
    """Neighbours chained, and one stage per speed class."""
    cdef int i, j, way, made, num_replicas = num_groups // num_stages
    cdef int[4][MAX_STAGES] splits  # of training replicas, which share one
    cdef unsigned long long[MAX_STAGES] kinds
    cdef bint differs
    cdef Layout layout
    if num_replicas > t.num_prompts:
        num_replicas = t.num_prompts
    for way in range(1 if num_groups > MANY_GROUPS and t.node_type[groups[0]] == t.node_type[groups[num_groups - 1]] else 2):
        differs = way == 0
        for i in range(num_replicas):
            first[i] = i * num_stages
            for j in range(num_stages):
                nodes[i * num_stages + j] = groups[i * num_stages + j] if way == 0 else groups[j * num_replicas + i]
                differs = differs or nodes[i * num_stages + j] != groups[i * num_stages + j]
        first[num_replicas] = num_replicas * num_stages
        if not differs:
            continue
        if t.num_types > 1 and not train:  # training groups are of one vendor anyway
            differs = True
            for i in range(num_replicas):
                differs = differs and one_vendor(t, nodes + first[i], num_stages)
            if not differs:
                continue
        if not train:
            layout = build(t, <Splitter>splitters[0], devices, num_replicas, first, nodes)
            if layout is not None:
                found.append(layout)
            continue
        memset(kinds, 0, sizeof(kinds))
        for i in range(num_replicas):
            add_kinds(t, num_stages, nodes + first[i], kinds)
        made = 0
        for splitter in splitters:
            if made and (<Splitter>splitter).caps_hold(layout):
                continue  # the fastest split fits these caps: it would come out again
            if not (<Splitter>splitter).split(num_stages, kinds, splits[made]):
                continue
            for i in range(made):
                if memcmp(splits[i], splits[made], num_stages * sizeof(int)) == 0:
                    break
            else:
                each = build(t, <Splitter>splitter, devices, num_replicas, first, nodes, NULL, splits[made])
                found.append(each)
                if made == 0:
                    layout = each
                made += 1


cdef void per_type(
    Tables t, Splitter splitter, Devices devices, const int* groups, int num_groups, int* nodes, int* first, list found,
    bint pipelines):
    """Engines and scorers: per device type the shortest pipeline whose weights leave half of the memory free."""
    cdef int i = 0, j, stop, stages, number = 0, slot = 0, model = splitter.t.task_model[splitter.task]
    cdef double memory
    cdef Layout layout
    if num_groups == 0 or t.node_type[groups[0]] == t.node_type[groups[num_groups - 1]]:
        return
    while i < num_groups:
        stop = i
        while stop < num_groups and t.node_type[groups[stop]] == t.node_type[groups[i]]:
            stop += 1
        memory = t.type_memory[t.node_type[groups[i]]] * splitter.degree
        stages = <int>(2 * t.transfer_weights[splitter.task] / memory)
        if stages * memory < 2 * t.transfer_weights[splitter.task]:
            stages += 1
        stages = min(max(stages, 1), t.model_layers[model], MAX_STAGES)
        if stages == 1 or pipelines:
            while i + stages <= stop and number < t.num_prompts:
                first[number] = slot
                for j in range(stages):
                    nodes[slot] = groups[i + j]
                    slot += 1
                number += 1
                i += stages
        i = stop
    first[number] = slot
    if number:
        layout = build(t, splitter, devices, number, first, nodes)
        if layout is not None:
            found.append(layout)
