//! Claims dense GEMMs, the gathers before them, the reductions behind them, and collectives alone.
//!
//! Leaves operations of the kernel: operands A of the caller, gathered or not; GEMMs, each of such an operand or of a
//! GEMM before it; sums over ranks of GEMMs, or of operands.

use super::{
    builder::{Claims, tensor},
    gemm_rules::{self, CATALOGUE},
    grouped,
};
use crate::{
    graph::{Group, Kind, OpGraph},
    passes::{
        error::{LowerError, unsupported},
        shape::{
            ids::{Extra, OpId, Param, Reduce},
            kernel::{Op, Operand, Product, Sum},
        },
    },
};
use mk_plan::{EPILOGUE_OPERANDS, EpilogueOp, gate_bias, gated, halves};
use petgraph::stable_graph::NodeIndex;

/// Claims what results are made of, as far as it is dense.
///
/// # Errors
/// The first operation that stands in the way.
pub(super) fn claim(claims: &mut Claims<'_>) -> Result<(), LowerError> {
    let g = claims.g;
    let is_sum = |node: NodeIndex| {
        matches!(g.graph[node].kind, Kind::ReduceScatter { .. } | Kind::AllReduce { .. })
    };
    let claimed_elsewhere = |node: NodeIndex| {
        g.graph[node].kind.group() != Group::Dense || grouped::tokens_of(g, node).is_some()
    };
    // Summed GEMMs come first, so that their sums are under way beside the other GEMMs.
    let mut order: Vec<_> = g.results.iter().copied().enumerate().collect();
    order.retain(|(_, node)| !claimed_elsewhere(*node));
    order.sort_by_key(|(_, node)| !is_sum(*node));
    if order.is_empty() {
        return Ok(());
    }
    let mut builder = Builder { claims, operands: Vec::new(), products: Vec::new() };
    let mut results: Vec<(usize, Left)> = Vec::new();
    let mut sums: Vec<(Left, Sum)> = Vec::new();
    for (place, node) in order {
        let (reduce, of) = reduction(g, node)?;
        let value = &g.graph[node];
        if value.kind == Kind::Saved {
            continue;
        }
        let of = builder.left(of)?;
        if let Some((how, axis)) = reduce {
            let epilogue = value.kind.epilogue().unwrap_or_default().to_vec();
            let operands = g.operands(node);
            let list = operands.iter().skip(1).map(|x| builder.param(*x, &value.name));
            let extras = few(&value.name, list.collect::<Result<_, _>>()?)?;
            sums.push((of, Sum { of: 0, how, axis, epilogue, extras, result: place }));
        }
        results.push((place, of));
    }
    builder.finish(sums, results);
    gemm_rules::check(&claims.kernel, g)
}

/// A value that GEMMs read and results are made of, while operations have no numbers yet: an index into the
/// builder's lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Operand(usize),
    Product(usize),
}

/// Collects operands and GEMMs, each before its readers.
struct Builder<'c, 'g> {
    claims: &'c mut Claims<'g>,
    operands: Vec<Operand>,
    products: Vec<(NodeIndex, Left, Product)>,
}

impl Builder<'_, '_> {
    /// Numbers the operations: operands, then GEMMs, then sums.
    fn finish(self, sums: Vec<(Left, Sum)>, results: Vec<(usize, Left)>) {
        let Builder { claims: Claims { kernel, .. }, operands, products } = self;
        let first = kernel.ops.len();
        let n = first + operands.len();
        let id = |left: Left| -> OpId {
            match left {
                Left::Operand(i) => first + i,
                Left::Product(i) => n + i,
            }
        };
        let first_sum = n + products.len();
        let sum_of = |place: usize| sums.iter().position(|(_, sum)| sum.result == place);
        for (place, of) in results {
            kernel.results[place].of =
                Some(sum_of(place).map_or_else(|| id(of), |i| first_sum + i));
        }
        kernel.ops.extend(operands.into_iter().map(Op::Operand));
        let products = products.into_iter();
        let products = products.map(|(_, left, product)| Product { left: id(left), ..product });
        kernel.ops.extend(products.map(Op::Product));
        kernel.ops.extend(sums.into_iter().map(|(of, sum)| Op::Sum(Sum { of: id(of), ..sum })));
    }

