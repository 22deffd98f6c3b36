//! Structs of every form: docs, visibility, generics, runtime symbols, bindings, several results.

#![deny(missing_docs)]

use mk::runtime::{DeviceTensor, TensorRef};
use std::sync::Arc;

/// Row-parallel linear layer.
#[mk::pipelined(gather(a) -> gemm(b) -> reduce_scatter)]
pub struct RowParallel {
    /// Activations.
    #[tensor(bf16[M, K] @ shard(0))]
    pub a: DeviceTensor,
    /// Weights.
    #[tensor(bf16[K, N] @ partial)]
    pub b: DeviceTensor,
    /// The result.
    #[result(bf16[M, N] @ shard(0))]
    pub out: DeviceTensor,
}

/// A gated layer that saves its input for a backward pass.
#[mk::pipelined(<M: dyn <= 8192>
    let h = gather(x);
    (h -> gemm(w) -> swiglu, h)
)]
#[derive(Clone)]
pub(crate) struct Gated<'t, T>
where
    T: mk::AsTensor,
{
    #[result(bf16[M, F] @ shard(1))]
    y: TensorRef,
    #[tensor(bf16[M, K] @ shard(0))]
    x: &'t DeviceTensor,
    #[result(bf16[M, K])]
    saved: TensorRef,
    #[tensor(bf16[K, 2, F] @ shard(2))]
    w: Arc<T>,
}

/// Tokens over both axes of a mesh.
#[mk::pipelined(gather(x, tp) -> gemm(w) -> gelu)]
pub struct Tokens {
    /// Weights.
    #[tensor(bf16[K, N] @ shard(1, tp))]
    pub w: DeviceTensor,
    /// Activations.
    #[tensor(bf16[M, K] @ shard(0, dp) @ shard(0, tp))]
    pub x: DeviceTensor,
    /// The result.
    #[result(bf16[M, N] @ shard(0, dp) @ shard(1, tp))]
    pub out: DeviceTensor,
}

/// Experts over one axis of a mesh, their matrices over another.
#[mk::pipelined(dispatch(x, ids) -> grouped_gemm(w) -> gelu -> grouped_gemm(v) -> combine(gate) -> all_reduce(tp))]
pub struct Experts {
    /// Tokens.
    #[tensor(bf16[T, H] @ shard(0, ep))]
    pub x: DeviceTensor,
    /// The experts of each.
    #[tensor(i32[T, K] @ shard(0, ep))]
    pub ids: DeviceTensor,
    /// Their weights.
    #[tensor(f32[T, K] @ shard(0, ep))]
    pub gate: DeviceTensor,
    /// Matrices.
    #[tensor(bf16[E, H, I] @ shard(0, ep) @ shard(2, tp))]
    pub w: DeviceTensor,
    /// Others.
    #[tensor(bf16[E, I, H] @ shard(0, ep) @ shard(1, tp))]
    pub v: DeviceTensor,
    /// The result.
    #[result(bf16[T, H] @ shard(0, ep))]
    pub out: DeviceTensor,
}

/// Packed sequences, with a window, capped scores and sinks.
#[mk::pipelined(attention(q, k, v, causal, window = 128, softcap = 50, sinks = s, cu_seqlens = cu))]
pub struct Documents {
    /// Queries.
    #[tensor(bf16[1, T, H, D] @ shard(2))]
    pub q: DeviceTensor,
    /// Keys.
    #[tensor(bf16[1, T, G, D] @ shard(2))]
    pub k: DeviceTensor,
    /// Values.
    #[tensor(bf16[1, T, G, D] @ shard(2))]
    pub v: DeviceTensor,
    /// Where each sequence begins, and the last one ends.
    #[tensor(i32[N])]
    pub cu: DeviceTensor,
    /// Sinks.
    #[tensor(f32[H] @ shard(0))]
    pub s: DeviceTensor,
    /// The result.
    #[result(bf16[1, T, H, D] @ shard(2))]
    pub out: DeviceTensor,
}

/// What the compiler may use, and need not run.
#[allow(dead_code)]
fn arguments(one: &RowParallel, two: &Gated<'_, DeviceTensor>) -> [mk::runtime::RankTensors; 2] {
    [one.arguments(), two.arguments()]
}

pub fn main() {
    let program: &'static mk::Program = RowParallel::pipeline();
    assert_eq!(program.name(), "RowParallel");
    assert_eq!(program.docs(), ["Row-parallel linear layer."]);
    assert_eq!(program.tensors().len(), 2);
    assert_eq!(Tokens::pipeline().mesh_axes(), ["dp", "tp"]);
    assert_eq!(Experts::pipeline().mesh_axes(), ["ep", "tp"]);
    assert_eq!(Documents::pipeline().tensors().len(), 5);
    let gated = Gated::<DeviceTensor>::pipeline();
    assert!(
        OwnTokens::pipeline().to_string().starts_with("pipeline OwnTokens<T: own <= 8192>(world):")
    );
    let names: Vec<_> = gated.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["x", "w"]);
    assert_eq!(gated.results().len(), 2);
    assert!(gated.to_string().starts_with("pipeline Gated<M: dyn <= 8192>(world):"));

    // Parameters, then results.
    // SAFETY: nothing is launched.
    let tensor = |i: u64| unsafe { TensorRef::from_raw(i, 2) };
    let held = Held { out: tensor(3), a: tensor(1), b: tensor(2) };
    assert_eq!(held.arguments().tensors, [tensor(1), tensor(2), tensor(3)]);
}

/// Rows of experts with weights.
#[mk::pipelined(dispatch(x, ids, gate) -> grouped_gemm(w))]
struct Weighted {
    #[tensor(bf16[T, H] @ shard(0))]
    x: TensorRef,
    #[tensor(i32[T, K] @ shard(0))]
    ids: TensorRef,
    #[tensor(f32[T, K] @ shard(0))]
    gate: TensorRef,
    #[tensor(bf16[E, H, N] @ shard(0))]
    w: TensorRef,
    #[result(bf16[R, N] @ shard(0))]
    rows: TensorRef,
}

/// Tokens of which each rank has its own number.
#[mk::pipelined(<T: own <= 8192> dispatch(x, ids) -> grouped_gemm(w) -> combine(gate))]
struct OwnTokens {
    #[tensor(bf16[T, H] @ shard(0))]
    x: TensorRef,
    #[tensor(i32[T, K] @ shard(0))]
    ids: TensorRef,
    #[tensor(f32[T, K] @ shard(0))]
    gate: TensorRef,
    #[tensor(bf16[E, H, N] @ shard(0))]
    w: TensorRef,
    #[result(bf16[T, N] @ shard(0))]
    out: TensorRef,
}

/// Memory of somebody else.
#[mk::pipelined(gather(a) -> gemm(b))]
struct Held {
    #[result(bf16[M, N] @ shard(1))]
    out: TensorRef,
    #[tensor(bf16[M, K] @ shard(0))]
    a: TensorRef,
    #[tensor(bf16[K, N] @ shard(1))]
    b: TensorRef,
}
