"""Fitting cost coefficients to measurements: rooflines, residual trees, transfer to new devices, links.

scikit-learn and scipy are imported here and nowhere else; what is fitted is plain arrays of `hetrl.cost`.
`operators` fits one operator of one device, `transfer` does it from few points by borrowing from known devices,
`links` fits link curves, `library` builds the set of models that ships with hetrl.
"""
