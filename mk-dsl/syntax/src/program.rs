//! [`Program`]: a checked pipeline, the front end's only output.
//!
//! Architecture invariant: a `Program` is made by the checker and by nothing else, so every
//! reader may rely on the following without looking again.
//!
//! - Nodes are in topological order, and every node and every tensor reaches a result.
//! - Every type has one placement per mesh axis. Of axes that share a dimension, each in `Shard`, the outer one comes
//!   first: shards over the next are parts of its shards.
//! - `gemm` has two operands of one 16-bit dtype, or of 8-bit ones which both have K as their last dimension, `[M, K]`
//!   by `[K, N]` or `[K, G, N]`, as read (a transposed operand is stored the other way round); an elementwise op has
//!   operands of the shape and placement of its input.
//! - operand A of a `gemm` may be `[M, G, N]` where operand B is a transposed `[K, G, N]`: both are
//!   then matrices of `G * N` columns;
//! - `swiglu` has an input `[M, 2, F]` of which neither rows are partial nor dimension 1 sharded.
//! - `attention` has three operands of one 16-bit dtype and four dimensions, and no other operation but `lse`,
//!   elementwise ones and results reads what is `Zigzag`; `lse` has the result of an `attention` as its input.
//! - No symbol is unused, and no literal dimension or bound is zero or above [`MAX_DIM`].

pub use mk_dtype::{Curve, DType};
use std::{collections::BTreeMap, fmt};

/// The largest extent of one dimension, in elements: `2^30`. Kernels index in 32 bits, and round extents up to whole
/// blocks.
pub const MAX_DIM: u64 = 1 << 30;
/// The most mesh axes: the fabrics known have fewer levels.
pub(crate) const MAX_AXES: usize = 4;
/// The most dimensions of a tensor: what the kernels can address, with room.
pub(crate) const MAX_DIMS: usize = 8;

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The entity at position `index`; positions above `u32::MAX` saturate.
            pub const fn new(index: usize) -> Self {
                if index > u32::MAX as usize { Self(u32::MAX) } else { Self(index as u32) }
            }

            /// Its position in the list that owns it.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

entity! {
    /// A value: a parameter (`%0` up to the number of tensors), or the result of a node.
    ValueId, "%"
}
entity! {
    /// A symbolic dimension: an index into [`Program::symbols`].
    SymbolId, "sym"
}
entity! {
    /// A mesh axis: an index into [`Program::mesh_axes`].
    AxisId, "axis"
}

/// One dimension of a (global) shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A symbol, given a number by [`Program::bind`].
    Sym(SymbolId),
    /// A number written in the source, `1..=MAX_DIM`.
    Lit(u64),
}

/// How a value lies on the ranks of one mesh axis (the terms of PyTorch's DTensor).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Rank `r` of `n` holds the `r`-th of `n` equal parts of this dimension.
    Shard(usize),
    /// The dimension is cut into `2n` equal parts, and rank `r` of `n` holds parts `r` and `2n - 1 - r`, in order:
    /// of a causal mask, every rank has as much.
    Zigzag(usize),
    /// Every rank holds all of it.
    Replicate,
    /// Every rank holds a contribution of the same shape; the value is their sum.
    Partial,
}

/// Where the elements of a part lie, of rows seen as heads or the other way round; `alone` with one sequence.
pub(crate) fn viewed(placement: Placement, to_heads: bool, alone: bool) -> Option<Placement> {
    use Placement::{Partial, Replicate, Shard, Zigzag};
    Some(match (placement, to_heads) {
        (Replicate | Partial, _) => placement,
        (Shard(0), true) if alone => Shard(1),
        (Zigzag(0), true) if alone => Zigzag(1),
        (Shard(0), _) => Shard(0),
        (Shard(1), true) => Shard(2),
        (Shard(1), false) if alone => Shard(0),
        (Zigzag(1), false) if alone => Zigzag(0),
        (Shard(2), false) => Shard(1),
        _ => return None,
    })
}

