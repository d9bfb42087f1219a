"""Loads exported programs where torch and jaten cannot be imported: `python loads_exported.py FOLDER`.

Each folder in FOLDER has a program and `calls.pickle`, a list of arguments as NumPy arrays. Writes `results.pickle`.
"""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path


def main(root: Path) -> None:
    for folder in sorted(root.iterdir()):
        spec = importlib.util.spec_from_file_location("load", folder / "load.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        program, found = module.load(folder), []
        for args, kwargs in pickle.loads((folder / "calls.pickle").read_bytes()):
            try:
                found.append(jax.tree.map(lambda x: np.asarray(x, "float64"), program(*args, **kwargs)))
            except TypeError as error:
                found.append(str(error))
        (folder / "results.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    sys.modules["torch"] = sys.modules["jaten_ops"] = None  # type: ignore[assignment]  # an import of them fails
    import jax
    import numpy as np

    main(Path(sys.argv[1]))
