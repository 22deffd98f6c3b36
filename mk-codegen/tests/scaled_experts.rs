//! Experts in eight bits: plans and CUDA, bytes on links, and what is refused: pairs of values and factors that are torn,
//! factors of other rows, blocks and experts, and pipelines that no kernel holds.

#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;

use mk_codegen::{
    emit,
    passes::{Claim, LowerError, compile, lower},
    plan::{BufId, Plan, TabId},
    settings::{self, Config},
    sim::{self, Callbacks, Options},
    valid,
};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

const ALONE: &str = "fn grouped(x: e4m3[R, H] scaled(1, 128) @ shard(0), counts: i32[E] @ shard(0),
    w: e5m2[E, F, H] scaled(128, 128) @ shard(0)) {
    ragged(x, counts) -> grouped_gemm(w.t) -> silu
}";
const EXPERTS: &str = "fn experts(x: e4m3[R, H] scaled(1, 128), counts: i32[E], w1: e4m3[E, 2, F, H] scaled(128, 128),
    w2: e4m3[E, H, F] scaled(128, 128)) {
    ragged(x, counts) -> grouped_gemm(w1.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(w2.t)
}";
const HIDDEN: &str = "fn hidden(x: e4m3[R, H] scaled(1, 128), counts: i32[E], w1: e4m3[E, 2, F, H] scaled(128, 128)) {
    let h = ragged(x, counts) -> grouped_gemm(w1.t);
    (h -> swiglu -> quantize(e5m2, 1, 128), h)
}";
const LAYER: &str = "fn layer(x: e4m3[T, H] scaled(1, 128) @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: e4m3[E, 2, F, H] scaled(128, 128) @ shard(0), w2: e4m3[E, H, F] scaled(128, 128) @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(w2.t) -> combine(gate)
}";
/// The layer of tokens that are quantised on the way out, with room for some rows of each expert.
const TOKENS: &str = "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: e4m3[E, 2, F, H] scaled(128, 128) @ shard(0), w2: e4m3[E, H, F] scaled(128, 128) @ shard(0)) -> bf16[T, H] @ shard(0) {
    x -> quantize(e4m3, 1, 128) -> dispatch(ids, capacity = R, drop) -> grouped_gemm(w1.t) -> swiglu
        -> quantize(e4m3, 1, 128) -> grouped_gemm(w2.t) -> combine(gate)
}";
/// What training keeps of the layer: its dispatched rows, and their factors, are results.
const KEPT: &str = "fn layer(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: e4m3[E, 2, F, H] scaled(128, 128) @ shard(0), w2: e4m3[E, H, F] scaled(128, 128) @ shard(0)) {
    let rows = x -> quantize(e4m3, 1, 128) -> dispatch(ids);
    (rows -> grouped_gemm(w1.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(w2.t) -> combine(gate), rows)
}";
/// The first kernel of its backward.
const BACKWARD: &str = "fn backward(dy: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0),
    v: e4m3[E, F, H] scaled(128, 128) @ shard(0)) {
    let rows = dy -> quantize(e4m3, 1, 128) -> dispatch(ids, capacity = R);
    (rows -> grouped_gemm(v.t), rows)
}";
/// The same with all that is made of its rows: gradients of what the activation took, its results and the gradients of
/// weights.
const GRADIENTS: &str =
    "fn gradients(dy: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    v: e4m3[E, F, H] scaled(128, 128) @ shard(0), h: bf16[R, 2, F] @ shard(0)) {
    let rows = dy -> quantize(e4m3, 1, 128) -> dispatch(ids, capacity = R);
    let u = rows -> grouped_gemm(v.t);
    let a = h -> swiglu;
    (u -> weigh(gate) -> swiglu_grad(h), a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a), rows)
}";

fn bound(source: &str) -> (Program, Bound) {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let all = [("T", 42), ("K", 2), ("E", 4), ("H", 272), ("F", 256), ("R", 1024)];
    let has = |(name, n): (&str, u64)| program.symbol(name).map(|_| (name.to_string(), n));
    let dims = all.into_iter().filter_map(has).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    (program, bound)
}

fn planned(source: &str) -> Result<Plan, LowerError> {
    let (program, bound) = bound(source);
    let config = Config { ranks: 2, ..Config::default() };
    compile(&program, &bound, &config).map(|(plan, _)| plan)
}