/// The placement of `[B, H, S]` beside one of `[B, S, H, D]`.
pub(crate) fn turned(placement: &[Placement]) -> Vec<Placement> {
    let turned = placement.iter().map(|p| match *p {
        Placement::Shard(1) => Placement::Shard(2),
        Placement::Shard(2) => Placement::Shard(1),
        Placement::Zigzag(1) => Placement::Zigzag(2),
        p => p,
    });
    turned.collect()
}

impl Placement {
    /// The dimension of which each rank holds a part.
    pub const fn cut(self) -> Option<usize> {
        match self {
            Placement::Shard(dim) | Placement::Zigzag(dim) => Some(dim),
            Placement::Replicate | Placement::Partial => None,
        }
    }
}

/// Dtype, global shape and placement of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The global shape, row-major.
    pub dims: Vec<Dim>,
    /// One entry per axis of [`Program::mesh_axes`], in that order, which is also that in which axes cut a dimension.
    pub placement: Vec<Placement>,
}

/// Whether a symbol is known when the kernel is compiled, or only when it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SymbolKind {
    /// A constant of the compiled kernel.
    Fixed,
    /// Given at launch, the same on all ranks.
    Runtime {
        /// The inclusive upper bound that the source declares, in elements. Without one, the
        /// number that the program is bound with is the bound.
        max: Option<u64>,
    },
    /// Rows, of which each rank gives its own number at launch, 0 to its part: those behind them are tokens of no
    /// expert. The number that the program is bound with is the bound of all ranks together.
    Own {
        /// As of [`SymbolKind::Runtime`].
        max: Option<u64>,
    },
    /// Rows that are dispatched without a `capacity`: as many as no routing exceeds, which follows from the other
    /// numbers and the number of ranks ([`Bound::on`](crate::Bound::on)), unless one is given.
    Room,
    /// Blocks of [`SCALE_BLOCK`] elements of another symbol, the last perhaps not full.
    Blocks(SymbolId),
}

/// Elements of a block that shares a factor, along each dimension that has blocks.
pub const SCALE_BLOCK: u64 = 128;

/// What shares a factor in a matrix `[R, K]` of eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Factors {
    /// A row, `scaled(1, K)`: factors `[R]`.
    Rows,
    /// 128 elements of a row, `scaled(1, 128)`: factors `[K / 128, R]`.
    Steps,
    /// 128 elements of 128 rows, `scaled(128, 128)`: factors `[R / 128, K / 128]`; of a stack of matrices of each.
    Blocks,
}

impl Factors {
    /// The factor of an element: an index into each dimension of the factors.
    pub fn of(self, row: u64, column: u64) -> (u64, Option<u64>) {
        match self {
            Factors::Rows => (row, None),
            Factors::Steps => (column / SCALE_BLOCK, Some(row)),
            Factors::Blocks => (row / SCALE_BLOCK, Some(column / SCALE_BLOCK)),
        }
    }
}

/// A symbolic dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// The name in the source; for dimension 1 of a tensor `a` without annotation, `a_1`.
    pub name: String,
    /// When its value is known.
    pub kind: SymbolKind,
}

/// A parameter of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The value that it is.
    pub id: ValueId,
    /// Its name in the source.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
}

/// Rows of a block of ragged rows. Experts have whole blocks, one after the other: the rows of each begin where the
/// blocks of those before it end, and rows behind its last one, up to the end of the block, have no value.
pub const RAGGED_BLOCK: u64 = 128;

/// What defines a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Def<'a> {
    /// A parameter.
    Param(&'a Tensor),
    /// The result of a node.
    Node(&'a Node),
}

/// A checked pipeline: a DAG of typed operations.
///
/// ```
/// let p = mk_syntax::Program::parse("gather(a) -> gemm(b) -> gelu")?;
/// assert_eq!(p.tensors().len(), 2);
/// assert_eq!(p.nodes().len(), 3);
/// # Ok::<(), mk_syntax::Diagnostics>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) docs: Vec<String>,
    pub(crate) mesh_axes: Vec<String>,
    pub(crate) symbols: Vec<Symbol>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) results: Vec<ValueId>,
    pub(crate) result_names: Vec<String>,
    /// Routes of which rows without room are dropped.
    pub(crate) dropped: Vec<ValueId>,
    pub(crate) factors: BTreeMap<ValueId, (ValueId, Factors)>,
}

