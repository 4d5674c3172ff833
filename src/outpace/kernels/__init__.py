"""Small C kernels for CPU, the torch reference beside each, and run-time dispatch."""
