//! A checked pipeline as plain Python data.

use crate::errors::Class;
use mk::{
    Bound as Sizes, Program,
    syntax::{Def, Op, Placement, ValueId},
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyList, PyTuple},
};

/// ``{"values": [...], "results": [(name, value), ...], "axes": [name, ...]}``; see ``Plan.program``.
pub fn data<'py>(
    py: Python<'py>,
    program: &Program,
    sizes: &Sizes,
) -> PyResult<Bound<'py, PyDict>> {
    self::values(py, program, |id| {
        Ok(("shape", PyTuple::new(py, shape(py, sizes, id)?)?.into_any()))
    })
}

/// The same, with something else for the shape of a value: a name and what it is.
pub fn values<'py>(
    py: Python<'py>,
    program: &Program,
    extent: impl Fn(ValueId) -> PyResult<(&'static str, Bound<'py, PyAny>)>,
) -> PyResult<Bound<'py, PyDict>> {
    let values = PyList::empty(py);
    for id in (0..program.n_values()).map(ValueId::new) {
        if let Some(def) = program.def(id) {
            values.append(value(py, program, def, extent(id)?)?)?;
        }
    }
    let results = program.result_names().iter().zip(program.results());
    let results: Vec<(&str, usize)> = results.map(|(n, id)| (n.as_str(), id.index())).collect();
    let dict = PyDict::new(py);
    dict.set_item("values", values)?;
    dict.set_item("results", results)?;
    dict.set_item("axes", program.mesh_axes())?;
    Ok(dict)
}

/// The global shape of a value; every value of a bound pipeline has one.
pub fn shape<'a>(py: Python<'_>, sizes: &'a Sizes, id: ValueId) -> PyResult<&'a [u64]> {
    sizes.shape(id).ok_or_else(|| {
        Class::Error.error(py, format!("internal error: value {} has no shape", id.index()))
    })
}

fn value<'py>(
    py: Python<'py>,
    program: &Program,
    def: Def<'_>,
    (key, extent): (&str, Bound<'py, PyAny>),
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let ty = match def {
        Def::Param(tensor) => {
            dict.set_item("op", "parameter")?;
            dict.set_item("name", &tensor.name)?;
            dict.set_item("inputs", PyList::empty(py))?;
            &tensor.ty
        }
        Def::Node(node) => {
            dict.set_item("op", node.op.name())?;
            let inputs: Vec<usize> = node.inputs.iter().map(|id| id.index()).collect();
            dict.set_item("inputs", inputs)?;
            if let Op::Gather { axis, .. }
            | Op::ReduceScatter { axis, .. }
            | Op::AllReduce { axis }
            | Op::AllToAll { axis, .. } = node.op
            {
                dict.set_item("axis", program.mesh_axes().get(axis.index()))?;
            }
            match node.op {
                Op::Gather { dim, .. } | Op::ReduceScatter { dim, .. } => {
                    dict.set_item("dim", dim)?;
                }
                Op::AllToAll { split, concat, .. } => {
                    dict.set_item("split", split)?;
                    dict.set_item("concat", concat)?;
                }
                Op::GroupedGemm { .. } | Op::GroupedWgrad => {
                    let drops = node.inputs.get(2).is_some_and(|ids| program.drops(*ids));
                    dict.set_item("drops", drops)?;
                    if let Op::GroupedGemm { transposed } = node.op {
                        dict.set_item("transposed", transposed)?;
                    }
                }
                Op::Gemm { a_transposed, b_transposed } => {
                    dict.set_item("a_transposed", a_transposed)?;
                    dict.set_item("b_transposed", b_transposed)?;
                }
                Op::Attention { scores, ring }
                | Op::AttentionDq { scores, ring }
                | Op::AttentionDk { scores, ring } => {
                    dict.set_item("causal", scores.causal)?;
                    dict.set_item("window", scores.window)?;
                    dict.set_item("softcap", scores.softcap)?;
                    dict.set_item("scale", scores.scale)?;
                    dict.set_item("ring", ring.is_some())?;
                    dict.set_item("packed", scores.packed)?;
                    dict.set_item("sinks", scores.sinks)?;
                }
                Op::RmsNorm { eps } | Op::RmsNormGrad { eps } => dict.set_item("eps", eps)?,
                Op::Scale(factor) => dict.set_item("factor", factor)?,
                Op::Weigh | Op::WeighGrad => {
                    let drops = node.inputs.get(1).is_some_and(|ids| program.drops(*ids));
                    dict.set_item("drops", drops)?;
                }
                Op::Dispatch { drops } => dict.set_item("drops", drops)?,
                Op::DispatchFactors => dict.set_item("factors", true)?,
                _ => {}
            }
            &node.ty
        }
    };
    dict.set_item("dtype", ty.dtype.name())?;
    dict.set_item(key, extent)?;
    let over = |placement: &Placement| match placement {
        Placement::Shard(dim) => ("shard", Some(*dim)),
        Placement::Zigzag(dim) => ("zigzag", Some(*dim)),
        Placement::Partial => ("partial", None),
        Placement::Replicate => ("replicate", None),
    };
    // Over each axis by name; and over the first one, which is the only one of most pipelines.
    let placements = PyDict::new(py);
    for (axis, placement) in program.mesh_axes().iter().zip(&ty.placement) {
        placements.set_item(axis, over(placement))?;
    }
    dict.set_item("placements", placements)?;
    dict.set_item("placement", ty.placement.first().map(over))?;
    Ok(dict)
}
