//! What is checked of the tensors of a call before anything is done with them: one list for worlds of GPUs, of CPU
//! tensors and offline. Fakes of tensors (`python/mk/_fake.py`) pass it, too.

use crate::{
    errors::{self, Class},
    function::{Function, shapes},
    tensor::Torch,
    world::Place,
};
use mk::{
    Bound as Sizes,
    abi::DType,
    function::{Argument, Call},
    syntax::{Def, Dim},
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};

impl Function {
    /// Element type and local shape of each result of a call.
    fn results(&self, sizes: &Sizes, rank: u32, call: &Call) -> Vec<(DType, Vec<u64>)> {
        let shapes: Vec<&[u64]> = call.inputs.iter().map(|a| &*a.shape).collect();
        let own = self.signature.own_rows(&shapes);
        let all = self.signature.results(sizes, rank).into_iter();
        let all = all.zip(self.signature.program().results());
        all.map(|((dtype, shape), id)| (dtype, self.signature.of_own(*id, shape, own))).collect()
    }

    /// All of it, without a call: the global sizes that follow.
    pub(crate) fn checked(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        out: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Sizes> {
        let given = self.arguments(py, args, kwargs)?;
        let torch = Torch::get(py)?;
        let mut calls = self.read(py, torch, &given)?;
        if let Some(out) = out {
            torch.refuse_gradient(out)?;
        }
        let first = self.place().local().start;
        let sizes = self.signature.infer(first, &shapes(&calls));
        let sizes = sizes.map_err(|e| errors::argument(py, &e))?;
        if let Some(out) = out {
            let local = self.place().local();
            let results = local.zip(&calls).map(|(rank, call)| self.results(&sizes, rank, call));
            let results: Vec<_> = results.collect();
            let outputs = self.outputs(py, torch, Some(out), &results)?;
            self.read_outputs(torch, &outputs, &results, &mut calls)?;
            self.check_outputs(py, &results, &calls)?;
        }
        self.open(py)?;
        Ok(sizes)
    }

    /// Reads and checks the inputs of every rank of this process.
    pub(crate) fn read(
        &self,
        py: Python<'_>,
        torch: &Torch,
        given: &[Vec<Bound<'_, PyAny>>],
    ) -> PyResult<Vec<Call>> {
        let records = torch.is_grad_enabled(py)?;
        let mut calls = Vec::with_capacity(given.len());
        for (rank, objects) in self.place().local().zip(given) {
            let home = self.place().home(rank);
            let mut call = Call::default();
            for (i, (tensor, object)) in
                self.signature.program().tensors().iter().zip(objects).enumerate()
            {
                let argument = torch.read(&tensor.name, tensor.ty.dtype, home, object)?;
                self.signature
                    .check_dtype(i, argument.dtype)
                    .map_err(|e| errors::argument(py, &e))?;
                if records && object.getattr("requires_grad")?.is_truthy()? {
                    let what = format!(
                        "`{}` requires a gradient, and none is recorded here\n  help: call under torch.no_grad(), or \
                         within the forward of a torch.autograd.Function",
                        tensor.name
                    );
                    return Err(Class::Argument.error(py, what));
                }
                call.inputs.push(argument);
            }
            calls.push(call);
        }
        Ok(calls)
    }

    /// Reads the results that each rank of this process brings, behind its inputs.
    pub(crate) fn read_outputs(
        &self,
        torch: &Torch,
        outputs: &[Vec<Bound<'_, PyAny>>],
        results: &[Vec<(DType, Vec<u64>)>],
        calls: &mut [Call],
    ) -> PyResult<()> {
        let ranks = self.place().local().zip(calls);
        for ((rank, call), (outputs, results)) in ranks.zip(outputs.iter().zip(results)) {
            let home = self.place().home(rank);
            for (object, (dtype, _)) in outputs.iter().zip(results) {
                call.outputs.push(torch.read("out", *dtype, home, object)?);
            }
        }
        Ok(())
    }

    /// Checks that results which a caller brings are what the pipeline makes, in memory of their own.
    pub(crate) fn check_outputs(
        &self,
        py: Python<'_>,
        results: &[Vec<(DType, Vec<u64>)>],
        calls: &[Call],
    ) -> PyResult<()> {
        let wrong = |what: String| Err(Class::Argument.error(py, what));
        for ((rank, call), results) in self.place().local().zip(calls).zip(results) {
            for (i, (given, (dtype, shape))) in call.outputs.iter().zip(results).enumerate() {
                let name = if results.len() == 1 { "out".into() } else { format!("out[{i}]") };
                if given.dtype != *dtype {
                    return wrong(format!(
                        "`{name}` is {}, and the result is {dtype}",
                        given.dtype
                    ));
                }
                if given.shape != *shape {
                    return wrong(format!(
                        "`{name}` has shape {:?} on rank {rank}, and the result is {shape:?}",
                        given.shape
                    ));
                }
                let parameters = self.signature.program().tensors();
                let inputs = parameters.iter().zip(&call.inputs);
                let mut others: Vec<(String, bool)> = inputs
                    .enumerate()
                    .map(|(j, (tensor, input))| {
                        let shares = meets(given, input) && !self.replaces(i, j, given, input);
                        (tensor.name.clone(), shares)
                    })
                    .collect();
                let earlier = call.outputs.iter().take(i).enumerate();
                others.extend(earlier.map(|(j, o)| (format!("out[{j}]"), meets(given, o))));
                if let Some((other, _)) = others.iter().find(|(_, shares)| *shares) {
                    return wrong(format!(
                        "`{name}` overlaps `{other}`: a result needs memory of its own"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether a result may take the place of a parameter: the f32 one that a product is added to. On GPUs the plan
    /// says whether it does.
    fn replaces(&self, result: usize, parameter: usize, out: &Argument, input: &Argument) -> bool {
        let (a, b) = (&out.tensor, &input.tensor);
        if (a.ptr(), a.size_bytes()) != (b.ptr(), b.size_bytes()) || out.dtype != DType::F32 {
            return false;
        }
        let program = self.signature.program();
        let made = program.results().get(result).and_then(|id| program.def(*id));
        let added = match (made, program.tensors().get(parameter)) {
            (Some(Def::Node(node)), Some(tensor)) => {
                node.op.name() == "add" && node.inputs.contains(&tensor.id)
            }
            _ => false,
        };
        added || matches!(self.place(), Place::Gpus(_))
    }

    /// Sizes by the names of symbols.
    pub(crate) fn by_name<'py>(
        &self,
        py: Python<'py>,
        sizes: &Sizes,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for symbol in self.signature.program().symbols() {
            let id = self.signature.program().symbol(&symbol.name);
            if let Some(n) = id.and_then(|id| sizes.dim(Dim::Sym(id))) {
                dict.set_item(&symbol.name, n)?;
            }
        }
        Ok(dict)
    }
}

/// Whether two tensors share memory.
fn meets(a: &Argument, b: &Argument) -> bool {
    let (a, b) = (&a.tensor, &b.tensor);
    a.ptr() < b.ptr().saturating_add(b.size_bytes())
        && b.ptr() < a.ptr().saturating_add(a.size_bytes())
}
