"""A process that runs items of the sweep. Started by the pool."""

import sys

from . import sweep_items
from .serving import serve

if __name__ == "__main__":
    sys.exit(serve(lambda item, options: sweep_items.run(sweep_items.Item(**item), options["most"])))
