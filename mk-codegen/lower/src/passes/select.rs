//! Recognises what one kernel can be made of.
//!
//! Assumes fused epilogues. Leaves a [`Kernel`]: left operands from the caller, gathered or not; matrix products, each of
//! a left operand or of a product before it; results, each a product (summed over ranks or not) or a gathered operand; or
//! one collective alone. Everything else is refused by name, with what works instead.

use super::check::{self, CATALOGUE};
use super::error::{LowerError, unsupported};
use super::shape::{
    kernel::{Extra, Kernel, Op, OpId, Operand, Outcome, Param, Product, Reduce, Sum},
    tensor::Tensor,
};
use crate::graph::{Kind, OpGraph, Value};
use mk_plan::{self, EPILOGUE_OPERANDS, EpilogueOp};
use mk_syntax::Placement;
use petgraph::stable_graph::NodeIndex;

/// Runs the pass.
///
/// # Errors
/// For every pipeline that is not in the catalogue.
pub(super) fn kernel(g: &OpGraph, ranks: u32) -> Result<Kernel, LowerError> {
    let mut builder = Builder { g, params: Vec::new(), operands: Vec::new(), products: Vec::new() };
    builder.params = g.graph.node_indices().filter(|n| g.graph[*n].kind == Kind::Param).collect();
    // Summed products come first, so that their sums are under way beside the other products.
    let mut order: Vec<_> = g.results.iter().zip(&g.result_names).enumerate().collect();
    let is_sum = |node: NodeIndex| {
        matches!(g.graph[node].kind, Kind::ReduceScatter { .. } | Kind::AllReduce { .. })
    };
    order.sort_by_key(|(_, (node, _))| !is_sum(**node));
    let mut results: Vec<(usize, Option<Left>, Tensor)> = Vec::new();
    let mut sums: Vec<(Left, Sum)> = Vec::new();
    for (place, (node, name)) in order {
        let (reduce, of) = reduction(g, *node)?;
        let value = &g.graph[*node];
        let saved = value.kind == Kind::Saved;
        let of = if saved { None } else { Some(builder.left(of)?) };
        if let (Some(how), Some(of)) = (reduce, of) {
            let epilogue = value.kind.epilogue().unwrap_or_default().to_vec();
            let operands = g.operands(*node);
            let list = operands.iter().skip(1).map(|x| builder.param(*x, &value.name));
            let extras = few(&value.name, list.collect::<Result<_, _>>()?)?;
            sums.push((of, Sum { of: 0, how, epilogue, extras, result: place }));
        }
        let out = Tensor { name: name.clone(), ..tensor(value) };
        results.push((place, of, out));
    }
    results.sort_by_key(|(place, ..)| *place);
    let kernel = builder.finish(sums, results);
    check::kernel(&kernel, g, ranks)?;
    Ok(kernel)
}

/// A value that products read and results are made of, while operations have no numbers yet: an index into the builder's lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Operand(usize),
    Product(usize),
}

/// Collects operands and products, each before its readers.
struct Builder<'g> {
    g: &'g OpGraph,
    params: Vec<NodeIndex>,
    operands: Vec<Operand>,
    products: Vec<(NodeIndex, Left, Product)>,
}

