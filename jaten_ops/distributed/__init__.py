"""A torch model over many devices, by JAX's SPMD, in the words of `torch.distributed`."""

from .costs import Traffic, collectives
from .estimates import Estimate, estimate
from .meshes import make_mesh
from .module_plans import fully_shard, parallelize_module
from .processes import initialize
from .sequence import context_parallel_attention
from .tensors import constrain, distribute_batch, distribute_tensor

__all__ = [
    "Estimate",
    "Traffic",
    "collectives",
    "constrain",
    "context_parallel_attention",
    "distribute_batch",
    "distribute_tensor",
    "estimate",
    "fully_shard",
    "initialize",
    "make_mesh",
    "parallelize_module",
]
