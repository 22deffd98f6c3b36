//! Derivatives of programs: from a checked pipeline its backward, as the text of another one, checked by the same
//! checker.
//!
//! One walk over the operations in reverse. The gradient of a value that is sharded is sharded alike; of one that is
//! whole on every rank, it is whole, or a sum over the ranks, as the operations that read the value leave it; of the
//! contributions to a sum, each rank gets the whole gradient.
//!
//! | operation | backward |
//! | --- | --- |
//! | `gather` | `reduce_scatter` |
//! | `reduce_scatter` | `gather` |
//! | `all_reduce` | nothing |
//! | `all_to_all` | `all_to_all` the other way |
//! | `gemm` | a `gemm` for each operand |
//! | `bias` | the sum over the rows, as a GEMM of a row of ones; of experts, a `grouped_wgrad` of ones |
//! | `gelu`, `gelu_tanh`, `silu`, `relu` | their `_grad`, of the value before them (of `relu`, of its result) |
//! | `swiglu` | `swiglu_grad` |
//! | `attention` | `attention_stats`, `attention_dq`, `attention_dk`, `attention_dv`, `attention_dsinks`; nothing of its `lse` |
//! | `dispatch`, `combine` | each other |
//! | `grouped_gemm` | a `grouped_gemm` by the transposed matrices, for the rows; a `grouped_wgrad`, for the matrices |
//! | `mul`, `add`, `scale`, `cast` | `mul`, nothing, `scale`, `cast` |
//!
//! What a rank's part of a sum adds to the gradient of a parameter that all ranks have is summed by an `all_reduce`;
//! of a mesh of several axes, over those along which ranks have parts of it.
//! Gradients have 16 bits, as the operands of GEMMs.

mod draft;
mod error;
mod rules;
mod types;

use crate::excerpt::Excerpt;
use crate::print::runtime_symbol;
use crate::program::{DType, Node, Op, Program, TensorType, ValueId};
pub use error::GradError;
use rules::{Part, Walk};
pub use types::{Gradient, Input, Keep, Saves, Source};

/// Derives the gradients of parameters, `wanted` by position, or of all.
///
/// # Errors
/// [`GradError`], for a program without a backward.
pub fn grad(
    program: &Program,
    wanted: Option<&[usize]>,
    saves: Saves,
) -> Result<Gradient, GradError> {
    grad_into(program, wanted, saves, &[])
}

/// As [`grad`]; the gradients of the parameters `into`, by position, are each added to an f32 matrix, by the GEMM
/// that makes them: a parameter of the backward ([`Input::Main`]), whose sum with the gradient may take its place.
///
/// # Errors
/// [`GradError`], also where such a gradient is not the result of a GEMM on each rank.
pub fn grad_into(
    program: &Program,
    wanted: Option<&[usize]>,
    saves: Saves,
    into: &[usize],
) -> Result<Gradient, GradError> {
    let count = program.tensors().len();
    let all: Vec<usize> = (0..count).collect();
    let wanted = wanted.unwrap_or(&all);
    if let Some(&index) = wanted.iter().chain(into).find(|i| **i >= count) {
        return Err(GradError::Parameter { index, count });
    }
    let given = program;
    let program = &with_logarithms(program);
    let mut walk = Walk::new(program, wanted, saves);
    walk.run()?;
    let outputs = walk.outputs(wanted, into)?;
    let Walk { mut draft, saved, given: parameters, .. } = walk;

    let mut forward = Excerpt::whole(program);
    forward.nodes.retain(|id| id.index() < given.n_values() || saved.contains(id));
    forward.results.extend(saved.iter().copied());
    let forward = parse(&forward.text())?;

    let mut results: Vec<draft::Id> = Vec::new();
    let mut gradients = Vec::new();
    for output in &outputs {
        let passed = parameters.iter().find(|(id, _)| *id == output.value);
        let source = if let Some((_, Input::Gradient(i))) = passed {
            Source::Given(*i)
        } else {
            let position = results.iter().position(|id| *id == output.value);
            let position = position.unwrap_or_else(|| {
                draft
                    .call(output.value, &format!("d_{}", program.tensors()[output.parameter].name));
                results.push(output.value);
                results.len() - 1
            });
            match output.part {
                Part::Whole => Source::Result(position),
                Part::Row => Source::Row(position),
                Part::Rows => Source::Rows(position),
            }
        };
        gradients.push((output.parameter, source));
    }
    if results.is_empty() {
        return Ok(Gradient { forward, backward: None, inputs: Vec::new(), gradients });
    }
    let used = draft.used(&results);
    let inputs = parameters.iter().filter(|(id, _)| used.contains(id)).map(|(_, input)| *input);
    let inputs = inputs.collect();
    let runtime: Vec<String> = program.symbols().iter().filter_map(runtime_symbol).collect();
    let runtime = match runtime.is_empty() {
        true => String::new(),
        false => format!("<{}>", runtime.join(", ")),
    };
    let name = format!("{}_backward", program.name());
    let backward = Some(parse(&draft.text(&name, &runtime, &used, &results))?);
    Ok(Gradient { forward, backward, inputs, gradients })
}

/// The program with an `lse` of each attention that has none.
fn with_logarithms(program: &Program) -> Program {
    let mut all = program.clone();
    for node in program.nodes().iter().filter(|n| matches!(n.op, Op::Attention { .. })) {
        let of_node = |n: &Node| n.op == Op::Lse && n.inputs == [node.result];
        let [b, s, h, _] = node.ty.dims[..] else { continue };
        if program.nodes().iter().any(of_node) {
            continue;
        }
        let placement = crate::program::turned(&node.ty.placement);
        let ty = TensorType { dtype: DType::F32, dims: vec![b, h, s], placement };
        let result = ValueId::new(all.n_values());
        all.nodes.push(Node { result, op: Op::Lse, inputs: vec![node.result], ty });
    }
    all
}

fn parse(text: &str) -> Result<Program, GradError> {
    Program::parse(text)
        .map_err(|diagnostics| GradError::Derived { text: text.to_owned(), diagnostics })
}
