//! Operations, and what they are applied to.

use super::{AxisId, Curve, DType, Factors, TensorType, ValueId};

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
    /// the softmax in f32; head `h` of queries reads head `h / (H / G)` of keys and values. With sinks a fourth operand,
    /// `f32 [H]`, is what each sum of a head has the exponential of, too. Of packed sequences a last operand, `i32 [N]`,
    /// says where documents begin, and the last one ends; so it does in the gradients.
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
    /// `[stats: f32 [B, H, S, 4], s: f32 [H]] -> f32 [1, H]`: gradients of the sinks of an [`Op::Attention`]: of each head
    /// the sum over its queries of `-exp(s - lse) * delta`, the first two of a query's statistics.
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
            Op::Combine => "combine",
            Op::CombineGrad => "combine_grad",
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
        !matches!(
            self,
            Op::Gather { .. }
                | Op::Gemm { .. }
                | Op::GroupedGemm { .. }
                | Op::GroupedWgrad
                | Op::Dispatch { .. }
                | Op::DispatchFactors
                | Op::Combine
                | Op::CombineGrad
                | Op::Dequantize(_)
                | Op::Quantize(_)
                | Op::Factor(_)
                | Op::ReduceScatter { .. }
                | Op::AllReduce { .. }
                | Op::AllToAll { .. }
                | Op::Swiglu
                | Op::SwigluGrad
                | Op::RmsNorm { .. }
                | Op::RmsNormGrad { .. }
                | Op::Rope { .. }
                | Op::View
                | Op::Attention { .. }
                | Op::Lse
                | Op::AttentionStats
                | Op::AttentionDq { .. }
                | Op::AttentionDk { .. }
                | Op::AttentionDv
                | Op::AttentionDsinks
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