impl Builder<'_> {
    /// Numbers the operations: operands, then products, then sums.
    fn finish(self, sums: Vec<(Left, Sum)>, results: Vec<(usize, Option<Left>, Tensor)>) -> Kernel {
        let Builder { g, params, operands, products } = self;
        let n = operands.len();
        let id = |left: Left| -> OpId {
            match left {
                Left::Operand(i) => i,
                Left::Product(i) => n + i,
            }
        };
        let first_sum = n + products.len();
        let sum_of = |place: usize| sums.iter().position(|(_, sum)| sum.result == place);
        let results = results
            .into_iter()
            .map(|(place, of, out)| Outcome {
                of: sum_of(place).map(|i| first_sum + i).or(of.map(id)),
                out,
            })
            .collect();
        let mut ops: Vec<Op> = operands.into_iter().map(Op::Operand).collect();
        ops.extend(
            products
                .into_iter()
                .map(|(_, left, product)| Op::Product(Product { left: id(left), ..product })),
        );
        ops.extend(sums.into_iter().map(|(of, sum)| Op::Sum(Sum { of: id(of), ..sum })));
        Kernel {
            name: g.name.clone(),
            params: params.iter().map(|n| tensor(&g.graph[*n])).collect(),
            ops,
            results,
        }
    }

    fn left(&mut self, node: NodeIndex) -> Result<Left, LowerError> {
        if let Some(i) = self.products.iter().position(|(n, ..)| *n == node) {
            return Ok(Left::Product(i));
        }
        // Chains are as long as the user wrote them, so this is a loop: products down to the first known value.
        let mut chain = vec![node];
        let mut left = loop {
            let at = chain[chain.len() - 1];
            let Kind::Gemm { .. } = &self.g.graph[at].kind else {
                chain.pop();
                let transposed = chain.last().is_some_and(|by| self.turns_left(*by));
                break Left::Operand(self.operand(at, transposed)?);
            };
            let Some(next) = self.g.operands(at).first().copied() else {
                return Err(unsupported("gemm", "it has fewer than two operands", CATALOGUE));
            };
            if let Some(i) = self.products.iter().position(|(n, ..)| *n == next) {
                break Left::Product(i);
            }
            chain.push(next);
        };
        while let Some(at) = chain.pop() {
            let product = self.product(at, left)?;
            self.products.push((at, left, product));
            left = Left::Product(self.products.len() - 1);
        }
        Ok(left)
    }

    fn turns_left(&self, gemm: NodeIndex) -> bool {
        matches!(self.g.graph[gemm].kind, Kind::Gemm { a_transposed: true, .. })
    }

    fn operand(&mut self, node: NodeIndex, transposed: bool) -> Result<usize, LowerError> {
        let value = &self.g.graph[node];
        let operand = match &value.kind {
            Kind::Gather { dim } => {
                let operands = self.g.operands(node);
                let param =
                    operands.first().copied().filter(|n| self.g.graph[*n].kind == Kind::Param);
                let Some(param) = param else {
                    let why = "it does not gather a parameter as it lies in memory";
                    return Err(unsupported("gather", why, CATALOGUE));
                };
                if *dim != 0 || value.shape.len() != 2 {
                    let why = "it does not gather the rows of a matrix";
                    return Err(unsupported("gather", why, "use `[M, K] @ shard(0)`"));
                }
                if transposed {
                    let why = "its left operand is the result of `gather`, transposed";
                    return Err(unsupported("gemm", why, CATALOGUE));
                }
                Operand { param: self.param(param, "gather")?, gathered: true, transposed }
            }
            Kind::Param => {
                Operand { param: self.param(node, "gemm")?, gathered: false, transposed }
            }
            Kind::Elementwise(_) => {
                return Err(unsupported(&value.name, self.why_alone(node), CATALOGUE));
            }
            Kind::SwigluGrad => {
                let why = "it is no result of a matrix product's kernel, with the caller's values before the activation";
                let help = "put it right behind `gemm`, and return it";
                return Err(unsupported(&value.name, why, help));
            }
            _ => {
                let why = "it is not the first or last operation";
                return Err(unsupported(&value.name, why, CATALOGUE));
            }
        };
        Ok(self.operands.iter().position(|o| *o == operand).unwrap_or_else(|| {
            self.operands.push(operand);
            self.operands.len() - 1
        }))
    }

    /// Why no product has taken over an elementwise operation.
    fn why_alone(&self, node: NodeIndex) -> &'static str {
        let g = self.g;
        let takes = |n: &NodeIndex| g.graph[*n].kind.epilogue().is_some();
        match g.operands(node).into_iter().find(takes) {
            None => "no matrix product, or sum, comes right before it",
            Some(x) if !matches!(g.graph[x].kind, Kind::Gemm { .. }) => {
                "the caller, or another operation, gets the sum before it, too"
            }
            Some(x) if g.graph.neighbors(x).count() > 1 => {
                "another operation reads the matrix product before it, too"
            }
            Some(x) if g.graph[x].placement.contains(&Placement::Partial) => {
                "the caller gets the partial sums before it, too"
            }
            Some(_) => "the caller gets the matrix product before it twice",
        }
    }

    fn param(&self, node: NodeIndex, by: &str) -> Result<Param, LowerError> {
        self.params.iter().position(|n| *n == node).ok_or_else(|| {
            let why = format!("an operand of it is the result of `{}`", self.g.graph[node].name);
            unsupported(by, why, CATALOGUE)
        })
    }

    fn product(&self, node: NodeIndex, left: Left) -> Result<Product, LowerError> {
        let value = &self.g.graph[node];
        let operands = self.g.operands(node);
        let (Kind::Gemm { epilogue, a_transposed, b_transposed }, [_, b, extras @ ..]) =
            (&value.kind, operands.as_slice())
        else {
            return Err(unsupported("gemm", "it has fewer than two operands", CATALOGUE));
        };
        if *a_transposed && matches!(left, Left::Product(_)) {
            let why = "its left operand is the result of `gemm`, transposed";
            return Err(unsupported("gemm", why, CATALOGUE));
        }
        let b = self.param(*b, "gemm")?;
        let extra = |x: &NodeIndex| match self.g.results.iter().position(|r| r == x) {
            Some(r) if self.g.graph[*x].kind == Kind::Saved => Ok(Extra::Result(r)),
            _ if self.g.graph[*x].kind == Kind::OwnHalf => Ok(Extra::OwnHalf),
            _ => self.param(*x, &value.name).map(Extra::Param),
        };
        let list = few("gemm", extras.iter().map(extra).collect::<Result<Vec<_>, _>>()?)?;
        if epilogue.contains(&EpilogueOp::Swiglu) && !mk_plan::gated(epilogue) {
            let why = "something stands between it and its matrix product";
            return Err(unsupported("swiglu", why, "put `swiglu` directly behind `gemm`"));
        }
        let mut out = tensor(value);
        if mk_plan::halves(epilogue) {
            if !self.g.results.contains(&node) || self.g.uses(node) > 1 {
                let why = "another operation of the kernel reads it, or the caller does not get it";
                return Err(unsupported(
                    "swiglu_grad",
                    why,
                    "return it, and read it in a kernel behind",
                ));
            }
            out.shape.remove(1);
            out.placement = match out.placement {
                Placement::Shard(2) => Placement::Shard(1),
                other => other,
            };
        }
        if out.shape.len() != 2 {
            let why = "its result has more than two dimensions";
            return Err(unsupported("gemm", why, "put `swiglu` behind it, or use `[K, N]`"));
        }
        Ok(Product {
            left: 0,
            b,
            b_transposed: *b_transposed,
            out,
            epilogue: epilogue.clone(),
            extras: list,
        })
    }
}

