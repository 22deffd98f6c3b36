"""The operator of torch: ``mk::call(Tensor[] inputs, str key) -> Tensor[]``.

A key names a pipeline of this process (``ENTRIES``): a function, a function with what its backward wants saved, or a backward. Results never
share memory with inputs. Fakes have shapes that follow from those of the inputs, symbolic ones too.

``mk::add_gradients(Tensor[] inputs, Tensor(a!)[] into, Tensor(b!)[] out, str key) -> ()`` is a backward that adds some of its gradients to f32
matrices, and writes the others to ``out`` (operators that change their inputs return no lists). Those matrices are inputs of the forward's
call, behind the pipeline's.
"""

from __future__ import annotations

import threading
import weakref

from ._errors import Error, UnsupportedError

# By key. What holds an entry is the function that was compiled.
ENTRIES: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
_library = None
_defining = threading.Lock()
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
    for tensor in tensors:
        kind = type(tensor)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            return False
    return True


def register():
    """Defines the operator, once, whichever threads ask for it. Returns it."""
    import torch

    if _library is None:
        with _defining:
            if _library is None:
                _define(torch)
    return torch.ops.mk.call


def _define(torch):
    global _library, direct
    library = torch.library.Library("mk", "DEF")
    library.define("call(Tensor[] inputs, str key) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
    library.define("add_gradients(Tensor[] inputs, Tensor(a!)[] into, Tensor(b!)[] out, str key) -> ()", tags=(torch.Tag.pt2_compliant_tag,))

    def run(found, *tensors, **how):
        with torch.no_grad():
            if torch.autograd.profiler._is_profiler_enabled:
                with torch.autograd.profiler.record_function(f"mk::{found.name}"):
                    return found.run(torch, *tensors, **how)
            return found.run(torch, *tensors, **how)

    def call(inputs, key):
        return run(entry(key), inputs)

    def add_gradients(inputs, into, out, key):
        run(entry(key), inputs, into, out)

    def setup_context(ctx, inputs, output):
        tensors, key = inputs
        found = entry(key)
        mains = getattr(found, "mains", ())
        # Not saved: micro-batches in flight add to them.
        ctx.into = tensors[len(tensors) - len(mains) :] if mains else ()
        ctx.entry, ctx.counts = found, (len(tensors), len(output))
        ctx.results = [(t.shape, t.dtype, t.device) for t in output]
        if not hasattr(found, "backward"):
            return
        needs = ctx.needs_input_grad[: len(tensors)]
        wanted = tuple(i for i, want in enumerate(needs) if want)
        ctx.into = [main for parameter, main in zip(mains, ctx.into) if needs[parameter]]
        ctx.back = back = found.backward(wanted)
        ctx.wants = [(kind, i) for kind, i in back.inputs if kind in ("parameter", "saved")]
        ctx.save_for_backward(*(tensors[i] if kind == "parameter" else output[i] for kind, i in ctx.wants))

    def computed(back, operands, into, alone, frees=False):
        if alone:
            return run(back, operands, into, frees=frees)
        if not into:
            return torch.ops.mk.call(operands, back.key)
        made = back.fake(torch, operands, into)
        torch.ops.mk.add_gradients(operands, into, made, back.key)
        return made

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
            for (parameter, _, _), g in zip(back.returned, computed(back, operands, ctx.into, alone)):
                found[parameter] = g
        for parameter, kind, i in back.gradients:
            if kind == "given":
                found[parameter] = gradient(i).to(ctx.entry.dtype(torch, parameter))
        return found, None

    profiler = torch.autograd.profiler

    class Direct(torch.autograd.Function):
        """The operator without the dispatcher, which takes longer than a small kernel. Gradients are not recorded here, and those that are
        not given are zeros."""

        @staticmethod
        def forward(ctx, train, n, *tensors):
            made = train.run(torch, tensors) if not profiler._is_profiler_enabled else run(train, tensors)
            plan = train.plans.get(ctx.needs_input_grad) or train.plan(ctx.needs_input_grad)
            back, wants, mains = plan
            ctx.train, ctx.plan, ctx.into = train, plan, [tensors[i] for i in mains]
            ctx.save_for_backward(*[tensors[i] if is_parameter else made[i] for is_parameter, i in wants])
            return tuple(made[:n])

        @staticmethod
        def backward(ctx, *gradients):
            back, wants, _ = ctx.plan
            parameters, results = {}, {}
            for (is_parameter, i), tensor in zip(wants, ctx.saved_tensors):
                (parameters if is_parameter else results)[i] = tensor
            tensor, found = None, [None] * len(ctx.needs_input_grad)
            # Unless the graph is retained, what was saved is freed behind the kernel that reads it last.
            getattr(ctx, "maybe_clear_saved_tensors", bool)()
            if back.computed:
                operands = back.operands(torch, parameters, results, gradients)
                parameters, results = None, None
                # Through the operator where somebody may differentiate again, and is then told that it has no derivative.
                alone = not torch.is_grad_enabled() and is_plain(torch, operands)
                for (parameter, _, _), g in zip(back.returned, computed(back, operands, ctx.into, alone, frees=True)):
                    found[parameter + 2] = g
            for parameter, kind, i in back.gradients:
                if kind == "given":
                    found[parameter + 2] = gradients[i].to(ctx.train.dtype(torch, parameter))
            return tuple(found)

    # Function.apply in Python first looks for transforms of functorch, which is_plain has done.
    direct = super(torch.autograd.Function, Direct).apply

    for device in ("CPU", "CUDA"):
        library.impl("call", call, device)
        library.impl("add_gradients", add_gradients, device)
    torch.library.register_fake("mk::call", lambda inputs, key: entry(key).fake(torch, inputs), lib=library)
    torch.library.register_fake("mk::add_gradients", lambda inputs, into, out, key: None, lib=library)
    torch.library.register_autograd("mk::call", backward, setup_context=setup_context, lib=library)

    from torch.utils.flop_counter import register_flop_formula

    @register_flop_formula(torch.ops.mk.call)
    def flops(inputs, key, *args, out_shape=None, **kwargs):
        return entry(key).flops(inputs)

    @register_flop_formula(torch.ops.mk.add_gradients)
    def flops_into(inputs, into, out, key, *args, out_shape=None, **kwargs):
        return entry(key).flops(inputs)

    _library = library
