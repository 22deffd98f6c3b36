//! Pipelines over nodes: every pipeline that lowers verifies; what does not is refused with the reason; bytes over network cards are as few
//! as they can be.

#[path = "common/mod.rs"]
mod common;

use mk_abi::MapBase;
use mk_codegen::{
    emit,
    passes::{self, LowerError},
    plan::{Leaf, NetPlan, Operand, Plan, Points, TabId, TableSet, Wait},
    settings::{AllReduce, Config, Gather, NicOrdering, Reduction},
    valid,
};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

const ORDERINGS: [NicOrdering; 2] = [NicOrdering::InOrder, NicOrdering::Unordered];

fn lower(source: &str, shapes: &[(&str, &[u64])], config: &Config) -> Result<Plan, LowerError> {
    let program = Program::parse(source).expect("parses");
    let shapes: BTreeMap<_, _> = shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
    passes::lower(&program, &bound, config)
}

fn nodes_of(nodes: u32, local: u32, net: NicOrdering) -> Config {
    Config { ranks: nodes * local, nodes, net, ..Config::default() }
}

#[test]
fn every_pipeline_verifies_or_is_refused() {
    let (mut verified, mut refused) = (Vec::new(), Vec::new());
    for (i, (name, source, _, shapes)) in common::CASES.iter().enumerate() {
        let (count, local) = [(2, 2), (3, 1), (2, 3)][i % 3];
        for net in ORDERINGS {
            match lower(source, shapes, &nodes_of(count, local, net)) {
                Ok(plan) => {
                    valid::verify(&plan).unwrap_or_else(|e| panic!("{name} {net:?}\n{plan}\n{e}"));
                    verified.push(*name);
                }
                Err(LowerError::Setting(refusal)) => {
                    assert!(refusal.why.contains("several pieces of memory"), "{name}: {refusal}");
                    refused.push(*name);
                }
                Err(e) => panic!("{name}: {e}"),
            }
        }
    }
    assert!(verified.contains(&"gather_blocks"), "{verified:?}");
    // Rows that a message cannot hold, twice each.
    refused.dedup();
    let expected = [
        "gather_gemm_ragged",
        "reduce_scatter_alone",
        "gather_odd",
        "weight_gradient_ragged",
        "residual_everywhere",
        "slopes_of_sums",
        "sum_to_e5m2_ragged",
        "gather_scaled_ragged",
        "gather_e5m2_odd",
    ];
    assert_eq!(refused, expected);
    assert_eq!(verified.len(), 2 * (common::CASES.len() - expected.len()));
}

/// Factors go to other nodes in messages of their own, one where ranks have as many rows, else one for each step: readers
/// of rows wait for both, and nothing of it can be left out.
#[test]
fn factors_go_with_their_rows() {
    let source = "fn f(x: e4m3[M, K] scaled(1, 128) @ shard(0), w: e4m3[N, K] scaled(128, 128) @ shard(0)) { gather(x) -> gemm(w.t) }";
    let worlds = [(2, 2, 1360), (3, 1, 1020), (2, 1, 680), (3, 1, 1024), (2, 2, 321)];
    for (n, (count, local, rows)) in worlds.into_iter().enumerate() {
        let shapes = &[("x", &[rows, 272][..]), ("w", &[128 * u64::from(count * local), 272])];
        let plan = lower(source, shapes, &nodes_of(count, local, ORDERINGS[n % 2]));
        let plan = plan.unwrap_or_else(|e| panic!("{count} x {local}: {e}"));
        valid::verify(&plan).unwrap_or_else(|e| panic!("{count} x {local}: {e}"));
        let (mut kept, mut torn) = (Vec::new(), 0);
        let mut without = |what: String, change: &dyn Fn(&mut Plan)| {
            let mut less = plan.clone();
            change(&mut less);
            if valid::verify(&less).is_ok() {
                kept.push(what);
            }
        };
        for (id, f) in plan.families.iter() {
            for (i, wait) in f.waits.iter().enumerate() {
                let signal = &plan.signals[wait.signal].name;
                if signal == "arrived" {
                    torn += 1;
                    without(format!("{} begins with one of both", f.name), &|p| {
                        let count = p.families[id].waits[i].count.clone();
                        p.families[id].waits[i].count = count - 1;
                    });
                }
                if f.name.starts_with("factors.") {
                    without(format!("{}: wait {signal}", f.name), &|p| {
                        drop(p.families[id].waits.remove(i));
                    });
                }
            }
            for (i, post) in f.posts.iter().enumerate().filter(|_| f.name.starts_with("factors.")) {
                let signal = &plan.signals[post.signal].name;
                without(format!("{}: post {signal}", f.name), &|p| {
                    drop(p.families[id].posts.remove(i));
                });
            }
        }
        // Rows that are forwarded wait for the same peers.
        kept.retain(|what| what != "factors.forward: wait entered");
        assert!(torn > 0 && kept.is_empty(), "{count} x {local}, {torn}: {kept:?}");
        if n == 0 {
            let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{e}"));
            let generated = kernel.cuda.split_once(emit::library::END).expect("the library ends").1;
            insta::assert_snapshot!("nodes_gather_blocks", plan);
            insta::assert_snapshot!("nodes_cuda_gather_blocks", generated);
        }
    }
}