/// Operands of elementwise operations: not more than a leaf has.
fn few<T>(of: &str, extras: Vec<T>) -> Result<Vec<T>, LowerError> {
    if extras.len() > EPILOGUE_OPERANDS.len() {
        let why = "more than four epilogue operands follow it";
        return Err(unsupported(of, why, "fuse fewer operations"));
    }
    Ok(extras)
}

/// The reduction that makes a result, and the value that it reduces.
fn reduction(g: &OpGraph, result: NodeIndex) -> Result<(Option<Reduce>, NodeIndex), LowerError> {
    let reduce = match &g.graph[result].kind {
        Kind::ReduceScatter { dim: 0, .. } => Reduce::Scatter,
        Kind::ReduceScatter { .. } => {
            return Err(unsupported("reduce_scatter", "it does not scatter rows", "use `dim = 0`"));
        }
        Kind::AllReduce { .. } => Reduce::All,
        _ => return Ok((None, result)),
    };
    let operands = g.operands(result);
    match operands.as_slice() {
        [x, ..] if g.uses(*x) == 1 && g.graph[*x].shape.len() == 2 && g.uses(result) == 1 => {
            Ok((Some(reduce), *x))
        }
        _ => {
            let why = match g.uses(result) {
                1 => "it does not reduce a matrix of its own",
                _ => "another operation reads the sum that the caller gets",
            };
            Err(unsupported(&g.graph[result].name, why, CATALOGUE))
        }
    }
}

fn tensor(v: &Value) -> Tensor {
    // Graphs are of pipelines over one axis.
    let placement = v.placement.first().copied().unwrap_or(Placement::Replicate);
    Tensor { name: v.name.clone(), dtype: v.dtype, shape: v.shape.clone(), placement }
}
