"""State that can be taken back: what a proposal writes goes through a log that keeps what was there before.

Counts, bit sets (`Tally`) and trees of maxima are the only structures, so that a state reached by changes equals, bit for
bit, the same state built from nothing: integers add up exactly, and a maximum does not depend on the order.
"""

from libc.string cimport memcpy

cdef extern from *:
    """
    static inline int lowest_bit(unsigned long long word) { return __builtin_ctzll(word); }
    static inline int highest_bit(unsigned long long word) { return 63 - __builtin_clzll(word); }
    """
    int lowest_bit(unsigned long long word) noexcept nogil
    int highest_bit(unsigned long long word) noexcept nogil


cdef struct Write:
    void* where
    long long before  # eight bytes of whatever type


cdef struct IntWrite:
    int* where
    int before


cdef struct Log:  # the first write and the next of each size
    Write* writes
    Write* next
    IntWrite* ints
    IntWrite* next_int


cdef inline void put(Log* log, long long* where, long long value) noexcept nogil:
    log.next.where = where
    log.next.before = where[0]
    log.next += 1
    where[0] = value


cdef inline void put_number(Log* log, double* where, double value) noexcept nogil:
    log.next.where = where
    memcpy(&log.next.before, where, sizeof(double))
    log.next += 1
    where[0] = value


cdef inline void put_int(Log* log, int* where, int value) noexcept nogil:
    log.next_int.where = where
    log.next_int.before = where[0]
    log.next_int += 1
    where[0] = value


cdef inline void forget(Log* log) noexcept nogil:
    """Keep what was written."""
    log.next, log.next_int = log.writes, log.ints


cdef inline void take_back(Log* log) noexcept nogil:
    """Restore what was there before, the last write first."""
    cdef const Write* write = log.next
    cdef const Write* first = log.writes
    cdef const IntWrite* int_write = log.next_int
    cdef const IntWrite* first_int = log.ints
    while write > first:
        write -= 1
        memcpy(write.where, &write.before, sizeof(write.before))
    while int_write > first_int:
        int_write -= 1
        int_write.where[0] = int_write.before
    forget(log)


cdef inline double larger(double a, double b) noexcept nogil:
    return a if a > b else b


cdef inline void raise_leaf(Log* log, double* tree, int size, int leaf, double value) noexcept nogil:
    """Write a leaf of a tree of maxima, and the nodes above as far as they change; ``tree[1]`` is the maximum.

    The layout is that of a binary tree, but only every third level from the leaves up, and the root, are kept: a maximum of
    eight in a row takes less than three that may or may not change.
    """
    cdef int node = size + leaf
    cdef const double* row
    cdef double top
    if tree[node] == value:
        return
    put_number(log, tree + node, value)
    while node > 1:
        if node >= 8:
            row = tree + (node & ~7)
            top = larger(
                larger(larger(row[0], row[1]), larger(row[2], row[3])), larger(larger(row[4], row[5]), larger(row[6], row[7]))
            )
        elif node >= 4:
            top = larger(larger(tree[4], tree[5]), larger(tree[6], tree[7]))
        else:
            top = larger(tree[2], tree[3])
        node = node >> 3 if node >= 16 else 1
        if tree[node] == top:
            return
        put_number(log, tree + node, top)


cdef struct Tally:  # how often each rank occurs, and a bit for those that do
    long long* count
    long long* bits
    int words


cdef inline bint tally(Log* log, Tally* t, int rank, int number) noexcept nogil:
    """Count a rank more often, or less; whether it occurs and did not, or the other way round."""
    cdef long long before = t.count[rank]
    put(log, t.count + rank, before + number)
    if (before > 0) == (before + number > 0):
        return False
    put(log, t.bits + (rank >> 6), t.bits[rank >> 6] ^ (<long long>1 << (rank & 63)))
    return True


cdef inline int first_bit(const long long* bits, int words) noexcept nogil:
    """Smallest member of a bit set, or -1."""
    cdef int word
    for word in range(words):
        if bits[word]:
            return 64 * word + lowest_bit(bits[word])
    return -1


cdef inline int last_bit(const long long* bits, int words) noexcept nogil:
    """Largest member of a bit set, or -1."""
    cdef int word
    for word in range(words - 1, -1, -1):
        if bits[word]:
            return 64 * word + highest_bit(bits[word])
    return -1


cdef inline int lowest(const Tally* t) noexcept nogil:
    """Smallest rank that occurs, or -1."""
    return first_bit(t.bits, t.words)


cdef inline int highest(const Tally* t) noexcept nogil:
    """Largest rank that occurs, or -1."""
    return last_bit(t.bits, t.words)


cdef inline int next_node(const long long* bits, int words, int node) noexcept nogil:
    """First node after ``node`` in a bit set, going round; the set must not be empty."""
    cdef int word = (node + 1) >> 6, turn
    cdef unsigned long long rest
    if word < words:
        rest = <unsigned long long>bits[word] & (~<unsigned long long>0 << ((node + 1) & 63))
        if rest:
            return 64 * word + lowest_bit(rest)
        for turn in range(word + 1, words):
            if bits[turn]:
                return 64 * turn + lowest_bit(bits[turn])
    for turn in range(words):
        if bits[turn]:
            return 64 * turn + lowest_bit(bits[turn])
    return -1


cdef inline int previous_node(const long long* bits, int words, int node) noexcept nogil:
    """Last node before ``node`` in a bit set, going round; the set must not be empty."""
    cdef int word = node >> 6, turn
    cdef unsigned long long rest = <unsigned long long>bits[word] & ((<unsigned long long>1 << (node & 63)) - 1)
    if rest:
        return 64 * word + highest_bit(rest)
    for turn in range(word - 1, -1, -1):
        if bits[turn]:
            return 64 * turn + highest_bit(bits[turn])
    for turn in range(words - 1, -1, -1):
        if bits[turn]:
            return 64 * turn + highest_bit(bits[turn])
    return -1
