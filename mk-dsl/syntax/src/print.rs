//! Programs as text: for people, logs and snapshots.
//!
//! ```text
//! pipeline gather_gemm(world):
//!   %0 = a: bf16[a_0, a_1] @ shard(0)
//!   %1 = b: bf16[a_1, b_1] @ shard(1)
//!   %2 = gather(%0, world, dim = 0): bf16[a_0, a_1] @ replicate
//!   %3 = gemm(%2, %1): bf16[a_0, b_1] @ shard(1)
//!   return %3
//! ```

use crate::program::{
    AxisId, Dim, Factors, Node, Op, Placement, Program, SCALE_BLOCK, Symbol, SymbolKind, TensorType,
};
use std::fmt;

/// The axis of a program that names none.
pub(crate) const UNNAMED: &str = "world";

/// One placement as the source writes it; `axis` where there are several.
pub(crate) fn placement(placement: Placement, axis: Option<&str>) -> String {
    match (placement, axis) {
        (Placement::Shard(dim), Some(axis)) => format!("shard({dim}, {axis})"),
        (Placement::Shard(dim), None) => format!("shard({dim})"),
        (Placement::Zigzag(dim), Some(axis)) => format!("zigzag({dim}, {axis})"),
        (Placement::Zigzag(dim), None) => format!("zigzag({dim})"),
        (Placement::Replicate, Some(axis)) => format!("replicate({axis})"),
        (Placement::Replicate, None) => "replicate".into(),
        (Placement::Partial, Some(axis)) => format!("partial({axis})"),
        (Placement::Partial, None) => "partial".into(),
    }
}

/// The placements over all axes: what is replicated goes without saying, unless all is.
pub(crate) fn placements<S: AsRef<str>>(all: &[Placement], axes: &[S]) -> String {
    let named = names_axes(axes);
    let said: Vec<String> = all
        .iter()
        .zip(axes)
        .filter(|(p, _)| **p != Placement::Replicate)
        .map(|(&p, axis)| placement(p, named.then_some(axis.as_ref())))
        .collect();
    match (said.is_empty(), axes) {
        (false, _) => said.join(" @ "),
        (true, [axis]) if named => placement(Placement::Replicate, Some(axis.as_ref())),
        (true, _) => "replicate".into(),
    }
}

/// Whether placements and collectives name their axis: not where there is one that nobody named.
pub(crate) fn names_axes<S: AsRef<str>>(axes: &[S]) -> bool {
    axes.len() > 1 || axes.iter().any(|axis| axis.as_ref() != UNNAMED)
}

/// `M: dyn <= 8192`; `None` for a fixed symbol.
pub(crate) fn runtime_symbol(symbol: &Symbol) -> Option<String> {
    let (kind, max) = match symbol.kind {
        SymbolKind::Fixed | SymbolKind::Room | SymbolKind::Blocks(_) => return None,
        SymbolKind::Runtime { max } => ("dyn", max),
        SymbolKind::Own { max } => ("own", max),
    };
    let bound = max.map_or_else(String::new, |max| format!(" <= {max}"));
    Some(format!("{}: {kind}{bound}", symbol.name))
}

/// Rows and columns of what shares a factor; columns are `all` where they are a row's.
pub(crate) fn block(factors: Factors, all: String) -> [String; 2] {
    let block = SCALE_BLOCK.to_string();
    match factors {
        Factors::Rows => ["1".into(), all],
        Factors::Steps => ["1".into(), block],
        Factors::Blocks => [block.clone(), block],
    }
}

impl Program {
    /// A type as the source writes it: `bf16[M, K] @ shard(0)`.
    pub fn show_type(&self, ty: &TensorType) -> String {
        let dims = self.show_dims(&ty.dims);
        let placement = placements(&ty.placement, self.mesh_axes());
        format!("{}[{dims}] @ {placement}", ty.dtype)
    }

    /// The same of a value with factors: `e4m3[M, K] scaled(1, 128) @ shard(0)`.
    pub(crate) fn show_scaled(&self, ty: &TensorType, factors: Factors) -> String {
        let [rows, columns] = block(factors, self.columns(ty));
        let scaled = format!(" scaled({rows}, {columns}) @");
        self.show_type(ty).replacen(" @", &scaled, 1)
    }

