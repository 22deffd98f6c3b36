"""What a step's kernels and plans say. Needs neither torch nor a GPU."""

import re

# Kernels of others that a layer may have: norms, rotations, residuals and copies, outside of mk's functions.
OURS_TO_DO = re.compile("gemm|nvjet|cutlass|xmma|nccl|flash|fmha|cudnn|attention", re.IGNORECASE)
WORKSPACE = re.compile(r"^workspace +([0-9.]+) MiB in common with other functions of a world, ([0-9.]+) MiB of its own$", re.MULTILINE)
# Beyond its workspace: code of kernels, fault records, streams. MiB.
BESIDE = 8.0


def is_ours(name):
    """Kernels of mk, and what its copy engines move."""
    return name.startswith(("mk_", "Memcpy PtoP"))


def strangers(backward, whole_layer):
    """Kernels of a backward that mk should have: of a block all that are not ours, of a whole layer the GEMMs, attention and collectives."""
    others = sorted({name for name, _ in backward if not is_ours(name)})
    return others, [name for name in others if not whole_layer or OURS_TO_DO.search(name)]


def workspace(explained):
    """MiB that functions allocate together, by what `mk explain` prints for each: common parts are one. None where one says nothing."""
    found = [WORKSPACE.search(text) for text in explained]
    if None in found or not found:
        return None
    return max(float(one[1]) for one in found) + sum(float(one[2]) for one in found)


def is_as_said(said, allocated):
    """Whether so many MiB were allocated: within 5 %, and what lies beside them."""
    return 0.95 * said <= allocated <= 1.05 * said + BESIDE
