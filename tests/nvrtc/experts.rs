//! Experts: ragged rows, layers in one kernel, in eight bits, over nodes, and their backward.

use super::{common::experts, judge};
use mk::Program;
use mk::emit::Options;
use mk::settings::{Config, NicOrdering, Returns};
use mk::syntax::grad::{Saves, grad};
use std::collections::BTreeMap;

/// Products of ragged rows: alone, gated, in sequence, in tiles of half a block, and of tokens that go to their
/// experts and back; two of them traced.
#[test]
fn products_of_ragged_rows_compile() {
    let alone = "fn f(x: bf16[R, K], n: i32[E], w: bf16[E, K, F]) { ragged(x, n) -> grouped_gemm(w) -> silu }";
    let layer = "fn f(x: f16[R, K], n: i32[E], w1: f16[E, K, 2, F], w2: f16[E, F, K]) {
        ragged(x, n) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2)
    }";
    let dispatched = "fn f(x: bf16[R, K] @ shard(0), ids: i32[R, S] @ shard(0), gate: f32[R, S] @ shard(0),
        w1: bf16[E, K, 2, F] @ shard(0), w2: bf16[E, F, K] @ shard(0)) -> bf16[R, K] @ shard(0) {
        dispatch(x, ids, capacity = C) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
    }";
    let wide = dispatched.replace("i32", "i64");
    let drops = dispatched
        .replace("-> bf16[R, K] @ shard(0) {", "{")
        .replace(
            "dispatch(x, ids, capacity = C)",
            "let rows = dispatch(x, ids, capacity = C, drop); (rows",
        )
        .replace("combine(gate)", "combine(gate), rows -> dropped)");
    let adds = dispatched
        .replace("shard(0)) ->", "shard(0), s: bf16[R, K] @ shard(0)) ->")
        .replace("combine(gate)", "combine(gate) -> add(s)");
    let own = adds.replace("fn f(", "fn f<R: own>(");
    let biased = "fn f(x: bf16[R, K], n: i32[E], w: bf16[E, K, F], b: bf16[E, F]) {
        ragged(x, n) -> grouped_gemm(w) -> bias(b) -> gelu
    }";
    // As a training step saves gates and ups.
    let gate_bias = dispatched
        .replace(
            "shard(0)) ->",
            "shard(0), b: bf16[E, 2, F] @ shard(0), c: bf16[E, K] @ shard(0)) ->",
        )
        .replace("-> bf16[R, K] @ shard(0) {", "{ let h =")
        .replace("(w1) ->", "(w1) -> bias(b); (h ->")
        .replace("(w2)", "(w2) -> bias(c)")
        .replace("combine(gate)", "combine(gate), h)");
    for (source, set, trace) in [
        (biased, "", false),
        (&gate_bias, "", false),
        (&gate_bias, "block=128x128x64", true),
        (biased, "block=128x128x64", true),
        (dispatched, "", false),
        (&own, "", true),
        (&wide, "block=128x128x64", true),
        (&drops, "", false),
        (&adds, "", false),
        (alone, "", false),
        (alone, "block=64x128x64", false),
        (alone, "block=128x128x64 consumers=ping_pong", false),
        (layer, "", false),
        (layer, "block=128x128x64", true),
    ] {
        let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
        let sizes = [("R", 8192), ("K", 512), ("E", 16), ("F", 384), ("S", 8), ("C", 69_504)];
        let has = |name: &str| program.symbol(name).is_some();
        let sizes = sizes.iter().filter(|(name, _)| has(name));
        let sizes = sizes.map(|(name, n)| (name.to_string(), *n)).collect();
        let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
        let mut config = Config::default();
        mk::settings::read(&mut config, set).expect("settings");
        if source == wide {
            // The last rank has fewer tokens and experts.
            config.ranks = 3;
        }
        judge(&format!("{} {set}", program.tensors().len()), Options { trace }, || {
            mk::passes::lower(&program, &bound, &config).expect("lowers")
        });
    }
}

