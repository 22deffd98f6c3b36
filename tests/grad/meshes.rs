//! Layers on meshes of two axes: weights in parts over `tp`, tokens over `dp`, over which gradients of weights are
//! summed by the kernels that make them.

use crate::{
    differentiates,
    drawn::some,
    executed,
    rig::{Mesh, Sized, derive},
};
use mk::{
    Program, cut,
    syntax::grad::{Keep, Saves},
};
use std::collections::BTreeMap;

/// Tokens over `dp`, whole weights in parts over `tp`.
const LAYER: &str = "fn f(x: bf16[M, K] @ shard(0, dp), w1: bf16[K, F] @ shard(1, tp), c: bf16[F] @ shard(0, tp), w2: bf16[F, K] @ shard(0, tp)) {
    x -> gemm(w1) -> bias(c) -> gelu -> gemm(w2) -> all_reduce(tp)
}";
const GATED: &str = "fn f(x: bf16[M, K] @ shard(0, dp), w1: bf16[K, 2, F] @ shard(2, tp), w2: bf16[F, K] @ shard(0, tp)) {
    x -> gemm(w1) -> swiglu -> gemm(w2) -> all_reduce(tp) -> add(x)
}";
/// Weights in parts over both axes: gathered over `dp` before they are multiplied.
const FSDP: &str = "fn f(x: bf16[M, K] @ shard(0, dp), w1: bf16[K, F] @ shard(0, dp) @ shard(1, tp), w2: bf16[K, F] @ shard(0, dp) @ shard(1, tp)) {
    let u = gather(w1, dp);
    let v = gather(w2, dp);
    x -> gemm(u) -> silu -> gemm(v.t) -> all_reduce(tp)
}";
/// Rows gathered over one axis, K shared over another.
const BOTH: &str = "fn f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)) {
    gather(a, tp) -> gemm(b) -> reduce_scatter(dp)
}";
/// Tokens over both axes, those of `tp` gathered; of rows of a vector, a sum over both.
const TOKENS: &str = "fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), g: bf16[K], w1: bf16[K, F] @ shard(1, tp), w2: bf16[F, K] @ shard(0, tp)) {
    x -> rmsnorm(g) -> gather(tp) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter(tp) -> add(x)
}";
/// Heads over one axis, a ring over the other; with an exchange where both share the sequence.
const HEADS: &str = "fn f(q: bf16[2, M, 4, 64] @ zigzag(1, dp) @ shard(2, tp), k: bf16[2, M, 2, 64] @ zigzag(1, dp) @ shard(2, tp), v: bf16[2, M, 2, 64] @ zigzag(1, dp) @ shard(2, tp)) {
    ring(k, v, dp) -> attention(q, causal)
}";
const EXCHANGED: &str = "fn f(q: bf16[1, M, 4, 64] @ shard(1, dp) @ shard(1, tp), k: bf16[1, M, 2, 64] @ shard(1, dp) @ shard(1, tp), v: bf16[1, M, 2, 64] @ shard(1, dp) @ shard(1, tp)) {
    let h = all_to_all(q, tp, split = 2, concat = 1);
    let x = all_to_all(k, tp, split = 2, concat = 1);
    let y = all_to_all(v, tp, split = 2, concat = 1);
    ring(x, y, dp) -> attention(h, causal) -> all_to_all(tp, split = 1, concat = 2)
}";
/// One axis is named: along the other, ranks have tensors of their own.
const ALONG_ONE: &str = "fn f(x: bf16[M, K] @ shard(0, tp), w: bf16[K, N] @ shard(1, tp)) { gather(x) -> gemm(w) -> relu }";

const AGAIN: Saves = Saves { gathered: Keep::Again, activations: Keep::Again };

fn mesh(axes: &[(&str, u32)]) -> Mesh {
    axes.iter().map(|(name, n)| (name.to_string(), *n)).collect()
}

