//! Programs and the types that the checker gives them.

use insta::assert_snapshot;
use mk_syntax::Program;

fn check(source: &str) -> String {
    match Program::parse(source) {
        Ok(program) => program.to_string(),
        Err(mistakes) => mistakes.to_string(),
    }
}

#[test]
fn gather_alone() {
    assert_snapshot!(check("gather(a)"), @r#"
    pipeline gather(world):
      %0 = a: bf16[a_0, a_1] @ shard(0)
      %1 = gather(%0, world, dim = 0): bf16[a_0, a_1] @ replicate
      return %1
    "#);
    assert_snapshot!(check("x -> gather"), @r#"
    pipeline gather(world):
      %0 = x: bf16[x_0, x_1] @ shard(0)
      %1 = gather(%0, world, dim = 0): bf16[x_0, x_1] @ replicate
      return %1
    "#);
}

#[test]
fn column_parallel() {
    // After a `gather`, the operand is sharded by columns, and a bias as they are.
    assert_snapshot!(check("gather(a) -> gemm(b) -> bias(c) -> gelu"), @r#"
    pipeline gather_gemm_bias_gelu(world):
      %0 = a: bf16[a_0, a_1] @ shard(0)
      %1 = b: bf16[a_1, b_1] @ shard(1)
      %2 = c: bf16[b_1] @ shard(0)
      %3 = gather(%0, world, dim = 0): bf16[a_0, a_1] @ replicate
      %4 = gemm(%3, %1): bf16[a_0, b_1] @ shard(1)
      %5 = bias(%4, %2): bf16[a_0, b_1] @ shard(1)
      %6 = gelu(%5): bf16[a_0, b_1] @ shard(1)
      return %6
    "#);
}

#[test]
fn summed_over_ranks() {
    // Before a reduction, the operand differs on every rank.
    assert_snapshot!(check("gather(A) -> gemm(B) -> reduce_scatter"), @r#"
    pipeline gather_gemm_reduce_scatter(world):
      %0 = A: bf16[A_0, A_1] @ shard(0)
      %1 = B: bf16[A_1, B_1] @ partial
      %2 = gather(%0, world, dim = 0): bf16[A_0, A_1] @ replicate
      %3 = gemm(%2, %1): bf16[A_0, B_1] @ partial
      %4 = reduce_scatter(%3, world, dim = 0): bf16[A_0, B_1] @ shard(0)
      return %4
    "#);
}

#[test]
fn row_parallel() {
    assert_snapshot!(check("gemm(a, b) -> reduce_scatter(dim = 1)"), @r#"
    pipeline gemm_reduce_scatter(world):
      %0 = a: bf16[a_0, a_1] @ shard(1)
      %1 = b: bf16[a_1, b_1] @ shard(0)
      %2 = gemm(%0, %1): bf16[a_0, b_1] @ partial
      %3 = reduce_scatter(%2, world, dim = 1): bf16[a_0, b_1] @ shard(1)
      return %3
    "#);
    assert_snapshot!(check("x -> gemm(w) -> all_reduce"), @r#"
    pipeline gemm_all_reduce(world):
      %0 = x: bf16[x_0, x_1] @ shard(1)
      %1 = w: bf16[x_1, w_1] @ shard(0)
      %2 = gemm(%0, %1): bf16[x_0, w_1] @ partial
      %3 = all_reduce(%2, world): bf16[x_0, w_1] @ replicate
      return %3
    "#);
}

#[test]
fn without_a_collective_everything_is_replicated() {
    assert_snapshot!(check("gemm(a, b)"), @r#"
    pipeline gemm(world):
      %0 = a: bf16[a_0, a_1] @ replicate
      %1 = b: bf16[a_1, b_1] @ replicate
      %2 = gemm(%0, %1): bf16[a_0, b_1] @ replicate
      return %2
    "#);
    assert_snapshot!(check("x -> gemm(w1) -> relu -> gemm(w2)"), @r#"
    pipeline gemm_relu_gemm(world):
      %0 = x: bf16[x_0, x_1] @ replicate
      %1 = w1: bf16[x_1, w1_1] @ replicate
      %2 = w2: bf16[w1_1, w2_1] @ replicate
      %3 = gemm(%0, %1): bf16[x_0, w1_1] @ replicate
      %4 = relu(%3): bf16[x_0, w1_1] @ replicate
      %5 = gemm(%4, %2): bf16[x_0, w2_1] @ replicate
      return %5
    "#);
    assert_snapshot!(check("x"), @r#"
    pipeline identity(world):
      %0 = x: bf16[x_0, x_1] @ replicate
      return %0
    "#);
    assert_snapshot!(check("add(x, y) -> mul(z) -> silu"), @r#"
    pipeline add_mul_silu(world):
      %0 = x: bf16[x_0, x_1] @ replicate
      %1 = y: bf16[x_0, x_1] @ replicate
      %2 = z: bf16[x_0, x_1] @ replicate
      %3 = add(%0, %1): bf16[x_0, x_1] @ replicate
      %4 = mul(%3, %2): bf16[x_0, x_1] @ replicate
      %5 = silu(%4): bf16[x_0, x_1] @ replicate
      return %5
    "#);
}

#[test]
fn mlp() {
    // Column parallel, then row parallel.
    assert_snapshot!(check("gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter"), @r#"
    pipeline gather_gemm_gelu_gemm_reduce_scatter(world):
      %0 = x: bf16[x_0, x_1] @ shard(0)
      %1 = w1: bf16[x_1, w1_1] @ shard(1)
      %2 = w2: bf16[w1_1, w2_1] @ shard(0)
      %3 = gather(%0, world, dim = 0): bf16[x_0, x_1] @ replicate
      %4 = gemm(%3, %1): bf16[x_0, w1_1] @ shard(1)
      %5 = gelu(%4): bf16[x_0, w1_1] @ shard(1)
      %6 = gemm(%5, %2): bf16[x_0, w2_1] @ partial
      %7 = reduce_scatter(%6, world, dim = 0): bf16[x_0, w2_1] @ shard(0)
      return %7
    "#);
    assert_snapshot!(check("x -> gemm(w1) -> silu -> gemm(w2) -> all_reduce"), @r#"
    pipeline gemm_silu_gemm_all_reduce(world):
      %0 = x: bf16[x_0, x_1] @ replicate
      %1 = w1: bf16[x_1, w1_1] @ shard(1)
      %2 = w2: bf16[w1_1, w2_1] @ shard(0)
      %3 = gemm(%0, %1): bf16[x_0, w1_1] @ shard(1)
      %4 = silu(%3): bf16[x_0, w1_1] @ shard(1)
      %5 = gemm(%4, %2): bf16[x_0, w2_1] @ partial
      %6 = all_reduce(%5, world): bf16[x_0, w2_1] @ replicate
      return %6
    "#);
}

#[test]
fn three_gemms() {
    // Only the last two share the reduction.
    assert_snapshot!(check("gather(x) -> gemm(a) -> gemm(b) -> gemm(c) -> reduce_scatter"), @r#"
    pipeline gather_gemm_gemm_gemm_reduce_scatter(world):
      %0 = x: bf16[x_0, x_1] @ shard(0)
      %1 = a: bf16[x_1, a_1] @ replicate
      %2 = b: bf16[a_1, b_1] @ shard(1)
      %3 = c: bf16[b_1, c_1] @ shard(0)
      %4 = gather(%0, world, dim = 0): bf16[x_0, x_1] @ replicate
      %5 = gemm(%4, %1): bf16[x_0, a_1] @ replicate
      %6 = gemm(%5, %2): bf16[x_0, b_1] @ shard(1)
      %7 = gemm(%6, %3): bf16[x_0, c_1] @ partial
      %8 = reduce_scatter(%7, world, dim = 0): bf16[x_0, c_1] @ shard(0)
      return %8
    "#);
}

#[test]
fn gemm_then_gather() {
    assert_snapshot!(check("x -> gemm(w) -> gather"), @r#"
    pipeline gemm_gather(world):
      %0 = x: bf16[x_0, x_1] @ replicate
      %1 = w: bf16[x_1, w_1] @ shard(1)
      %2 = gemm(%0, %1): bf16[x_0, w_1] @ shard(1)
      %3 = gather(%2, world, dim = 1): bf16[x_0, w_1] @ replicate
      return %3
    "#);
}

#[test]
fn two_axes() {
    // Each axis is inferred by itself.
    assert_snapshot!(check("gather(a, tp) -> gemm(b) -> reduce_scatter(dp)"), @r#"
    pipeline gather_gemm_reduce_scatter(tp, dp):
      %0 = a: bf16[a_0, a_1] @ shard(0, tp) @ shard(1, dp)
      %1 = b: bf16[a_1, b_1] @ shard(1, tp) @ shard(0, dp)
      %2 = gather(%0, tp, dim = 0): bf16[a_0, a_1] @ shard(1, dp)
      %3 = gemm(%2, %1): bf16[a_0, b_1] @ shard(1, tp) @ partial(dp)
      %4 = reduce_scatter(%3, dp, dim = 0): bf16[a_0, b_1] @ shard(1, tp) @ shard(0, dp)
      return %4
    "#);
}

#[test]
fn bindings() {
    assert_snapshot!(check("let h = gather(x); let g = h -> gemm(w1) -> silu; (h -> gemm(w2) -> mul(g), h)"), @r#"
    pipeline gather_gemm_silu_gemm_mul(world):
      %0 = x: bf16[x_0, x_1] @ shard(0)
      %1 = w1: bf16[x_1, w1_1] @ shard(1)
      %2 = w2: bf16[x_1, w1_1] @ shard(1)
      %3 = gather(%0, world, dim = 0): bf16[x_0, x_1] @ replicate
      %4 = gemm(%3, %1): bf16[x_0, w1_1] @ shard(1)
      %5 = silu(%4): bf16[x_0, w1_1] @ shard(1)
      %6 = gemm(%3, %2): bf16[x_0, w1_1] @ shard(1)
      %7 = mul(%6, %5): bf16[x_0, w1_1] @ shard(1)
      return %7, %3
    "#);
}

#[test]
fn one_tensor_twice() {
    // Its dimensions are unified.
    assert_snapshot!(check("gemm(a, a) -> add(a)"), @r#"
    pipeline gemm_add(world):
      %0 = a: bf16[a_0, a_0] @ replicate
      %1 = gemm(%0, %0): bf16[a_0, a_0] @ replicate
      %2 = add(%1, %0): bf16[a_0, a_0] @ replicate
      return %2
    "#);
}

#[test]
fn dtypes() {
    // Partial sums may be f32; an open operand has the dtype of the input.
    assert_snapshot!(check("x -> cast(f16) -> gemm(w) -> cast(f32) -> bias(c) -> cast(bf16)"), @r#"
    pipeline cast_gemm_cast_bias_cast(world):
      %0 = x: bf16[x_0, x_1] @ replicate
      %1 = w: f16[x_1, w_1] @ replicate
      %2 = c: bf16[w_1] @ replicate
      %3 = cast(%0, f16): f16[x_0, x_1] @ replicate
      %4 = gemm(%3, %1): f16[x_0, w_1] @ replicate
      %5 = cast(%4, f32): f32[x_0, w_1] @ replicate
      %6 = bias(%5, %2): f32[x_0, w_1] @ replicate
      %7 = cast(%6, bf16): bf16[x_0, w_1] @ replicate
      return %7
    "#);
    assert_snapshot!(check("gemm(a, b) -> cast(f32) -> scale(-0.5) -> reduce_scatter -> cast(bf16)"), @r#"
    pipeline gemm_cast_scale_reduce_scatter_cast(world):
      %0 = a: bf16[a_0, a_1] @ shard(1)
      %1 = b: bf16[a_1, b_1] @ shard(0)
      %2 = gemm(%0, %1): bf16[a_0, b_1] @ partial
      %3 = cast(%2, f32): f32[a_0, b_1] @ partial
      %4 = scale(%3, -0.5): f32[a_0, b_1] @ partial
      %5 = reduce_scatter(%4, world, dim = 0): f32[a_0, b_1] @ shard(0)
      %6 = cast(%5, bf16): bf16[a_0, b_1] @ shard(0)
      return %6
    "#);
}

#[test]
fn item() {
    assert_snapshot!(check(r#"// M = 512
/// Tensor-parallel MLP.
pub fn mlp(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, 64], c: bf16[64]) -> bf16[M, 64] @ shard(0) {
    /* up */ gather(x) -> gemm(w1) -> gelu
        -> gemm(w2) -> reduce_scatter -> bias(c) // down
}"#), @r#"
    pipeline mlp(world):
      %0 = x: bf16[M, K] @ shard(0)
      %1 = w1: bf16[K, F] @ shard(1)
      %2 = w2: bf16[F, 64] @ shard(0)
      %3 = c: bf16[64] @ replicate
      %4 = gather(%0, world, dim = 0): bf16[M, K] @ replicate
      %5 = gemm(%4, %1): bf16[M, F] @ shard(1)
      %6 = gelu(%5): bf16[M, F] @ shard(1)
      %7 = gemm(%6, %2): bf16[M, 64] @ partial
      %8 = reduce_scatter(%7, world, dim = 0): bf16[M, 64] @ shard(0)
      %9 = bias(%8, %3): bf16[M, 64] @ shard(0)
      return %9
    "#);
}

#[test]
fn item_with_axes() {
    assert_snapshot!(check("fn f(x: f16[8_192, K] @ shard(0, tp) @ shard(1, dp), w: f16[K, N] @ shard(0, dp) @ replicate(tp)) { gather(x, tp) -> gemm(w) -> all_reduce(dp) }"), @r#"
    pipeline f(tp, dp):
      %0 = x: f16[8192, K] @ shard(0, tp) @ shard(1, dp)
      %1 = w: f16[K, N] @ shard(0, dp)
      %2 = gather(%0, tp, dim = 0): f16[8192, K] @ shard(1, dp)
      %3 = gemm(%2, %1): f16[8192, N] @ partial(dp)
      %4 = all_reduce(%3, dp): f16[8192, N] @ replicate
      return %4
    "#);
}

#[test]
fn partial_f32_parameter() {
    assert_snapshot!(check("fn f(x: f32[M] @ partial) -> f32[M] @ replicate { all_reduce(x) }"), @r#"
    pipeline f(world):
      %0 = x: f32[M] @ partial
      %1 = all_reduce(%0, world): f32[M] @ replicate
      return %1
    "#);
}

#[test]
fn gate_and_up() {
    assert_snapshot!(check("gather(x) -> gemm(w) -> swiglu -> gemm(v) -> reduce_scatter"), @r#"
    pipeline gather_gemm_swiglu_gemm_reduce_scatter(world):
      %0 = x: bf16[x_0, x_1] @ shard(0)
      %1 = w: bf16[x_1, 2, w_2] @ shard(2)
      %2 = v: bf16[w_2, v_1] @ shard(0)
      %3 = gather(%0, world, dim = 0): bf16[x_0, x_1] @ replicate
      %4 = gemm(%3, %1): bf16[x_0, 2, w_2] @ shard(2)
      %5 = swiglu(%4): bf16[x_0, w_2] @ shard(1)
      %6 = gemm(%5, %2): bf16[x_0, v_1] @ partial
      %7 = reduce_scatter(%6, world, dim = 0): bf16[x_0, v_1] @ shard(0)
      return %7
    "#);
    assert_snapshot!(check("fn up(x: bf16[M, K] @ shard(0), w: bf16[K, 2, 64], c: bf16[64] @ shard(0)) {
        gather(x) -> gemm(w) -> bias(c) -> scale(2) -> swiglu
    }"), @r#"
    pipeline up(world):
      %0 = x: bf16[M, K] @ shard(0)
      %1 = w: bf16[K, 2, 64] @ shard(2)
      %2 = c: bf16[64] @ shard(0)
      %3 = gather(%0, world, dim = 0): bf16[M, K] @ replicate
      %4 = gemm(%3, %1): bf16[M, 2, 64] @ shard(2)
      %5 = bias(%4, %2): bf16[M, 2, 64] @ shard(2)
      %6 = scale(%5, 2): bf16[M, 2, 64] @ shard(2)
      %7 = swiglu(%6): bf16[M, 64] @ shard(1)
      return %7
    "#);
    assert_snapshot!(check("fn rows(x: bf16[M, 2, F] @ shard(0)) { x -> swiglu }"), @r#"
    pipeline rows(world):
      %0 = x: bf16[M, 2, F] @ shard(0)
      %1 = swiglu(%0): bf16[M, F] @ shard(0)
      return %1
    "#);
    assert_snapshot!(check("x -> swiglu -> gemm(w) -> all_reduce"), @r#"
    pipeline swiglu_gemm_all_reduce(world):
      %0 = x: bf16[x_0, 2, x_2] @ shard(2)
      %1 = w: bf16[x_2, w_1] @ shard(0)
      %2 = swiglu(%0): bf16[x_0, x_2] @ shard(1)
      %3 = gemm(%2, %1): bf16[x_0, w_1] @ partial
      %4 = all_reduce(%3, world): bf16[x_0, w_1] @ replicate
      return %4
    "#);
    assert_snapshot!(check("gemm(x, w) -> reduce_scatter -> swiglu"), @r#"
    pipeline gemm_reduce_scatter_swiglu(world):
      %0 = x: bf16[x_0, x_1] @ shard(1)
      %1 = w: bf16[x_1, 2, w_2] @ shard(0)
      %2 = gemm(%0, %1): bf16[x_0, 2, w_2] @ partial
      %3 = reduce_scatter(%2, world, dim = 0): bf16[x_0, 2, w_2] @ shard(0)
      %4 = swiglu(%3): bf16[x_0, w_2] @ shard(0)
      return %4
    "#);
}

#[test]
fn heads() {
    assert_snapshot!(check("fn q(x: bf16[M, K], w: bf16[K, H, D] @ shard(1)) { gemm(x, w) }"), @r#"
    pipeline q(world):
      %0 = x: bf16[M, K] @ replicate
      %1 = w: bf16[K, H, D] @ shard(1)
      %2 = gemm(%0, %1): bf16[M, H, D] @ shard(1)
      return %2
    "#);
}

#[test]
fn transposed() {
    assert_snapshot!(check("fn backward(dy: bf16[M, N] @ shard(0), x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(0)) {
        let h = gather(dy);
        (h -> gemm(w.t), gemm(x.t, dy) -> all_reduce, h.t -> gemm(h))
    }"), @r#"
    pipeline backward(world):
      %0 = dy: bf16[M, N] @ shard(0)
      %1 = x: bf16[M, K] @ shard(0)
      %2 = w: bf16[K, N] @ shard(0)
      %3 = gather(%0, world, dim = 0): bf16[M, N] @ replicate
      %4 = gemm(%3, %2.t): bf16[M, K] @ shard(1)
      %5 = gemm(%1.t, %0): bf16[K, N] @ partial
      %6 = all_reduce(%5, world): bf16[K, N] @ replicate
      %7 = gemm(%3.t, %3): bf16[N, N] @ replicate
      return %4, %6, %7
    "#);
    // What is left out is inferred as the product reads it.
    assert_snapshot!(check("gather(x) -> gemm(w.t)"), @r#"
    pipeline gather_gemm(world):
      %0 = x: bf16[x_0, x_1] @ shard(0)
      %1 = w: bf16[w_0, x_1] @ shard(0)
      %2 = gather(%0, world, dim = 0): bf16[x_0, x_1] @ replicate
      %3 = gemm(%2, %1.t): bf16[x_0, w_0] @ shard(1)
      return %3
    "#);
    assert_snapshot!(check("gemm(x.t, w.t) -> reduce_scatter"), @r#"
    pipeline gemm_reduce_scatter(world):
      %0 = x: bf16[x_0, x_1] @ shard(0)
      %1 = w: bf16[w_0, x_0] @ shard(1)
      %2 = gemm(%0.t, %1.t): bf16[x_1, w_0] @ partial
      %3 = reduce_scatter(%2, world, dim = 0): bf16[x_1, w_0] @ shard(0)
      return %3
    "#);
    assert_snapshot!(check("fn open(x: bf16[M, K] @ shard(0), w: bf16[N, K]) { gather(x) -> gemm(w.t) }"), @r#"
    pipeline open(world):
      %0 = x: bf16[M, K] @ shard(0)
      %1 = w: bf16[N, K] @ shard(0)
      %2 = gather(%0, world, dim = 0): bf16[M, K] @ replicate
      %3 = gemm(%2, %1.t): bf16[M, N] @ shard(1)
      return %3
    "#);
}

#[test]
fn runtime_symbols() {
    assert_snapshot!(check("fn f<M: dyn <= 8192, N: dyn>(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) -> bf16[M, N] @ shard(1) {
        gather(x) -> gemm(w)
    }"), @r#"
    pipeline f<M: dyn <= 8192, N: dyn>(world):
      %0 = x: bf16[M, K] @ shard(0)
      %1 = w: bf16[K, N] @ shard(1)
      %2 = gather(%0, world, dim = 0): bf16[M, K] @ replicate
      %3 = gemm(%2, %1): bf16[M, N] @ shard(1)
      return %3
    "#);
}

#[test]
fn names_of_results() {
    let names = |source: &str| Program::parse(source).unwrap().result_names().join(", ");
    assert_eq!(names("gather(x) -> gemm(w)"), "out");
    assert_eq!(names("out -> gelu"), "out_");
    assert_eq!(names("let h = gather(x); h"), "out");
    assert_eq!(names("let h = gather(x); let g = h; (h -> gemm(w), g, h)"), "out0, h, out2");
    assert_eq!(names("let out0 = x -> relu; (out0 -> gelu, x, out0)"), "out0_, out1, out0");
}

#[test]
fn views_keep_what_ranks_have() {
    assert_snapshot!(check("fn f(x: bf16[M, K] @ shard(0, dp) @ shard(1, tp)) { x -> view(B, S, H, 64) -> view(M, K) }"), @r#"
    pipeline f(dp, tp):
      %0 = x: bf16[M, K] @ shard(0, dp) @ shard(1, tp)
      %1 = view(%0): bf16[B, S, H, 64] @ shard(0, dp) @ shard(2, tp)
      %2 = view(%1): bf16[M, K] @ shard(0, dp) @ shard(1, tp)
      return %2
    "#);
    // Of one sequence, ranks have parts.
    assert_snapshot!(check("fn f(x: bf16[M, K] @ shard(0, cp) @ shard(1, tp)) { x -> view(1, S, H, 64) -> view(M, K) }"), @r#"
    pipeline f(cp, tp):
      %0 = x: bf16[M, K] @ shard(0, cp) @ shard(1, tp)
      %1 = view(%0): bf16[1, S, H, 64] @ shard(1, cp) @ shard(2, tp)
      %2 = view(%1): bf16[M, K] @ shard(0, cp) @ shard(1, tp)
      return %2
    "#);
    // What comes before heads has them.
    assert_snapshot!(check("o -> view(M, K) -> gemm(w)"), @r#"
    pipeline view_gemm(world):
      %0 = o: bf16[o_0, o_1, o_2, o_3] @ replicate
      %1 = w: bf16[K, w_1] @ replicate
      %2 = view(%0): bf16[M, K] @ replicate
      %3 = gemm(%2, %1): bf16[M, w_1] @ replicate
      return %3
    "#);
}

#[test]
fn a_dimension_over_two_axes() {
    // The outer axis comes first, whichever is named first.
    assert_snapshot!(check("fn f(w: bf16[K, N] @ shard(1, tp), x: bf16[M, K] @ shard(0, dp) @ shard(0, tp)) { gather(x, tp) -> gemm(w) }"), @r#"
    pipeline f(dp, tp):
      %0 = w: bf16[K, N] @ shard(1, tp)
      %1 = x: bf16[M, K] @ shard(0, dp) @ shard(0, tp)
      %2 = gather(%1, tp, dim = 0): bf16[M, K] @ shard(0, dp)
      %3 = gemm(%2, %0): bf16[M, N] @ shard(0, dp) @ shard(1, tp)
      return %3
    "#);
    assert_snapshot!(check("fn f(w: bf16[K, N] @ shard(1, tp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp)) { gemm(d, w.t) -> reduce_scatter(tp) }"), @r#"
    pipeline f(dp, tp):
      %0 = w: bf16[K, N] @ shard(1, tp)
      %1 = d: bf16[M, N] @ shard(0, dp) @ shard(1, tp)
      %2 = gemm(%1, %0.t): bf16[M, K] @ shard(0, dp) @ partial(tp)
      %3 = reduce_scatter(%2, tp, dim = 0): bf16[M, K] @ shard(0, dp) @ shard(0, tp)
      return %3
    "#);
    assert_snapshot!(check("fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), d: bf16[M, N] @ shard(0, dp) @ shard(0, tp)) { gemm(x.t, d) -> all_reduce(tp) -> reduce_scatter(dp) }"), @r#"
    pipeline f(dp, tp):
      %0 = x: bf16[M, K] @ shard(0, dp) @ shard(0, tp)
      %1 = d: bf16[M, N] @ shard(0, dp) @ shard(0, tp)
      %2 = gemm(%0.t, %1): bf16[K, N] @ partial(dp) @ partial(tp)
      %3 = all_reduce(%2, tp): bf16[K, N] @ partial(dp)
      %4 = reduce_scatter(%3, dp, dim = 0): bf16[K, N] @ shard(0, dp)
      return %4
    "#);
    assert_snapshot!(check("x -> gather(tp) -> gather(dp)"), @r#"
    pipeline gather_gather(dp, tp):
      %0 = x: bf16[x_0, x_1] @ shard(0, dp) @ shard(0, tp)
      %1 = gather(%0, tp, dim = 0): bf16[x_0, x_1] @ shard(0, dp)
      %2 = gather(%1, dp, dim = 0): bf16[x_0, x_1] @ replicate
      return %2
    "#);
}

#[test]
fn exchanges() {
    assert_snapshot!(check("fn f(q: bf16[B, S, H, D] @ shard(1), k: bf16[B, S, G, D] @ shard(1), v: bf16[B, S, G, D] @ shard(2)) { \
        let x = all_to_all(k, split = 2, concat = 1); \
        q -> all_to_all(split = 2, concat = 1) -> attention(x, v) -> all_to_all(split = 1, concat = 2) }"), @r#"
    pipeline f(world):
      %0 = q: bf16[B, S, H, D] @ shard(1)
      %1 = k: bf16[B, S, G, D] @ shard(1)
      %2 = v: bf16[B, S, G, D] @ shard(2)
      %3 = all_to_all(%1, world, split = 2, concat = 1): bf16[B, S, G, D] @ shard(2)
      %4 = all_to_all(%0, world, split = 2, concat = 1): bf16[B, S, H, D] @ shard(2)
      %5 = attention(%4, %3, %2): bf16[B, S, H, D] @ shard(2)
      %6 = all_to_all(%5, world, split = 1, concat = 2): bf16[B, S, H, D] @ shard(1)
      return %6
    "#);
    assert_snapshot!(check("q -> all_to_all(split = 2, concat = 1) -> attention(k, v)"), @r#"
    pipeline all_to_all_attention(world):
      %0 = q: bf16[q_0, q_1, q_2, q_3] @ shard(1)
      %1 = k: bf16[q_0, q_1, k_2, q_3] @ shard(2)
      %2 = v: bf16[q_0, q_1, k_2, q_3] @ shard(2)
      %3 = all_to_all(%0, world, split = 2, concat = 1): bf16[q_0, q_1, q_2, q_3] @ shard(2)
      %4 = attention(%3, %1, %2): bf16[q_0, q_1, q_2, q_3] @ shard(2)
      return %4
    "#);
    assert_snapshot!(check("fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp)) { x -> all_to_all(tp, split = 1, concat = 0) }"), @r#"
    pipeline f(dp, tp):
      %0 = x: bf16[M, K] @ shard(0, dp) @ shard(0, tp)
      %1 = all_to_all(%0, tp, split = 1, concat = 0): bf16[M, K] @ shard(0, dp) @ shard(1, tp)
      return %1
    "#);
}