/// The plan of so many tokens on nodes of so many ranks, each rank with three experts but the last.
fn over_nodes(source: &str, nodes: u32, local: u32, tokens: u64) -> Result<Plan, LowerError> {
    let (program, ranks) =
        (Program::parse(source).unwrap_or_else(|e| panic!("{e}")), nodes * local);
    let experts = u64::from(ranks * 3 - 1);
    let all = [("T", tokens), ("K", 2), ("E", experts), ("H", 272), ("F", 256), ("R", 2048)];
    let has = |(name, n): (&str, u64)| program.symbol(name).map(|_| (name.to_string(), n));
    let dims = all.into_iter().filter_map(has).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    let config = Config { ranks, nodes, ..Config::default() };
    compile(&program, &bound, &config).map(|(plan, _)| plan)
}

#[test]
fn texts() {
    // Of each rank's own number of tokens.
    let [given, quantised] = [LAYER, TOKENS].map(|of| of.replace("fn layer(", "fn layer<T: own>("));
    // Of a number that comes with each launch.
    let any = LAYER.replace("fn layer(", "fn layer<T: dyn <= 64>(");
    for (name, source) in [
        ("grouped_eight_bits", ALONE),
        ("experts_eight_bits", EXPERTS),
        ("hidden_eight_bits", HIDDEN),
        ("layer_eight_bits", LAYER),
        ("tokens_quantized", TOKENS),
        ("layer_keeps_rows", KEPT),
        ("backward_eight_bits", BACKWARD),
        ("gradients_eight_bits", GRADIENTS),
        ("own_eight_bits", given.as_str()),
        ("own_quantized", quantised.as_str()),
        ("any_eight_bits", any.as_str()),
        ("nodes_eight_bits", LAYER),
        ("nodes_quantized", TOKENS),
    ] {
        let plan = match name.starts_with("nodes_") {
            true => over_nodes(source, 2, 2, 42),
            false => planned(source),
        };
        let plan = plan.unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = plan.to_string();
        assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{name}");
        assert_eq!(Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan"), plan);
        insta::assert_snapshot!(name, text);
        let source = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = source.cuda.split_once(emit::library::END).expect("the library ends").1;
        insta::assert_snapshot!(format!("cuda_{name}"), generated);
    }
}

/// What is wrong with a plan of the pipeline, as a text; nothing if it is proved.
fn wrong(source: &str, plan: &str) -> String {
    let (program, bound) = bound(source);
    let plan: Plan = plan.parse().unwrap_or_else(|e| panic!("{e}"));
    let proof = Claim::read(&plan, Some((&program, &bound))).prove();
    proof.err().map(|e| e.to_string()).unwrap_or_default()
}

/// The lines of a family.
fn family<'t>(text: &'t str, name: &str) -> &'t str {
    let at = text.find(&format!("\"{name}\" role")).unwrap_or_else(|| panic!("no {name}"));
    let end = text[at..].find("\n}").expect("a family ends");
    &text[at..at + end]
}

/// Changes of a family's text, each of which is refused, with these words.
fn refused(source: &str, changes: &[(&str, &str, &str, &str)]) {
    let text = planned(source).unwrap_or_else(|e| panic!("{e}")).to_string();
    assert_eq!(wrong(source, &text), "");
    for (name, from, to, says) in changes {
        let own = family(&text, name);
        let broken = own.replacen(from, to, 1);
        assert_ne!(broken, own, "{name} has no `{from}`:\n{own}");
        let found = wrong(source, &text.replace(own, &broken));
        assert!(!found.is_empty() && found.contains(says), "{name}: {from} -> {to}: {found:.600}");
    }
}

/// Values without their factors, or with those of the launch before: each end of a pair counts both.
#[test]
fn torn_pairs_are_refused() {
    refused(
        LAYER,
        &[
            // A peer fetches one of the two when the other is staged; rows are pulled when one is here; the GEMM begins
            // with one.
            (
                "fetch_factors",
                "sig5[(rank + (s + 1)) % 2, i]",
                "sig4[(rank + (s + 1)) % 2, i]",
                "rule",
            ),
            ("fetch", "sig4[(rank + (s + 1)) % 2, i]", "sig5[(rank + (s + 1)) % 2, i]", "rule"),
            (
                "pull_factors",
                ">= 2 by copier for generic scope gpu at start each q",
                ">= 1 by copier for generic scope gpu at start each q",
                "rule",
            ),
            ("gemm1", "sig9[b] >= 2", "sig9[b] >= 1", "rule"),
            // The second GEMM reads what half of the first one's tiles made.
            ("gemm2", "sig10[b] >= 2", "sig10[b] >= 1", "rule"),
            // It waits for rows and their factors before the first GEMM has made them.
            ("gemm2", "sig10[b] >= 2", "sig9[b] >= 2", "rule"),
        ],
    );
    // Both torn at once: factors raise no word, and nobody counts on it.
    let text = planned(LAYER).expect("a plan").to_string();
    let pull = family(&text, "pull_factors");
    let at = pull.find("  post").expect("a post");
    let torn = text.replace(pull, pull[..at].trim_end()).replace("sig9[b] >= 2", "sig9[b] >= 1");
    assert!(wrong(LAYER, &torn).contains("rule 1"), "{torn}");
}

