"""Ranks along the axes of a mesh, which pipelines name: torch's DeviceMesh."""

from __future__ import annotations

from ._errors import ArgumentError


def ranks(given):
    """The process group of all ranks of a group or a DeviceMesh, None of the default one, and ``[(axis, ranks)]``, the last axis's ranks
    side by side; no axes of a group or a mesh of one dimension."""
    if not hasattr(given, "get_group"):
        return given, []
    if given.ndim == 1:
        return given.get_group(), []
    import torch.distributed as dist

    names, all_ranks = given.mesh_dim_names, given.mesh.flatten().tolist()
    if not names:
        raise ArgumentError(f"the DeviceMesh has {given.ndim} dimensions without names\n  help: init_device_mesh(.., mesh_dim_names=(\"dp\", \"tp\")), "
                            "which pipelines name as axes")
    if given.get_coordinate() is None:
        raise ArgumentError("this process is not in `group`\n  help: every rank of a mesh, and no other, makes its world")
    if all_ranks != sorted(all_ranks):
        raise ArgumentError(f"the DeviceMesh has ranks in the order {all_ranks}\n  help: let them ascend along its dimensions, the last one fastest")
    group = None if all_ranks == list(range(dist.get_world_size())) else given._flatten().get_group()
    return group, list(zip(names, map(int, given.mesh.shape)))


def along(world, axes):
    """(ranks, place of this one) along each axis of a pipeline."""
    mesh, rank = world.mesh, world.ranks[0]
    if not mesh:
        return {axis: (world.size, rank) for axis in axes}
    places = {}
    for name, size in reversed(mesh.items()):
        places[name], rank = (size, rank % size), rank // size
    return {axis: places[axis] for axis in axes}


def parts(value, dim, along):
    """How many ranks share a dimension of a value, each a part of it."""
    n = 1
    for axis, (kind, cut) in value["placements"].items():
        if kind in ("shard", "zigzag") and cut == dim:
            n *= along[axis][0]
    return n
