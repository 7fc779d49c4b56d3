"""The exact solver: the optimum of a declared space, with a proof that others can check (docs/exact.md).

`solve_exact` in `solver` is the way in. `space` says what is enumerated (node classes, device vectors, packings),
`bounds` prices columns from below, `columns` costs them, `placing` evaluates combinations of columns on real nodes,
`milp` writes the certificate's integer program, and `result` holds what comes out.
"""

from hetrl.search.exact.result import (
    Certificate,
    CertificateColumn,
    Combination,
    DeclaredSpace,
    ExactResult,
    NodeClass,
    Removal,
    job_digest,
)

__all__ = [
    "Certificate",
    "CertificateColumn",
    "Combination",
    "DeclaredSpace",
    "ExactResult",
    "NodeClass",
    "Removal",
    "job_digest",
]
