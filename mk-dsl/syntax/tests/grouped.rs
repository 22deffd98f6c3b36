//! `ragged` and `grouped_gemm`: types, and what is said of mistakes.

use mk_syntax::{
    Excerpt, Program,
    grad::{self, Source},
};

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

/// A vector for each expert; its gradient is the sum of its rows' gradients, by ones.
#[test]
fn biases() {
    let text = "fn f(x: bf16[R, K] @ shard(0), n: i32[E] @ shard(0), w: bf16[E, K, N] @ shard(0), b: bf16[E, N] @ shard(0))
        -> bf16[R, N] @ shard(0) { ragged(x, n) -> grouped_gemm(w) -> bias(b) -> silu }";
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let back = |wanted: &[usize]| mk_syntax::grad::grad(&program, Some(wanted), Default::default());
    let found = back(&[3]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(found.gradients, [(3, Source::Rows(0))]);
    let found = found.backward.expect("a backward").to_string();
    assert!(found.contains("ones: bf16[R, 8] @ shard(0)"), "{found}");
    assert!(found.contains("grouped_wgrad"), "{found}");
    // Gradients of activations of the last rows say whose they are where products read them.
    let found = back(&[0, 2]).unwrap_or_else(|e| panic!("{e}"));
    let found = found.backward.expect("a backward").to_string();
    assert!(found.contains("grouped_gemm") && found.contains("silu_grad"), "{found}");
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
        (said("ragged(x, n) -> bias(c) -> grouped_gemm(w)"), "no product made `x`"),
        (
            said(
                "fn f(x: bf16[R, K], n: i32[E], w: bf16[E, K, N], b: bf16[N]) { ragged(x, n) -> grouped_gemm(w) -> bias(b) }",
            ),
            "`bias` needs 2 dimensions here",
        ),
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
        (typed("i32[R, K]", n, w, body), "take `bf16`, `f16`"),
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

/// Of rows and of matrices, whose gradient has a ragged K.
#[test]
fn derivatives() {
    let program = Program::parse("ragged(x, n) -> grouped_gemm(w)").expect("a pipeline");
    let all = grad::grad(&program, None, grad::Saves::default()).expect("derivatives");
    let text = all.backward.expect("a backward").to_string();
    assert!(text.contains("grouped_wgrad(%1, %0, %2)"), "{text}");
    let made = grad::grad(&program, Some(&[0]), grad::Saves::default()).expect("a derivative");
    let text = made.backward.expect("a backward").to_string();
    assert!(text.contains("grouped_gemm(%0, %2.t, %1)"), "{text}");
}

#[test]
fn gradients_of_matrices() {
    let typed = |x: &str, n: &str, dy: &str, body: &str| {
        said(&format!("fn f(x: {x}, n: {n}, dy: {dy}) {{ {body} }}"))
    };
    let (x, n, dy) = ("bf16[R, K]", "i32[E]", "bf16[R, 2, N]");
    let body = "ragged(x, n) -> grouped_wgrad(dy)";
    let routed = "ragged(x, n) -> grouped_wgrad(dy, experts = E)";
    let fine = typed(x, n, dy, body);
    assert!(fine.contains("grouped_wgrad(%0, %2, %1): bf16[E, K, 2, N] @ replicate"), "{fine}");
    let s = "@ shard(0)";
    let [x0, n0, dy0] = [x, "i32[T, S]", "bf16[R, N]"].map(|ty| format!("{ty} {s}"));
    let fine = typed(&x0, &n0, &dy0, routed);
    assert!(fine.contains("bf16[E, K, N] @ shard(0)"), "{fine}");
    for (text, says) in [
        (typed(x, n, dy, "x -> grouped_wgrad(dy)"), "nothing says which rows of `x` are whose"),
        (typed(x, n, "bf16[R, 2, 2, N]", body), "sums over rows `[R, N]`"),
        (typed(x, n, "bf16[M, N]", body), "needs as many rows, `R`, in `dy`, and it has `M`"),
        (typed(x, n, "f16[R, N]", body), "has an input of `bf16`, and `dy` is `f16`"),
        (typed(&x0, &n0, "bf16[R, N] @ replicate", routed), "declare `dy` `@ shard(0)`"),
        (typed(&x0, &n0, &dy0, body), "not how many experts there are"),
        (typed(x, n, dy, "ragged(x, n) -> grouped_wgrad(dy, experts = 0.5)"), "experts"),
        (
            typed(x, n, dy, "ragged(x, n) -> grouped_wgrad(dy, experts = K)"),
            "needs experts `E` in `dy`, and it has `K`",
        ),
        (
            typed(x, n, dy, "ragged(x, n) -> grouped_wgrad(dy) -> grouped_wgrad(dy)"),
            "nothing says which rows of the result of `grouped_wgrad` are whose",
        ),
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[test]
fn layers_of_rows_have_all_gradients() {
    let text = "fn f(x: bf16[R, K], n: i32[E], w: bf16[E, K, 2, F], v: bf16[E, F, K]) {
        ragged(x, n) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v)
    }";
    let program = Program::parse(text).expect("a pipeline");
    let found = grad::grad(&program, Some(&[0, 2, 3]), grad::Saves::default()).expect("a backward");
    let backward = found.backward.as_ref().expect("a backward").to_string();
    assert_eq!(backward.matches("grouped_wgrad(").count(), 2, "{backward}");
    let again = found.backward.expect("a backward");
    let text = Excerpt::whole(&again).text();
    assert_eq!(Program::parse(&text).map_err(|e| format!("{e}\n{text}")), Ok(again));
    assert_eq!(found.gradients.len(), 3);
}
