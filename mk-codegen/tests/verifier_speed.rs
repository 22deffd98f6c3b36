//! The verifier on plans of a production size.

use mk_codegen::{
    equivalence,
    passes::{self, lower},
    plan::Plan,
    settings::{AllReduce, Config, Reduction},
    valid::{self, Proof},
};
use mk_syntax::Program;
use std::{collections::BTreeMap, fmt::Write, time::Instant};

/// Milliseconds that this thread has been on a core: other work on the machine does not count.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a thread's times");
    let ns = stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).expect("a number");
    ns / 1_000_000
}

/// gather(a) -> gemm(b) on 8 ranks, M = 16384, N = 8192: 128 x 32 tiles of 128 x 256 on every rank.
fn gather_gemm() -> String {
    let mut p = String::from(
        "plan \"gather_gemm\"\nmesh world=8\ntarget sm_90a\ndim dim0 M = 16384\ndim dim1 K = 4096\ndim dim2 N = 8192\n\
         buffer buf0 \"a\" in bf16[2048, K]\nbuffer buf1 \"b\" in bf16[K, N]\nbuffer buf2 \"c\" out bf16[M, N]\n\
         buffer buf3 \"a_all\" workspace bf16[8, 2048, K]\nsignal sig0 \"entered\" [8]\nsignal sig1 \"arrived\" [8, 16]\n\
         role role0 prologue ctas 0\nrole role1 compute ctas 116\nrole role2 intra_comm ctas 16\n",
    );
    let peer = "(rank + s + 1) % 8";
    write!(
        p,
        "family fam0 \"enter\" role0 {{\n  leaf enter\n  post e0 sig0[rank] @ p += 1 by lead after program_order scope sys at start each p in 8\n}}\n\
         family fam1 \"gather\" role2 {{\n  leaf copy_tile via=bulk stages=4\n  for i in 16\n  for s in 7\n  edge e1 full\n  edge e2 empty\n  \
         access src: read buf0 @ rank [i * 128 : 128, 0 : K] at start\n  \
         access dst: write buf3 @ {peer} [rank : 1, i * 128 : 128, 0 : K] at end\n  \
         wait e3 sig0[{peer}] >= 1 by storer for async scope sys at start\n  \
         post e4 sig1[rank, i] @ {peer} += 1 by storer after global_write_done scope sys at end\n}}\n"
    )
    .expect("a string");
    for (id, name, domain, a, row, wait, e) in [
        (2, "own", "", "buf0 @ rank [i * 128 : 128, 0 : K]", "rank", "", 5),
        (
            3,
            "peers",
            "  for s in 7\n",
            "buf3 @ rank [(rank + s + 1) % 8 : 1, i * 128 : 128, 0 : K]",
            "(rank + s + 1) % 8",
            "  wait e13 sig1[(rank + s + 1) % 8, i] >= 1 by loader for async scope sys at start\n",
            9,
        ),
    ] {
        write!(
            p,
            "family fam{id} \"gemm.{name}\" role1 {{\n  leaf mma_tile block=128x256x64 stages=3 b=kn store=tma\n{domain}  for i in 16\n  for j in 32\n  \
             edge e{} full\n  edge e{} empty\n  edge e{} staged\n  edge e{} drained\n  \
             access a: read {a} at start\n  access b: read buf1 @ rank [0 : K, j * 256 : 256] at start\n  \
             access c: write buf2 @ rank [{row} * 2048 + i * 128 : 128, j * 256 : 256] at end\n{wait}}}\n",
            e, e + 1, e + 2, e + 3
        )
        .expect("a string");
    }
    p
}

