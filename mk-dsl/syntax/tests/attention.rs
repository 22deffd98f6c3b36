//! `ring`, `attention`, `lse` and `zigzag`: what checks, and what is said where it does not.

use mk_syntax::Program;

fn check(source: &str) -> String {
    match Program::parse(source) {
        Ok(program) => program.to_string(),
        Err(mistakes) => mistakes.to_string(),
    }
}

/// A pipeline over `q`, `k` and `v` in these placements.
fn over(q: &str, kv: &str, body: &str) -> String {
    format!(
        "pub fn f(q: bf16[B, S, H, D] @ {q}, k: bf16[B, S, G, D] @ {kv}, v: bf16[B, S, G, D] @ {kv}) {{\n    {body}\n}}"
    )
}

#[test]
fn accepted() {
    let both = "let o = ring(k, v) -> attention(q, causal, scale = 0.125);\n    (o, o -> lse)";
    let list = [
        "attention(q, k, v)".to_owned(),
        "ring(k, v) -> attention(q)".to_owned(),
        over("zigzag(1)", "zigzag(1)", both),
        over("shard(1)", "replicate", "attention(q, k, v, causal)"),
        over(
            "zigzag(1)",
            "zigzag(1)",
            "ring(k, v) -> attention(q, causal, window = 1024, softcap = 50)",
        ),
        over("shard(2)", "shard(2)", "let o = attention(q, k, v); (o, o -> lse)"),
        "attention(q, k, v, causal, window = 64, cu_seqlens = lens)".to_owned(),
        over("shard(2)", "shard(2)", "let o = attention(q, k, v, cu_seqlens = cu); (o, o -> lse)")
            .replace(") {", ", cu: i32[9]) {"),
        over("shard(2)", "shard(2)", "attention(q, k, v, causal, sinks = s, cu_seqlens = cu)")
            .replace(") {", ", s: f32[H] @ shard(0), cu: i32[N]) {"),
        "ring(k, v) -> attention(q, sinks = logits)".to_owned(),
        over("zigzag(1)", "zigzag(1)", "ring(k, v) -> attention(q, causal, cu_seqlens = cu)")
            .replace(") {", ", cu: i32[N]) {"),
        // A chunk of queries at the end of the keys.
        over("shard(1)", "replicate", "attention(q, k, v, causal)").replace("[B, S, G", "[B, T, G"),
        over(
            "shard(0, dp) @ shard(1, cp)",
            "shard(0, dp) @ shard(1, cp)",
            "ring(k, v, cp) -> attention(q)",
        ),
    ];
    let text: Vec<_> = list.iter().map(|source| check(source)).collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn mistakes() {
    let list = [
        "ring(k, v) -> gelu".to_owned(),
        "ring(k, v)".to_owned(),
        "ring(k) -> attention(q)".to_owned(),
        "attention(q, k)".to_owned(),
        "attention(q, k, v, x)".to_owned(),
        "attention(q, k, v, window = 512)".to_owned(),
        "attention(q, k, v, causal, window = 0)".to_owned(),
        "attention(q, k, v, causal, window = 1.5)".to_owned(),
        "attention(q, k, v, causal, window = q)".to_owned(),
        "attention(q, k, v, softcap = 0)".to_owned(),
        "attention(q, k, v, softcap = 1e-60, window = 3000000000, causal)".to_owned(),
        "attention(q, k, v, bias = 4, cu_seqlens = lens)".to_owned(),
        "attention(q, k, v, sinks = 4)".to_owned(),
        over("shard(2)", "shard(2)", "attention(q, k, v, sinks = s)")
            .replace(") {", ", s: f32[H]) {"),
        over("replicate", "replicate", "attention(q, k, v, sinks = s)")
            .replace(") {", ", s: bf16[G]) {"),
        over("replicate", "replicate", "let o = attention(q, k, v); attention(q, k, v, sinks = o)"),
        "attention(q, k, v, cu_seqlens = 4)".to_owned(),
        over("replicate", "replicate", "attention(q, k, v, cu_seqlens = cu)")
            .replace(") {", ", cu: i64[N]) {"),
        over("replicate", "replicate", "let o = attention(q, k, v); (o, cu)")
            .replace(") {", ", cu: i32[N]) {"),
        over("replicate", "replicate", "attention(q, k, v, cu_seqlens = cu)")
            .replace(") {", ", cu: i32[N]) {")
            .replace("[B, S, G", "[B, T, G"),
        "attention(q, k, v, scale = causal)".to_owned(),
        "attention(q, k, v, slope = 2)".to_owned(),
        "x -> lse".to_owned(),
        "x -> all_to_all -> attention(k, v)".to_owned(),
        "attention(q, k, v) -> gather".to_owned(),
        over("shard(1)", "shard(1)", "attention(q, k, v)"),
        over("replicate", "replicate", "ring(k, v) -> attention(q)"),
        over("shard(1)", "zigzag(1)", "ring(k, v) -> attention(q)"),
        over("shard(3)", "shard(3)", "attention(q, k, v)"),
        over("zigzag(1)", "zigzag(1)", "let k2 = k -> gather; ring(k, v) -> attention(q)"),
        over("zigzag(4)", "zigzag(1)", "ring(k, v) -> attention(q)"),
        over("shard(1)", "shard(1)", "q -> gelu -> lse"),
        "pub fn f(q: bf16[B, S, H, 96], k: bf16[B, S, G, 96], v: bf16[B, S, G, 96]) { attention(q, k, v) }".to_owned(),
        "pub fn f(q: bf16[B, S, H, D], k: f16[B, S, G, D], v: bf16[B, T, G, D]) { attention(q, k, v) }".to_owned(),
        over("shard(1)", "shard(1)", "ring(k, v) -> attention(q)").replace("[B, S, G", "[B, T, G"),
        "pub fn f(q: bf16[S, H, D], k: bf16[S, G, D], v: bf16[S, G, D]) { attention(q, k, v) }".to_owned(),
    ];
    let text: Vec<_> = list.iter().map(|source| check(source)).collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

/// The backward's pipelines: queries in one placement, keys and values in another.
fn backward(q: &str, kv: &str, body: &str) -> String {
    let stats = q.replace("(2)", "(x)").replace("(1)", "(2)").replace("(x)", "(1)");
    format!(
        "fn f(q: bf16[B, S, H, D] @ {q}, do: bf16[B, S, H, D] @ {q}, stats: f32[B, H, S, 4] @ {stats}, \
         k: bf16[B, S, G, D] @ {kv}, v: bf16[B, S, G, D] @ {kv}) {{ {body} }}"
    )
}

fn dsinks(params: &str) -> String {
    format!("fn f({params}) {{ attention_dsinks(stats, s) }}")
}

#[test]
fn gradients() {
    let dkv = "let dk = attention_dk(k, v, q, do, stats, causal); (dk, dk -> attention_dv)";
    let ring = "let dk = ring(q, do, stats) -> attention_dk(k, v); (dk, dk -> attention_dv)";
    let dq = "attention_dq(q, do, stats, k, v, causal, window = 7, softcap = 30, scale = 0.5)";
    let list = [
        "o -> attention_stats(do, logs)".to_owned(),
        backward("zigzag(1)", "zigzag(1)", "ring(k, v) -> attention_dq(q, do, stats, causal)"),
        backward("zigzag(1)", "zigzag(1)", ring),
        backward("shard(2)", "shard(2)", dq),
        backward(
            "shard(2)",
            "shard(2)",
            "attention_dq(q, do, stats, k, v, causal, cu_seqlens = cu)",
        )
        .replace(") {", ", cu: i32[N]) {"),
        backward("replicate", "replicate", "attention_dk(k, v, q, do, stats, cu_seqlens = cu)")
            .replace(") {", ", cu: i32[N]) {"),
        backward(
            "zigzag(1)",
            "zigzag(1)",
            "ring(q, do, stats) -> attention_dk(k, v, causal, cu_seqlens = cu)",
        )
        .replace(") {", ", cu: i32[N]) {"),
        // Heads of values may have other elements, and so have gradients of results.
        backward("replicate", "replicate", dkv)
            .replace("v: bf16[B, S, G, D]", "v: bf16[B, S, G, E]")
            .replace("do: bf16[B, S, H, D]", "do: bf16[B, S, H, E]"),
        // Of keys that all ranks have, each adds what its queries give.
        backward("shard(1)", "replicate", dkv),
        // Of sinks, each rank has what its queries give.
        dsinks("stats: f32[B, H, S, 4] @ zigzag(2), s: f32[H]"),
        dsinks("stats: f32[B, H, S, 4] @ shard(1), s: f32[H] @ shard(0)"),
        "stats -> attention_dsinks(s)".to_owned(),
        // Mistakes.
        dsinks("stats: f32[B, H, S, 4] @ shard(1), s: f32[H]"),
        dsinks("stats: f32[B, H, S, 4], s: bf16[H]"),
        dsinks("stats: bf16[B, H, S, 4], s: f32[H]"),
        dsinks("stats: f32[B, H, S, 3], s: f32[H]"),
        dsinks("stats: f32[B, S, 4], s: f32[H]"),
        backward("shard(1)", "shard(1)", dkv),
        "x -> attention_dv".to_owned(),
        backward("replicate", "replicate", "attention_dq(q, do, stats, k, v)")
            .replace("D]", "256]")
            .replace("v: bf16[B, S, G, 256]", "v: bf16[B, S, G, 192]"),
        backward("shard(1)", "shard(1)", "ring(q, do, stats) -> attention(k)"),
        backward("shard(1)", "shard(1)", "ring(k, v) -> attention_dk(q, do)"),
        backward("shard(1)", "shard(1)", "ring(k, v) -> attention_dq(q, do, q)"),
        backward("shard(1)", "shard(1)", "ring(k, v) -> attention_dq(q, k, stats)"),
        "fn f(x: f32[M, N] @ shard(0)) { x -> gelu }".to_owned(),
    ];
    let text: Vec<_> = list.iter().map(|source| check(source)).collect();
    insta::assert_snapshot!(text.join("\n\n"));
}
