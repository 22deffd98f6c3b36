//! The op graph: a checked pipeline with numbers for its symbols, as a DAG that passes can rewrite.

use mk_abi::DType;
use mk_plan::{EpilogueOp, GradOf, Mask};
use mk_syntax::{Bound, Def, Dim, Factors, Node, Op, Placement, Program, Scores, ValueId};
use petgraph::{
    Direction,
    stable_graph::{NodeIndex, StableDiGraph},
    visit::{EdgeRef, Topo},
};

/// An extent: its number, and the symbol that names it in plans and kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Elements, global.
    pub value: i32,
    /// Name, where the source gave one.
    pub symbol: Option<String>,
    /// Upper bound, if the value comes with each launch; `value` is then what the plan is checked at.
    pub runtime_max: Option<i32>,
    /// Whether a launch may have none.
    pub may_be_zero: bool,
    /// Whether each rank has its own number of them, up to its part.
    pub own: bool,
    /// Whether those are the parts of a number that comes with each launch.
    pub of_launch: bool,
}

impl Extent {
    /// A number that no launch decides, and all ranks have.
    pub fn fixed(value: i32) -> Extent {
        Extent { value, ..Extent::default() }
    }

    /// The most that it can be.
    pub fn capacity(&self) -> i32 {
        self.runtime_max.unwrap_or(self.value)
    }
}

/// A value of the pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name of the parameter, or of the operation.
    pub name: String,
    /// How it comes about.
    pub kind: Kind,
    /// Element type.
    pub dtype: DType,
    /// Global shape, row-major.
    pub shape: Vec<Extent>,
    /// Placement on each mesh axis.
    pub placement: Vec<Placement>,
}

/// Which scores an attention has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored {
    /// Keys that a query sees.
    pub mask: Mask,
    /// The bits of the f32 that capped scores stay below.
    pub cap: Option<u32>,
    /// The factor's f32 bits, where it is not `1 / sqrt(D)`.
    pub scale: Option<u32>,
    /// Queries see keys of their own document: the last operand says where these begin.
    pub packed: bool,
    /// The fourth operand has a sink of each head.
    pub sinks: bool,
}

impl From<Scores> for Scored {
    fn from(s: Scores) -> Scored {
        let bits = |x: Option<f64>| x.map(|x| (x as f32).to_bits());
        Scored {
            mask: Mask::of(s.causal, s.window),
            cap: bits(s.softcap),
            scale: bits(s.scale),
            packed: s.packed,
            sinks: s.sinks,
        }
    }
}

/// Operations that one part of the passes claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// GEMMs, what moves and reduces matrices, and elementwise operations on the way.
    Dense,
    /// What makes each row of the same rows of its operands, and of vectors.
    Rows,
    /// What tokens go through on the way to their experts and back.
    Experts,
    /// Attention and its gradients.
    Attention,
}

