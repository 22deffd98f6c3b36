"""Types of the native module. What the arguments mean is in the docstrings."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Union, final

from torch import Tensor

from ._explain import Explanation

__version__: str

_Shapes = Mapping[str, Sequence[int]]
# By name; or the text that `mk explain` prints, such as "block=128x128x64 split_k=2".
_Settings = Union[dict[str, Union[str, int]], str]
# One tensor; in a world of several GPUs in this process, one per rank.
_Argument = Union[Tensor, Sequence[Tensor]]

@final
class Setting:
    @property
    def name(self) -> str: ...
    @property
    def doc(self) -> str: ...
    @property
    def form(self) -> str: ...
    @property
    def default(self) -> str: ...

DTYPES: dict[str, str]
SETTINGS: tuple[Setting, ...]

class World:
    @staticmethod
    def from_torch(
        store: Any | None = None,
        *,
        group: Any | None = None,
        device: int | None = None,
        timeout_s: float = 600.0,
    ) -> World: ...
    @staticmethod
    def from_env() -> World: ...
    @staticmethod
    def local(n: int | None = None, *, gpu: int | None = None, devices: Sequence[int] | None = None) -> World: ...
    @staticmethod
    def reference(group: Any | None = None) -> World: ...
    @staticmethod
    def offline(ranks: int, rank: int = 0) -> World: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def devices(self) -> list[int]: ...
    @property
    def sm_budget(self) -> int | None: ...

@final
class Function:
    # A Tensor, or a list of them: see the class. Several results are a tuple.
    def __call__(self, *args: _Argument, out: Any | None = None, **kwargs: _Argument) -> Any: ...
    def bind(self, *, shapes: _Shapes | None = None, dims: dict[str, int] | None = None) -> Plan: ...
    def explain(
        self, *args: _Argument, rounds: int = 20, tolerance: float = 1e-2, **kwargs: _Argument
    ) -> Explanation: ...
    def check(self) -> None: ...
    def synchronize(self) -> None: ...
    def close(self) -> None: ...
    @property
    def plans(self) -> list[Plan]: ...
    @property
    def parameters(self) -> list[str]: ...

@final
class Plan:
    def simulate(
        self, inputs: Sequence[Mapping[str, Sequence[float]]], *, seed: int = 0, schedule: str = "random"
    ) -> list[dict[str, list[float]]]: ...
    def compile(self) -> None: ...
    def explain(self) -> str: ...
    def local_shapes(
        self, rank: int
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]: ...
    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def proof(self) -> str: ...
    @property
    def cuda(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def fused(self) -> bool: ...
    @property
    def kernels(self) -> list[str]: ...
    @property
    def symmetric_bytes(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def roles(self) -> dict[str, int]: ...
    @property
    def settings(self) -> list[dict[str, str]]: ...
    @property
    def shapes(self) -> dict[str, tuple[int, ...]]: ...
    @property
    def program(self) -> dict[str, list[Any]]: ...

def compile(
    pipeline: str,
    world: World,
    *,
    shapes: _Shapes | None = None,
    dims: dict[str, int] | None = None,
    settings: _Settings | None = None,
    wait_limit_s: float = 30.0,
    entry_limit_s: float = 600.0,
    reserve_sms: int = 0,
    overlap: bool = False,
    tuning: bool = True,
    fuse: Literal["auto", "always", "never"] = "auto",
    prove: Literal["cached", "always"] = "cached",
) -> Function: ...
def plan(
    pipeline: str | PathLike[str],
    *,
    ranks: int,
    shapes: _Shapes | None = None,
    dims: dict[str, int] | None = None,
    settings: _Settings | None = None,
    fuse: Literal["auto", "always", "never"] = "always",
) -> Plan: ...
