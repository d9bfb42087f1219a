"""Which packages are built: all that are in the tree. Everything else is in pyproject.toml."""

from setuptools import find_packages, setup

# folders beside jaten_ops that are packages in it; its links to them serve static checkers, and need not be there
MAPPED = ("meta", "autograd")

own = find_packages(include=["jaten_ops", "jaten_ops.*"])
mapped = [f"jaten_ops.{package}" for name in MAPPED for package in find_packages(include=[name, f"{name}.*"])]
setup(packages=sorted({*own, *mapped}), package_dir={f"jaten_ops.{name}": name for name in MAPPED})