/// How a value comes about.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// The caller gives it.
    Param,
    /// `Shard(dim)` becomes `Replicate`.
    Gather {
        /// The sharded dimension.
        dim: usize,
        /// The axis over which it is.
        axis: usize,
    },
    /// A GEMM, and the elementwise operations that were fused into it. Operands: a, b, then one for each
    /// epilogue operation that has one.
    Gemm {
        /// In order of application.
        epilogue: Vec<EpilogueOp>,
        /// `a` is stored as `[K, M]`.
        a_transposed: bool,
        /// `b` is stored as `[N, K]`.
        b_transposed: bool,
    },
    /// Ragged rows times the matrices of their experts, and the elementwise operations that were fused into it.
    /// Operands: rows, matrices, rows of each expert, then one for each epilogue operation that has one.
    GroupedGemm {
        /// Matrices are stored the other way round.
        transposed: bool,
        /// In order of application.
        epilogue: Vec<EpilogueOp>,
    },
    /// Gradients of the matrices of [`Kind::GroupedGemm`]. Operands: rows, gradients of what they make, counts,
    /// epilogue operands.
    GroupedWgrad {
        /// In order of application.
        epilogue: Vec<EpilogueOp>,
    },
    /// Tokens as rows of their experts. Operands: tokens, experts of each, and perhaps weights of those.
    Dispatch {
        /// See [`Op::Dispatch`].
        drops: bool,
    },
    /// Factors of tokens, `[K / 128, T]`, as those of their rows. Operands: factors, experts of each token.
    DispatchFactors,
    /// How many rows of a rank's tokens were dropped: a result. Operands: rows, experts of each token.
    Dropped,
    /// Weighted sums of rows, by token. Operands: rows, experts of each token, weights, epilogue operands.
    Combine {
        /// An `add`, or nothing.
        epilogue: Vec<EpilogueOp>,
    },
    /// Products of rows and rows of their tokens, by slot. Operands: rows, experts of each token, rows of tokens.
    CombineGrad,
    /// Rows times weights. Operands: rows, experts of each token, weights.
    Weigh,
    /// Products of two rows, by slot. Operands: rows, experts of each token, other rows.
    WeighGrad,
    /// The gradient of what `swiglu` takes, of gradients of its result times weights. Operands: gradients without
    /// weights, gates and ups, experts of each token, weights.
    Grads,
    /// What `swiglu` makes, times weights, as the [`Kind::Grads`] that it is an operand of makes it: a result.
    GradsWeighed,
    /// Gradients of weights, as [`Kind::Grads`] makes them, by slot: a result. Operands: that, experts of each token.
    GradsSlots,
    /// Values of eight bits times the factors of their rows, as a GEMM reads them. Operands: values, factors.
    Dequantize(Factors),
    /// Rows in eight bits, each 128 elements over their factor. Operand: rows.
    Quantize,
    /// The factors of the blocks of the rows in eight bits that it is an operand of.
    Factor,
    /// Rows in eight bits times the factors of their blocks. Operands: values, factors.
    Restore,
    /// An elementwise operation that stands alone.
    Elementwise(EpilogueOp),
    /// Several of them in sequence, which no GEMM, or sum, has taken over. Operands: the first one's input, then one
    /// for each operation that has one.
    Chain {
        /// In order of application.
        epilogue: Vec<EpilogueOp>,
    },
    /// Rows as heads, or heads as rows: where kernels end.
    View,
    /// Rows over the root of their mean square. Operands: rows, and perhaps a weight.
    RmsNorm {
        /// The f32 bits of what is added to the mean.
        eps: u32,
    },
    /// Its gradient. Operands: gradients of the result, rows, and perhaps a weight.
    RmsNormGrad {
        /// As [`Kind::RmsNorm`] has it.
        eps: u32,
    },
    /// Heads of rows, turned by the angles of their row. Operands: rows, cosines and sines.
    Rope {
        /// The other way.
        back: bool,
    },
    /// The gradient of the input of `swiglu`, from that of its result: `[m, n]` and `[m, 2, n]` become `[m, 2, n]`.
    SwigluGrad,
    /// What the epilogue of the GEMM that it is an operand of saves on the way: a result.
    Saved,
    /// The second half of the result `[m, 2, n]` of the GEMM that it is an operand of, whose epilogue saves it on
    /// the way.
    OwnHalf,
    /// Attention. Operands: queries, keys, values.
    Attention {
        /// Which scores there are.
        scores: Scored,
        /// The axis along which keys and values are passed on from rank to rank.
        ring: Option<usize>,
    },
    /// Shards of dimension `concat` become shards of dimension `split`.
    AllToAll {
        /// The axis of the ranks that exchange.
        axis: usize,
        /// The dimension that is split.
        split: usize,
        /// The dimension that becomes whole.
        concat: usize,
    },
    /// Logarithms of the sums by which the attention that it is an operand of divides.
    Lse,
    /// Statistics of the queries of an attention. Operands: its results, their gradients, its logarithms.
    AttentionStats,
    /// Gradients of sinks. Operands: statistics of queries, sinks.
    AttentionDsinks,
    /// Gradients of attention. Operands, of queries: queries, gradients of results, statistics, keys, values; of keys:
    /// keys, values, queries, gradients of results, statistics.
    AttentionGrad {
        /// Of queries, or of keys.
        of: GradOf,
        /// As [`Kind::Attention`] has them.
        scores: Scored,
        /// The axis along which what comes in blocks is passed on from rank to rank.
        ring: Option<usize>,
    },
    /// Gradients of values, beside those of keys that it is an operand of.
    AttentionDv,
    /// Partial sums become shards of dimension `dim`, and the elementwise operations behind it that were fused into it.
    /// Operands: what is summed, then one for each of those that has one.
    ReduceScatter {
        /// The dimension that is scattered.
        dim: usize,
        /// The axis summed over.
        axis: usize,
        /// In order of application.
        epilogue: Vec<EpilogueOp>,
    },
    /// Partial sums become their sum everywhere; otherwise as [`Kind::ReduceScatter`].
    AllReduce {
        /// The axis summed over.
        axis: usize,
        /// In order of application.
        epilogue: Vec<EpilogueOp>,
    },
}

impl Kind {
    /// The elementwise operations that were fused into it, if it takes any.
    pub fn epilogue(&self) -> Option<&[EpilogueOp]> {
        match self {
            Kind::Gemm { epilogue, .. }
            | Kind::GroupedGemm { epilogue, .. }
            | Kind::GroupedWgrad { epilogue }
            | Kind::Combine { epilogue }
            | Kind::Chain { epilogue }
            | Kind::ReduceScatter { epilogue, .. }
            | Kind::AllReduce { epilogue, .. } => Some(epilogue),
            _ => None,
        }
    }

