//! Pipelines over two axes of a mesh: snapshots of plans and CUDA.

use mk_codegen::{
    emit,
    passes::compile,
    plan::Plan,
    settings::{Config, NicOrdering},
};
use mk_syntax::Program;
use std::collections::BTreeMap;

/// Name, pipeline, mesh.
type Case = (&'static str, &'static str, [(&'static str, u32); 2]);

const CASES: [Case; 10] = [
    (
        "gather_gemm_reduce_scatter",
        "fn f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)) {
             gather(a, tp) -> gemm(b) -> reduce_scatter(dp)
         }",
        [("tp", 4), ("dp", 2)],
    ),
    // Shards along one axis do not divide those along the other.
    (
        "rows_of_two_owners",
        "fn f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)) {
             let x = gather(a, tp);
             (x -> gemm(b) -> all_reduce(dp), x)
         }",
        [("dp", 3), ("tp", 2)],
    ),
    (
        "gradient_of_a_shard",
        "fn f(x: bf16[M, K] @ shard(0, dp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp)) {
             gemm(x.t, d) -> reduce_scatter(dp)
         }",
        [("dp", 2), ("tp", 2)],
    ),
    (
        "layer_backward",
        "fn f(x: bf16[M, K] @ shard(0, dp), w: bf16[K, N] @ shard(1, tp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp)) {
             (gemm(d, w.t) -> all_reduce(tp), gemm(x.t, d) -> all_reduce(dp))
         }",
        [("dp", 2), ("tp", 2)],
    ),
    (
        "tokens_over_both_axes",
        "fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, N] @ shard(1, tp)) {
             gather(x, tp) -> gemm(w)
         }",
        [("dp", 2), ("tp", 2)],
    ),
    (
        "backward_of_tokens_over_both_axes",
        "fn f(x: bf16[M, K] @ shard(0, dp), w: bf16[K, N] @ shard(1, tp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp)) {
             (gemm(d, w.t) -> reduce_scatter(tp), gemm(x.t, d) -> reduce_scatter(dp))
         }",
        [("tp", 2), ("dp", 2)],
    ),
    // Heads over one axis, a ring over the other.
    (
        "ulysses_ring",
        "fn f(q: bf16[1, M, 4, 64] @ shard(1, cp) @ shard(1, up), k: bf16[1, M, 2, 64] @ shard(1, cp) @ shard(1, up), v: bf16[1, M, 2, 64] @ shard(1, cp) @ shard(1, up)) {
             let h = q -> all_to_all(up, split = 2, concat = 1);
             let x = k -> all_to_all(up, split = 2, concat = 1);
             let y = v -> all_to_all(up, split = 2, concat = 1);
             ring(x, y, cp) -> attention(h, causal) -> all_to_all(up, split = 1, concat = 2)
         }",
        [("cp", 3), ("up", 2)],
    ),
    (
        "ring_of_own_heads",
        "fn f(q: bf16[1, M, 4, 64] @ zigzag(1, cp) @ shard(2, tp), k: bf16[1, M, 2, 64] @ zigzag(1, cp) @ shard(2, tp), v: bf16[1, M, 2, 64] @ zigzag(1, cp) @ shard(2, tp)) {
             let o = ring(k, v, cp) -> attention(q, causal);
             (o, o -> lse)
         }",
        [("cp", 2), ("tp", 2)],
    ),
    // Experts over one axis, their matrices over the other.
    (
        "experts",
        "fn f(x: bf16[M, 64] @ shard(0, ep), ids: i32[M, 2] @ shard(0, ep), gate: f32[M, 2] @ shard(0, ep), w1: bf16[4, 64, 2, N] @ shard(0, ep) @ shard(3, tp), w2: bf16[4, N, 64] @ shard(0, ep) @ shard(1, tp)) {
             dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate) -> reduce_scatter(tp)
         }",
        [("ep", 2), ("tp", 2)],
    ),
    (
        "gates_of_experts",
        "fn f(a: bf16[4096, N] @ shard(0, ep) @ shard(1, tp), ids: i32[M, 2] @ shard(0, ep), w2: bf16[4, N, 64] @ shard(0, ep) @ shard(1, tp), d: bf16[M, 64] @ shard(0, ep)) {
             ragged(a, ids) -> grouped_gemm(w2) -> combine_grad(d) -> all_reduce(tp)
         }",
        [("ep", 2), ("tp", 2)],
    ),
];

/// One axis inside nodes, the other over them.
const OVER_NODES: [Case; 2] = [
    ("gather_gemm_reduce_scatter_over_nodes", CASES[0].1, [("dp", 2), ("tp", 2)]),
    (
        "gather_over_nodes_gemm_reduce_scatter",
        "fn f(x: bf16[M, K] @ shard(0, dp) @ shard(1, tp), w: bf16[K, N] @ shard(0, tp)) {
             gather(x, dp) -> gemm(w) -> reduce_scatter(tp)
         }",
        [("dp", 2), ("tp", 2)],
    ),
];

#[test]
fn plans_and_kernels() {
    CASES.iter().for_each(|case| drop(planned(case, 1)));
}

#[test]
fn over_nodes() {
    OVER_NODES.iter().for_each(|case| drop(planned(case, 2)));
}

/// The plan of a case, which is compared with the kept one, and so is its kernel.
fn planned((name, text, mesh): &Case, nodes: u32) -> Plan {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
    let dims = [("M", 768), ("K", 384), ("N", 512)].map(|(dim, n)| (dim.to_string(), n));
    let named = |dim: &String| program.symbols().iter().any(|s| s.name == *dim);
    let dims = dims.into_iter().filter(|(dim, _)| named(dim)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let mesh: Vec<_> = mesh.iter().map(|(axis, n)| (axis.to_string(), *n)).collect();
    let ranks = mesh.iter().map(|(_, n)| n).product();
    let net = NicOrdering::InOrder;
    let config = Config { ranks, mesh, nodes, net, ..Config::default() };
    let (plan, _) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{name}: {e}"));
    insta::assert_snapshot!(*name, plan);
    let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
    insta::assert_snapshot!(format!("cuda_{name}"), kernel.generated());
    plan
}

/// Of a shard of one row, packed by the other axis' ranks, k is the row, and not the rank.
#[test]
fn shards_of_one_row() {
    let text = "fn f(x: f16[M, K] @ shard(0, dp), w: f16[K, N] @ shard(1, tp), d: f16[M, N] @ shard(0, dp) @ shard(1, tp)) {
            (gemm(d, w.t) -> all_reduce(tp), gemm(x.t, d) -> all_reduce(dp))
        }";
    let program = Program::parse(text).expect("a program");
    let dims = [("M", 2), ("K", 8), ("N", 24)].map(|(dim, n)| (dim.to_string(), n));
    let bound = program.bind(&dims.into(), &BTreeMap::new()).expect("binds");
    let mesh = vec![("dp".to_string(), 2), ("tp".to_string(), 3)];
    let config = Config { ranks: 6, mesh, ..Config::default() };
    let (plan, _) = compile(&program, &bound, &config).expect("a plan");
    emit::emit(&plan).expect("a kernel");
}