/// Rings, forward and backward.
const RINGS: &[(&str, &str)] = &[
    ("ring", "ring(k, v) -> attention(q)"),
    ("ring_causal", "let o = ring(k, v) -> attention(q, causal); (o, o -> lse)"),
    ("ring_dq", "ring(k, v) -> attention_dq(q, do, stats, causal)"),
    ("ring_dkv", "let dk = ring(q, do, stats) -> attention_dk(k, v); (dk, dk -> attention_dv)"),
];

/// An attention, or a part of its backward, of `S` tokens that lie so.
fn attention(body: &str, placement: &str, tokens: u64) -> (Program, Bound) {
    let stats = placement.replace('1', "2");
    let wide = format!("bf16[B, S, H, D] @ {placement}");
    let narrow = format!("bf16[B, S, G, D] @ {placement}");
    let all = [
        ("q", wide.clone()),
        ("do", wide),
        ("stats", format!("f32[B, H, S, 4] @ {stats}")),
        ("k", narrow.clone()),
        ("v", narrow),
    ];
    let words: Vec<&str> = body.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let params = all.iter().filter(|(name, _)| words.contains(name));
    let params: Vec<String> = params.map(|(name, ty)| format!("{name}: {ty}")).collect();
    let text = format!("fn f({}) {{ {body} }}", params.join(", "));
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let dims = [("B", 1), ("S", tokens), ("H", 2), ("G", 1), ("D", 64)];
    let dims = dims.iter().filter(|(name, _)| program.symbol(name).is_some());
    let dims = dims.map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

/// A layer of experts, and the gradients of its weights.
const EXPERTS: [(&str, &str); 3] = [
    (
        "experts",
        "fn f(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
            w: bf16[E, H, 2, F] @ shard(0), v: bf16[E, F, H] @ shard(0)) {
            dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate)
        }",
    ),
    (
        "experts_gate",
        "fn f(a: bf16[R, F] @ shard(0), ids: i32[T, K] @ shard(0), dy: bf16[T, H] @ shard(0), w: bf16[E, F, H] @ shard(0)) {
            ragged(a, ids) -> grouped_gemm(w) -> combine_grad(dy)
        }",
    ),
    (
        "experts_weighed",
        "fn f(d: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w: bf16[E, F, H] @ shard(0),
            h: bf16[R, 2, F] @ shard(0)) {
            let u = d -> dispatch(ids, capacity = R) -> grouped_gemm(w.t);
            let a = h -> swiglu;
            (u -> weigh(gate) -> swiglu_grad(h), a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a))
        }",
    ),
];

