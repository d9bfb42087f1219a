"""Programs of other libraries, with a backend's or a device's name changed and nothing else, against plain torch.

`python -m tests.ecosystem` runs them in an environment of its own and writes docs/ecosystem.md. Each program is a
module in `programs/`, which only the process that runs it imports.
"""
