//! Experts over nodes, on the executor against f64: every world, kind of layer, number of tokens, routing, ordering and schedule.
//!
//! CI takes as many cases as fit in some seconds, in an order that the printed seed decides, each under one schedule;
//! `cargo xtask sweep experts_nodes` takes all of them, under all. `MK_SEED` repeats an order.

#[path = "sweep/nodes.rs"]
mod nodes;
mod sweep;

use mk_codegen::{
    emit,
    passes::compile,
    settings::{Config, NicOrdering},
};
use mk_harness::{Case, Judgement, Routing};
use mk_syntax::Program;
use std::collections::BTreeMap;

/// Seconds that CI spends here.
const SECONDS: u64 = 4;

const HEAD: &str = "x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0)";
const GATE: &str = "gate: f32[T, K] @ shard(0)";
const TWO: &str = "w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)";
const BODY: &str = "-> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)";

const EIGHT: &str = "fn eight(x: e4m3[T, H] scaled(1, 128) @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: e4m3[E, 2, I, H] scaled(128, 128) @ shard(0), w2: e4m3[E, H, I] scaled(128, 128) @ shard(0)) {
    dispatch(x, ids) -> grouped_gemm(w1.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(w2.t) -> combine(gate)
}";

/// Tokens of 16 bits that leave in eight.
fn quantised(args: &str) -> String {
    let dispatch = format!("x -> quantize(e4m3, 1, 128) -> dispatch(ids{args})");
    EIGHT.replace("e4m3[T, H] scaled(1, 128)", "bf16[T, H]").replace("dispatch(x, ids)", &dispatch)
}

/// What training keeps: rows of eight bits, with their factors, beside what is made of them.
fn kept() -> String {
    let all = quantised("");
    let (head, body) = all.split_once("{\n").expect("a body");
    let (rows, rest) = body.split_once(" -> grouped_gemm(w1").expect("a GEMM");
    let rest = rest.trim_end().trim_end_matches('}').trim_end();
    format!("{head}{{ let rows = {rows}; (rows -> grouped_gemm(w1{rest}, rows) }}")
}

/// Each kind of pipeline: its name and text.
fn kinds() -> Vec<(&'static str, String)> {
    let layer = |args: &str| {
        format!(
            "fn layer({HEAD}, {GATE}, {TWO}) -> bf16[T, H] @ shard(0) {{ dispatch(x, ids{args}) {BODY} }}"
        )
    };
    let one = "w: bf16[E, H, I] @ shard(0)";
    vec![
        (
            "dispatch",
            format!("fn f({HEAD}, {one}) {{ dispatch(x, ids, capacity = R) -> grouped_gemm(w) }}"),
        ),
        ("layer", layer("")),
        ("wide", layer("").replace("ids: i32", "ids: i64")),
        ("capacity", layer(", capacity = R")),
        ("drop", layer(", capacity = R, drop")),
        ("any", layer("").replace("layer(", "layer<T: dyn <= 300>(")),
        (
            "added",
            layer("")
                .replace("gate: f32", "y: bf16[T, H] @ shard(0), gate: f32")
                .replace("combine(gate)", "combine(gate) -> add(y)"),
        ),
        (
            "products",
            "fn f(a: bf16[R, I] @ shard(0), ids: i32[T, K] @ shard(0), dy: bf16[T, H] @ shard(0), w: bf16[E, I, H] @ shard(0)) { ragged(a, ids) -> grouped_gemm(w) -> combine_grad(dy) }"
                .into(),
        ),
        (
            "weighed",
            format!(
                "fn f(d: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), {GATE}, w: bf16[E, I, H] @ shard(0), h: bf16[R, 2, I] @ shard(0)) {{ let u = d -> dispatch(ids, capacity = R) -> grouped_gemm(w.t); let a = h -> swiglu; (u -> weigh(gate) -> swiglu_grad(h), a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a)) }}"
            ),
        ),
        ("eight", EIGHT.into()),
        ("eight_any", EIGHT.replace("eight(", "eight<T: dyn <= 300>(")),
        ("eight_drop", quantised(", capacity = R, drop")),
        ("eight_kept", kept()),
        (
            "weighted",
            format!(
                "fn f({HEAD}, {GATE}, {one}) {{ let rows = dispatch(x, ids, gate, capacity = R); (rows -> grouped_gemm(w), rows) }}"
            ),
        ),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Experts {
    kind: usize,
    nodes: u32,
    local: u32,
    net: NicOrdering,
    tokens: u64,
    slots: u64,
    routing: Routing,
}

impl Experts {
    /// Lowers, proves, evaluates, emits, runs and judges.
    fn check(&self, seed: u64) {
        let (_, text) = &kinds()[self.kind];
        let eight = text.contains("scaled(");
        let ranks = u64::from(self.nodes * self.local);
        let program = Program::parse(text).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        // Experts that ranks do not divide, and room for a block of each.
        let experts = (2 * ranks - 1).max(self.slots);
        let own = experts.div_ceil(ranks);
        let rows = ranks * 128 * (own + (self.tokens * self.slots.min(own)).div_ceil(128));
        let sizes = [
            ("T", self.tokens),
            ("H", if eight { 272 } else { 16 }),
            ("I", if eight { 128 } else { 24 }),
            ("E", experts),
            ("K", self.slots),
            ("R", rows),
        ];
        let sizes = sizes.map(|(name, n)| (name.to_string(), n)).into_iter();
        let dims: BTreeMap<_, _> = sizes.filter(|(n, _)| program.symbol(n).is_some()).collect();
        let bound =
            program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let bound = bound.on(&program, ranks as u32).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let config = Config {
            ranks: ranks as u32,
            nodes: self.nodes,
            net: self.net,
            block: if eight { [128, 256, 64] } else { [128, 128, 64] },
            compute_sms: Some(3),
            ..Config::default()
        };
        let (plan, _) =
            compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        emit::emit(&plan).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
        let right = |j: &Judgement| j.passes() || j.judged == 0;
        nodes::judge(self, case, &plan, self.routing, seed, right);
    }
}

/// Tokens of all ranks: fewer than ranks, as many as none divides, and more than a chunk of a rank.
const TOKENS: [u64; 4] = [1, 21, 130, 300];

fn all() -> Vec<Experts> {
    let mut out = Vec::new();
    for (nodes, local, net) in nodes::worlds() {
        for kind in 0..kinds().len() {
            let n = out.len();
            let routing = [Routing::Random, Routing::One, Routing::Padded][n % 3];
            let (tokens, slots) = (TOKENS[n / 3 % 4], [2, 1, 3][n / 12 % 3]);
            out.push(Experts { kind, nodes, local, net, tokens, slots, routing });
        }
    }
    out
}

/// Some kinds, whatever part of the list there is time for.
#[test]
fn every_kind() {
    for kind in sweep::drawn::some(0..kinds().len(), 4) {
        let net = [NicOrdering::InOrder, NicOrdering::Unordered][kind % 2];
        let routing = Routing::Padded;
        let of = Experts { kind, nodes: 2, local: 2, net, tokens: 21, slots: 2, routing };
        of.check(kind as u64);
    }
}

#[test]
fn experts() {
    sweep::run("experts over nodes", all(), SECONDS, |case, seed| case.check(seed));
}
