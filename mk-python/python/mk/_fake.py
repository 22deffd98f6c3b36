"""Tensors without contents, as the checks of calls see them: their sizes are numbers, and their memory is at an address that fits."""

from __future__ import annotations

# Some multiple of 16.
_ADDRESS = 1 << 20


class Unknown(Exception):
    """A size of which nothing is known before the program runs."""


def number(n):
    """A size; of a symbolic one, what it was when the program was traced."""
    if isinstance(n, int):
        return n
    if not n.node.has_hint():
        raise Unknown
    return int(n.node.hint)


class Fake:
    requires_grad = False

    def __init__(self, tensor):
        self.shape = tuple(map(number, tensor.shape))
        self.dtype, self.device, self.layout = tensor.dtype, tensor.device, tensor.layout
        self._tensor = tensor

    def data_ptr(self):
        if str(self.layout) != "torch.strided":
            raise RuntimeError("no storage")
        return 0 if self.device.type == "meta" else _ADDRESS

    def get_device(self):
        return -1 if self.device.index is None else self.device.index

    def stride(self):
        return tuple(map(number, self._tensor.stride()))

    def is_contiguous(self):
        step = 1
        for n, stride in zip(reversed(self.shape), reversed(self.stride())):
            if n != 1 and stride != step:
                return 0 in self.shape
            step *= n
        return True


def check(native, tensors):
    """The checks of a call; nothing where sizes are not known yet, since the call checks them again."""
    try:
        fakes = [Fake(t) for t in tensors]
    except Unknown:
        return
    native._check(*fakes)


def refuse(native, args, kwargs=None):
    """Raises what the checks of a call say of arguments some of which fit no parameter."""
    from torch._subclasses.fake_tensor import FakeTensor

    seen = lambda t: Fake(t) if isinstance(t, FakeTensor) else t
    native._check(*map(seen, args), **{name: seen(t) for name, t in (kwargs or {}).items()})
