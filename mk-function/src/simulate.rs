//! What was made of a pipeline, on the CPU executor: a call's tensors in, its results out. Needs no GPU; for small
//! sizes.

use crate::{
    build::Composition,
    error::{ArgumentError, FunctionError, Result},
    function::Signature,
};
use mk_codegen::{
    plan::{BufId, Plan, Space, TabId},
    sim::{Callbacks, Options, run},
};
use mk_syntax::{Bound, Dim, ValueId};
use std::collections::BTreeMap;

/// One launch. `inputs[rank][i]` is what a rank holds of parameter `i`, row-major, and is rounded to its type; the
/// results are so by rank, in the order of the pipeline's. Kernels that follow each other get what those before them
/// left.
///
/// # Errors
/// [`FunctionError::Argument`] for tensors of other sizes; [`FunctionError::Sim`] for a plan that stops, or takes too
/// long; [`FunctionError::Mismatch`] for what was made of another pipeline.
pub fn simulate(
    signature: &Signature,
    bound: &Bound,
    made: &Composition,
    inputs: &[Vec<Vec<f32>>],
    options: &Options,
) -> Result<Vec<Vec<Vec<f32>>>> {
    let program = signature.program();
    let mut held = given(signature, bound, inputs)?;
    let options = Options { launches: 1, ..options.clone() };
    let whole = || {
        let names = program.tensors().iter().map(|t| (t.name.as_str(), t.id));
        (names.collect::<BTreeMap<_, _>>(), program.results().to_vec())
    };
    let parts = made.parts.iter().map(|part| {
        let names = part.program.tensors().iter().map(|t| t.name.as_str());
        (names.zip(part.inputs.iter().copied()).collect(), part.results.clone())
    });
    let wiring: Vec<_> = if made.parts.is_empty() { vec![whole()] } else { parts.collect() };
    for (planned, (values, results)) in made.kernels.iter().zip(&wiring) {
        let plan = &at(&planned.plan, signature, bound);
        let read = reads(plan, values)?;
        let outputs = plan.buffers.iter().filter(|(_, b)| b.space == Space::Out);
        let written: BTreeMap<BufId, ValueId> =
            outputs.map(|(id, _)| id).zip(results.iter().copied()).collect();
        let mut left = Vec::new();
        let mut caller = Callbacks {
            input: |_: i64, rank: usize, buffer: BufId, _: &[usize]| {
                let value = read.get(&buffer).and_then(|v| held.get(&(rank, *v)));
                // The executor refuses what is not there.
                value.cloned().unwrap_or_default()
            },
            table: |_: i64, _: usize, _: TabId| Vec::new(),
            output: |_: i64, rank: usize, buffer: BufId, _: &[usize], values: &[f32]| {
                left.extend(written.get(&buffer).map(|v| ((rank, *v), values.to_vec())));
            },
        };
        run(plan, &mut caller, &options)?;
        held.extend(left);
    }
    let result = |rank: usize, id: &ValueId| {
        let found = held.get(&(rank, *id)).cloned();
        found.ok_or_else(|| FunctionError::mismatch("the plan leaves other results"))
    };
    let of_rank = |rank| program.results().iter().map(|id| result(rank, id)).collect();
    (0..inputs.len()).map(of_rank).collect()
}

type Held = BTreeMap<(usize, ValueId), Vec<f32>>;

/// The parameters of all ranks, once they are as large as they should be.
fn given(signature: &Signature, bound: &Bound, inputs: &[Vec<Vec<f32>>]) -> Result<Held> {
    let ranks = signature.ranks();
    if inputs.len() != ranks as usize {
        return Err(ArgumentError::Count {
            what: "lists of tensors",
            given: inputs.len(),
            expected: ranks as usize,
            names: "one for each rank".into(),
        }
        .into());
    }
    let mut held = Held::new();
    for (rank, tensors) in (0..ranks).zip(inputs) {
        signature.count(tensors.len())?;
        let mut own = None;
        for (i, (param, values)) in signature.program().tensors().iter().zip(tensors).enumerate() {
            let mut expected = signature.local_shape(bound, param.id, rank);
            if param.ty.dims.first().is_some_and(|dim| signature.program().is_own(*dim)) {
                let row = expected.iter().skip(1).product::<u64>().max(1);
                let most = expected.first().copied().unwrap_or(0);
                let rows = own.get_or_insert((values.len() as u64 / row).min(most));
                expected = signature.of_own(param.id, expected, Some(*rows));
            }
            let (n, given) = (expected.iter().product::<u64>(), values.len() as u64);
            if n != given {
                let (tensor, given) = (param.name.clone(), vec![given]);
                return Err(ArgumentError::Local { tensor, rank, given, expected }.into());
            }
            signature.check_integers(i, rank, values.iter().map(|x| f64::from(*x)))?;
            held.insert((rank as usize, param.id), values.clone());
        }
    }
    Ok(held)
}

/// Which value each input of a plan is.
fn reads(plan: &Plan, values: &BTreeMap<&str, ValueId>) -> Result<BTreeMap<BufId, ValueId>> {
    let inputs = plan.buffers.iter().filter(|(_, b)| b.space == Space::In);
    let find = |(id, b): (BufId, &mk_codegen::plan::Buffer)| {
        let what = || format!("the pipeline has no tensor `{}`", b.name);
        let value = values.get(b.name.as_str()).copied();
        Ok((id, value.ok_or_else(|| FunctionError::mismatch(what()))?))
    };
    inputs.map(find).collect()
}

/// The plan as a launch with these sizes runs it.
fn at(plan: &Plan, signature: &Signature, bound: &Bound) -> Plan {
    let value = plan.runtime_dim().and_then(|(dim, _)| {
        let symbol = signature.program().symbol(&plan.dims.get(dim)?.name)?;
        Some((dim, i32::try_from(bound.dim(Dim::Sym(symbol))?).ok()?))
    });
    value.map_or_else(|| plan.clone(), |(dim, value)| plan.at(dim, value))
}
