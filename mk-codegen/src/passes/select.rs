//! Recognises what one kernel can be made of.
//!
//! Assumes fused epilogues. Leaves a [`Kernel`]: left operands from the caller, gathered or not; matrix products, each of
//! a left operand or of a product before it; results, each a product (summed over ranks or not) or a gathered operand; or
//! one collective alone. Everything else is refused by name, with what works instead.

use super::{LowerError, gemm::even};
use crate::graph::{Extent, Kind, OpGraph, Value};
use crate::ir::{self, EPILOGUE_OPERANDS, EpilogueOp};
use mk_abi::DType;
use mk_syntax::Placement;
use petgraph::stable_graph::NodeIndex;

/// What the kernel computes.
pub(super) struct Kernel {
    pub name: String,
    pub axis: String,
    /// What the caller gives, in the order of the program.
    pub params: Vec<Tensor>,
    /// Left operands that no product makes.
    pub sources: Vec<Source>,
    /// Matrix products; each after those that it reads.
    pub gemms: Vec<Gemm>,
    /// What the caller gets, in the order of the program.
    pub results: Vec<Outcome>,
}

/// An index into [`Kernel::params`].
pub(super) type Param = usize;

/// Where the sums go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduce {
    /// Each rank gets its rows.
    Scatter,
    /// Each rank gets all rows.
    All,
}

/// A caller's tensor, or a result: as it lies in memory.
#[derive(Clone)]
pub(super) struct Tensor {
    pub name: String,
    pub dtype: DType,
    /// Global.
    pub shape: Vec<Extent>,
    pub placement: Placement,
}

/// A parameter as an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub param: Param,
    /// Sharded by rows, and gathered.
    pub gathered: bool,
    pub transposed: bool,
}

/// A value that tasks read or results are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    Source(usize),
    Gemm(usize),
}

/// A matrix, or vector, of a product's epilogue.
#[derive(Clone, Copy)]
pub(super) enum Extra {
    Param(Param),
    /// An index into [`Kernel::results`].
    Result(usize),
}

/// One product with its elementwise tail.
pub(super) struct Gemm {
    pub left: Made,
    pub b: Param,
    pub b_transposed: bool,
    /// After the tail.
    pub out: Tensor,
    pub epilogue: Vec<EpilogueOp>,
    /// Operands of the epilogue, in order.
    pub extras: Vec<Extra>,
}

impl Gemm {
    /// Whether columns of `b` come in pairs of gate and up.
    pub fn gated(&self) -> bool {
        ir::gated(&self.epilogue)
    }
}

/// One result.
pub(super) struct Outcome {
    /// None for what an epilogue saves, which names it as an [`Extra`].
    pub of: Option<Made>,
    pub reduce: Option<Reduce>,
    /// What is done to the sums, if it is one, before they are rounded.
    pub epilogue: Vec<EpilogueOp>,
    /// Operands of that, in order.
    pub extras: Vec<Param>,
    pub out: Tensor,
}

impl Kernel {
    /// The left operand at the head of the chain that a product ends.
    pub fn root(&self, mut gemm: usize) -> usize {
        loop {
            match self.gemms[gemm].left {
                Made::Source(s) => return s,
                Made::Gemm(g) => gemm = g,
            }
        }
    }

    /// The sum over ranks that a product ends in.
    pub fn reduce_of(&self, gemm: usize) -> Option<(usize, Reduce)> {
        let found =
            self.results.iter().position(|r| r.of == Some(Made::Gemm(gemm)) && r.reduce.is_some());
        found.and_then(|i| self.results[i].reduce.map(|how| (i, how)))
    }

    /// What every rank has of a result before it is summed.
    pub fn summand(&self, result: usize) -> Tensor {
        let r = &self.results[result];
        let dtype = match r.of {
            Some(Made::Gemm(g)) => self.gemms[g].out.dtype,
            Some(Made::Source(s)) => self.params[self.sources[s].param].dtype,
            None => r.out.dtype,
        };
        Tensor { dtype, ..r.out.clone() }
    }

