"""Building blocks of kernels: type promotion, checks of values, random bits, derivatives."""