    /// Which operations it is claimed with.
    pub fn group(&self) -> Group {
        match self {
            Kind::Param
            | Kind::Gather { .. }
            | Kind::Dequantize(_)
            | Kind::Gemm { .. }
            | Kind::Elementwise(_)
            | Kind::SwigluGrad
            | Kind::View
            | Kind::Saved
            | Kind::OwnHalf
            | Kind::ReduceScatter { .. }
            | Kind::AllReduce { .. } => Group::Dense,
            Kind::Chain { .. }
            | Kind::RmsNorm { .. }
            | Kind::RmsNormGrad { .. }
            | Kind::Rope { .. }
            | Kind::Quantize
            | Kind::Factor
            | Kind::Restore => Group::Rows,
            Kind::GroupedGemm { .. }
            | Kind::GroupedWgrad { .. }
            | Kind::Dispatch { .. }
            | Kind::DispatchFactors
            | Kind::Dropped
            | Kind::Combine { .. }
            | Kind::CombineGrad
            | Kind::Weigh
            | Kind::WeighGrad
            | Kind::Grads
            | Kind::GradsWeighed
            | Kind::GradsSlots => Group::Experts,
            Kind::Attention { .. }
            | Kind::AllToAll { .. }
            | Kind::Lse
            | Kind::AttentionStats
            | Kind::AttentionDsinks
            | Kind::AttentionGrad { .. }
            | Kind::AttentionDv => Group::Attention,
        }
    }

    /// [`Kind::epilogue`], to add to.
    pub fn epilogue_mut(&mut self) -> Option<&mut Vec<EpilogueOp>> {
        match self {
            Kind::Gemm { epilogue, .. }
            | Kind::GroupedGemm { epilogue, .. }
            | Kind::GroupedWgrad { epilogue }
            | Kind::Combine { epilogue }
            | Kind::Chain { epilogue }
            | Kind::ReduceScatter { epilogue, .. }
            | Kind::AllReduce { epilogue, .. } => Some(epilogue),
            _ => None,
        }
    }
}

/// The pipeline. Edges point from operand to user and carry the operand's position.
#[derive(Clone, Debug)]
pub struct OpGraph {
    /// Name of the pipeline.
    pub name: String,
    /// Values.
    pub graph: StableDiGraph<Value, usize>,
    /// Values that the caller receives.
    pub results: Vec<NodeIndex>,
    /// What they are called, as many.
    pub result_names: Vec<String>,
    /// Routes of which rows without room are dropped.
    pub dropped: Vec<NodeIndex>,
}

impl OpGraph {
    /// The graph of a checked program.
    pub fn new(program: &Program, bound: &Bound) -> OpGraph {
        let mut graph = StableDiGraph::new();
        let mut nodes = Vec::with_capacity(program.n_values());
        for i in 0..program.n_values() {
            let id = ValueId::new(i);
            let Some(def) = program.def(id) else { continue };
            let (name, kind, ty, inputs) = match def {
                Def::Param(t) => (t.name.as_str(), Kind::Param, &t.ty, &[][..]),
                Def::Node(n) => (n.op.name(), kind_of(n), &n.ty, &n.inputs[..]),
            };
            let shape = ty.dims.iter().map(|d| extent(program, bound, *d)).collect();
            let node = graph.add_node(Value {
                name: name.to_string(),
                kind,
                dtype: ty.dtype,
                shape,
                placement: ty.placement.clone(),
            });
            for (position, input) in inputs.iter().enumerate() {
                graph.add_edge(nodes[input.index()], node, position);
            }
            nodes.push(node);
        }
        let results = program.results().iter().map(|r| nodes[r.index()]).collect();
        let result_names = program.result_names().to_vec();
        let dropped = program.tensors().iter().filter(|t| program.drops(t.id));
        let dropped = dropped.map(|t| nodes[t.id.index()]).collect();
        OpGraph { name: program.name().to_string(), graph, results, result_names, dropped }
    }

    /// Operands in order.
    pub fn operands(&self, node: NodeIndex) -> Vec<NodeIndex> {
        let mut list: Vec<_> = self
            .graph
            .edges_directed(node, Direction::Incoming)
            .map(|e| (*e.weight(), e.source()))
            .collect();
        list.sort_unstable_by_key(|(position, _)| *position);
        list.into_iter().map(|(_, source)| source).collect()
    }

    /// Values, each behind its operands.
    pub fn in_order(&self) -> Vec<NodeIndex> {
        let mut walk = Topo::new(&self.graph);
        std::iter::from_fn(|| walk.next(&self.graph)).collect()
    }