/// Tokens of all ranks, slots of each, and elements of one.
const TOKENS: [u64; 3] = [42, 2, 24];

fn experts(text: &str) -> (Program, Bound) {
    routed(text, TOKENS[0], 8)
}

fn routed(text: &str, tokens: u64, experts: u64) -> (Program, Bound) {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let [_, slots, wide] = TOKENS;
    let rows = (tokens.next_multiple_of(128) * slots + 128 * experts).next_multiple_of(128 * 24);
    let dims = [("T", tokens), ("K", slots), ("H", wide), ("F", 16), ("E", experts), ("R", rows)];
    let dims = dims.iter().filter(|(name, _)| program.symbol(name).is_some());
    let dims = dims.map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

/// An axis that is named so says which ranks are a node, and so do the settings.
#[test]
fn an_axis_of_nodes() {
    let parse = |text: &str| {
        let program = Program::parse(text).expect("parses");
        let dims = [("M", 512), ("K", 128), ("N", 256)].map(|(name, n)| (name.to_string(), n));
        let bound = program.bind(&dims.into(), &BTreeMap::new()).expect("binds");
        (program, bound)
    };
    let over = |axis: &str| {
        format!(
            "fn f(a: bf16[M, K] @ shard(0, {axis}), b: bf16[K, N] @ shard(1, {axis})) {{ gather(a, {axis}) -> gemm(b) }}"
        )
    };
    let two = [("node".to_string(), 2), ("tp".to_string(), 2)];
    for (axis, mesh, nodes, ranks, right) in [
        ("node", vec![], 1, 4, Some(4)),
        ("node", vec![], 4, 4, None),
        ("node", two.to_vec(), 1, 4, Some(2)),
        ("tp", two.to_vec(), 1, 4, Some(2)),
        ("node", two.to_vec(), 2, 4, None),
        ("tp", two.to_vec(), 2, 4, None),
    ] {
        let (program, bound) = parse(&over(axis));
        let config = Config { ranks, nodes, mesh, ..Config::default() };
        match (passes::compile(&program, &bound, &config), right) {
            (Ok(_), None) => {}
            (Err(LowerError::OutOfRange { what, help }), Some(right)) => {
                assert!(what.contains("the axis `node`"), "{what}");
                assert!(help.contains(&format!("nodes={right}")), "{help}");
            }
            (other, _) => panic!("{axis} {nodes}: {:?}", other.map(|(plan, _)| plan.to_string())),
        }
    }
}

#[test]
fn plans() {
    let shapes: &[(&str, &[u64])] = &[("a", &[1000, 512]), ("b", &[512, 264])];
    let source = "gather(a) -> gemm(b) -> reduce_scatter";
    let plan = lower(source, shapes, &nodes_of(2, 2, NicOrdering::InOrder)).expect("lowers");
    insta::assert_snapshot!("nodes_gather_gemm_reduce_scatter", plan);
    let source = "gemm(a, b) -> all_reduce";
    let plan = lower(source, shapes, &nodes_of(2, 2, NicOrdering::Unordered)).expect("lowers");
    insta::assert_snapshot!("nodes_gemm_all_reduce", plan);
    for (name, body, placement) in
        [("ring", RINGS[1].1, "zigzag(1)"), ("ring_dkv", RINGS[3].1, "shard(1)")]
    {
        let (program, bound) = attention(body, placement, 330);
        let plan = passes::lower(&program, &bound, &nodes_of(2, 2, ORDERINGS[1])).expect("lowers");
        valid::verify(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = kernel.cuda.split_once(emit::library::END).expect("the library ends").1;
        insta::assert_snapshot!(format!("nodes_{name}"), plan);
        insta::assert_snapshot!(format!("nodes_cuda_{name}"), generated);
    }
    for (n, (name, text)) in EXPERTS.iter().enumerate() {
        let (program, bound) = experts(text);
        let config = nodes_of(2, 2, ORDERINGS[(n + 1) % 2]);
        let (plan, _) =
            passes::compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(plan.to_string().parse::<Plan>().expect("reads"), plan);
        let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = kernel.cuda.split_once(emit::library::END).expect("the library ends").1;
        insta::assert_snapshot!(format!("nodes_{name}"), plan);
        insta::assert_snapshot!(format!("nodes_cuda_{name}"), generated);
    }
}

/// Kernels send by commands of one lane, and few lanes look at words of hosts.
#[test]
fn kernels() {
    let shapes: &[(&str, &[u64])] = &[("a", &[1000, 512]), ("b", &[512, 264])];
    for (name, source, local, net) in [
        ("gather_gemm", "gather(a) -> gemm(b)", 1, NicOrdering::InOrder),
        ("gemm_all_reduce", "gemm(a, b) -> all_reduce", 2, NicOrdering::Unordered),
    ] {
        let plan = lower(source, shapes, &nodes_of(2, local, net)).expect("lowers");
        let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = kernel.cuda.split_once(emit::library::END).expect("the library ends").1;
        insta::assert_snapshot!(format!("nodes_cuda_{name}"), generated);
        let layout = kernel.net.expect("a network");
        assert_eq!((layout.local, layout.in_order), (local, net == NicOrdering::InOrder));
        assert_eq!(kernel.ranks.len(), 2 * local as usize);
        for (rank, binding) in (0..).zip(&kernel.ranks) {
            for map in &binding.maps {
                if let MapBase::Peer(peer, _) = map.base {
                    assert_eq!(peer / local, rank / local, "{name}: a map of another node");
                }
            }
        }
    }
}

/// What no template carries out is refused by the line that says it.
#[test]
fn kernels_that_are_refused() {
    let shapes: &[(&str, &[u64])] = &[("a", &[1000, 512]), ("b", &[512, 264])];
    let plan = lower("gather(a) -> gemm(b)", shapes, &nodes_of(2, 2, NicOrdering::InOrder));
    let text = plan.expect("lowers").to_string();
    for (from, to, why) in [
        ("inter_send ctas 1", "inter_send ctas 2", "one lane writes the fifo"),
        ("fifo=64", "fifo=48", "take a power of two"),
        ("local=2 fifo", "fifo", "has no templates"),
        ("[rank / 2] @ (rank", "[rank / 2 * 0] @ (rank", "tell each other of their nodes"),
    ] {
        assert!(text.contains(from), "{text}");
        let plan: Plan = text.replacen(from, to, 1).parse().expect(to);
        let error = emit::emit(&plan).expect_err(to).to_string();
        assert!(error.contains(why), "{to}: {error}");
    }
    // With tracing, waits for words of hosts are recorded, and sends.
    let plan: Plan = text.parse().expect("reads");
    let plain = emit::emit(&plan).expect("emits").cuda;
    let traced = emit::emit_with(&plan, emit::Options { trace: true }).expect("traced").cuda;
    let records = traced.matches("trace_net(params.header, ").count();
    let sends = plan.families.values().filter(|f| f.leaf == Leaf::NicSend).count();
    let net = |w: &&Wait| plan.signals[w.signal].net;
    let waits = plan.families.values().flat_map(|f| &f.waits).filter(net).count();
    assert_eq!((records, plain.matches("trace_net").count()), (waits + sends, 0));
}

/// What cannot go over nodes is refused by the setting that asks for it.
#[test]
fn refusals() {
    let shapes: &[(&str, &[u64])] = &[("a", &[1024, 512]), ("b", &[512, 264])];
    let sum = "gemm(a, b) -> reduce_scatter";
    let two = nodes_of(2, 2, NicOrdering::InOrder);
    let ring = Config { reduction: Reduction::Ring, ..two.clone() };
    let one_shot = Config { all_reduce: AllReduce::OneShot, ..two.clone() };
    let by_columns = Config { all_reduce: AllReduce::ByColumns, ..two.clone() };
    let engine = Config { gather: Gather::CopyEngine { parts: 1 }, ..two.clone() };
    let slices = Config { k_slices: 2, ..two.clone() };
    let odd = Config { nodes: 3, ..two.clone() };
    let cases = [
        (sum, ring, "as many bytes over each network card"),
        ("gemm(a, b) -> all_reduce", one_shot, "is not mapped"),
        ("gemm(a, b) -> all_reduce", by_columns, "several pieces of memory"),
        ("gather(a) -> gemm(b)", engine, "do not reach the memory of other nodes"),
        ("gather(a) -> gemm(b)", slices, "several pieces of memory"),
        (sum, odd, "not as many in each of 3 nodes"),
        (sum, Config { nodes: 0, ..two.clone() }, "in each of 0 nodes"),
    ];
    for (source, config, why) in cases {
        match lower(source, shapes, &config) {
            Err(LowerError::Setting(refusal)) => assert!(refusal.why.contains(why), "{refusal}"),
            other => panic!("{source}: {:?}", other.map(|plan| plan.to_string())),
        }
    }
}

/// Bytes that each rank's card sends in a launch.
fn sent(plan: &Plan) -> Vec<u64> {
    sent_by(plan, &TableSet::new(plan, |_, _| Vec::new()))
}

/// The same, with these tables.
fn sent_by(plan: &Plan, tables: &TableSet) -> Vec<u64> {
    let points = Points::new(plan, tables);
    let world = plan.mesh.size() as usize;
    let mut out = vec![0; world];
    let sends = plan.families.iter().filter(|(_, f)| f.leaf == Leaf::NicSend);
    for (id, family) in sends {
        let source = family.accesses.iter().find(|a| a.operand == Operand::Src).expect("a source");
        let bytes = plan.buffers[source.buffer].dtype.size_bytes();
        for (rank, sum) in out.iter_mut().enumerate() {
            for task in points.tasks(id, rank, 1).expect("tasks") {
                let region = points.region(&task, source).expect("a region");
                *sum += region.map_or(0, |r| r.len().max(0) as u64) * bytes;
            }
        }
    }
    out
}

/// A chunk of a ring goes once to each other node that attends to it: all of them, or those behind it, of a causal mask.
#[test]
fn bytes_of_rings() {
    let (heads, depth, tokens) = (2, 64, 330);
    for (count, local) in [(2, 1), (2, 4), (3, 2), (4, 1)] {
        let config = nodes_of(count, local, NicOrdering::Unordered);
        let world = u64::from(count * local);
        for (name, body) in RINGS {
            for placement in ["shard(1)", "zigzag(1)"] {
                let (program, bound) = attention(body, placement, tokens);
                let plan = passes::lower(&program, &bound, &config).expect("lowers");
                let parts = if placement == "shard(1)" { 1 } else { 2 };
                let chunk = tokens.div_ceil(parts * world);
                let rows = |c: u64| chunk.min(tokens.saturating_sub(c * chunk));
                // Keys and values of one head, or queries and their gradients, with four statistics each, of two.
                let row = match *name {
                    "ring_dkv" => heads * (2 * 2 * depth + 4 * 4),
                    _ => 2 * 2 * depth,
                };
                let causal = body.contains("causal");
                let expected: Vec<u64> = (0..world)
                    .map(|r| {
                        let node = r / u64::from(local);
                        let others = u64::from(count) - 1;
                        // Queries see keys in front of them: of its node's second chunk, those of the nodes before.
                        let (first, second) = match (causal, parts) {
                            (false, _) => (others, others),
                            (true, 1) => (others - node, 0),
                            (true, _) => (others, node),
                        };
                        let second = if parts == 2 { second * rows(2 * world - 1 - r) } else { 0 };
                        row * (first * rows(r) + second)
                    })
                    .collect();
                assert_eq!(sent(&plan), expected, "{name} {placement}, {count} nodes of {local}");
            }
        }
    }
}

/// Subsets of so many of `n`.
fn subsets(n: u64, of: u64) -> u64 {
    (0..of).fold(1, |product, i| product * n.saturating_sub(i) / (i + 1))
}

const EIGHT_BITS: &str = "fn f(x: e4m3[T, 272] scaled(1, 128) @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w: e4m3[E, 2, 128, 272] scaled(128, 128) @ shard(0), v: e4m3[E, 272, 128] scaled(128, 128) @ shard(0)) {
    dispatch(x, ids) -> grouped_gemm(w.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(v.t) -> combine(gate)
}";

/// Experts and weights of slots go once to each other node; a token to those that have one of its experts, and the
/// factors of all; from each node comes a sum in f32. Each rank has a token for each pair of experts, so that rows are as many as are expected of
/// any routing: (N - 1) (1 - C(E - E / N, k) / C(E, k)) of a token. Of as many slots as experts all go.
#[test]
fn bytes_of_experts() {
    let [_, slots, wide] = TOKENS;
    let own = subsets(24, slots);
    for (count, local, experts) in [(2, 1, 24), (2, 1, 2), (2, 2, 24), (3, 1, 24), (4, 2, 24)] {
        let world = u64::from(count * local);
        let config = nodes_of(count, local, NicOrdering::InOrder);
        let (nodes, away) = (u64::from(count), u64::from(count) - 1);
        let rows = match experts {
            2 => away * own,
            _ => away * (own - subsets(experts - experts / nodes, slots)),
        };
        for (name, text) in EXPERTS.into_iter().chain([("eight_bits", EIGHT_BITS)]) {
            let (program, bound) = routed(text, own * world, experts);
            let plan = passes::lower(&program, &bound, &config).expect("lowers");
            let pairs = |rank: usize, _: TabId| -> Vec<i32> {
                let all = 0..experts as i32;
                let pairs = all.clone().flat_map(|a| (0..a).map(move |b| [a, b]));
                // In an order in which no chunk lacks a node.
                let pairs: Vec<[i32; 2]> = pairs.collect();
                let at = |i: usize| pairs[(97 * i + 7 * rank) % pairs.len()];
                (0..own as usize).flat_map(at).collect()
            };
            let tables = TableSet::routed(&plan, pairs).expect("a routing");
            // Experts, and weights or none; tokens or their gradients; sums or products.
            let expected = match name {
                "experts" => away * own * (8 * slots + 4 * wide) + rows * 2 * wide,
                "experts_weighed" => away * own * (8 * slots + 4 * slots) + rows * 2 * wide,
                "eight_bits" => away * own * (8 * slots + 4 * 272 + 4 * 3) + rows * 272,
                _ => away * own * (4 * slots + 2 * wide + 4 * slots),
            };
            let expected = vec![expected; world as usize];
            let what = format!("{name}, {count} nodes of {local}, {experts} experts");
            assert_eq!(sent_by(&plan, &tables), expected, "{what}");
            let packed = plan.families.values().any(|f| f.name == "fetch.nodes");
            assert_eq!(packed, name != "experts_gate" && experts > 2, "{what}");
        }
    }
}

/// Of two axes, only the collective over nodes is a card's: rows of its own shard, or of the other owners.
#[test]
fn bytes_of_two_axes() {
    let sum = "fn f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)) {
        gather(a, tp) -> gemm(b) -> SUM(dp)
    }";
    let gather = "fn f(a: bf16[M, K] @ shard(0, dp) @ shard(1, tp), b: bf16[K, N] @ shard(0, tp)) {
        gather(a, dp) -> gemm(b) -> reduce_scatter(tp)
    }";
    let [rows, k, n, bytes] = [1000, 192, 288, 2];
    for (dp, tp) in [(2, 2), (3, 2), (2, 3)] {
        let mesh = vec![("dp".to_string(), dp as u32), ("tp".to_string(), tp as u32)];
        let config = Config { mesh, ..nodes_of(dp as u32, tp as u32, NicOrdering::InOrder) };
        let shapes: &[(&str, &[u64])] = &[("a", &[rows, k]), ("b", &[k, n])];
        let of = |source: &str| sent(&lower(source, shapes, &config).expect("lowers"));
        let shard =
            |p: u64| rows.min((p + 1) * rows.div_ceil(dp)) - rows.min(p * rows.div_ceil(dp));
        let by_rank = |f: &dyn Fn(u64) -> u64| (0..dp * tp).map(|r| f(r / tp)).collect::<Vec<_>>();
        let scattered = by_rank(&|p| (rows - shard(p)) * (n / tp) * bytes);
        let reduced = by_rank(&|p| (rows - shard(p) + (dp - 1) * shard(p)) * (n / tp) * bytes);
        assert_eq!(of(&sum.replace("SUM", "reduce_scatter")), scattered, "{dp} x {tp}");
        assert_eq!(of(&sum.replace("SUM", "all_reduce")), reduced, "{dp} x {tp}");
        let gathered = by_rank(&|p| (dp - 1) * shard(p) * (k / tp) * bytes);
        assert_eq!(of(gather), gathered, "{dp} x {tp}");
    }
}