    /// The result that a value is, unsummed.
    pub fn result_of(&self, value: Made) -> Option<usize> {
        self.results.iter().position(|r| r.of == Some(value) && r.reduce.is_none())
    }

    /// Whether a product's inner dimension may be cut and the parts be added up: nothing else is done to the whole, and all
    /// ranks have equally many steps.
    pub fn can_cut(&self, gemm: usize, world: i32) -> bool {
        let g = &self.gemms[gemm];
        let even = match g.left {
            Made::Source(s) if self.sources[s].gathered => true,
            Made::Source(s) => {
                let Source { param, transposed, .. } = self.sources[s];
                even(&self.params[param], usize::from(!transposed), world)
            }
            Made::Gemm(i) => even(&self.gemms[i].out, 1, world),
        };
        let plain = g.epilogue.iter().all(|op| *op == EpilogueOp::Widen);
        even && plain
    }

    /// Products that read a product.
    pub fn readers(&self, gemm: usize) -> bool {
        self.gemms.iter().any(|g| g.left == Made::Gemm(gemm))
    }
}

pub(super) fn unsupported(op: &str, why: impl Into<String>, help: &str) -> LowerError {
    LowerError::Unsupported { op: op.into(), why: why.into(), help: help.into() }
}

const CATALOGUE: &str = "one kernel holds gathers of parameters, matrix products with elementwise operations after each, \
                         and `reduce_scatter` or `all_reduce` of products, with elementwise operations after them, as results";

/// Runs the pass.
///
/// # Errors
/// For every pipeline that is not in the catalogue.
pub(super) fn kernel(g: &OpGraph, ranks: u32) -> Result<Kernel, LowerError> {
    let [axis] = g.axes.as_slice() else {
        let why = format!("the mesh has the axes {}", g.axes.join(", "));
        return Err(unsupported("mesh", why, "use one axis"));
    };
    let mut builder = Builder { g, params: Vec::new(), sources: Vec::new(), gemms: Vec::new() };
    builder.params = g.graph.node_indices().filter(|n| g.graph[*n].kind == Kind::Param).collect();
    // What is summed is multiplied first, so that it is under way beside the other products.
    let mut order: Vec<_> = g.results.iter().zip(&g.result_names).enumerate().collect();
    let is_sum = |node: NodeIndex| {
        matches!(g.graph[node].kind, Kind::ReduceScatter { .. } | Kind::AllReduce { .. })
    };
    order.sort_by_key(|(_, (node, _))| !is_sum(**node));
    let mut results: Vec<(usize, Outcome)> = Vec::new();
    for (place, (node, name)) in order {
        let (reduce, of) = reduction(g, *node)?;
        let value = &g.graph[*node];
        let saved = value.kind == Kind::Saved;
        let of = if saved { None } else { Some(builder.made(of)?) };
        let (mut epilogue, mut extras) = (Vec::new(), Vec::new());
        if reduce.is_some() {
            epilogue.extend_from_slice(value.kind.epilogue().unwrap_or_default());
            let operands = g.operands(*node);
            let list = operands.iter().skip(1).map(|x| builder.param(*x, &value.name));
            extras = few(&value.name, list.collect::<Result<_, _>>()?)?;
        }
        let out = Tensor { name: name.clone(), ..tensor(value) };
        results.push((place, Outcome { of, reduce, epilogue, extras, out }));
    }
    results.sort_by_key(|(place, _)| *place);
    let Builder { params, sources, gemms, .. } = builder;
    let gemms = gemms.into_iter().map(|(_, gemm)| gemm).collect();
    let kernel = Kernel {
        name: g.name.clone(),
        axis: axis.clone(),
        params: params.iter().map(|n| tensor(&g.graph[*n])).collect(),
        sources,
        gemms,
        results: results.into_iter().map(|(_, result)| result).collect(),
    };
    check(&kernel, g, ranks)?;
    Ok(kernel)
}

/// Collects sources and products, operands before their readers.
struct Builder<'g> {
    g: &'g OpGraph,
    params: Vec<NodeIndex>,
    sources: Vec<Source>,
    gemms: Vec<(NodeIndex, Gemm)>,
}

