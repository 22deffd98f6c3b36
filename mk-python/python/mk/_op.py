"""The one operator of torch: ``mk::call(Tensor[] inputs, str key) -> Tensor[]``.

A key names a pipeline of this process (``ENTRIES``): a function, a function with what its backward wants saved, or a backward. Results never
share memory with inputs. Fakes have shapes that follow from those of the inputs, symbolic ones too.
"""

from __future__ import annotations

import weakref

from ._errors import Error, UnsupportedError

# By key. What holds an entry is the function that was compiled.
ENTRIES: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
_library = None
# Calls of eager code, past the dispatcher.
direct = None


def entry(key):
    found = ENTRIES.get(key)
    if found is None:
        raise Error(f"the function of mk::call, {key!r}, is closed, or is of another process\n  help: keep the function that mk.compile gave")
    return found


def is_plain(torch, tensors):
    """Whether nobody looks at operators as they pass: no mode, no subclass of tensors, no tracing."""
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    plain = (torch.Tensor, torch.nn.Parameter)
    return all([type(t) in plain for t in tensors])


def register():
    """Defines the operator, once. Returns it."""
    global _library, direct
    import torch

    if _library is not None:
        return torch.ops.mk.call
    library = torch.library.Library("mk", "DEF")
    library.define("call(Tensor[] inputs, str key) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))

    def call(inputs, key):
        found = entry(key)
        with torch.no_grad():
            if torch.autograd.profiler._is_profiler_enabled:
                with torch.autograd.profiler.record_function(f"mk::{found.name}"):
                    return found.run(torch, inputs)
            return found.run(torch, inputs)

    def setup_context(ctx, inputs, output, needs=None):
        tensors, key = inputs
        found = entry(key)
        ctx.entry, ctx.counts = found, (len(tensors), len(output))
        ctx.results = [(t.shape, t.dtype, t.device) for t in output]
        if not hasattr(found, "backward"):
            return
        wanted = tuple(i for i, want in enumerate(needs or ctx.needs_input_grad[: len(tensors)]) if want)
        ctx.back = back = found.backward(wanted)
        ctx.wants = [(kind, i) for kind, i in back.inputs if kind in ("parameter", "saved")]
        ctx.save_for_backward(*(tensors[i] if kind == "parameter" else output[i] for kind, i in ctx.wants))

    def backward(ctx, gradients):
        n_inputs = ctx.counts[0]
        if not hasattr(ctx, "back"):
            raise UnsupportedError(f"{ctx.entry.name} is a derivative, or records none: it has no backward")
        back, saved = ctx.back, dict(zip(ctx.wants, ctx.saved_tensors))

        def gradient(i):
            if gradients[i] is not None:
                return gradients[i]
            shape, kind, device = ctx.results[i]
            return torch.zeros(shape, dtype=kind, device=device)

        found = [None] * n_inputs
        given = {i: gradient(i) for kind, i in back.inputs if kind == "gradient"}
        if back.computed:
            parameters = {i: t for (kind, i), t in saved.items() if kind == "parameter"}
            results = {i: t for (kind, i), t in saved.items() if kind == "saved"}
            operands = back.operands(torch, parameters, results, given)
            # Through the operator where somebody may differentiate again, and is then told that it has no derivative.
            alone = not torch.is_grad_enabled() and is_plain(torch, operands)
            made = call(operands, back.key) if alone else torch.ops.mk.call(operands, back.key)
            for (parameter, _, _), g in zip(back.computed, made):
                found[parameter] = g
        for parameter, kind, i in back.gradients:
            if kind == "given":
                found[parameter] = gradient(i).to(ctx.entry.dtype(torch, parameter))
        return found, None

    class Direct(torch.autograd.Function):
        """The operator without the dispatcher, which takes longer than a small kernel."""

        @staticmethod
        def forward(ctx, train, n, *tensors):
            made = call(tensors, train._key)
            setup_context(ctx, (tensors, train._key), made, ctx.needs_input_grad[2:])
            return tuple(made[:n])

        @staticmethod
        def backward(ctx, *gradients):
            return None, None, *backward(ctx, gradients)[0]

    direct = Direct.apply

    for device in ("CPU", "CUDA"):
        library.impl("call", call, device)
    torch.library.register_fake("mk::call", lambda inputs, key: entry(key).fake(torch, inputs), lib=library)
    torch.library.register_autograd("mk::call", backward, setup_context=setup_context, lib=library)

    from torch.utils.flop_counter import register_flop_formula

    @register_flop_formula(torch.ops.mk.call)
    def flops(inputs, key, *args, out_shape=None, **kwargs):
        return entry(key).flops(inputs)

    _library = library
    return torch.ops.mk.call
