"""Programs of XLA: its CPU client, compiler options, compiling, and keeping what is compiled for the next process."""
