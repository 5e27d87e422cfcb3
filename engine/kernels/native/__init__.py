"""Kernels in C++ for CPUs: built by the machine's own compiler when first used, and kept."""