/// Factors of other rows, steps, blocks and experts, and none.
#[test]
fn other_factors_are_refused() {
    let rows = "b * 128 : tab2[b, 1]";
    let next = "(b * 128 + 128) % 896 : tab2[b, 1]";
    let steps = format!("e0: read buf19 @ rank [0 : (H + 127) / 128, {rows}]");
    let blocks = "e1: read buf5 @ rank [tab2[b, 0] : 1, 0 : 2, j * 128 / 128 : (min(128, F - j * 128) + 127) / 128, 0 : (H + 127) / 128]";
    let made = format!(
        "e2: write buf23 @ rank [j * 128 / 128 : (min(128, F - j * 128) + 127) / 128, {rows}]"
    );
    refused(
        LAYER,
        &[
            ("gemm1", &steps, &steps.replace(rows, next), ""),
            ("gemm1", &steps, &steps.replace("[0 : (H + 127) / 128", "[0 : 2"), "of steps"),
            // Of another expert, of other columns, of one of both projections.
            ("gemm1", blocks, &blocks.replace("tab2[b, 0]", "(tab2[b, 0] + 1) % 2"), ""),
            ("gemm1", blocks, &blocks.replace("j * 128 / 128", "(j + 1) % 2"), ""),
            ("gemm1", blocks, &blocks.replace("0 : 2,", "0 : 1,"), "gates and ups"),
            // Of results: to other blocks, and to other rows.
            ("gemm1", &made, &made.replace("j * 128 / 128", "(j + 1) % 2"), ""),
            ("gemm1", &made, &made.replace(rows, next), ""),
            ("gemm1", "swiglu,quantize_e4m3", "swiglu,quantize_e5m2", "e5m2"),
            // Of the token behind, on the way.
            ("pull_factors", "b * 128 + q : 1] at end", "b * 128 + (q + 1) % 128 : 1] at end", ""),
            (
                "stage_factors",
                "read buf1 @ rank [0 : 3, i * 16",
                "read buf1 @ rank [0 : 3, (i + 1) % 2 * 5",
                "",
            ),
        ],
    );
}

/// Rows that are results have the factors of their tokens, each in its place, and all of them.
#[test]
fn factors_of_results_are_those_of_their_rows() {
    refused(
        BACKWARD,
        &[
            ("pull_factors", "b * 128 + q : 1] at end", "b * 128 + (q + 1) % 128 : 1] at end", ""),
            ("pull_factors", "[0 : 3, b * 128", "[0 : 2, b * 128", ""),
            ("pull_factors", "rank * 32) : 1]", "0) : 1]", ""),
            ("gemm", "sig10[b] >= 2", "sig10[b] >= 1", "rule"),
        ],
    );
}

/// Every wait and every post of factors is needed.
#[test]
fn nothing_of_factors_can_be_left_out() {
    let one = without_each(&planned(LAYER).expect("a plan"));
    // As of the tokens that they go with: a peer that has staged something has entered.
    assert_eq!(one, ["fetch_factors: wait entered", "fetch_factors: wait entered"]);
    // A rank's factors in one message, and step by step, where the last rank has fewer tokens.
    for (nodes, local, tokens) in drawn::some([(2, 1, 42), (2, 2, 42), (3, 1, 44)], 3) {
        let left = without_each(&over_nodes(LAYER, nodes, local, tokens).expect("a plan"));
        assert!(left.iter().all(|what| what.ends_with("wait entered")), "{left:?}");
    }
}

/// Memory of a kernel has room for the most tokens of a launch; only the caller's tensors have as many as there are.
#[test]
fn memory_has_room_for_every_launch() {
    let any = LAYER.replace("fn layer(", "fn layer<T: dyn <= 64>(");
    let text = planned(&any).expect("a plan").to_string();
    assert_eq!(wrong(&any, &text), "");
    for (from, to) in [
        ("workspace f32[3, 64]", "workspace f32[3, T]"),
        ("workspace e4m3[64, 272]", "workspace e4m3[T, 272]"),
    ] {
        assert!(text.contains(from), "{text}");
        let found = wrong(&any, &text.replace(from, to));
        assert!(found.contains("only the caller's tensors may"), "{found}");
    }
}