/// Experts in eight bits: alone, in sequence, with gates and ups saved, and of tokens that travel so, quantised before or
/// in the kernel.
#[test]
fn experts_of_eight_bits_compile() {
    let rows = "x: e4m3[R, H] scaled(1, 128), n: i32[E], w: e4m3[E, 2, F, H] scaled(128, 128)";
    let alone = "fn f(x: e5m2[R, H] scaled(1, 128), n: i32[E], w: e4m3[E, F, H] scaled(128, 128)) {
        ragged(x, n) -> grouped_gemm(w.t) -> gelu
    }";
    let hidden = format!(
        "fn f({rows}) {{
            let h = ragged(x, n) -> grouped_gemm(w.t);
            (h -> swiglu -> quantize(e4m3, 1, 128), h)
        }}"
    );
    let experts = format!(
        "fn f({rows}, v: e4m3[E, H, F] scaled(128, 128)) {{
            ragged(x, n) -> grouped_gemm(w.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(v.t)
        }}"
    );
    let layer = "fn f(x: e4m3[T, H] scaled(1, 128) @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
        w: e4m3[E, 2, F, H] scaled(128, 128) @ shard(0), v: e4m3[E, H, F] scaled(128, 128) @ shard(0)) {
        dispatch(x, ids) -> grouped_gemm(w.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(v.t) -> combine(gate)
    }";
    let tokens = layer.replace("e4m3[T, H] scaled(1, 128)", "bf16[T, H]").replace(
        "dispatch(x, ids)",
        "x -> quantize(e4m3, 1, 128) -> dispatch(ids, capacity = R, drop)",
    );
    let biased = layer
        .replace(
            "shard(0)) {",
            "shard(0), b: bf16[E, 2, F] @ shard(0), c: bf16[E, H] @ shard(0)) {",
        )
        .replace("(w.t)", "(w.t) -> bias(b)")
        .replace("(v.t)", "(v.t) -> bias(c)");
    // Training: a forward that keeps rows, and kernels of the backward.
    let kept = layer
        .replace("e4m3[T, H] scaled(1, 128)", "bf16[T, H]")
        .replace(
            "dispatch(x, ids) ->",
            "let r = x -> quantize(e4m3, 1, 128) -> dispatch(ids); (r ->",
        )
        .replace("combine(gate)", "combine(gate), r)");
    let (rows, sums) =
        ("@ shard(0), ids: i64[T, K] @ shard(0)", "w: e4m3[E, H, F] scaled(128, 128) @ shard(0)");
    let backward = format!(
        "fn f(dy: bf16[T, F] {rows}, {sums}) {{
            let r = dy -> quantize(e4m3, 1, 128) -> dispatch(ids);
            (r -> grouped_gemm(w.t), r)
        }}"
    );
    let again = format!(
        "fn f(x: e4m3[R, F] scaled(1, 128) {rows}, {sums}, b: bf16[E, H] @ shard(0)) {{
            ragged(x, ids) -> grouped_gemm(w.t) -> bias(b)
        }}"
    );
    let dx = format!(
        "fn f(d: e4m3[R, F] scaled(1, 128) {rows}, {sums}, gate: f32[T, K] @ shard(0)) {{
            ragged(d, ids) -> grouped_gemm(w.t) -> combine(gate)
        }}"
    );
    let gates = format!(
        "fn f(a: e4m3[R, F] scaled(1, 128) {rows}, {sums}, c: bf16[E, H] @ shard(0), dy: bf16[T, H] @ shard(0)) {{
            ragged(a, ids) -> grouped_gemm(w.t) -> bias(c) -> combine_grad(dy)
        }}"
    );
    // Each rank brings its own number of tokens.
    let own_kept = kept.replace("fn f(", "fn f<T: own>(");
    let [own, own_tokens] = [layer, &tokens].map(|of| of.replace("fn f(", "fn f<T: own>("));
    for (source, set, trace) in [
        (own.as_str(), "", false),
        (own_tokens.as_str(), "", false),
        (alone, "", false),
        (hidden.as_str(), "", false),
        (experts.as_str(), "", false),
        (layer, "", false),
        (biased.as_str(), "", false),
        (tokens.as_str(), "", false),
        (tokens.as_str(), "combine=sums", false),
        (kept.as_str(), "", false),
        (own_kept.as_str(), "", false),
        (backward.as_str(), "", false),
        (again.as_str(), "", false),
        (dx.as_str(), "", false),
        (gates.as_str(), "", false),
    ] {
        let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
        let sizes = [("R", 69_632), ("T", 8192), ("H", 2048), ("F", 768), ("E", 32), ("K", 8)];
        let has = |name: &str| program.symbol(name).is_some();
        let sizes = sizes.iter().filter(|(name, _)| has(name));
        let sizes = sizes.map(|(name, n)| (name.to_string(), *n)).collect();
        let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
        let mut config = Config { ranks: 4, ..Config::default() };
        mk::settings::read(&mut config, set).expect("settings");
        judge(&format!("eight bits, {} {set}", program.tensors().len()), Options { trace }, || {
            mk::passes::lower(&program, &bound, &config).expect("lowers")
        });
    }
}

