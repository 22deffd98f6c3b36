//! A pipeline as several kernels, launched one after the other, with the tensors between them.
//!
//! Parts of one call follow each other on the streams of that call, rank by rank. Every kernel waits for
//! the launch before it on its GPU ([`InstanceOptions::overlap`] is off): otherwise the next call could overwrite
//! tensors that this one still reads. Captured calls are the caller's to order: a replay
//! beside another call of the same function would mix the tensors between kernels, unseen (of one kernel it is a
//! fault).

use super::{
    kernel::{Argument, Call, Kernel},
    options::PATIENCE,
    sizes::Signature,
    wiring::{Place, Wiring},
};
use crate::{
    build::Composition,
    error::{ArgumentError, FunctionError, Result},
};
use mk_abi::DType;
use mk_runtime::{DeviceTensor, Error, Instance, InstanceOptions, StreamRef, World, jit::Compiled};
use mk_syntax::{Bound, ValueId};
use std::ops::Range;

/// The kernels of a pipeline that came apart, bound to a world. Dropping them waits for this process's GPUs.
pub(super) struct Sequence {
    pub(super) kernels: Vec<Kernel>,
    wiring: Wiring,
    signature: Signature,
    ranks: Vec<Local>,
    /// By result, the parameter in whose memory it may lie.
    in_place: Vec<Option<usize>>,
    first: u32,
    /// What `ranks` points to. Freed after the kernels.
    _between: Vec<DeviceTensor>,
}

/// A rank of this process.
struct Local {
    /// By position in [`Wiring::between`].
    between: Vec<Argument>,
    /// Element type and local shape of each result.
    results: Vec<(DType, Vec<u64>)>,
}

impl Sequence {
    /// Loads the kernels in their order and allocates what lies between them. Collective.
    ///
    /// # Errors
    /// As [`Kernel::bind`].
    pub(super) fn bind(
        world: &World,
        signature: &Signature,
        bound: &Bound,
        made: &Composition,
        compiled: &[Compiled],
        options: &InstanceOptions,
    ) -> Result<Sequence> {
        let program = signature.program();
        let wiring = Wiring::new(program, &made.parts)
            .ok_or_else(|| FunctionError::mismatch("the parts are of another pipeline"))?;
        let options = InstanceOptions { overlap: false, ..options.clone() };
        let mut kernels = Vec::with_capacity(made.kernels.len());
        for ((part, planned), compiled) in made.parts.iter().zip(&made.kernels).zip(compiled) {
            let options = planned.instance_options(&options);
            let source = &planned.source;
            kernels.push(Kernel::bind(world, &part.program, source, compiled, &options)?);
        }
        let local = world.local_ranks();
        // Before any rank launches: one that has no memory must not leave the others waiting.
        let limit = options.entry_limit.max(PATIENCE);
        let made = allocate(world, signature, bound, &wiring, local.clone());
        let between = world.agree("allocating what lies between parts", made, limit)?;
        let ranks = local.clone().zip(&between).map(|(rank, tensors)| Local {
            between: tensors.iter().map(argument).collect(),
            results: signature.results(bound, rank),
        });
        let replaced = |i| {
            wiring.replaced(i, |part, input| {
                let kernel = kernels.get(part);
                kernel.is_some_and(|k: &Kernel| k.replaces(input))
            })
        };
        let in_place = (0..program.results().len()).map(replaced).collect();
        Ok(Sequence {
            ranks: ranks.collect(),
            in_place,
            kernels,
            wiring,
            signature: signature.clone(),
            first: local.start,
            _between: between.into_iter().flatten().collect(),
        })
    }

    /// Element type and local shape of each result on a rank of this process.
    pub(super) fn results(&self, rank: u32) -> Vec<(DType, Vec<u64>)> {
        let local = rank.checked_sub(self.first).and_then(|i| self.ranks.get(i as usize));
        local.map(|l| l.results.clone()).unwrap_or_default()
    }