    /// The last dimension of a type.
    pub(crate) fn columns(&self, ty: &TensorType) -> String {
        ty.dims.last().map_or_else(String::new, |dim| self.show_dim(dim))
    }

    /// A dimension as the source writes it.
    pub(crate) fn show_dim(&self, dim: &Dim) -> String {
        match dim {
            Dim::Lit(n) => n.to_string(),
            Dim::Sym(id) => {
                self.symbols().get(id.index()).map_or_else(|| id.to_string(), |s| s.name.clone())
            }
        }
    }

    /// Dimensions as the source writes them: `M, K`.
    pub(crate) fn show_dims(&self, dims: &[Dim]) -> String {
        dims.iter().map(|dim| self.show_dim(dim)).collect::<Vec<_>>().join(", ")
    }

    fn axis_name(&self, axis: AxisId) -> &str {
        self.mesh_axes().get(axis.index()).map_or("?", String::as_str)
    }

    fn show_call(&self, node: &Node) -> String {
        let mut args: Vec<String> = node.inputs.iter().map(ToString::to_string).collect();
        match node.op {
            Op::Gather { axis, dim } | Op::ReduceScatter { axis, dim } => {
                args.push(self.axis_name(axis).to_owned());
                args.push(format!("dim = {dim}"));
            }
            Op::AllReduce { axis } => args.push(self.axis_name(axis).to_owned()),
            Op::AllToAll { axis, split, concat } => {
                args.push(self.axis_name(axis).to_owned());
                args.push(format!("split = {split}, concat = {concat}"));
            }
            Op::Scale(factor) => args.push(factor.to_string()),
            Op::RmsNorm { eps } | Op::RmsNormGrad { eps } => args.push(format!("eps = {eps:?}")),
            Op::Cast(dtype) => args.push(dtype.to_string()),
            Op::Quantize(factors) => {
                args.push(node.ty.dtype.to_string());
                args.extend(block(factors, self.columns(&node.ty)));
            }
            Op::Gemm { a_transposed, b_transposed } => {
                for (arg, is_transposed) in args.iter_mut().zip([a_transposed, b_transposed]) {
                    if is_transposed {
                        arg.push_str(".t");
                    }
                }
            }
            Op::Attention { scores, ring }
            | Op::AttentionDq { scores, ring }
            | Op::AttentionDk { scores, ring } => {
                scores.name(&mut args);
                args.extend(ring.map(|axis| format!("ring = {}", self.axis_name(axis))));
                args.extend(scores.words());
            }
            Op::GroupedGemm { transposed: true } => {
                args.iter_mut().skip(1).take(1).for_each(|w| w.push_str(".t"));
            }
            Op::Dispatch { drops: true } => args.push("drop".to_owned()),
            Op::Lse
            | Op::GroupedGemm { transposed: false }
            | Op::GroupedWgrad
            | Op::Dispatch { drops: false }
            | Op::DispatchFactors
            | Op::Dropped
            | Op::Combine
            | Op::CombineGrad
            | Op::Weigh
            | Op::WeighGrad
            | Op::Dequantize(_)
            | Op::Factor(_)
            | Op::AttentionStats
            | Op::AttentionDv
            | Op::AttentionDsinks
            | Op::Bias
            | Op::Curve(_)
            | Op::Slope(_)
            | Op::Swiglu
            | Op::SwigluGrad
            | Op::Rope { .. }
            | Op::View
            | Op::Mul
            | Op::Add => {}
        }
        format!("{}({})", node.op.name(), args.join(", "))
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runtime: Vec<String> = self.symbols().iter().filter_map(runtime_symbol).collect();
        let runtime = match runtime.as_slice() {
            [] => String::new(),
            list => format!("<{}>", list.join(", ")),
        };
        writeln!(f, "pipeline {}{runtime}({}):", self.name(), self.mesh_axes().join(", "))?;
        for tensor in self.tensors() {
            writeln!(f, "  {} = {}: {}", tensor.id, tensor.name, self.show_type(&tensor.ty))?;
        }
        for node in self.nodes() {
            let ty = self.show_type(&node.ty);
            writeln!(f, "  {} = {}: {ty}", node.result, self.show_call(node))?;
        }
        let results: Vec<String> = self.results().iter().map(ToString::to_string).collect();
        write!(f, "  return {}", results.join(", "))
    }
}
