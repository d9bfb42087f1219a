"""A process that runs combinations. Started by the pool."""

import sys

from tests.harness.serving import serve

from .table import Case, run

if __name__ == "__main__":
    sys.exit(serve(lambda item, options: run(Case(**item))))
