"""mk: chains of collectives and GEMMs as one kernel per GPU, on torch tensors.

    world = mk.World.from_torch()
    linear = mk.compile("gather(a) -> gemm(b)", world)
    y = linear(x, w)  # x: [M / ranks, K], w: [K, N / ranks], y: [M, N / ranks], all bfloat16

``mk.plan`` shows what would run with given settings, or the defaults, and needs neither GPU nor torch. docs/python.md has the rest.
"""

from ._errors import (
    ArgumentError,
    CompileError,
    DeviceError,
    Error,
    FaultError,
    PipelineError,
    RendezvousError,
    UnsupportedError,
)
from ._explain import Explanation
from ._attend import attention
from ._balance import balance
from ._function import Function, compile, recover
from ._pipeline import Pipeline, load
from ._saves import Saving
from ._tune import tune
from ._mk import DTYPES, SETTINGS, Plan, Setting, World, __version__, plan

__all__ = [
    "ArgumentError",
    "CompileError",
    "DTYPES",
    "DeviceError",
    "Error",
    "Explanation",
    "FaultError",
    "Function",
    "Pipeline",
    "PipelineError",
    "Plan",
    "RendezvousError",
    "SETTINGS",
    "Saving",
    "Setting",
    "UnsupportedError",
    "World",
    "__version__",
    "attention",
    "balance",
    "compile",
    "load",
    "plan",
    "recover",
    "tune",
]
