//! `ragged` and `grouped_gemm`: types, and what is said of mistakes.

use mk_syntax::{Program, grad};

fn said(source: &str) -> String {
    Program::parse(source).map_or_else(|e| e.to_string(), |p| p.to_string())
}

#[test]
fn types() {
    let text =
        said("ragged(x, counts) -> grouped_gemm(w1) -> swiglu -> scale(0.5) -> grouped_gemm(w2)");
    for line in [
        "%1 = counts: i32[counts_0] @ replicate",
        "%2 = w1: bf16[counts_0, x_1, 2, w1_3] @ replicate",
        "%3 = w2: bf16[counts_0, w1_3, w2_2] @ replicate",
        "%4 = grouped_gemm(%0, %2, %1): bf16[x_0, 2, w1_3] @ replicate",
        "%7 = grouped_gemm(%6, %3, %1): bf16[x_0, w2_2] @ replicate",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let sharded = "fn f(x: f16[R, K] @ shard(0), n: i32[E] @ shard(0), w: f16[E, K, N] @ shard(0), y: f16[R, N] @ shard(0))
        -> f16[R, N] @ shard(0) { let h = ragged(x, n) -> grouped_gemm(w); h -> add(y) -> silu }";
    assert!(said(sharded).starts_with("pipeline f(world)"), "{}", said(sharded));
}

#[test]
fn mistakes() {
    let typed = |x: &str, n: &str, w: &str, body: &str| {
        said(&format!("fn f(x: {x}, n: {n}, w: {w}) {{ {body} }}"))
    };
    let body = "ragged(x, n) -> grouped_gemm(w)";
    let (x, n, w) = ("bf16[R, K]", "i32[E]", "bf16[E, K, N]");
    for (text, says) in [
        (said("grouped_gemm(x, w)"), "nothing says which rows of `x` are whose"),
        (said("ragged(x, n) -> gemm(w)"), "`gemm` does not take ragged rows"),
        (said("ragged(x, n) -> grouped_gemm(w) -> bias(c)"), "`bias` does not take ragged rows"),
        (said("ragged(x) -> grouped_gemm(w)"), "`ragged` needs a tensor operand"),
        (
            typed(x, "bf16[E]", w, body),
            "needs the rows of each expert, and `n` is `bf16[E] @ replicate`",
        ),
        (typed(x, "i32[E, 2]", w, body), "needs the rows of each expert"),
        (typed(x, n, "bf16[D, K, N]", body), "needs experts `E` in `w`, and it has `D`"),
        (typed(x, n, "bf16[E, J, N]", body), "needs a K of `K` in `w`, and it has `J`"),
        (typed(x, n, "bf16[K, N]", body), "needs a stack of matrices"),
        (typed(x, n, "f16[E, K, N]", body), "has an input of `bf16`, and `w` is `f16`"),
        (
            typed("bf16[R, K] @ shard(0)", n, "bf16[E, K, N] @ replicate", body),
            "declare `w` `@ shard(0)`",
        ),
        (
            typed("bf16[R, K] @ shard(1)", "i32[E] @ replicate", w, body),
            "ragged rows are those of the rank's experts",
        ),
        (typed("bf16[R, 2, K]", n, w, body), "ragged rows are `[R, K]`"),
        (typed("i32[R, K]", n, w, body), "takes `bf16` or `f16`"),
        (
            typed(x, n, "bf16[E, K, N]", "n -> relu"),
            "`n` has integers, which nothing computes with",
        ),
        (typed(x, n, w, "x -> cast(i32)"), "a value cannot become integers"),
    ] {
        assert!(text.contains(says), "{says}\n{text}");
    }
}

/// Matrices read the other way round: of rows, and of gates and ups side by side.
#[test]
fn transposed_matrices() {
    let of = |d: &str, w: &str| {
        let text = format!(
            "fn f(d: bf16[R, {d}] @ shard(0), n: i32[E] @ shard(0), w: bf16[{w}] @ shard(0)) {{ ragged(d, n) -> grouped_gemm(w.t) }}"
        );
        Program::parse(&text).map_or_else(|e| e.to_string(), |p| p.to_string())
    };
    assert!(of("N", "E, K, N").contains("grouped_gemm(%0, %2.t, %1): bf16[R, K] @ shard(0)"));
    assert!(of("N", "E, N, K").contains("needs a K of `N` in `w`, and it has `K`"));
    let gated = |w: &str| {
        let text = format!(
            "fn f(d: bf16[R, N] @ shard(0), n: i32[E] @ shard(0), h: bf16[R, 2, N] @ shard(0), v: bf16[E, N, N] @ shard(0), w: bf16[{w}] @ shard(0)) {{
                ragged(d, n) -> grouped_gemm(v.t) -> swiglu_grad(h) -> grouped_gemm(w.t)
            }}"
        );
        Program::parse(&text).map_or_else(|e| e.to_string(), |p| p.to_string())
    };
    assert!(gated("E, K, 2, N").contains(": bf16[R, K] @ shard(0)"), "{}", gated("E, K, 2, N"));
    let says = "sums over the columns of the result of `swiglu_grad`, and those of `w`, read the other way round, are `[E, K, N]`";
    assert!(gated("E, K, N").contains(says), "{}", gated("E, K, N"));
}

/// Its matrices would have a gradient of ragged K; rows have one.
#[test]
fn derivatives() {
    let program = Program::parse("ragged(x, n) -> grouped_gemm(w)").expect("a pipeline");
    let error = grad::grad(&program, None, grad::Saves::default()).expect_err("no derivative");
    assert!(error.to_string().contains("`grouped_gemm` has no derivative here"), "{error}");
    let made = grad::grad(&program, Some(&[0]), grad::Saves::default()).expect("a derivative");
    let text = made.backward.expect("a backward").to_string();
    assert!(text.contains("grouped_gemm(%0, %2.t, %1)"), "{text}");
}
