"""Microbenchmarks of devices and links, and the fitting of cost coefficients to them."""