/// Layers of fewer tokens than ranks, and of some more: ranks have none, or one.
#[test]
fn layers_of_few_tokens_compile() {
    let text = std::fs::read_to_string("examples/moe_layer.mk").expect("an example");
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    for (tokens, ranks) in [(1, 2), (5, 4)] {
        let sizes = [("T", tokens), ("H", 8), ("I", 64), ("E", 8), ("K", 1)];
        let sizes = sizes.map(|(name, n)| (name.to_string(), n)).into();
        let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
        let config = Config { ranks, ..Config::default() };
        judge(&format!("{tokens} tokens on {ranks} ranks"), Options::default(), || {
            mk::passes::lower(&program, &bound, &config).expect("lowers")
        });
    }
}

/// A layer that returns gates and ups, and the kernels of its tokens' backward: columns of whole panels, and not.
#[test]
fn experts_and_their_backward_compile() {
    let layer = include_str!("../../examples/moe_layer.mk");
    let plain =
        "fn plain(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
        w: bf16[E, H, I] @ shard(0), v: bf16[E, I, H] @ shard(0)) {
        dispatch(x, ids) -> grouped_gemm(w) -> silu -> grouped_gemm(v) -> combine(gate)
    }";
    // Each rank brings its own number of tokens.
    let own = &layer.replace("fn moe_layer(", "fn moe_layer<T: own>(");
    let any = &layer.replace("fn moe_layer(", "fn moe_layer<T: dyn <= 192>(");
    // Of tokens alone, then of weights and matrices, too.
    let all = [0, 2, 3, 4];
    for (source, columns, ranks, wanted, n) in [
        (layer, 128, 1, &all[..1], 2),
        (layer, 512, 2, &all[..1], 2),
        (layer, 96, 2, &all[..1], 3),
        (plain, 512, 2, &all[..1], 2),
        (layer, 512, 2, &all[..], 3),
        (plain, 96, 1, &all[..], 4),
        (own, 512, 2, &all[..], 3),
        (own, 512, 1, &all[..], 3),
        (any, 512, 2, &all[..1], 2),
        (any, 128, 2, &all[..], 3),
    ] {
        let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
        let derived = grad(&program, Some(wanted), Saves::default()).expect("has a backward");
        let backward = derived.backward.expect("a backward");
        let sizes = [("T", 192), ("H", 256), ("I", columns), ("E", 8), ("K", 2)];
        let sizes: BTreeMap<_, _> = sizes.map(|(name, n)| (name.to_string(), n)).into();
        let mut kernels = 0;
        for program in [&derived.forward, &backward] {
            let known = |(name, _): &(&String, &u64)| program.symbol(name).is_some();
            let sizes = sizes.iter().filter(known).map(|(n, v)| (n.clone(), *v));
            let mut sizes: BTreeMap<_, _> = sizes.collect();
            // Rows that the forward saved.
            let room = program.symbols().iter().map(|s| s.name.clone());
            let room = room.filter(|name| name.starts_with("room"));
            sizes.extend(room.map(|name| (name, u64::from(ranks) * 2048)));
            let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
            let bound = bound.on(program, ranks).expect("binds");
            for step in mk::cut::cut(program, &bound, ranks, &[]).expect("is cut") {
                let shape = |(id, tensor): (&mk::syntax::ValueId, &mk::syntax::Tensor)| {
                    let mut shape = bound.shape(*id).expect("a shape").to_vec();
                    if step.flat.contains(id) {
                        let last = shape.pop().expect("columns");
                        *shape.last_mut().expect("dimensions") *= last;
                    }
                    (tensor.name.clone(), shape)
                };
                let shapes = step.inputs.iter().zip(step.program.tensors()).map(shape).collect();
                // Of rows that a route names, no shape says how many experts there are.
                let experts = step.program.symbol("E").map(|_| ("E".to_string(), 8));
                let bound = step.program.bind(&experts.into_iter().collect(), &shapes);
                let bound = bound.expect("binds");
                let config = Config { ranks, ..Config::default() };
                let facts = mk::passes::facts(&step.program, &bound, ranks);
                let sums = ranks > 1 && facts.is_ok_and(|f| f.returns.is_some());
                for combine in
                    [Returns::Rows, Returns::Sums].into_iter().take(1 + usize::from(sums))
                {
                    let config = Config { combine, ..config.clone() };
                    let what = format!("{}, {columns} columns, {combine:?}", step.text);
                    judge(&what, Options::default(), || {
                        mk::passes::lower(&step.program, &bound, &config).expect("lowers")
                    });
                }
                kernels += usize::from(step.is_kernel);
            }
        }
        assert_eq!(kernels, n, "{columns}");
    }
}