    /// Takes its operands from a value.
    pub fn detach(&mut self, node: NodeIndex) {
        let edges: Vec<_> =
            self.graph.edges_directed(node, Direction::Incoming).map(|e| e.id()).collect();
        for edge in edges {
            self.graph.remove_edge(edge);
        }
    }

    /// How many operations read a value, results of the pipeline counted as one each.
    pub fn uses(&self, node: NodeIndex) -> usize {
        self.graph.edges_directed(node, Direction::Outgoing).count()
            + self.results.iter().filter(|r| **r == node).count()
    }
}

fn extent(program: &Program, bound: &Bound, dim: Dim) -> Extent {
    let symbol = match dim {
        Dim::Sym(id) => program.symbols().get(id.index()).map(|s| s.name.clone()),
        Dim::Lit(_) => None,
    };
    // Binding refuses extents above 2^30.
    // The kernel is the same for every value of a run-time dimension, so it is made at the largest.
    let value = bound.max_dim(dim).and_then(|v| i32::try_from(v).ok()).unwrap_or(0);
    let runtime_max = bound.is_runtime(dim).then_some(value);
    let may_be_zero = matches!(dim, Dim::Sym(id) if program.may_be_zero(id));
    let own = program.is_own(dim);
    Extent { value, symbol, runtime_max, may_be_zero, own, of_launch: false }
}

fn kind_of(node: &Node) -> Kind {
    Kind::Elementwise(match node.op {
        Op::Gather { dim, axis } => return Kind::Gather { dim, axis: axis.index() },
        Op::Gemm { a_transposed, b_transposed } => {
            return Kind::Gemm { epilogue: Vec::new(), a_transposed, b_transposed };
        }
        Op::Dequantize(of) if node.ty.dtype == DType::F32 => return Kind::Dequantize(of),
        Op::Dequantize(_) => return Kind::Restore,
        Op::Quantize(_) => return Kind::Quantize,
        Op::Factor(_) => return Kind::Factor,
        Op::GroupedGemm { transposed } => {
            return Kind::GroupedGemm { transposed, epilogue: Vec::new() };
        }
        Op::GroupedWgrad => return Kind::GroupedWgrad { epilogue: Vec::new() },
        Op::Attention { scores, ring } => {
            return Kind::Attention { scores: scores.into(), ring: ring.map(|axis| axis.index()) };
        }
        Op::Dispatch { drops } => return Kind::Dispatch { drops },
        Op::DispatchFactors => return Kind::DispatchFactors,
        Op::Dropped => return Kind::Dropped,
        Op::Combine => return Kind::Combine { epilogue: Vec::new() },
        Op::CombineGrad => return Kind::CombineGrad,
        Op::Weigh => return Kind::Weigh,
        Op::WeighGrad => return Kind::WeighGrad,
        Op::Lse => return Kind::Lse,
        Op::AttentionStats => return Kind::AttentionStats,
        Op::AttentionDsinks => return Kind::AttentionDsinks,
        Op::AttentionDq { scores, ring } => {
            let (of, scores) = (GradOf::Queries, scores.into());
            return Kind::AttentionGrad { of, scores, ring: ring.map(|axis| axis.index()) };
        }
        Op::AttentionDk { scores, ring } => {
            let (of, scores) = (GradOf::Keys, scores.into());
            return Kind::AttentionGrad { of, scores, ring: ring.map(|axis| axis.index()) };
        }
        Op::AttentionDv => return Kind::AttentionDv,
        Op::Swiglu => EpilogueOp::Swiglu,
        Op::ReduceScatter { dim, axis } => {
            return Kind::ReduceScatter { dim, axis: axis.index(), epilogue: Vec::new() };
        }
        Op::AllToAll { axis, split, concat } => {
            return Kind::AllToAll { axis: axis.index(), split, concat };
        }
        Op::AllReduce { axis } => {
            return Kind::AllReduce { axis: axis.index(), epilogue: Vec::new() };
        }
        Op::Bias => EpilogueOp::Bias,
        Op::Curve(curve) => EpilogueOp::Curve(curve),
        Op::Slope(curve) => EpilogueOp::Slope(curve),
        Op::SwigluGrad => return Kind::SwigluGrad,
        Op::RmsNorm { eps } => return Kind::RmsNorm { eps: (eps as f32).to_bits() },
        Op::Rope { back } => return Kind::Rope { back },
        Op::RmsNormGrad { eps } => return Kind::RmsNormGrad { eps: (eps as f32).to_bits() },
        Op::View => return Kind::View,
        Op::Mul => EpilogueOp::Mul,
        Op::Add => EpilogueOp::Add,
        Op::Scale(factor) => EpilogueOp::Scale((factor as f32).to_bits()),
        Op::Cast(DType::F32) => EpilogueOp::Widen,
        Op::Cast(to) => EpilogueOp::Round(to),
    })
}
