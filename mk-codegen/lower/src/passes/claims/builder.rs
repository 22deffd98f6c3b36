//! A kernel, while operations are claimed for it.

use crate::{
    graph::{Kind, OpGraph, Value},
    passes::shape::{
        ids::{OpId, Param},
        kernel::{Kernel, Op, Outcome},
        tensor::{Tensor, cuts},
    },
};
use petgraph::stable_graph::NodeIndex;

/// A kernel in the making.
pub(super) struct Claims<'g> {
    pub g: &'g OpGraph,
    pub sizes: Vec<i32>,
    pub params: Vec<NodeIndex>,
    pub kernel: Kernel,
}

impl<'g> Claims<'g> {
    /// A kernel without operations, on so many ranks along each axis.
    pub fn new(g: &'g OpGraph, sizes: &[i32]) -> Claims<'g> {
        let nodes = g.graph.node_indices();
        let params: Vec<_> = nodes.filter(|n| g.graph[*n].kind == Kind::Param).collect();
        let results = g.results.iter().zip(&g.result_names);
        let results = results.map(|(n, name)| tensor(&g.graph[*n], name, sizes));
        let kernel = Kernel {
            name: g.name.clone(),
            params: params.iter().map(|n| tensor(&g.graph[*n], &g.graph[*n].name, sizes)).collect(),
            given: params.len(),
            ops: Vec::new(),
            results: results.map(|out| Outcome { of: None, out }).collect(),
        };
        Claims { g, sizes: sizes.to_vec(), params, kernel }
    }

    /// Adds an operation.
    pub fn push(&mut self, op: Op) -> OpId {
        self.kernel.ops.push(op);
        self.kernel.ops.len() - 1
    }

    /// Adds an operation that makes these results.
    pub fn add(&mut self, op: Op, results: impl IntoIterator<Item = usize>) -> OpId {
        let id = self.push(op);
        results.into_iter().for_each(|r| self.kernel.results[r].of = Some(id));
        id
    }

    /// Adds a value that is in memory before it is read to the parameters.
    pub fn made(&mut self, node: NodeIndex, out: Tensor) -> Param {
        self.params.push(node);
        self.kernel.params.push(out);
        self.params.len() - 1
    }

    pub fn value(&self, node: NodeIndex) -> &Value {
        &self.g.graph[node]
    }

    /// The parameter that a value is, or is as good as.
    pub fn param(&self, node: NodeIndex) -> Option<Param> {
        self.params.iter().position(|n| *n == node)
    }

    /// Operations of a kind, in order.
    pub fn all(&self, kind: impl Fn(&Kind) -> bool) -> Vec<NodeIndex> {
        let nodes = self.g.graph.node_indices();
        nodes.filter(|n| kind(&self.g.graph[*n].kind)).collect()
    }
}

/// A value under this name, on so many ranks along each axis.
pub(super) fn tensor(v: &Value, name: &str, sizes: &[i32]) -> Tensor {
    let cuts = cuts(&v.placement, sizes);
    Tensor { name: name.into(), dtype: v.dtype, shape: v.shape.clone(), cuts }.on_inner_axes()
}