/// gemm(b) -> reduce_scatter on 8 ranks with as many tiles, each of which goes through a slot and a signal of its own.
fn gemm_reduce_scatter() -> String {
    "plan \"gemm_reduce_scatter\"\nmesh world=8\ntarget sm_90a\ndim dim0 M = 16384\ndim dim1 K = 1024\ndim dim2 N = 8192\n\
     buffer buf0 \"a\" in bf16[M, K]\nbuffer buf1 \"b\" in bf16[K, N]\nbuffer buf2 \"out\" out bf16[2048, N]\n\
     buffer buf3 \"slots\" workspace bf16[8, 2048, N]\nsignal sig0 \"entered\" [8]\nsignal sig1 \"arrived\" [8, 16, 32]\n\
     role role0 prologue ctas 0\nrole role1 compute ctas 116\nrole role2 intra_comm ctas 16\n\
     family fam0 \"enter\" role0 {\n  leaf enter\n  post e0 sig0[rank] @ p += 1 by lead after program_order scope sys at start each p in 8\n}\n\
     family fam1 \"gemm\" role1 {\n  leaf mma_tile block=128x256x64 stages=3 b=kn store=tma\n  for d in 8\n  for i in 16\n  for j in 32\n  \
     order d = (rank + 1 + t / 512) % 8\n  order i = t / 32 % 16\n  order j = t % 32\n  \
     edge e1 full\n  edge e2 empty\n  edge e3 staged\n  edge e4 drained\n  \
     access a: read buf0 @ rank [d * 2048 + i * 128 : 128, 0 : K] at start\n  access b: read buf1 @ rank [0 : K, j * 256 : 256] at start\n  \
     access c: write buf3 @ d [rank : 1, i * 128 : 128, j * 256 : 256] at end\n  \
     wait e5 sig0[d] >= 1 by storer for async scope sys at start\n  \
     post e6 sig1[rank, i, j] @ d += 1 by storer after global_write_done scope sys at end\n}\n\
     family fam2 \"reduce\" role2 {\n  leaf reduce_tile\n  for i in 16\n  for j in 32\n  \
     access src: read buf3 @ rank [s : 1, i * 128 : 128, j * 256 : 256] at start each s in 8\n  \
     access dst: write buf2 @ rank [i * 128 : 128, j * 256 : 256] at end\n  \
     wait e7 sig1[s, i, j] >= 1 by copier for generic scope sys at start each s in 8\n}\n"
        .into()
}

/// The same with sums that go from rank to rank, of which a proof has long chains to follow: 4,096 tiles on each rank.
fn in_tiles(sums: Reduction) -> Plan {
    let program = Program::parse("gemm(a, b) -> reduce_scatter").expect("parses");
    let shapes = [("a", vec![8192, 8192]), ("b", vec![8192, 16384])];
    let shapes: BTreeMap<_, _> = shapes.into_iter().map(|(n, s)| (n.to_string(), s)).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
    lower(&program, &bound, &Config { ranks: 8, reduction: sums, ..Config::default() })
        .expect("lowers")
}

#[test]
fn eight_ranks_of_4096_tiles() {
    let mut plans: Vec<Plan> = [gather_gemm(), gemm_reduce_scatter()]
        .iter()
        .map(|text| text.parse().unwrap_or_else(|e| panic!("{e}")))
        .collect();
    plans.push(in_tiles(Reduction::Ring));
    for plan in plans {
        let begin = cpu_ms();
        let proof = valid::verify(&plan).unwrap_or_else(|e| panic!("{e}"));
        let ms = cpu_ms() - begin;
        println!("{ms} ms: {proof}");
        assert!(ms < LIMIT_MS, "{ms} ms");
    }
}

/// Bound on 8 ranks, for a build with less optimisation and caches that others use; the aim of a release build is 500 ms.
const LIMIT_MS: u64 = 5000;

/// A pipeline on some number of ranks, each of which has 4,096 tiles: its name, text, extents (`true`: times the ranks) and settings.
type Case = (&'static str, &'static str, &'static [(&'static str, u64, bool)], fn(&mut Config));

const GATHER: &str =
    "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) { gather(x) -> gemm(w) }";
const SCATTER: &str =
    "fn f(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> reduce_scatter }";
const ALL: &str =
    "fn f(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }";
const MLP: &str = "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0)) { gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter }";
const COLUMNS: &[(&str, u64, bool)] = &[("M", 8192, false), ("K", 4096, false), ("N", 16384, true)];
const DEPTH: &[(&str, u64, bool)] = &[("M", 8192, false), ("K", 512, true), ("N", 16384, false)];
const HIDDEN: &[(&str, u64, bool)] = &[("M", 8192, false), ("K", 8192, false), ("F", 8192, true)];