/// Experts beside a dense chain of the same tokens, whose tiles share a ring of stages.
#[test]
fn experts_beside_a_dense_chain_compile() {
    let source = include_str!("../../examples/shared_expert.mk");
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let sizes = mk::file::defaults(source).unwrap_or_else(|e| panic!("{e}"));
    let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
    let config = Config { ranks: 2, ..Config::default() };
    judge("shared_expert", Options::default(), || {
        mk::passes::lower(&program, &bound, &config).expect("lowers")
    });
}

/// Layers of experts that go to other nodes, with drops, and of 64-bit experts; gradients of weights; traced, too.
#[test]
fn experts_over_nodes_compile() {
    let layer = |ids: &str, args: &str| {
        format!(
            "fn f(x: bf16[T, H] @ shard(0), ids: {ids}[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
                w: bf16[E, H, 2, F] @ shard(0), v: bf16[E, F, H] @ shard(0)) {{
                dispatch(x, ids{args}) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate)
            }}"
        )
    };
    let gate = "fn f(a: bf16[R, F] @ shard(0), ids: i32[T, K] @ shard(0), dy: bf16[T, H] @ shard(0), w: bf16[E, F, H] @ shard(0)) {
            ragged(a, ids) -> grouped_gemm(w) -> combine_grad(dy)
        }";
    let eight = |x: &str, dispatch: &str| {
        format!(
            "fn f<T: dyn <= 512>(x: {x} @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
                w: e4m3[E, 2, F, H] scaled(128, 128) @ shard(0), v: e4m3[E, H, F] scaled(128, 128) @ shard(0)) {{
                {dispatch} -> grouped_gemm(w.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(v.t) -> combine(gate)
            }}"
        )
    };
    for (text, slots, local, net) in [
        (eight("e4m3[T, H] scaled(1, 128)", "dispatch(x, ids)"), 2, 2, NicOrdering::InOrder),
        (
            eight("bf16[T, H]", "x -> quantize(e4m3, 1, 128) -> dispatch(ids)"),
            2,
            1,
            NicOrdering::Unordered,
        ),
        (layer("i32", ""), 2, 2, NicOrdering::InOrder),
        (layer("i64", ", capacity = R, drop"), 2, 1, NicOrdering::Unordered),
        (gate.into(), 4, 2, NicOrdering::Unordered),
        // So many slots that all tokens go.
        (layer("i32", ""), 4, 1, NicOrdering::Unordered),
    ] {
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let sizes = [("T", 512), ("H", 256), ("K", slots), ("E", 16), ("F", 128), ("R", 8 * 1024)];
        let sizes = sizes.iter().filter(|(name, _)| program.symbol(name).is_some());
        let sizes = sizes.map(|(name, n)| (name.to_string(), *n)).collect();
        let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
        let config = Config { ranks: 2 * local, nodes: 2, net, ..Config::default() };
        // Beside eight bits a trace spills.
        for trace in [false, true].into_iter().filter(|trace| !(*trace && text.contains("e4m3"))) {
            let name = format!("experts over nodes of {local}, {net:?}, {slots} slots");
            judge(&name, Options { trace }, || {
                mk::passes::lower(&program, &bound, &config).expect("lowers")
            });
        }
    }
}

/// Weights of each expert come through a tensor map of three dimensions.
#[test]
fn stacks_of_weights_compile() {
    for (layout, gated) in [("kn", false), ("kn", true), ("nk", false), ("nk", true)] {
        judge(&format!("experts, {layout}, gated: {gated}"), Options::default(), || {
            experts(layout, gated, 72).parse().unwrap_or_else(|e| panic!("{layout}: {e}"))
        });
    }
}

/// Gated rows with weights, and elements alone, of a written plan: rows of whole vectors, and not; of either type.
#[test]
fn gated_rows_compile() {
    let text = include_str!("../plans/swiglu_grad.plan");
    for (columns, dtype, trace) in
        [(24, "bf16", false), (2048, "bf16", true), (1408, "f16", false), (25, "f16", true)]
    {
        let text = text.replace("I = 24", &format!("I = {columns}")).replace("bf16", dtype);
        judge(&format!("gated rows of {columns} {dtype}"), Options { trace }, || {
            text.parse().unwrap_or_else(|e| panic!("{e}"))
        });
    }
}