impl Program {
    /// The item's name; for a bare chain, its operations joined by `_`. An ASCII identifier.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lines of the doc comment, without `///`.
    pub fn docs(&self) -> &[String] {
        &self.docs
    }

    /// The names of the mesh axes, at least one. A program that names none has `world`.
    pub fn mesh_axes(&self) -> &[String] {
        &self.mesh_axes
    }

    /// The symbolic dimensions, indexed by [`SymbolId`].
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The parameters, in order; the first values.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The operations, in topological order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The results, in order, at least one. The same value may be a result twice.
    pub fn results(&self) -> &[ValueId] {
        &self.results
    }

    /// What kernels and arguments call the results, as many as [`Program::results`], each unlike
    /// the others and unlike every parameter: `out` for one alone; of several, the name that a
    /// `let` gave it, or `out` and its position.
    pub fn result_names(&self) -> &[String] {
        &self.result_names
    }

    /// The number of values: parameters and node results.
    pub fn n_values(&self) -> usize {
        self.tensors.len() + self.nodes.len()
    }

    /// What defines `value`; `None` if it is of another program and out of range here.
    pub fn def(&self, value: ValueId) -> Option<Def<'_>> {
        let i = value.index();
        match self.tensors.get(i) {
            Some(tensor) => Some(Def::Param(tensor)),
            None => self.nodes.get(i - self.tensors.len()).map(Def::Node),
        }
    }

    /// The type of `value`; `None` if it is out of range.
    pub fn ty(&self, value: ValueId) -> Option<&TensorType> {
        self.def(value).map(|def| match def {
            Def::Param(tensor) => &tensor.ty,
            Def::Node(node) => &node.ty,
        })
    }

    /// How many experts there are, of rows that these counts, or this route, say the experts of, by what reads the
    /// rows.
    pub fn experts_of(&self, counts: ValueId) -> Option<Dim> {
        self.nodes.iter().filter(|n| n.inputs.get(2) == Some(&counts)).find_map(|n| match n.op {
            Op::GroupedGemm { .. } => self.ty(n.inputs[1])?.dims.first().copied(),
            Op::GroupedWgrad => n.ty.dims.first().copied(),
            _ => None,
        })
    }

    /// Whether rows by a route are those that were kept, where others had no room.
    pub fn drops(&self, ids: ValueId) -> bool {
        self.dropped.contains(&ids)
    }

    /// Whether a launch may have none: of a runtime symbol that counts the tokens of a `dispatch`, if no GEMM sums over
    /// them.
    pub fn may_be_zero(&self, symbol: SymbolId) -> bool {
        let dim = Dim::Sym(symbol);
        let runtime = |s: &Symbol| matches!(s.kind, SymbolKind::Runtime { .. });
        let has = |value: &ValueId| self.ty(*value).is_some_and(|ty| ty.dims.contains(&dim));
        let routes = |n: &Node| matches!(n.op, Op::Dispatch { .. });
        let counts = |n: &Node| {
            routes(n)
                && n.inputs.get(1).and_then(|ids| self.ty(*ids)?.dims.first().copied()) == Some(dim)
        };
        let sums = |n: &Node| {
            matches!(n.op, Op::Gemm { .. }) && n.inputs.iter().any(has) && !n.ty.dims.contains(&dim)
        };
        self.symbols.get(symbol.index()).is_some_and(runtime)
            && self.nodes.iter().any(counts)
            && !self.nodes.iter().any(sums)
    }

    /// Whether each rank has its own number of these.
    pub fn is_own(&self, dim: Dim) -> bool {
        let Dim::Sym(symbol) = dim else { return false };
        let own = |s: &Symbol| matches!(s.kind, SymbolKind::Own { .. });
        self.symbols.get(symbol.index()).is_some_and(own)
    }

    /// The factors of a value of eight bits, if it has some, and what shares one.
    pub fn factors(&self, value: ValueId) -> Option<(ValueId, Factors)> {
        self.factors.get(&value).copied()
    }

    /// Whether a node is written as a part of another: factors, which go with their values, and values of eight bits
    /// with theirs as `gemm` reads them.
    pub fn is_implied(&self, node: &Node) -> bool {
        self.is_operand(node) || self.factors.values().any(|(id, _)| *id == node.result)
    }

    /// An operation with what goes with it: operands with their factors before it, and its own factors behind it.
    pub fn unit(&self, node: &Node) -> Vec<ValueId> {
        let node_of = |id: &ValueId| match self.def(*id) {
            Some(Def::Node(node)) => Some(node),
            _ => None,
        };
        let operand = |id: &ValueId| node_of(id).is_some_and(|n| self.is_operand(n));
        let before = node.inputs.iter().copied().filter(operand);
        let factors = self.factors(node.result).map(|(id, _)| id);
        let own = factors.filter(|id| node_of(id).is_some());
        before.chain([node.result]).chain(own).collect()
    }

    /// Whether it is an operand of `gemm` with its factors.
    fn is_operand(&self, node: &Node) -> bool {
        matches!(node.op, Op::Dequantize(_)) && node.ty.dtype == DType::F32
    }

    /// What the text of a node reads: values of eight bits without their factors.
    pub fn written_inputs(&self, node: &Node) -> Vec<ValueId> {
        let stored = |id: &ValueId| match self.def(*id) {
            Some(Def::Node(operand)) if self.is_operand(operand) => operand.inputs[0],
            _ => *id,
        };
        match node.op {
            Op::Dequantize(_) => node.inputs[..1].to_vec(),
            _ => node.inputs.iter().map(stored).collect(),
        }
    }

    /// The symbol called `name`.
    pub fn symbol(&self, name: &str) -> Option<SymbolId> {
        self.symbols.iter().position(|s| s.name == name).map(SymbolId::new)
    }

    /// The parameter called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