const CASES: &[Case] = &[
    ("gather, gemm", GATHER, COLUMNS, |_| ()),
    ("gemm, reduce_scatter", SCATTER, DEPTH, |_| ()),
    ("gemm, reduce_scatter, ring", SCATTER, DEPTH, |c| c.reduction = Reduction::Ring),
    ("gemm, all_reduce", ALL, DEPTH, |_| ()),
    ("gemm, all_reduce, one shot", ALL, DEPTH, |c| c.all_reduce = AllReduce::OneShot),
    ("mlp", MLP, HIDDEN, |_| ()),
];

/// Milliseconds of plan, proof and validation of a case, and what was proved; `dynamic`: with rows that come with each launch.
fn timed(
    case: &Case,
    ranks: u32,
    rows: u64,
    dynamic: bool,
) -> Result<([u64; 3], Proof), valid::Failure> {
    let (name, text, extents, set) = case;
    let head = if dynamic { format!("fn f<M: dyn <= {rows}>(") } else { "fn f(".into() };
    let text = text.replace("fn f(", &head);
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    let dims = extents.iter().filter(|(n, ..)| !dynamic || *n != "M");
    let extent = |n: &str, v: u64| if n == "M" { rows } else { v };
    let times = |times: bool| if times { u64::from(ranks) } else { 1 };
    let dims = dims.map(|(n, v, t)| (n.to_string(), extent(n, *v) * times(*t)));
    let bound = program.bind(&dims.collect(), &BTreeMap::new());
    let bound = bound.unwrap_or_else(|e| panic!("{name}: {e:?}"));
    let mut config = Config { ranks, ..Config::default() };
    set(&mut config);
    if std::env::var_os("MK_SPEED_WALL").is_some() {
        let begin = Instant::now();
        let made = passes::compile(&program, &bound, &config);
        println!(
            "{name}: compile, on the wall: {} ms, {}",
            begin.elapsed().as_millis(),
            made.is_ok()
        );
    }
    let begin = cpu_ms();
    let plan = lower(&program, &bound, &config).unwrap_or_else(|e| panic!("{name}: {e}"));
    let lowered = cpu_ms();
    let proof = valid::verify(&plan)?;
    let proved = cpu_ms();
    let options = equivalence::Options { period: proof.period, ..equivalence::Options::default() };
    equivalence::evaluate(&plan, &program, &bound, &options)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    Ok(([lowered - begin, proved - lowered, cpu_ms() - proved], proof))
}

/// The figures of docs/verification.md, on the ranks of `MK_SPEED_RANKS`, 8 unless it is set, with `MK_SPEED_ROWS` rows, 8,192 unless it is
/// set, which are 4,096 tiles; `MK_SPEED_CASE` takes those whose names contain it; with `MK_SPEED_WALL` also the time of `compile`, whose
/// proof and validation have threads.
#[test]
fn the_gemm_family() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u32>().ok());
    let ranks = number("MK_SPEED_RANKS").unwrap_or(8);
    let rows = u64::from(number("MK_SPEED_ROWS").unwrap_or(8192));
    let only = std::env::var("MK_SPEED_CASE").unwrap_or_default();
    println!("ms on {ranks} ranks: plan, proof, validation, sum");
    for dynamic in [false, true] {
        let launch = if dynamic { ", rows of a launch" } else { "" };
        // With rows of a launch there is no ring.
        let cases = CASES.iter().filter(|c| !dynamic || !c.0.contains("ring"));
        for case in cases.filter(|c| format!("{}{launch}", c.0).contains(&only)) {
            let ([lowered, proved, compared], proof) = match timed(case, ranks, rows, dynamic) {
                Ok(found) => found,
                // More than the verifier decides: on 8 ranks, nothing is.
                Err(e) if ranks > 8 => {
                    println!("{}{launch}: {e}", case.0);
                    continue;
                }
                Err(e) => panic!("{}{launch}: {e}", case.0),
            };
            let sum = lowered + proved + compared;
            let folded = if proof.folded { "folded" } else { "rank by rank" };
            println!(
                "{}{launch}: {lowered} {proved} {compared} {sum}, {} tasks, {folded}",
                case.0, proof.tasks
            );
            assert!(sum < LIMIT_MS * u64::from(ranks.div_ceil(8)).pow(2), "{}: {sum} ms", case.0);
        }
    }
}
