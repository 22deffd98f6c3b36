//! Items of every form: docs, visibility, attributes, several results, two mesh axes.

#![deny(missing_docs)]

mk::pipeline! {
    /// Tensor-parallel MLP with sequence-parallel input and output.
    ///
    /// The `"hidden"` dimension is sharded.
    pub fn mlp(
        x: bf16[M, K] @ shard(0), // comments are no part of it
        /// The up projection.
        w1: bf16[K, F] @ shard(1),
        w2: bf16[F, K] @ shard(0),
    ) -> bf16[M, K] @ shard(0) {
        gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter
    }
}

mod inner {
    mk::pipeline! {
        #[allow(non_snake_case)]
        pub(crate) fn savedX(x: f16[8_192, K] @ shard(0), w: f16[K, N], c: f16[N] @ shard(0))
            -> (f16[8192, N] @ shard(1), f16[8192, K])
        {
            let h = gather(x);
            (h -> gemm(w) -> scale(-1.5e-1) -> bias(c), h)
        }
    }
}

mk::pipeline! {
    fn two_axes(x: bf16[M, K] @ shard(0, tp) @ shard(1, dp), w: bf16[K, N] @ shard(0, dp) @ shard(1, tp)) {
        gather(x, tp) -> gemm(w) -> cast(f32) -> reduce_scatter(dp) -> cast(bf16)
    }
}

mk::pipeline! {
    fn experts_of_both(
        x: bf16[T, H] @ shard(0, ep), ids: i32[T, K] @ shard(0, ep), gate: f32[T, K] @ shard(0, ep),
        w: bf16[E, H, I] @ shard(0, ep) @ shard(2, tp), v: bf16[E, I, H] @ shard(0, ep) @ shard(1, tp),
    ) -> bf16[T, H] @ shard(0, ep) @ shard(0, tp) {
        dispatch(x, ids) -> grouped_gemm(w) -> silu -> grouped_gemm(v) -> combine(gate) -> reduce_scatter(tp)
    }
}

mk::pipeline! {
    fn rows_of_both(w: bf16[K, N] @ shard(1, tp), x: bf16[M, K] @ shard(0, dp) @ shard(0, tp)) -> bf16[M, N] @ shard(0, dp) @ shard(1, tp) {
        gather(x, tp) -> gemm(w)
    }
}

mk::pipeline! {
    fn experts(
        x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), dy: bf16[T, N] @ shard(0),
        w: bf16[E, H, N] @ shard(0),
    ) {
        dispatch(x, ids, gate, capacity = R) -> grouped_gemm(w) -> combine_grad(dy)
    }
}

mk::pipeline! {
    fn weights_behind(
        d: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w: bf16[E, I, H] @ shard(0),
        h: bf16[R, 2, I] @ shard(0),
    ) {
        let u = dispatch(d, ids, capacity = R) -> grouped_gemm(w.t);
        let a = h -> swiglu;
        (u -> weigh(gate) -> swiglu_grad(h), a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a))
    }
}

mk::pipeline! {
    /// Packed sequences over a ring: a window, capped scores, sinks, and values of other columns than keys.
    fn documents(
        q: f16[1, T, H, 192] @ zigzag(1), k: f16[1, T, G, 192] @ zigzag(1), v: f16[1, T, G, 128] @ zigzag(1),
        cu: i32[N], s: f32[H],
    ) {
        let o = ring(k, v) -> attention(q, causal, window = 128, softcap = 50, sinks = s, cu_seqlens = cu);
        (o, o -> lse)
    }
}

macro_rules! column_parallel {
    ($vis:vis $name:ident, $act:ident) => {
        mk::pipeline! {
            $vis fn $name(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {
                gather(x) -> gemm(w) -> $act
            }
        }
    };
}
column_parallel!(with_relu, relu);
column_parallel!(pub(crate) with_silu, silu);

pub fn main() {
    let program = mlp();
    assert_eq!(program.name(), "mlp");
    assert_eq!(program.docs()[2], "The `\"hidden\"` dimension is sharded.");
    assert_eq!(program.nodes().len(), 5);
    assert_eq!(inner::savedX().results().len(), 2);
    assert_eq!(two_axes().mesh_axes(), ["tp", "dp"]);
    // The outer one of axes that share a dimension comes first.
    assert_eq!(rows_of_both().mesh_axes(), ["dp", "tp"]);
    assert_eq!(experts_of_both().mesh_axes(), ["ep", "tp"]);
    assert_eq!(experts().nodes()[0].inputs.len(), 3);
    let text = "fn documents(q: f16[1, T, H, 192] @ zigzag(1), k: f16[1, T, G, 192] @ zigzag(1), \
        v: f16[1, T, G, 128] @ zigzag(1), cu: i32[N], s: f32[H]) { let o = ring(k, v) -> attention(q, causal, \
        window = 128, softcap = 50, sinks = s, cu_seqlens = cu); (o, o -> lse) }";
    let read = mk::Program::parse(text).expect("a pipeline");
    assert_eq!(documents().to_string(), read.to_string());
    assert_eq!(with_relu().name(), "with_relu");
    assert_eq!(with_silu().name(), "with_silu");
}
