"""As much of torch as mk reads, for machines without it. Tensors have a shape and no elements."""

import math
import sys
import threading
import types


class DType:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"torch.{self.name}"


class Tensor:
    def __init__(self, shape, dtype, device="cuda:0", contiguous=True, requires_grad=False, pointer=1 << 20):
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.requires_grad, self._contiguous, self._pointer = requires_grad, contiguous, pointer

    def data_ptr(self):
        return self._pointer

    def get_device(self):
        return int(self.device.split(":")[1]) if self.device.startswith("cuda:") else -1

    def is_contiguous(self):
        return self._contiguous

    def stride(self):
        steps = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        return tuple(steps if self._contiguous else reversed(steps))


class Store:
    """A store of one process, with the methods of torch.distributed.Store that are used."""

    def __init__(self):
        self.values, self.lock = {}, threading.Lock()

    def set(self, key, value):
        with self.lock:
            self.values[key] = value

    def get(self, key):
        with self.lock:
            return self.values[key]

    def check(self, keys):
        with self.lock:
            return all(key in self.values for key in keys)

    def delete_key(self, key):
        with self.lock:
            return self.values.pop(key, None) is not None


def install():
    """Makes it `torch`, once, and returns it."""
    if hasattr(sys.modules.get("torch"), "capturing"):
        return sys.modules["torch"]
    torch = types.ModuleType("torch")
    torch.cuda = types.ModuleType("torch.cuda")
    torch.distributed = types.ModuleType("torch.distributed")
    for name in ("bfloat16", "float16", "float32", "float64", "int32", "int64", "uint8"):
        setattr(torch, name, DType(name))
    torch.grad = False
    torch.capturing = False
    torch.is_grad_enabled = lambda: torch.grad
    torch.empty = lambda shape, dtype, device: Tensor(shape, dtype, f"cuda:{device}")
    torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=0)
    torch.cuda.is_current_stream_capturing = lambda: torch.capturing
    torch.cuda.current_device = lambda: 0
    torch.distributed.is_available = lambda: True
    torch.distributed.is_initialized = lambda: False
    torch.Tensor = Tensor
    for module in (torch, torch.cuda, torch.distributed):
        sys.modules[module.__name__] = module
    return torch