/// A launch decides how many tokens a message has, and the layout knows the most.
#[test]
fn the_longest_message() {
    let text =
        "fn f(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), w: bf16[E, H, F] @ shard(0)) {
        dispatch(x, ids, capacity = R) -> grouped_gemm(w)
    }";
    let program = Program::parse(text).expect("parses");
    let dims = [("T", 90), ("H", 256), ("K", 1), ("E", 8), ("F", 16), ("R", 3072)];
    let dims = dims.map(|(name, n)| (name.to_string(), n)).into();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let plan = passes::lower(&program, &bound, &nodes_of(2, 2, NicOrdering::InOrder));
    let plan = plan.expect("lowers");
    let tables = TableSet::default();
    let net = NetPlan::new(&plan, &Points::new(&plan, &tables)).expect("evaluates");
    assert_eq!(net.expect("nodes").layout.message_bytes, 16 * 256 * 2);
}

/// Each row of a gather goes once to each other node; of a sum, once from each other node to its owner; of an all-reduce, both.
#[test]
fn bytes_over_network_cards() {
    let (rows, n, bytes) = (1000, 264, 2);
    let shapes: &[(&str, &[u64])] = &[("a", &[rows, 512]), ("b", &[512, n])];
    for (count, local) in [(2, 1), (2, 4), (3, 2), (8, 1)] {
        let config = nodes_of(count, local, NicOrdering::InOrder);
        let world = u64::from(count * local);
        let of = |source| sent(&lower(source, shapes, &config).expect("lowers"));
        let shard =
            |r: u64| rows.min((r + 1) * rows.div_ceil(world)) - rows.min(r * rows.div_ceil(world));
        // Rows of the ranks of the same place in other nodes.
        let others = |r: u64| -> u64 {
            let rail =
                (0..world).filter(|q| q % u64::from(local) == r % u64::from(local) && *q != r);
            rail.map(shard).sum()
        };
        let away = u64::from(count - 1);
        let gather: Vec<u64> = (0..world).map(|r| away * shard(r) * 512 * bytes).collect();
        let scatter: Vec<u64> = (0..world).map(|r| others(r) * n * bytes).collect();
        let spread = (0..world).map(|r| away * shard(r) * n * bytes);
        let all: Vec<u64> = scatter.iter().zip(spread).map(|(a, b)| a + b).collect();
        assert_eq!(of("gather(a) -> gemm(b)"), gather, "{count} nodes of {local}");
        assert_eq!(of("gemm(a, b) -> reduce_scatter"), scatter, "{count} nodes of {local}");
        assert_eq!(of("gemm(a, b) -> all_reduce"), all, "{count} nodes of {local}");
    }
}
