"""Measuring on a GPU: the device and its clock, training loops at every precision, operators, host dispatch, kernels.

Needs torch (but for `names` and `plan`), and nothing of precog's C++ library. tools/gpu's campaigns are built on the same modules.
"""
