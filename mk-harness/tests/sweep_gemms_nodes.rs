//! Gathers, GEMMs and reductions over nodes, on the executor against f64: every world, ordering, kind of reduction and
//! schedule, ragged, of few rows, and with rows that come with a launch.
//!
//! CI takes as many cases as fit in some seconds, in an order that the printed seed decides, each under one schedule;
//! `cargo xtask sweep gemms_nodes` takes all of them, under all. `MK_SEED` repeats an order.

#[path = "sweep/nodes.rs"]
mod nodes;
mod sweep;

use mk_codegen::{
    passes::compile,
    settings::{Config, NicOrdering, Reduction},
};
use mk_harness::{Case, Judgement, Routing};
use mk_syntax::Program;
use std::collections::BTreeMap;

/// Seconds that CI spends here.
const SECONDS: u64 = 4;

/// Pipelines; `M` rows, and every other extent a few tiles of the settings below at most.
const PIPELINES: &[&str] = &[
    "fn f(a: bf16[M, K] @ shard(0)) { gather(a) }",
    "fn f(x: bf16[M, K] @ partial) { reduce_scatter(x) }",
    "fn f(x: bf16[M, K] @ partial) { all_reduce(x) }",
    "fn f(a: bf16[M, K] @ shard(0), b: bf16[K, N]) { gather(a) -> gemm(b) -> gelu }",
    "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> reduce_scatter }",
    "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> all_reduce }",
    "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) {
         let whole = gather(x);
         (whole -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter -> add(x), whole)
     }",
    "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) {
         gather(x) -> gemm(w) -> silu -> gemm(v) -> cast(f32) -> all_reduce
     }",
    "fn f<M: dyn <= 300>(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) {
         gather(x) -> gemm(w) -> gelu -> gemm(v) -> all_reduce
     }",
    "fn f(x: e4m3[M, K] scaled(1, 128) @ shard(0), w: e4m3[N, K] scaled(128, 128) @ shard(0)) { gather(x) -> gemm(w.t) }",
    "fn f(x: bf16[M, K] @ shard(0), w: e5m2[N, K] scaled(1, K) @ shard(0)) {
         let q = x -> quantize(e4m3, 1, 128);
         (gather(q) -> gemm(w.t) -> gelu, q)
     }",
    "fn f(x: e4m3[M, K] scaled(1, K) @ shard(0), w: e4m3[N, K] scaled(1, K) @ shard(0)) { gather(x) -> gemm(w.t) }",
];

#[derive(Clone, Copy, Debug)]
struct Gemms {
    source: &'static str,
    nodes: u32,
    local: u32,
    net: NicOrdering,
    reduction: Reduction,
    rows: u64,
}

impl Gemms {
    /// A small machine: tasks queue up on few CTAs.
    fn config(&self) -> Config {
        let gemm = self.source.contains("gemm");
        let late = self.reduction == Reduction::AfterLastWave && !self.source.contains("gather");
        Config {
            ranks: self.nodes * self.local,
            nodes: self.nodes,
            net: self.net,
            // Only a kernel that multiplies takes these, and only one with such CTAs that.
            block: match gemm {
                true if self.source.contains("scaled") => [128, 128, 64],
                true => [64, 128, 64],
                false => Config::default().block,
            },
            chunk_bytes: 4096,
            reduction: self.reduction,
            compute_sms: Some(3),
            intra_comm_sms: (!late).then_some(2),
            copy_stages: 4,
            ..Config::default()
        }
    }

    /// Lowers, proves, runs and judges.
    fn check(&self, seed: u64) {
        let (source, config) = (self.source, self.config());
        let program = Program::parse(source).unwrap_or_else(|e| panic!("{source}: {e}"));
        // Sizes that ranks do not divide, as long as each has a part.
        let of = |n: u64| if config.ranks <= 16 { n } else { 8 * u64::from(config.ranks) };
        let mut dims = [("M", self.rows), ("K", of(136)), ("N", 72), ("F", of(200))];
        if source.contains("scaled") {
            // Whole blocks of columns, and as many rows, on every rank.
            let ranks = u64::from(config.ranks);
            let rows = self.rows.next_multiple_of(ranks);
            dims = [("M", rows), ("K", 272), ("N", 128 * ranks), ("F", 0)];
        }
        let dims = dims.iter().filter(|(name, _)| program.symbol(name).is_some());
        let dims: BTreeMap<_, _> = dims.map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let (plan, _) =
            compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let case = Case { program: &program, bound: &bound, ranks: config.ranks as usize };
        nodes::judge(self, case, &plan, Routing::default(), seed, Judgement::passes);
    }
}

/// Rows that no number of ranks divides, and so few that ranks have none.
const ROWS: [u64; 2] = [300, 11];

fn all() -> Vec<Gemms> {
    let mut out = Vec::new();
    for (nodes, local, net) in nodes::worlds() {
        for source in PIPELINES {
            let mut reductions = vec![Reduction::DedicatedSms];
            if source.contains("gemm") && source.contains("reduce") {
                reductions.push(Reduction::AfterLastWave);
            }
            for (reduction, rows) in
                reductions.iter().flat_map(|reduction| ROWS.map(|rows| (*reduction, rows)))
            {
                out.push(Gemms { source, nodes, local, net, reduction, rows });
            }
        }
    }
    out
}

/// Whatever the seed draws.
#[test]
fn every_pipeline() {
    for (n, source) in (0..).zip(PIPELINES) {
        let (net, reduction) =
            ([NicOrdering::InOrder, NicOrdering::Unordered][n % 2], Reduction::DedicatedSms);
        let of = Gemms { source, nodes: 2, local: 2, net, reduction, rows: 150 };
        of.check(n as u64);
    }
}

#[test]
fn gemms() {
    sweep::run("GEMMs over nodes", all(), SECONDS, |case, seed| case.check(seed));
}