    fn left(&mut self, node: NodeIndex) -> Result<Left, LowerError> {
        if let Some(i) = self.products.iter().position(|(n, ..)| *n == node) {
            return Ok(Left::Product(i));
        }
        // Chains are as long as the user wrote them, so this is a loop: GEMMs down to the first known value.
        let mut chain = vec![node];
        let mut left = loop {
            let at = chain[chain.len() - 1];
            let Kind::Gemm { .. } = &self.claims.g.graph[at].kind else {
                chain.pop();
                let transposed = chain.last().is_some_and(|by| self.turns_left(*by));
                let factors = chain.last().and_then(|by| self.row_factors(*by));
                break Left::Operand(self.operand(at, transposed, factors)?);
            };
            let Some(next) = self.claims.g.operands(at).first().copied() else {
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
        matches!(self.claims.g.graph[gemm].kind, Kind::Gemm { a_transposed: true, .. })
    }

    /// The factors of a GEMM's rows.
    fn row_factors(&self, gemm: NodeIndex) -> Option<NodeIndex> {
        let epilogue = self.claims.g.graph[gemm].kind.epilogue()?;
        let operands = self.claims.g.operands(gemm);
        epilogue.first().filter(|op| op.scales_rows())?;
        operands.get(2).copied()
    }

    /// What gathered factors are before, which have the rows of an operand that is gathered along `axis`.
    fn gathered_factors(&self, node: NodeIndex, axis: usize) -> Option<Param> {
        // Rows are the last dimension of factors.
        let value = &self.claims.g.graph[node];
        let Kind::Gather { dim, axis: along } = value.kind else { return None };
        let from = self.claims.g.operands(node).first().copied()?;
        self.claims.param(from).filter(|_| along == axis && dim + 1 == value.shape.len())
    }

    fn operand(
        &mut self,
        node: NodeIndex,
        transposed: bool,
        factors: Option<NodeIndex>,
    ) -> Result<usize, LowerError> {
        let value = &self.claims.g.graph[node];
        let operand = match (&value.kind, self.claims.param(node)) {
            (_, Some(param)) => Operand { param, gathered: None, transposed, factors: None },
            (Kind::Gather { dim, axis }, _) => {
                let operands = self.claims.g.operands(node);
                let param = operands.first().and_then(|n| self.claims.param(*n));
                let Some(param) = param else {
                    let why = "it does not gather a parameter, or rows made of one";
                    return Err(unsupported("gather", why, CATALOGUE));
                };
                if *dim != 0 || value.shape.len() != 2 {
                    let why = "it does not gather the rows of a matrix";
                    return Err(unsupported("gather", why, "use `[M, K] @ shard(0)`"));
                }
                if transposed {
                    let why = "its operand A is the result of `gather`, transposed";
                    return Err(unsupported("gemm", why, CATALOGUE));
                }
                let factors = factors.and_then(|f| self.gathered_factors(f, *axis));
                Operand { param, gathered: Some(*axis), transposed, factors }
            }
            (Kind::Elementwise(_), _) => {
                return Err(unsupported(&value.name, "no GEMM comes right before it", CATALOGUE));
            }
            (Kind::SwigluGrad, _) => {
                let why = "it is no result of a GEMM's kernel, with the caller's values before the activation";
                let help = "put it right behind `gemm`, and return it";
                return Err(unsupported(&value.name, why, help));
            }
            (kind, _) if kind.group() != Group::Dense => {
                let why = "a dense operation reads it";
                return Err(unsupported(&value.name, why, "read it in a kernel behind"));
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

    fn param(&self, node: NodeIndex, by: &str) -> Result<Param, LowerError> {
        self.claims.param(node).ok_or_else(|| {
            let why =
                format!("an operand of it is the result of `{}`", self.claims.g.graph[node].name);
            unsupported(by, why, CATALOGUE)
        })
    }

    /// A parameter that is the caller's: the threads that read it wait for nothing.
    fn given(&self, node: NodeIndex, by: &str) -> Result<Param, LowerError> {
        let param = self.param(node, by)?;
        if param >= self.claims.kernel.given {
            let why = format!(
                "its epilogue reads `{}`, which the same kernel makes",
                self.claims.value(node).name
            );
            return Err(unsupported(by, why, CATALOGUE));
        }
        Ok(param)
    }

    /// Whether factors come with an operand.
    fn arrives_with(&self, left: Left, factors: NodeIndex) -> bool {
        let Left::Operand(i) = left else { return false };
        let axis = self.operands[i].gathered;
        axis.and_then(|axis| self.gathered_factors(factors, axis)).is_some()
            && self.operands[i].factors.is_some()
    }

    /// Whether one kernel makes both operand A and its factors, so that the wait for A covers them.
    fn made_with(&self, left: Left, factors: NodeIndex) -> bool {
        let (Left::Operand(i), g) = (left, self.claims.g) else { return false };
        let Operand { param, gathered: None, .. } = self.operands[i] else { return false };
        let of = g.operands(factors).first().copied();
        g.graph[factors].kind == Kind::Factor
            && of.and_then(|n| self.claims.param(n)) == Some(param)
    }

    fn product(&self, node: NodeIndex, left: Left) -> Result<Product, LowerError> {
        let value = &self.claims.g.graph[node];
        let operands = self.claims.g.operands(node);
        let (Kind::Gemm { epilogue, a_transposed, b_transposed }, [_, b, extras @ ..]) =
            (&value.kind, operands.as_slice())
        else {
            return Err(unsupported("gemm", "it has fewer than two operands", CATALOGUE));
        };
        if *a_transposed && matches!(left, Left::Product(_)) {
            let why = "its operand A is the result of `gemm`, transposed";
            return Err(unsupported("gemm", why, CATALOGUE));
        }
        let b = self.param(*b, "gemm")?;
        let extra = |x: &NodeIndex| match self.claims.g.results.iter().position(|r| r == x) {
            Some(r) if self.claims.g.graph[*x].kind == Kind::Saved => Ok(Extra::Result(r)),
            _ if self.claims.g.graph[*x].kind == Kind::OwnHalf => Ok(Extra::OwnHalf),
            _ if self.arrives_with(left, *x) && self.row_factors(node) == Some(*x) => {
                Ok(Extra::Arriving)
            }
            _ if self.made_with(left, *x) => self.param(*x, &value.name).map(Extra::Param),
            _ => self.given(*x, &value.name).map(Extra::Param),
        };
        let list = few("gemm", extras.iter().map(extra).collect::<Result<Vec<_>, _>>()?)?;
        if epilogue.contains(&EpilogueOp::Swiglu) && !gated(epilogue) {
            let why = "something stands between it and its GEMM";
            return Err(unsupported("swiglu", why, "put `swiglu` directly behind `gemm`"));
        }
        if gate_bias(epilogue).is_some() {
            let why = "it stands between `swiglu` and a dense GEMM";
            return Err(unsupported(
                "bias",
                why,
                "put `bias` behind `swiglu`, or use `grouped_gemm`",
            ));
        }
        let mut out = tensor(value, &value.name, &self.claims.sizes);
        if halves(epilogue) {
            if !self.claims.g.results.contains(&node) || self.claims.g.uses(node) > 1 {
                let why = "another operation of the kernel reads it, or the caller does not get it";
                return Err(unsupported(
                    "swiglu_grad",
                    why,
                    "return it, and read it in a kernel behind",
                ));
            }
            out.shape.remove(1);
            out.cuts.iter_mut().filter(|cut| cut.dim == 2).for_each(|cut| cut.dim = 1);
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

/// The reduction that makes a result, over which axis, and the value that it reduces.
fn reduction(
    g: &OpGraph,
    result: NodeIndex,
) -> Result<(Option<(Reduce, usize)>, NodeIndex), LowerError> {
    let reduce = match &g.graph[result].kind {
        Kind::ReduceScatter { dim: 0, axis, .. } => (Reduce::Scatter, *axis),
        Kind::ReduceScatter { .. } => {
            return Err(unsupported("reduce_scatter", "it does not scatter rows", "use `dim = 0`"));
        }
        Kind::AllReduce { axis, .. } => (Reduce::All, *axis),
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
