//! The operation table: what each operation is called, and how it is written.

use crate::program::Curve;
use crate::suggest::nearest;

/// What an operation takes besides its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Gather,
    Gemm,
    ReduceScatter,
    AllReduce,
    AllToAll,
    Bias,
    Curve(Curve),
    Slope(Curve),
    Swiglu,
    SwigluGrad,
    RmsNorm,
    RmsNormGrad,
    Rope,
    RopeGrad,
    View,
    Mul,
    Add,
    Scale,
    Cast,
    Quantize,
    Dequantize,
    Ring,
    Attention,
    Lse,
    AttentionStats,
    AttentionDq,
    AttentionDk,
    AttentionDv,
    AttentionDsinks,
    Ragged,
    GroupedGemm,
    GroupedWgrad,
    Dispatch,
    Dropped,
    CombineGrad,
    Weigh,
    WeighGrad,
    Combine,
}

pub(crate) struct OpInfo {
    pub name: &'static str,
    pub kind: OpKind,
    /// After an arrow.
    usage: &'static str,
    /// At the start of a chain.
    first_usage: &'static str,
}

/// A row for each operation: its name and kind; how it is written after an arrow; and at the start of a chain.
macro_rules! operations {
    ($($name:ident $kind:expr, $usage:literal, $first_usage:literal;)*) => {
        pub(crate) const OPS: &[OpInfo] = &[$(OpInfo {
            name: stringify!($name),
            kind: $kind,
            usage: $usage,
            first_usage: $first_usage,
        }),*];
    };
}

use OpKind as Kind;
operations! {
    gather Kind::Gather, "`gather` or `gather(axis)`", "`gather(x)`";
    gemm Kind::Gemm, "`gemm(w)`, or `gemm(x, w)` at the start of a chain", "`gemm(x, w)`";
    reduce_scatter Kind::ReduceScatter,
        "`reduce_scatter`, `reduce_scatter(axis)` or `reduce_scatter(dim = 0)`", "`reduce_scatter(x)`";
    all_reduce Kind::AllReduce, "`all_reduce` or `all_reduce(axis)`", "`all_reduce(x)`";
    all_to_all Kind::AllToAll,
        "`all_to_all(split = 2, concat = 1)` or `all_to_all(axis, split = 2, concat = 1)`",
        "`all_to_all(x, split = 2, concat = 1)`";
    bias Kind::Bias, "`bias(c)`, or `bias(x, c)` at the start of a chain", "`bias(x, c)`";
    gelu Kind::Curve(Curve::Gelu), "`gelu`", "`x -> gelu`";
    silu Kind::Curve(Curve::Silu), "`silu`", "`x -> silu`";
    relu Kind::Curve(Curve::Relu), "`relu`", "`x -> relu`";
    gelu_tanh Kind::Curve(Curve::GeluTanh), "`gelu_tanh`", "`x -> gelu_tanh`";
    gelu_grad Kind::Slope(Curve::Gelu),
        "`gelu_grad(h)`, or `gelu_grad(dy, h)` at the start of a chain", "`gelu_grad(dy, h)`";
    gelu_tanh_grad Kind::Slope(Curve::GeluTanh),
        "`gelu_tanh_grad(h)`, or `gelu_tanh_grad(dy, h)` at the start of a chain", "`gelu_tanh_grad(dy, h)`";
    silu_grad Kind::Slope(Curve::Silu),
        "`silu_grad(h)`, or `silu_grad(dy, h)` at the start of a chain", "`silu_grad(dy, h)`";
    relu_grad Kind::Slope(Curve::Relu),
        "`relu_grad(h)`, or `relu_grad(dy, h)` at the start of a chain", "`relu_grad(dy, h)`";
    swiglu_grad Kind::SwigluGrad,
        "`swiglu_grad(h)`, or `swiglu_grad(dy, h)` at the start of a chain", "`swiglu_grad(dy, h)`";
    swiglu Kind::Swiglu, "`swiglu`", "`x -> swiglu`";
    rmsnorm Kind::RmsNorm,
        "`rmsnorm(g)`, or `rmsnorm(x, g)` at the start of a chain; then `eps = 1e-6` where wanted", "`rmsnorm(x, g)`";
    rmsnorm_grad Kind::RmsNormGrad,
        "`rmsnorm_grad(x, g)`, or `rmsnorm_grad(dy, x, g)` at the start of a chain", "`rmsnorm_grad(dy, x, g)`";
    rope Kind::Rope, "`rope(t)`, or `rope(x, t)` at the start of a chain", "`rope(x, t)`";
    rope_grad Kind::RopeGrad, "`rope_grad(t)`, or `rope_grad(dy, t)` at the start of a chain", "`rope_grad(dy, t)`";
    view Kind::View,
        "`view(B, S, H, D)` of rows `[M, K]`, and `view(M, K)` of heads `[B, S, H, D]`", "`x -> view(B, S, H, D)`";
    mul Kind::Mul, "`mul(y)`, or `mul(x, y)` at the start of a chain", "`mul(x, y)`";
    add Kind::Add, "`add(y)`, or `add(x, y)` at the start of a chain", "`add(x, y)`";
    scale Kind::Scale, "`scale(0.5)`", "`x -> scale(0.5)`";
    cast Kind::Cast, "`cast(f32)`", "`x -> cast(f32)`";
    quantize Kind::Quantize, "`quantize(e4m3, 1, 128)`", "`x -> quantize(e4m3, 1, 128)`";
    dequantize Kind::Dequantize, "`dequantize`", "`q -> dequantize`";
    ring Kind::Ring,
        "`ring(k, v)` at the start of a chain, and `attention(q)` behind it; or `ring(q, do, stats)` and \
         `attention_dk(k, v)`",
        "`ring(k, v)`";
    attention Kind::Attention,
        "`attention(q, k, v)`, or `attention(q)` behind `ring(k, v)`; then `causal`, `window = 1024`, \
         `softcap = 50`, `scale = 0.125`, `sinks = s` and `cu_seqlens = cu` where wanted",
        "`attention(q, k, v)`";
    lse Kind::Lse, "`lse`", "`o -> lse`";
    attention_stats Kind::AttentionStats,
        "`attention_stats(do, lse)`, or `attention_stats(o, do, lse)` at the start of a chain",
        "`attention_stats(o, do, lse)`";
    attention_dq Kind::AttentionDq,
        "`attention_dq(q, do, stats, k, v)`, or `attention_dq(q, do, stats)` behind `ring(k, v)`; then `causal` and \
         the others as `attention` has them",
        "`attention_dq(q, do, stats, k, v)`";
    attention_dk Kind::AttentionDk,
        "`attention_dk(k, v, q, do, stats)`, or `attention_dk(k, v)` behind `ring(q, do, stats)`; then `causal` and \
         the others as `attention` has them",
        "`attention_dk(k, v, q, do, stats)`";
    attention_dv Kind::AttentionDv, "`attention_dv`", "`dk -> attention_dv`";
    attention_dsinks Kind::AttentionDsinks,
        "`attention_dsinks(s)`, or `attention_dsinks(stats, s)` at the start of a chain", "`attention_dsinks(stats, \
            s)`";
    ragged Kind::Ragged,
        "`ragged(x, counts)` at the start of a chain, and `grouped_gemm(w)` behind it", "`ragged(x, counts)`";
    grouped_gemm Kind::GroupedGemm, "`grouped_gemm(w)`", "`ragged(x, counts) -> grouped_gemm(w)`";
    grouped_wgrad Kind::GroupedWgrad,
        "`grouped_wgrad(dy)`, and `grouped_wgrad(dy, experts = E)` of rows that a route names",
        "`ragged(x, counts) -> grouped_wgrad(dy)`";
    dispatch Kind::Dispatch,
        "`dispatch(ids)`, or `dispatch(ids, weights)` for rows times their weights", "`dispatch(x, ids)`";
    dropped Kind::Dropped, "`dropped` behind `dispatch(x, ids, capacity = R, drop)`", "`rows -> dropped`";
    combine Kind::Combine, "`combine(weights)` behind `dispatch` and products", "`y -> combine(weights)`";
    combine_grad Kind::CombineGrad, "`combine_grad(dy)` behind products of dispatched rows", "`y -> combine_grad(dy)`";
    weigh Kind::Weigh, "`weigh(weights)` behind rows that a route names", "`rows -> weigh(weights)`";
    weigh_grad Kind::WeighGrad, "`weigh_grad(y)` behind rows that a route names", "`d -> weigh_grad(y)`";
}