/// One operation. The comment gives `inputs -> result`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// `[x] -> y`: `Shard(dim)` over `axis` becomes `Replicate`.
    Gather {
        /// The mesh axis gathered over.
        axis: AxisId,
        /// The sharded dimension.
        dim: usize,
    },
    /// `[a: [M, K], b: [K, N]] -> [M, N]`, or `[a: [M, K], b: [K, G, N]] -> [M, G, N]`;
    /// accumulated in f32. A transposed operand is of type `[K, M]` or `[N, K]`, and its
    /// placement is that of what is stored.
    Gemm {
        /// Operand A is stored as `[K, M]`.
        a_transposed: bool,
        /// Operand B is stored as `[N, K]`.
        b_transposed: bool,
    },
    /// `[x: [R, K], w: [E, K, N], counts: i32 [E]] -> [R, N]`, or with `[E, K, G, N]`, `[R, G, N]`; accumulated in f32.
    /// Rows are ragged: see [`RAGGED_BLOCK`]. Those of expert `e` are multiplied by matrix `e`; others have no value.
    /// Transposed, `[x: [R, N], w: [E, K, N], counts] -> [R, K]`, or of `[R, G, N]` and `[E, K, G, N]`.
    GroupedGemm {
        /// Matrices are read the other way round: `[E, K, N]` is stored.
        transposed: bool,
    },
    /// `[x: [R, K], dy: [R, N], counts: i32 [E]] -> [E, K, N]`, or of `[R, G, N]`, `[E, K, G, N]`: gradients of the
    /// matrices of [`Op::GroupedGemm`]. Of each expert its rows of `x`, the other way round, times those of `dy`,
    /// accumulated in f32; zeros of one without rows.
    GroupedWgrad,
    /// `[x: [T, H], ids: i32 or i64 [T, K]] -> [R, H]`: the ragged rows of each rank's experts are the tokens that go
    /// to them, in their order. Each token goes to K experts, each once. With `weights: f32 [T, K]` each row is its
    /// token times the weight of its slot, rounded once.
    Dispatch {
        /// Of an expert's rows the first ones are kept, in the order of tokens, as many whole blocks as each expert of
        /// a rank may have; others are dropped. Else rows without room end the launch.
        drops: bool,
    },
    /// `[scales: f32 [C / 128, T], ids: i32 or i64 [T, K]] -> [C / 128, R]`: the factors of the rows that
    /// [`Op::Dispatch`] makes of the same ids.
    DispatchFactors,
    /// `[rows: [R, H], ids: i32 or i64 [T, K]] -> i32 [1]`, where `rows` is a result of [`Op::Dispatch`]: how many rows
    /// of its tokens each rank lost. Ranks have contributions to the sum.
    Dropped,
    /// `[x: [R, C], scales: f32 [R]] -> [R, C]`: 8-bit values times the factors of their blocks. In f32 it is an
    /// operand of `gemm` alone, whose result has these factors; in bf16 it is rounded once.
    Dequantize(Factors),
    /// `[x: [R, C]] -> [R, C]` of eight bits: each block of `x` over its factor, rounded to nearest even.
    /// [`Op::Factor`] of the result is the factor, the block's largest magnitude over the largest number of the dtype;
    /// 1 of zeros.
    Quantize(Factors),
    /// `[q: [R, C]] -> f32 [C / 128, R]`, where `q` is a result of `quantize`: the factors of its blocks.
    Factor(Factors),
    /// `[y: [R, N], ids: i32 or i64 [T, K], weights: f32 [T, K]] -> [T, N]`: of each token the sum of its experts'
    /// rows, each times its weight, in f32 and the order of slots.
    Combine,
    /// `[y: [R, N], ids: i32 or i64 [T, K], dy: [T, N]] -> f32 [T, K]`: gradients of the weights of [`Op::Combine`]. Of
    /// each slot the product of its row and the token's of `dy`, accumulated in f32; 0 where it has no row.
    CombineGrad,
    /// `[y: [R, N], ids: i32 or i64 [T, K], weights: f32 [T, K]] -> [R, N]`: each row times the weight of its token's
    /// slot, in f32.
    Weigh,
    /// `[d: [R, N], ids: i32 or i64 [T, K], y: [R, N]] -> f32 [T, K]`: gradients of the weights of [`Op::Weigh`]. Of
    /// each slot the product of its rows of `d` and `y`, accumulated in f32; 0 where it has no row.
    WeighGrad,
    /// `[x] -> y`: `Partial` over `axis` becomes `Shard(dim)`.
    ReduceScatter {
        /// The mesh axis summed over.
        axis: AxisId,
        /// The dimension that the result is sharded in.
        dim: usize,
    },
    /// `[x] -> y`: `Partial` over `axis` becomes `Replicate`.
    AllReduce {
        /// The mesh axis summed over.
        axis: AxisId,
    },
    /// `[x] -> y`: `Shard(concat)` over `axis` becomes `Shard(split)`.
    AllToAll {
        /// The mesh axis whose ranks exchange parts.
        axis: AxisId,
        /// The dimension that the result is sharded in.
        split: usize,
        /// The dimension that becomes whole.
        concat: usize,
    },
    /// `[x: [.., N], c: [N]] -> x + c`.
    Bias,
    /// `[x] -> f(x)`.
    Curve(Curve),
    /// `[dy, x] -> dy * f'(x)`: backward of the curve `f`.
    Slope(Curve),
    /// `[d: [M, F], x: [M, 2, F]] -> [M, 2, F]`: backward of `swiglu`.
    SwigluGrad,
    /// `[x: [M, 2, F]] -> [M, F]`: `silu(x[:, 0, :]) * x[:, 1, :]`. Gate is index 0, up is 1.
    Swiglu,
    /// `[x: [.., N], g: [N]] -> x / sqrt(mean(x^2) + eps) * g`, the mean of each row; without `g` not times anything.
    RmsNorm {
        /// Positive and finite.
        eps: f64,
    },
    /// `[dy, x: [.., N], g: [N]] -> [.., N]`: backward of `rmsnorm`, with respect to `x`; `g` is there if it was there.
    RmsNormGrad {
        /// As [`Op::RmsNorm`] has it.
        eps: f64,
    },
    /// `[x: [M, H * D], t: f32 [M, D]] -> [M, H * D]`: each head of a row turned by the row's angles, of which `t` has
    /// D / 2 cosines and then D / 2 sines. Elements `i` and `i + D / 2` of a head are a pair: `(x, y)` becomes
    /// `(x cos - y sin, y cos + x sin)`.
    Rope {
        /// By the angles the other way: the backward of `rope`.
        back: bool,
    },
    /// `[x: [M, K]] -> [B, S, H, D]`, or the way back, of which `M = B * S` and `K = H * D`: the same elements in the
    /// same order.
    View,
    /// `[x, y] -> x * y`.
    Mul,
    /// `[x, y] -> x + y`.
    Add,
    /// `[q: [B, S, H, D], k: [B, S, G, D], v: [B, S, G, D]] -> [B, S, H, D]`: `softmax(scale * q k^T) v` of each head,
    /// the softmax in f32; head `h` of queries reads head `h / (H / G)` of keys and values. With sinks a fourth
    /// operand, `f32 [H]`, is what each sum of a head has the exponential of, too. Of packed sequences a last operand,
    /// `i32 [N]`, says where documents begin, and the last one ends; so it does in the gradients.
    Attention {
        /// Which scores there are.
        scores: Scores,
        /// The axis over which `k` and `v` are sharded along the sequence, and passed to every rank.
        ring: Option<AxisId>,
    },
    /// `[o: [B, S, H, D]] -> f32 [B, H, S]`, where `o` is a result of `attention`: the logarithms of the sums of
    /// exponentials by which its rows are divided.
    Lse,
    /// `[o: [B, S, H, D], do: [B, S, H, D], lse: f32 [B, H, S]] -> f32 [B, H, S, 4]`: of each query `lse`, the sum of
    /// `o * do`, and two zeros.
    AttentionStats,
    /// `[q, do: [B, S, H, D], stats: f32 [B, H, S, 4], k, v: [B, S, G, D]] -> [B, S, H, D]`: gradients of the queries
    /// of an [`Op::Attention`] with the same scores, `do` being those of its results.
    AttentionDq {
        /// As [`Op::Attention`] has them.
        scores: Scores,
        /// The axis over which `k` and `v` are passed to every rank.
        ring: Option<AxisId>,
    },
    /// `[k, v: [B, S, G, D], q, do: [B, S, H, D], stats: f32 [B, H, S, 4]] -> [B, S, G, D]`: gradients of the keys.
    AttentionDk {
        /// As [`Op::Attention`] has them.
        scores: Scores,
        /// The axis over which `q`, `do` and `stats` are passed to every rank.
        ring: Option<AxisId>,
    },
    /// `[dk: [B, S, G, D]] -> [B, S, G, D]`, where `dk` is a result of `attention_dk`: gradients of the values beside
    /// it.
    AttentionDv,
    /// `[stats: f32 [B, H, S, 4], s: f32 [H]] -> f32 [1, H]`: gradients of the sinks of an [`Op::Attention`]: of each
    /// head the sum over its queries of `-exp(s - lse) * delta`, the first two of a query's statistics.
    AttentionDsinks,
    /// `[x] -> factor * x`; the factor is finite.
    Scale(f64),
    /// `[x] -> x` as this dtype, rounded to nearest even.
    Cast(DType),
}