/// The waits and posts of factors that a plan does not need: it is proved without each of them.
fn without_each(plan: &Plan) -> Vec<String> {
    let (mut kept, mut n) = (Vec::new(), 0);
    let of = |name: &str| name.ends_with("_factors") || name.starts_with("factors.");
    for (id, f) in plan.families.iter().filter(|(_, f)| of(&f.name)) {
        let mut without = |what: String, change: &dyn Fn(&mut Plan)| {
            let mut less = plan.clone();
            change(&mut less);
            n += 1;
            if valid::verify(&less).is_ok() {
                kept.push(format!("{}: {what}", f.name));
            }
        };
        for i in 0..f.waits.len() {
            let name = &plan.signals[f.waits[i].signal].name;
            without(format!("wait {name}"), &|p| drop(p.families[id].waits.remove(i)));
        }
        for i in 0..f.posts.len() {
            let name = &plan.signals[f.posts[i].signal].name;
            without(format!("post {name}"), &|p| drop(p.families[id].posts.remove(i)));
        }
    }
    assert!(n >= 9, "{n}");
    kept
}

/// What tasks read over links: of each token that one reads of 16 bits, half the bytes and a factor for each 128.
#[test]
fn half_the_bytes_travel() {
    let wide = LAYER.replace("e4m3[T, H] scaled(1, 128)", "bf16[T, H]");
    let wide = wide.replace("e4m3[E, 2, F, H] scaled(128, 128)", "bf16[E, H, 2, F]");
    let wide = wide.replace("e4m3[E, H, F] scaled(128, 128)", "bf16[E, F, H]");
    let wide = wide.replace("quantize(e4m3, 1, 128) -> ", "").replace(".t)", ")");
    let pulled = |source: &str| -> BTreeMap<String, u64> {
        let (program, bound) = bound(source);
        let config = Config { ranks: 2, ..Config::default() };
        let plan = lower(&program, &bound, &config).unwrap_or_else(|e| panic!("{e}"));
        let input = |_: i64, rank: usize, id: BufId, shape: &[usize]| -> Vec<f32> {
            let n = shape.iter().product();
            match plan.buffers[id].name.as_str() {
                // Two experts of each token, those of either rank, or of both.
                "ids" => {
                    (0..n).map(|i| ((i / 2 + i % 2 * (1 + i / 2 % 3) + rank) % 4) as f32).collect()
                }
                _ => vec![0.5; n],
            }
        };
        let table = |_: i64, _: usize, id: TabId| panic!("{id} is made of the caller's tensor");
        let output = |_: i64, _: usize, _: BufId, _: &[usize], _: &[f32]| {};
        let options = Options { launches: 1, ..Options::default() };
        let report = sim::run(&plan, &mut Callbacks { input, table, output }, &options);
        let report = report.unwrap_or_else(|e| panic!("{e}"));
        let bytes = report.pulled_bytes.iter().copied();
        plan.families.values().map(|f| f.name.clone()).zip(bytes).collect()
    };
    let (narrow, wide) = (pulled(LAYER), pulled(&wide));
    let (columns, blocks) = (272, 3);
    let tokens = wide["fetch"] / (2 * columns);
    assert!(tokens > 20 && wide["fetch"] == tokens * 2 * columns, "{wide:?}");
    assert_eq!(narrow["fetch"], tokens * columns);
    assert_eq!(narrow["fetch_factors"], tokens * 4 * blocks);
    // Sums come back in 16 bits, as before.
    assert_eq!(narrow["combine"], wide["combine"]);
    assert!(narrow["combine"] > 0);
}

/// Pipelines and settings that no kernel holds, by name.
#[test]
fn refusals() {
    let refusal = |source: &str, set: &str| {
        let (program, bound) = bound(source);
        let mut config = Config { ranks: 2, ..Config::default() };
        settings::read(&mut config, set).expect("settings");
        let error = compile(&program, &bound, &config).err();
        error.map(|e| e.to_string()).unwrap_or_default()
    };
    let mixed = EXPERTS
        .replace("e4m3[R, H] scaled(1, 128)", "bf16[R, H]")
        .replace("e4m3[E, 2, F, H] scaled(128, 128)", "bf16[E, H, 2, F]")
        .replace("(w1.t)", "(w1)");
    let made = ALONE
        .replace("e4m3[R, H] scaled(1, 128)", "bf16[R, H]")
        .replace("ragged(x, counts)", "let q = x -> quantize(e4m3, 1, 128); ragged(q, counts)");
    for (source, set, says) in [
        (mixed.as_str(), "", "matrices of 16 bits, and of eight, are in one kernel"),
        (made.as_str(), "", "its rows are made in the same kernel"),
        (EXPERTS, "block=128x128x64", "cut blocks of 128 gates, or ups"),
    ] {
        let found = refusal(source, set);
        assert!(found.contains(says), "{source}: {found}");
    }
}