    /// Enqueues all kernels; otherwise as [`Kernel::launch`]. Nothing is launched unless all kernels accept their
    /// tensors.
    ///
    /// # Errors
    /// As [`Kernel::launch`].
    pub(super) fn launch(&mut self, streams: &[StreamRef], calls: &[Call]) -> Result<()> {
        let each = (self.first..).zip(&self.ranks).zip(calls);
        each.clone().try_for_each(|((rank, local), call)| self.check(rank, local, call))?;
        let mut launches = Vec::with_capacity(self.kernels.len());
        for (kernel, wires) in self.kernels.iter_mut().zip(&self.wiring.parts) {
            let mut ranks = Vec::with_capacity(calls.len());
            for ((rank, local), call) in each.clone() {
                let shapes: Vec<&[u64]> = call.inputs.iter().map(|a| a.shape.as_slice()).collect();
                let own = self.signature.own_rows(&shapes);
                let of_rank: Vec<Argument>;
                let between = match own {
                    None => &local.between,
                    Some(_) => {
                        let all = local.between.iter().zip(&self.wiring.between);
                        of_rank =
                            all.map(|(a, id)| first_rows(&self.signature, *id, a, own)).collect();
                        &of_rank
                    }
                };
                let find = |place: &Place| match *place {
                    Place::Input(i) => call.inputs.get(i),
                    Place::Output(i) => call.outputs.get(i),
                    Place::Between(i) => between.get(i),
                };
                // A tensor too few is an error of the kernel's.
                let inputs: Vec<&Argument> = wires.inputs.iter().filter_map(find).collect();
                let outputs: Vec<&Argument> = wires.outputs.iter().filter_map(find).collect();
                ranks.push(kernel.tensors(rank, inputs.into_iter(), outputs.into_iter(), &[])?);
            }
            if let Err(error) = kernel.instance().accepts(&ranks) {
                self.give_up_together();
                return Err(error.into());
            }
            launches.push(ranks);
        }
        for (i, ranks) in launches.iter().enumerate() {
            let Some(kernel) = self.kernels.get_mut(i) else { break };
            let Err(error) = kernel.instance().launch(streams, ranks) else { continue };
            // If anything was enqueued, other processes may have launched every kernel.
            if i > 0 || kernel.instance().accepts(ranks).is_err() {
                self.abort();
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// Looks at all kernels in their order, after all have given up if one has.
    ///
    /// # Errors
    /// The first one.
    pub(super) fn each(
        &mut self,
        look: impl Fn(&mut Instance) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let failed = self.give_up_together();
        let mut looked = Ok(());
        for kernel in &mut self.kernels {
            looked = looked.and(look(kernel.instance()));
        }
        if looked.is_err() {
            self.abort();
        }
        failed.map_or(looked, Err)
    }

    fn abort(&mut self) {
        self.kernels.iter_mut().for_each(|k| k.instance().abort());
    }

    /// A kernel that failed refuses every later launch, here and in other processes; the others would run, and wait for
    /// ranks that launch no more. So all of them refuse. Returns the first failure; without one nothing happens.
    fn give_up_together(&mut self) -> Option<Error> {
        let failed = self.kernels.iter_mut().find_map(|k| k.instance().check().err());
        if failed.is_some() {
            self.abort();
        }
        failed
    }

    /// What one kernel would check of a call as a whole; parameters' sizes are left to the parts, who call them alike.
    fn check(&self, rank: u32, local: &Local, call: &Call) -> Result<()> {
        self.signature.count(call.inputs.len())?;
        let program = self.signature.program();
        let (given, expected) = (call.outputs.len(), local.results.len());
        if given != expected {
            let names: Vec<_> = program.result_names().iter().map(|n| format!("`{n}`")).collect();
            let names = names.join(", ");
            return Err(ArgumentError::Count { what: "results", given, expected, names }.into());
        }
        let shapes: Vec<&[u64]> = call.inputs.iter().map(|a| a.shape.as_slice()).collect();
        let own = self.signature.own_rows(&shapes);
        let results = local.results.iter().zip(program.results());
        let results = results
            .map(|((dtype, shape), id)| (dtype, self.signature.of_own(*id, shape.clone(), own)));
        for ((out, (dtype, shape)), name) in
            call.outputs.iter().zip(results).zip(program.result_names())
        {
            if out.dtype != *dtype {
                let (tensor, expected, given) = (name.clone(), *dtype, out.dtype);
                let help = format!("bring a tensor of {expected}");
                return Err(ArgumentError::DType { tensor, expected, given, help }.into());
            }
            if out.shape != shape {
                let (tensor, expected, given) = (name.clone(), shape, out.shape.clone());
                return Err(ArgumentError::Local { tensor, rank, given, expected }.into());
            }
        }
        match overlapping(call, &self.in_place) {
            None => Ok(()),
            Some(i) => Err(FunctionError::Runtime(Error::Tensor {
                kernel: program.name().to_string(),
                rank,
                tensor: program.result_names().get(i).cloned().unwrap_or_default(),
                what: "overlaps another tensor: a result needs memory of its own".into(),
            })),
        }
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if mk_runtime::world::forked() {
            return;
        }
        // Who drops it has heard of a failure, or does not want to.
        let _ = self.each(Instance::synchronize);
    }
}

/// The first result that shares memory with another tensor: a later part may read that one. `in_place`: parameters that
/// results, by position, replace.
fn overlapping(call: &Call, in_place: &[Option<usize>]) -> Option<usize> {
    let range =
        |a: &Argument| (a.tensor.ptr(), a.tensor.ptr().saturating_add(a.tensor.size_bytes()));
    let all: Vec<_> = call.outputs.iter().chain(&call.inputs).map(range).collect();
    let mut outputs = all.iter().take(call.outputs.len()).enumerate();
    let meets = |(i, a): (usize, &(u64, u64))| {
        let replaced = in_place.get(i).copied().flatten().map(|input| call.outputs.len() + input);
        let apart = |j, b: &(u64, u64)| i == j || Some(j) == replaced && a == b;
        all.iter().enumerate().any(|(j, b)| !apart(j, b) && a.0 < b.1 && b.0 < a.1)
    };
    outputs.position(meets)
}

/// A tensor between parts, of so many rows where the rank has its own number of them.
fn first_rows(signature: &Signature, id: ValueId, whole: &Argument, own: Option<u64>) -> Argument {
    let shape = signature.of_own(id, whole.shape.clone(), own);
    let bytes = shape.iter().product::<u64>() * whole.dtype.size_bytes();
    Argument { tensor: whole.tensor.first(bytes), dtype: whole.dtype, shape }
}

fn argument(t: &DeviceTensor) -> Argument {
    Argument { tensor: t.as_arg(), dtype: t.dtype(), shape: t.shape().to_vec() }
}

/// By rank of this process.
fn allocate(
    world: &World,
    signature: &Signature,
    bound: &Bound,
    wiring: &Wiring,
    local: Range<u32>,
) -> Result<Vec<Vec<DeviceTensor>>, Error> {
    let one = |rank| {
        let tensors = wiring.tensors(signature, bound, rank).into_iter();
        tensors.map(|(dtype, shape)| DeviceTensor::new(world, rank, dtype, &shape)).collect()
    };
    local.map(one).collect()
}
