"""Programs for sizes that change: run on larger arrays, whose added elements reach no result.

A program is traced once, with open sizes. Each of its operations has a rule for arrays that are larger than the program
says: reductions leave out what is added, and moves keep track of where the elements are.
"""