/// Which scores attention has, and what becomes of them before the softmax.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// A query sees keys at its own position and before.
    pub causal: bool,
    /// Keys that a query sees, its own the last of them: 1 or more; only where `causal` is.
    pub window: Option<u32>,
    /// `softcap * tanh(score / softcap)` of scaled scores; it is positive and finite.
    pub softcap: Option<f64>,
    /// The factor, `1 / sqrt(D)` unless given; it is finite.
    pub scale: Option<f64>,
    /// The sequence has documents, and a query sees keys of its own one: an operand says where they begin.
    pub packed: bool,
    /// Sums have the exponential of a sink in them, which an operand of the forward has of each head.
    pub sinks: bool,
}

impl Scores {
    /// As a stage has them behind its operands.
    pub fn words(self) -> Vec<String> {
        let mut words: Vec<String> = self.causal.then(|| "causal".to_owned()).into_iter().collect();
        words.extend(self.window.map(|n| format!("window = {n}")));
        words.extend(self.softcap.map(|c| format!("softcap = {c:?}")));
        words.extend(self.scale.map(|s| format!("scale = {s:?}")));
        words
    }

    /// Names those of an attention's operands, or of its gradients', that are said by name.
    pub fn name(self, operands: &mut [String]) {
        let mut last = operands.iter_mut().rev();
        for (is, name) in [(self.packed, "cu_seqlens"), (self.sinks, "sinks")] {
            if let Some(operand) = is.then(|| last.next()).flatten() {
                *operand = format!("{name} = {operand}");
            }
        }
    }
}

