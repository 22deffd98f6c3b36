//! The dense reference: a pipeline evaluated in f64 on global tensors, for some rows of a result or for all.
//!
//! Every operation of the language makes a row of its result from the same row of its first operand and from the whole of
//! the second, so a few rows of a large result are cheap. A value that is `partial` is kept as its summands, one for each
//! rank. Nothing is rounded but inputs and `cast`.

use super::{
    HarnessError, Inputs, Layout,
    inputs::{dtype, placement},
    math,
};
use mk_syntax::{Def, Node, Op, Placement, Tensor, ValueId};
use std::collections::BTreeMap;

/// Rows of a global value: everything below dimension 0 is one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    /// Elements of a row.
    pub cols: usize,
    /// The chosen rows, one after the other.
    pub data: Vec<f64>,
}

/// A value of the pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The same for all ranks, or sharded: its global rows.
    Whole(Matrix),
    /// A sum over the ranks, by rank.
    Summands(Vec<Matrix>),
}

impl Value {
    fn zip(&self, other: &Value, op: impl Fn(f64, f64) -> f64) -> Value {
        let both = |x: &Matrix, y: &Matrix| Matrix {
            cols: x.cols,
            data: x.data.iter().zip(&y.data).map(|(x, y)| op(*x, *y)).collect(),
        };
        match (self, other) {
            (Value::Whole(x), Value::Whole(y)) => Value::Whole(both(x, y)),
            (Value::Summands(x), Value::Whole(y)) => {
                Value::Summands(x.iter().map(|x| both(x, y)).collect())
            }
            (Value::Whole(x), Value::Summands(y)) => {
                Value::Summands(y.iter().map(|y| both(x, y)).collect())
            }
            (Value::Summands(x), Value::Summands(y)) => {
                Value::Summands(x.iter().zip(y).map(|(x, y)| both(x, y)).collect())
            }
        }
    }

    fn map(&self, op: impl Fn(usize, f64) -> f64) -> Value {
        let one = |x: &Matrix| Matrix {
            cols: x.cols,
            data: x.data.iter().enumerate().map(|(i, x)| op(i, *x)).collect(),
        };
        match self {
            Value::Whole(x) => Value::Whole(one(x)),
            Value::Summands(x) => Value::Summands(x.iter().map(one).collect()),
        }
    }

    /// The value, with summands added up.
    fn sum(&self) -> Matrix {
        match self {
            Value::Whole(x) => x.clone(),
            Value::Summands(all) => {
                let mut parts = all.iter();
                let mut sum = parts.next().cloned().unwrap_or_default();
                for part in parts {
                    sum.data.iter_mut().zip(&part.data).for_each(|(s, x)| *s += x);
                }
                sum
            }
        }
    }

    /// What `rank` holds of it.
    pub(super) fn on(&self, rank: usize) -> &[f64] {
        match self {
            Value::Whole(x) => &x.data,
            Value::Summands(all) => all.get(rank).map_or(&[], |m| &m.data),
        }
    }
}

/// Whether all rows of a value are wanted, or the chosen ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Set {
    All,
    Chosen,
}

/// The reference for one launch.
#[derive(Clone, Copy, Debug)]
pub struct Dense<'a> {
    inputs: Inputs<'a>,
    launch: u64,
}

