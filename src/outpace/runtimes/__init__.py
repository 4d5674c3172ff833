"""Runtimes: what runs a decoder's packed rows, through the C kernels or through torch."""
