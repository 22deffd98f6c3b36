"""Types of functions. What the arguments mean is in the docstrings."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from typing import Any, Literal, final

from torch import Tensor, dtype

from ._explain import Explanation
from ._saves import Saving
from ._mk import Plan, World

@final
class Function:
    @property
    def why(self) -> str | None: ...
    @property
    def backward(self) -> str | None: ...
    def infer(self, *shapes: Sequence[int]) -> list[tuple[tuple[int, ...], dtype]]: ...
    # A Tensor, or a list of them: see the class. Several results are a tuple.
    def __call__(
        self, *args: Tensor | Sequence[Tensor], out: Any | None = None, **kwargs: Tensor | Sequence[Tensor]
    ) -> Any: ...
    def bind(self, *, shapes: Mapping[str, Sequence[int]] | None = None, dims: Mapping[str, int] | None = None) -> Plan: ...
    def bind_async(
        self, *, shapes: Mapping[str, Sequence[int]] | None = None, dims: Mapping[str, int] | None = None
    ) -> Future[Plan]: ...
    def explain(
        self, *args: Tensor | Sequence[Tensor], rounds: int = 20, tolerance: float = 1e-2, **kwargs: Any
    ) -> Explanation: ...
    def saves(self, *shapes: Sequence[int]) -> list[Saving]: ...
    def check(self) -> None: ...
    def synchronize(self) -> None: ...
    def close(self) -> None: ...
    @property
    def plans(self) -> list[Plan]: ...
    @property
    def parameters(self) -> list[str]: ...

def compile(
    pipeline: str | PathLike[str],
    world: World,
    *,
    save: Literal["all", "shard", "pre", "least"] = "all",
    grads: Mapping[str, str] | None = None,
    reserve_sms: int | Literal["nccl"] = 0,
    share: bool = True,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    settings: Mapping[str, str | int] | str | None = None,
    wait_limit_s: float = 30.0,
    entry_limit_s: float = 600.0,
    overlap: bool = False,
    tuning: bool = True,
    fuse: Literal["auto", "always", "never"] = "auto",
    prove: Literal["cached", "always"] = "cached",
) -> Function: ...
def recover(world: World, timeout_s: float = 600.0) -> None: ...
