"""An interpreter of small programs in NumPy: the first calls of an operator on the device need no compiler.

XLA takes many milliseconds for the smallest program, and an eager program has one for each operator and shape. So
programs that compute exactly the same in NumPy, to the last bit, are run there until that has taken a part of a
compile's time.
"""

from .first_calls import FirstCalls, interpreted

__all__ = ["FirstCalls", "interpreted"]