impl Builder<'_> {
    fn made(&mut self, node: NodeIndex) -> Result<Made, LowerError> {
        if let Some(i) = self.gemms.iter().position(|(n, _)| *n == node) {
            return Ok(Made::Gemm(i));
        }
        // Chains are as long as the user wrote them, so this is a loop: products down to the first known value.
        let mut chain = vec![node];
        let mut left = loop {
            let at = chain[chain.len() - 1];
            let Kind::Gemm { .. } = &self.g.graph[at].kind else {
                chain.pop();
                let transposed = chain.last().is_some_and(|by| self.turns_left(*by));
                break Made::Source(self.source(at, transposed)?);
            };
            let Some(next) = self.g.operands(at).first().copied() else {
                return Err(unsupported("gemm", "it has fewer than two operands", CATALOGUE));
            };
            if let Some(i) = self.gemms.iter().position(|(n, _)| *n == next) {
                break Made::Gemm(i);
            }
            chain.push(next);
        };
        while let Some(at) = chain.pop() {
            let gemm = self.product(at, left)?;
            self.gemms.push((at, gemm));
            left = Made::Gemm(self.gemms.len() - 1);
        }
        Ok(left)
    }

    fn turns_left(&self, gemm: NodeIndex) -> bool {
        matches!(self.g.graph[gemm].kind, Kind::Gemm { a_transposed: true, .. })
    }

    fn source(&mut self, node: NodeIndex, transposed: bool) -> Result<usize, LowerError> {
        let value = &self.g.graph[node];
        let source = match &value.kind {
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
                Source { param: self.param(param, "gather")?, gathered: true, transposed }
            }
            Kind::Param => Source { param: self.param(node, "gemm")?, gathered: false, transposed },
            Kind::Elementwise(_) => {
                return Err(unsupported(&value.name, self.why_alone(node), CATALOGUE));
            }
            _ => {
                let why = "it is not the first or last operation";
                return Err(unsupported(&value.name, why, CATALOGUE));
            }
        };
        Ok(self.sources.iter().position(|s| *s == source).unwrap_or_else(|| {
            self.sources.push(source);
            self.sources.len() - 1
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

    fn product(&self, node: NodeIndex, left: Made) -> Result<Gemm, LowerError> {
        let value = &self.g.graph[node];
        let operands = self.g.operands(node);
        let (Kind::Gemm { epilogue, a_transposed, b_transposed }, [_, b, extras @ ..]) =
            (&value.kind, operands.as_slice())
        else {
            return Err(unsupported("gemm", "it has fewer than two operands", CATALOGUE));
        };
        if *a_transposed && matches!(left, Made::Gemm(_)) {
            let why = "its left operand is the result of `gemm`, transposed";
            return Err(unsupported("gemm", why, CATALOGUE));
        }
        let b = self.param(*b, "gemm")?;
        let extra = |x: &NodeIndex| match self.g.results.iter().position(|r| r == x) {
            Some(r) if self.g.graph[*x].kind == Kind::Saved => Ok(Extra::Result(r)),
            _ => self.param(*x, &value.name).map(Extra::Param),
        };
        let list = few("gemm", extras.iter().map(extra).collect::<Result<Vec<_>, _>>()?)?;
        if epilogue.contains(&EpilogueOp::Swiglu) && !ir::gated(epilogue) {
            let why = "something stands between it and its matrix product";
            return Err(unsupported("swiglu", why, "put `swiglu` directly behind `gemm`"));
        }
        if value.shape.len() != 2 {
            let why = "its result has more than two dimensions";
            return Err(unsupported("gemm", why, "put `swiglu` behind it, or use `[K, N]`"));
        }
        Ok(Gemm {
            left,
            b,
            b_transposed: *b_transposed,
            out: tensor(value),
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
    // `kernel` has checked that there is one axis.
    let placement = v.placement.first().copied().unwrap_or(Placement::Replicate);
    Tensor { name: v.name.clone(), dtype: v.dtype, shape: v.shape.clone(), placement }
}

fn check(k: &Kernel, g: &OpGraph, ranks: u32) -> Result<(), LowerError> {
    if g.graph.node_weights().any(|v| v.shape.iter().skip(1).any(|e| e.runtime_max.is_some())) {
        let why = "a run-time dimension is not the first of its tensor";
        return Err(unsupported("dyn", why, "let it count rows of left operands and results"));
    }
    let runtime = g.graph.node_weights().flat_map(|v| &v.shape).filter(|e| e.runtime_max.is_some());
    let names: std::collections::BTreeSet<_> = runtime.filter_map(|e| e.symbol.as_ref()).collect();
    if names.len() > 1 {
        let why = format!("{} of them come with each launch", names.len());
        return Err(unsupported("dyn", why, "let one symbol be `dyn`"));
    }
    if k.gemms.is_empty() {
        return alone(k);
    }
    for (i, r) in k.results.iter().enumerate() {
        let Some(of) = r.of else { continue };
        if k.results[..i].iter().any(|other| other.of == r.of && other.reduce == r.reduce) {
            return Err(unsupported("pipeline", "it returns one value twice", "return it once"));
        }
        match of {
            Made::Source(s) if !k.sources[s].gathered || r.reduce.is_some() => {
                let name = &k.params[k.sources[s].param].name;
                return Err(unsupported(
                    name,
                    "nothing is computed between it and a result",
                    CATALOGUE,
                ));
            }
            Made::Source(_) | Made::Gemm(_) => {}
        }
    }
    k.gemms.iter().try_for_each(|gemm| product(k, gemm, ranks))
}

/// One collective, on one matrix.
fn alone(k: &Kernel) -> Result<(), LowerError> {
    let ([source], [result]) = (k.sources.as_slice(), k.results.as_slice()) else {
        return Err(unsupported(
            "pipeline",
            "it has several collectives and no product",
            CATALOGUE,
        ));
    };
    let x = &k.params[source.param];
    if source.gathered == result.reduce.is_some() {
        let why = if source.gathered {
            "nothing is computed between the collectives"
        } else {
            "it is returned as it came"
        };
        return Err(unsupported(&x.name, why, CATALOGUE));
    }
    if source.transposed {
        return Err(unsupported(&x.name, "a collective moves it as it lies", "leave out `.t`"));
    }
    if x.dtype == DType::F32 {
        let why = "collectives alone move bf16 and f16";
        return Err(unsupported(&x.name, why, "use bf16 or f16"));
    }
    Ok(())
}

fn product(k: &Kernel, g: &Gemm, ranks: u32) -> Result<(), LowerError> {
    let ranks = ranks as i32;
    let b = &k.params[g.b];
    let (dtype, depth) = match g.left {
        Made::Source(s) => {
            let x = &k.params[k.sources[s].param];
            if x.shape.len() != 2 {
                return Err(unsupported("gemm", "its left operand is not a matrix", CATALOGUE));
            }
            let d = if k.sources[s].transposed { 0 } else { 1 };
            let sharded = !k.sources[s].gathered && x.placement == Placement::Shard(d);
            (x.dtype, sharded.then(|| x.shape[d].value))
        }
        Made::Gemm(i) => {
            let x = &k.gemms[i].out;
            (x.dtype, (x.placement == Placement::Shard(1)).then(|| x.shape[1].value))
        }
    };
    if dtype != b.dtype || dtype == DType::F32 {
        let why = "its operands are not bf16, or f16, both";
        return Err(unsupported("gemm", why, "use one 16-bit dtype, or `cast` between products"));
    }
    if b.shape.iter().any(|e| e.runtime_max.is_some()) {
        let why = format!("the size of `{}` comes with each launch", b.name);
        return Err(unsupported("gemm", why, "let `dyn` count rows of left operands and results"));
    }
    if g.gated() && g.b_transposed {
        let why = "its weights are transposed";
        return Err(unsupported("swiglu", why, "store them as `[K, 2, F]`"));
    }
    if let Some(depth) = depth
        && depth % ranks != 0
        && (depth + ranks - 1) / ranks * (ranks - 1) >= depth
    {
        let why = format!("a depth of {depth} leaves some of {ranks} ranks without work");
        return Err(unsupported("gemm", why, "use a depth that every rank has a part of"));
    }
    Ok(())
}