pub(crate) fn find(name: &str) -> Option<&'static OpInfo> {
    OPS.iter().find(|op| op.name == name)
}

/// How to write the operation after an arrow.
pub(crate) fn usage(name: &str) -> &'static str {
    find(name).map_or("", |op| op.usage)
}

/// How to write the operation at the start of a chain.
pub(crate) fn first_usage(name: &str) -> Option<&'static str> {
    find(name).map(|op| op.first_usage)
}

/// A name without what spellings differ in: case and underscores.
pub(crate) fn folded(name: &str) -> String {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// Whether users write it; the others are what `mk grad` derives.
fn is_written(op: &OpInfo) -> bool {
    use OpKind::{
        AttentionDk, AttentionDq, AttentionDsinks, AttentionDv, AttentionStats, CombineGrad,
        GroupedWgrad, RmsNormGrad, RopeGrad, Slope, SwigluGrad, Weigh, WeighGrad,
    };
    !matches!(
        op.kind,
        Slope(_)
            | SwigluGrad
            | GroupedWgrad
            | CombineGrad
            | Weigh
            | WeighGrad
            | RmsNormGrad
            | RopeGrad
            | AttentionStats
            | AttentionDq
            | AttentionDk
            | AttentionDv
            | AttentionDsinks
    )
}

/// The names of the operations that users write, quoted, separated by commas.
pub(crate) fn written_list() -> String {
    let written = OPS.iter().filter(|op| is_written(op));
    written.map(|op| format!("`{}`", op.name)).collect::<Vec<_>>().join(", ")
}

/// The operation that a misspelt name may mean: one that users write before one that is derived.
pub(crate) fn near(name: &str) -> Option<&'static str> {
    let same = OPS.iter().find(|op| folded(op.name) == folded(name));
    if let Some(op) = same {
        return Some(op.name);
    }
    let of = |written: bool| OPS.iter().filter(move |op| is_written(op) == written);
    let [written, derived] = [true, false].map(|w| nearest(name, of(w).map(|op| op.name)));
    written.or(derived)
}
