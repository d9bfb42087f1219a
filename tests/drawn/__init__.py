"""Programs that are drawn at random, of views, writes and results, and what they leave behind in each way to run them.

Tables of cases hold what someone has thought of. These programs join what nobody has: a write through a view of a
view, before its gradient is asked for, whose result shares memory with an input.
"""
