# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sum of regression trees for many samples."""

import numpy as np


def predict(
    const double[:, ::1] samples, const int[::1] roots, const unsigned char[::1] feature, const float[::1] threshold,
    const int[::1] left, const int[::1] right, const float[::1] value, double baseline):
    """Value of each sample, ``[N, F] -> [N]``.

    Parameters
    ----------
    roots
        First node of every tree.
    feature, threshold, left, right, value
        Per node; a sample goes left where its feature is at most the threshold, and a leaf points to itself.
    """
    cdef Py_ssize_t n, tree
    cdef int node, following
    cdef double total
    result = np.empty(samples.shape[0])
    cdef double[::1] out = result
    with nogil:
        for n in range(samples.shape[0]):
            total = 0.0
            for tree in range(roots.shape[0]):
                node = roots[tree]
                while True:
                    following = left[node] if samples[n, feature[node]] <= threshold[node] else right[node]
                    if following == node:
                        break
                    node = following
                total += value[node]
            out[n] = baseline + total
    return result
