"""The first calls of operators on the device, which need no compile of their own.

XLA takes many milliseconds for the smallest program, and an eager program has one for each operator and shape. So
programs that compute exactly the same in NumPy, to the last bit, are run there until that has taken a part of a
compile's time. Where shapes change again and again, one program for larger arrays serves many of them.
"""

from .first_calls import FirstCalls, Padding, interpreted, is_used

__all__ = ["FirstCalls", "Padding", "interpreted", "is_used"]