impl<'a> Dense<'a> {
    /// The reference for a launch with these inputs.
    pub fn new(inputs: Inputs<'a>, launch: u64) -> Dense<'a> {
        Dense { inputs, launch }
    }

    /// What each rank should hold of a result, row-major.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for a mesh of several axes.
    pub fn local(&self, result: ValueId) -> Result<Vec<Vec<f64>>, HarnessError> {
        let rows = self.extent(result, 0);
        let all: Vec<usize> = (0..rows).collect();
        let value = self.rows(result, &all)?;
        let case = self.inputs.case();
        (0..case.ranks)
            .map(|rank| {
                let layout = self.layout(result, rank)?;
                let (columns, width) = (layout.columns(), self.width(result));
                let held = value.on(rank);
                Ok(layout
                    .rows()
                    .flat_map(|i| columns.iter().map(move |c| held[i * width + c]))
                    .collect())
            })
            .collect()
    }

    /// The global rows `rows` of a value.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for a mesh of several axes.
    pub fn rows(&self, value: ValueId, rows: &[usize]) -> Result<Value, HarnessError> {
        let program = self.inputs.case().program;
        let every = rows.iter().copied().eq(0..self.extent(value, 0));
        let first = if every { Set::All } else { Set::Chosen };
        // Who needs what, from the result back: nodes are in topological order.
        let mut wanted = BTreeMap::from([((value.index(), first), ())]);
        for node in program.nodes().iter().rev() {
            for set in [Set::All, Set::Chosen] {
                if wanted.contains_key(&(node.result.index(), set)) {
                    wanted.extend(needs(node, set).map(|key| (key, ())));
                }
            }
        }
        let mut values = BTreeMap::new();
        for (index, set) in wanted.into_keys() {
            let id = ValueId::new(index);
            let made = match program.def(id) {
                Some(Def::Param(tensor)) => self.input(tensor, set, rows)?,
                Some(Def::Node(node)) => self.node(node, set, rows, &values)?,
                None => return Err(HarnessError::mismatch("a value of another program")),
            };
            values.insert((index, set), made);
        }
        values
            .remove(&(value.index(), first))
            .ok_or_else(|| HarnessError::mismatch("a value of another program"))
    }

    fn extent(&self, value: ValueId, dim: usize) -> usize {
        let shape = self.inputs.case().bound.shape(value);
        shape.and_then(|s| s.get(dim)).map_or(0, |n| *n as usize)
    }

    /// Elements of a row.
    fn width(&self, value: ValueId) -> usize {
        let shape = self.inputs.case().bound.shape(value).unwrap_or(&[]);
        shape.iter().skip(1).map(|n| *n as usize).product()
    }

    fn layout(&self, value: ValueId, rank: usize) -> Result<Layout, HarnessError> {
        let case = self.inputs.case();
        let ty = case.program.ty(value);
        let placement = placement(ty.map_or(&[], |t| &t.placement))?;
        Ok(Layout::new(case.bound.shape(value).unwrap_or(&[]), placement, case.ranks, rank))
    }

    /// A parameter, put together from what the ranks hold.
    fn input(&self, tensor: &Tensor, set: Set, chosen: &[usize]) -> Result<Value, HarnessError> {
        let ranks = self.inputs.case().ranks;
        let all: Vec<usize>;
        let rows = match set {
            Set::Chosen => chosen,
            Set::All => {
                all = (0..self.extent(tensor.id, 0)).collect();
                &all
            }
        };
        let cols = self.width(tensor.id);
        let mut parts = Vec::new();
        for rank in 0..ranks {
            if rank == 0 || placement(&tensor.ty.placement)? == Placement::Partial {
                parts.push(Matrix { cols, data: vec![0.0; rows.len() * cols] });
            }
            let layout = self.inputs.layout(tensor, rank)?;
            let columns = layout.columns();
            let Some(part) = parts.last_mut() else { continue };
            for (row, to) in rows.iter().zip(part.data.chunks_mut(cols.max(1))) {
                if layout.rows().contains(row) {
                    let from = (row - layout.rows().start) * columns.len();
                    let values = self.inputs.values(self.launch, tensor, rank, from);
                    columns.iter().zip(values).for_each(|(c, x)| to[*c] = x);
                }
            }
        }
        Ok(match (parts.pop(), placement(&tensor.ty.placement)?) {
            (Some(last), Placement::Partial) => {
                parts.push(last);
                Value::Summands(parts)
            }
            (Some(whole), _) => Value::Whole(whole),
            (None, _) => Value::Whole(Matrix::default()),
        })
    }

    fn node(
        &self,
        node: &Node,
        set: Set,
        chosen: &[usize],
        values: &BTreeMap<(usize, Set), Value>,
    ) -> Result<Value, HarnessError> {
        let operands: Option<Vec<&Value>> = needs(node, set).map(|key| values.get(&key)).collect();
        let operands = operands.unwrap_or_default();
        let width = self.width(node.result);
        Ok(match (node.op, operands.as_slice()) {
            (Op::Gather { .. }, [x]) => (*x).clone(),
            (Op::ReduceScatter { .. } | Op::AllReduce { .. }, [x]) => Value::Whole(x.sum()),
            (Op::Gemm, [a, b]) => self.gemm(node, a, b)?,
            (Op::Bias, [x, c]) => {
                let c = c.sum().data;
                // The last dimension; of a vector that is dimension 0, of which rows are chosen.
                let at = |i: usize| match set {
                    Set::Chosen if width == 1 => chosen[i] % c.len(),
                    _ => i % c.len(),
                };
                x.map(|i, x| x + c[at(i)])
            }
            (Op::Gelu, [x]) => x.map(|_, x| math::gelu(x)),
            (Op::Silu, [x]) => x.map(|_, x| math::silu(x)),
            (Op::Relu, [x]) => x.map(|_, x| x.max(0.0)),
            (Op::Mul, [x, y]) => x.zip(y, |x, y| x * y),
            (Op::Add, [x, y]) => x.zip(y, |x, y| x + y),
            (Op::Scale(factor), [x]) => x.map(|_, x| x * factor),
            (Op::Cast(to), [x]) => x.map(|_, x| math::round(dtype(to), x)),
            _ => return Err(HarnessError::unsupported(format!("`{}`", node.op.name()))),
        })
    }

    /// Rank `r`'s summand of a product over a sharded depth is the product over its part of the depth.
    fn gemm(&self, node: &Node, a: &Value, b: &Value) -> Result<Value, HarnessError> {
        let right = node.inputs.get(1).copied().unwrap_or(node.result);
        let (k, n) = (self.extent(right, 0), self.width(right));
        let product = |a: &[f64], b: &[f64], k: usize| {
            let mut c = vec![0.0; a.len().checked_div(k).unwrap_or(0) * n];
            math::matmul(&mut c, a, b, k, n);
            Matrix { cols: n, data: c }
        };
        if placement(&node.ty.placement)? != Placement::Partial {
            return Ok(Value::Whole(product(a.on(0), b.on(0), k)));
        }
        let summands = (0..self.inputs.case().ranks).map(|rank| {
            let depth = self.layout(right, rank)?.rows();
            let (a, b) = (a.on(rank), b.on(rank));
            if depth == (0..k) {
                return Ok(product(a, b, k));
            }
            let part: Vec<f64> =
                a.chunks_exact(k.max(1)).flat_map(|row| &row[depth.clone()]).copied().collect();
            let mut c = Matrix { cols: n, data: vec![0.0; a.len() / k.max(1) * n] };
            math::matmul(&mut c.data, &part, &b[depth.start * n..depth.end * n], depth.len(), n);
            Ok(c)
        });
        Ok(Value::Summands(summands.collect::<Result<_, HarnessError>>()?))
    }
}

/// Which rows of its operands a node needs for some rows of its result.
fn needs(node: &Node, set: Set) -> impl Iterator<Item = (usize, Set)> + '_ {
    node.inputs.iter().enumerate().map(move |(i, input)| {
        let whole = i == 1 && matches!(node.op, Op::Gemm | Op::Bias);
        (input.index(), if whole { Set::All } else { set })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bound, Program, harness::Case};
    use std::collections::BTreeMap;

    fn bind(source: &str, dims: &[(&str, u64)]) -> (Program, Bound) {
        let program = Program::parse(source).expect("parses");
        let dims = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        (program, bound)
    }

    fn dense<'a>(program: &'a Program, bound: &'a Bound, ranks: usize) -> Dense<'a> {
        Dense::new(Inputs::new(Case { program, bound, ranks }, 3), 1)
    }

    #[test]
    fn the_sum_over_a_sharded_depth_is_the_product() {
        let (program, bound) = bind(
            "fn f(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }",
            &[("M", 5), ("K", 7), ("N", 3)],
        );
        let d = dense(&program, &bound, 4);
        let whole = |id| match d.rows(id, &(0..d.extent(id, 0)).collect::<Vec<_>>()) {
            Ok(Value::Whole(m)) => m.data,
            other => panic!("{other:?}"),
        };
        let (a, b) = (whole(program.tensors()[0].id), whole(program.tensors()[1].id));
        let mut want = vec![0.0; 15];
        math::matmul(&mut want, &a, &b, 7, 3);
        for rank in d.local(program.results()[0]).expect("evaluates") {
            assert!(rank.iter().zip(&want).all(|(x, y)| (x - y).abs() < 1e-12));
        }
    }

    #[test]
    fn chosen_rows_are_the_rows_of_the_whole() {
        let (program, bound) = bind(
            "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1), c: bf16[N] @ shard(0),
                  y: bf16[M, N] @ shard(1), v: bf16[N, K] @ shard(0)) {
                 gather(x) -> gemm(w) -> bias(c) -> gelu -> mul(y) -> cast(bf16) -> gemm(v) -> reduce_scatter
             }",
            &[("M", 10), ("K", 6), ("N", 9)],
        );
        let d = dense(&program, &bound, 3);
        let result = program.results()[0];
        let local = d.local(result).expect("evaluates");
        assert_eq!(local.iter().map(Vec::len).collect::<Vec<_>>(), [24, 24, 12]);
        let Value::Whole(rows) = d.rows(result, &[1, 4, 9]).expect("evaluates") else {
            panic!("reduced")
        };
        assert_eq!(rows.data[0..6], local[0][6..12]);
        assert_eq!(rows.data[6..12], local[1][0..6]);
        assert_eq!(rows.data[12..18], local[2][6..12]);
    }

    #[test]
    fn replicas_agree_and_summands_differ() {
        let (program, bound) = bind(
            "fn f(x: bf16[M, K] @ partial, y: bf16[M, K] @ replicate) { (x -> mul(y), y -> relu) }",
            &[("M", 3), ("K", 4)],
        );
        let d = dense(&program, &bound, 2);
        let local = |i: usize| d.local(program.results()[i]).expect("evaluates");
        assert_ne!(local(0)[0], local(0)[1]);
        assert_eq!(local(1)[0], local(1)[1]);
    }
}
