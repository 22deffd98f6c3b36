//! `dispatch` and `combine`: types, and what is said of mistakes.

use mk_syntax::{Program, grad};

fn said(source: &str) -> String {
    Program::parse(source).map_or_else(|e| e.to_string(), |p| p.to_string())
}

/// A pipeline of these tensors.
fn of(x: &str, ids: &str, gate: &str, body: &str) -> String {
    said(&format!(
        "fn f(x: {x}, ids: {ids}, gate: {gate}, w: bf16[E, H, N] @ shard(0)) {{ {body} }}"
    ))
}

const X: &str = "bf16[T, H] @ shard(0)";
const IDS: &str = "i32[T, K] @ shard(0)";
const GATE: &str = "f32[T, K] @ shard(0)";
const BODY: &str = "dispatch(x, ids, capacity = R) -> grouped_gemm(w) -> combine(gate)";

#[test]
fn types() {
    let text = of(X, IDS, GATE, BODY);
    for line in [
        "%4 = dispatch(%0, %1): bf16[R, H] @ shard(0)",
        "%5 = grouped_gemm(%4, %3, %1): bf16[R, N] @ shard(0)",
        "%6 = combine(%5, %1, %2): bf16[T, N] @ shard(0)",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let wide = of(X, "i64[T, K] @ shard(0)", GATE, BODY);
    assert!(wide.contains("i64[T, K]") && wide.contains("%6 = combine"), "{wide}");
    let number = of(X, IDS, GATE, &BODY.replace('R', "1024"));
    assert!(number.contains("bf16[1024, H]"), "{number}");
}

#[test]
fn mistakes() {
    for (text, says) in [
        (of(X, IDS, GATE, &BODY.replace(", capacity = R", "")), "for how many rows there is room"),
        (of(X, IDS, GATE, &BODY.replace("= R", "= 0.5")), "for how many rows there is room"),
        (of("bf16[T, H]", "i32[T, K]", GATE, BODY), "sends each rank's own tokens"),
        (of(X, "i32[T, K] @ replicate", GATE, BODY), "`dispatch` needs `ids` as `shard(0)`"),
        (of(X, "f32[T, K] @ shard(0)", GATE, BODY), "needs the experts of each token"),
        (of("i64[T, H] @ shard(0)", IDS, GATE, BODY), "takes `bf16` or `f16`"),
        (of(X, "i32[T] @ shard(0)", GATE, BODY), "needs the experts of each token"),
        (of(X, "i32[M, K] @ shard(0)", GATE, BODY), "a route needs `T` in `ids`, and it has `M`"),
        (of(X, IDS, "f32[T, J] @ shard(0)", BODY), "a route needs `K` in `gate`, and it has `J`"),
        (of(X, IDS, "bf16[T, K] @ shard(0)", BODY), "needs a weight for each expert of a token"),
        (of(X, IDS, "f32[T, K] @ replicate", BODY), "`combine` needs `gate` as `shard(0)`"),
        (of("f32[T, H] @ shard(0)", IDS, GATE, BODY), "takes `bf16` or `f16`"),
        (of(X, IDS, GATE, "combine(x, gate)"), "brings back what was dispatched"),
        (of(X, IDS, GATE, &BODY.replace("grouped_gemm", "gemm")), "does not take ragged rows"),
    ] {
        assert!(text.contains(says), "{says}\n{text}");
    }
}

#[test]
fn no_derivative() {
    let source =
        format!("fn f(x: {X}, ids: {IDS}, gate: {GATE}, w: bf16[E, H, N] @ shard(0)) {{ {BODY} }}");
    let program = Program::parse(&source).expect("a pipeline");
    let error = grad::grad(&program, None, grad::Saves::default()).expect_err("no derivative");
    assert!(error.to_string().contains("`combine`"), "{error}");
}