fn sizes(program: &Program) -> BTreeMap<String, u64> {
    let of = |name: &str| if name == "M" { 48 } else { 72 };
    program.symbols().iter().map(|s| (s.name.clone(), of(&s.name))).collect()
}

#[test]
fn gradients_over_two_axes_are_those_of_differences() {
    for text in [LAYER, FSDP, BOTH, TOKENS, ALONG_ONE, HEADS, EXCHANGED] {
        differentiates(text, text);
    }
    differentiates("gated", GATED);
}

#[test]
fn kernels_compute_gradients_over_two_axes() {
    let meshes = [
        mesh(&[("dp", 2), ("tp", 2)]),
        mesh(&[("tp", 2), ("dp", 2)]),
        mesh(&[("dp", 3), ("tp", 2)]),
        mesh(&[("tp", 1), ("dp", 2)]),
    ];
    for text in [LAYER, GATED, FSDP, BOTH, TOKENS, HEADS, EXCHANGED] {
        let program = Program::parse(text).expect("parses");
        for (i, mesh) in some(meshes.iter().enumerate(), 3) {
            let saves = if i == 1 { AGAIN } else { Saves::default() };
            let ranks: u32 = mesh.iter().map(|(_, n)| n).product();
            let derived = derive(&program, &sizes(&program), saves).on(mesh);
            let (error, _) = executed(&program, derived, ranks as usize);
            // Gradients of a norm's weight are rounded for each axis that they are summed over.
            let bound = match text {
                TOKENS => 7e-3,
                // Results are rounded before gradients are made of them.
                HEADS | EXCHANGED => 1e-2,
                _ => 5e-3,
            };
            assert!(error < bound, "{text} on {mesh:?}: {error}");
        }
    }
}

/// The sums over `dp` are of the kernels that make what is summed.
#[test]
fn sums_of_gradients_are_no_kernels_of_their_own() {
    let mesh = mesh(&[("dp", 2), ("tp", 2)]);
    let sums =
        [(LAYER, "all_reduce(dp)"), (FSDP, "reduce_scatter(dp)"), (TOKENS, "all_reduce(dp)")];
    for (text, sum) in sums {
        let program = Program::parse(text).expect("parses");
        let derived = derive(&program, &sizes(&program), Saves::default());
        let Sized { program, bound, .. } = derived.backward.expect("a backward");
        let steps = cut::cut(&program, &bound, 4, &mesh).expect("is cut");
        let summed = steps.iter().filter(|step| step.text.contains(sum));
        let mut n = 0;
        for step in summed {
            assert!(step.is_kernel && step.text.contains("gemm("), "{}", step.text);
            n += step.text.matches(sum).count();
        }
        assert!(n >= 2, "{program}");
    }
}

/// What a forward saves for its backward comes from the one kernel that exchanges it; gradients go back from the kernels
/// that make them.
#[test]
fn exchanges_are_no_kernels_of_their_own() {
    let mesh = mesh(&[("dp", 2), ("tp", 2)]);
    let program = Program::parse(EXCHANGED).expect("parses");
    let derived = derive(&program, &sizes(&program), Saves::default());
    let steps =
        |Sized { program, bound, .. }: &Sized| cut::cut(program, bound, 4, &mesh).expect("is cut");
    let forward = steps(&derived.forward);
    assert_eq!(forward.len(), 1, "{}", derived.forward.program);
    assert_eq!(forward[0].results.len(), 6, "{}", derived.forward.program);
    // The gradient of the result, statistics, and two of gradients.
    let backward = steps(derived.backward.as_ref().expect("a backward"));
    let of = |step: &cut::Step| {
        ["stats(", "_dk(", "_dq(", "all_to_all("].map(|op| step.text.matches(op).count())
    };
    let mut found: Vec<_> = backward.iter().map(of).collect();
    found.sort_unstable();
    assert_eq!(found, [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 0, 2], [1, 0, 0, 0]]);
}