impl Node {
    /// What the sums of an attention have the exponentials of, head by head.
    pub fn sinks(&self) -> Option<ValueId> {
        match self.op {
            Op::Attention { scores: Scores { sinks: true, .. }, .. } => self.inputs.get(3).copied(),
            _ => None,
        }
    }

    /// Where documents begin, of an attention of packed sequences or of its gradients.
    pub fn documents(&self) -> Option<ValueId> {
        match self.op {
            Op::Attention { scores, .. }
            | Op::AttentionDq { scores, .. }
            | Op::AttentionDk { scores, .. } => {
                self.inputs.last().copied().filter(|_| scores.packed)
            }
            _ => None,
        }
    }
}

impl Op {
    /// Its name in the source language.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Gather { .. } => "gather",
            Op::Gemm { .. } => "gemm",
            Op::GroupedGemm { .. } => "grouped_gemm",
            Op::GroupedWgrad => "grouped_wgrad",
            Op::Dispatch { .. } | Op::DispatchFactors => "dispatch",
            Op::Dropped => "dropped",
            Op::Combine => "combine",
            Op::CombineGrad => "combine_grad",
            Op::Weigh => "weigh",
            Op::WeighGrad => "weigh_grad",
            Op::Dequantize(_) => "dequantize",
            Op::Quantize(_) => "quantize",
            Op::Factor(_) => "factor",
            Op::ReduceScatter { .. } => "reduce_scatter",
            Op::AllReduce { .. } => "all_reduce",
            Op::AllToAll { .. } => "all_to_all",
            Op::Bias => "bias",
            Op::Curve(curve) => curve.name(),
            Op::Slope(curve) => curve.grad(),
            Op::SwigluGrad => "swiglu_grad",
            Op::Swiglu => "swiglu",
            Op::RmsNorm { .. } => "rmsnorm",
            Op::RmsNormGrad { .. } => "rmsnorm_grad",
            Op::Rope { back: false } => "rope",
            Op::Rope { back: true } => "rope_grad",
            Op::View => "view",
            Op::Mul => "mul",
            Op::Add => "add",
            Op::Attention { .. } => "attention",
            Op::Lse => "lse",
            Op::AttentionStats => "attention_stats",
            Op::AttentionDq { .. } => "attention_dq",
            Op::AttentionDk { .. } => "attention_dk",
            Op::AttentionDv => "attention_dv",
            Op::AttentionDsinks => "attention_dsinks",
            Op::Scale(_) => "scale",
            Op::Cast(_) => "cast",
        }
    }

    /// Whether it computes each element from one element of each operand.
    pub const fn is_elementwise(self) -> bool {
        matches!(
            self,
            Op::Bias | Op::Curve(_) | Op::Slope(_) | Op::Mul | Op::Add | Op::Scale(_) | Op::Cast(_)
        )
    }
}

/// One operation applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value that it defines.
    pub result: ValueId,
    /// The operation.
    pub op: Op,
    /// Its operands, each defined before `result`; [`Op`] gives their order.
    pub inputs: Vec<ValueId>,
    /// The type of the result.
    pub ty: TensorType,
}
