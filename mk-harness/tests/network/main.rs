//! Pipelines over nodes with a real network between them: the executor's ranks, fifos, proxies and transports, in one process and in
//! two.

#[path = "../sweep/drawn.rs"]
mod drawn;
mod faults;

use drawn::some;
use mk_codegen::{
    passes::compile,
    plan::Plan,
    settings::{Config, NicOrdering},
    sim::Schedule,
};
use mk_harness::{Case, CpuOptions, NetOptions, NetRun, Wire, run_over_network};
use mk_runtime::{
    Bootstrap, TransportError, UnixBootstrap,
    transport::shaped::{Fault, Shape},
    world::{Meeting, TcpBootstrap, Token},
};
use mk_syntax::{Bound, Program};
use std::{
    collections::BTreeMap,
    env,
    process::{Command, Stdio},
    time::Duration,
};

const GATHER: &str =
    "fn f(a: bf16[M, K] @ shard(0), b: bf16[K, N]) { gather(a) -> gemm(b) -> gelu }";
const SCATTER: &str =
    "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> reduce_scatter }";
const ALL: &str =
    "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> all_reduce }";
const CHAIN: &str =
    "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1), v: bf16[N, K] @ shard(0)) {
    gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter
}";

const RING: &str = "fn f(q: bf16[B, M, H, D] @ zigzag(1), k: bf16[B, M, G, D] @ zigzag(1), v: bf16[B, M, G, D] @ zigzag(1)) {
    let o = ring(k, v) -> attention(q, causal);
    (o, o -> lse)
}";
const BACK: &str = "fn f(q: bf16[B, M, H, D] @ shard(1), do: bf16[B, M, H, D] @ shard(1), stats: f32[B, H, M, 4] @ shard(2),
                     k: bf16[B, M, G, D] @ shard(1), v: bf16[B, M, G, D] @ shard(1)) {
    let dk = ring(q, do, stats) -> attention_dk(k, v);
    (dk, dk -> attention_dv)
}";

/// A layer of experts, and the gradients of its weights.
const LAYER: &str =
    "fn f(x: bf16[M, N] @ shard(0), ids: i32[M, K] @ shard(0), gate: f32[M, K] @ shard(0),
                      w1: bf16[E, N, 2, D] @ shard(0), w2: bf16[E, D, N] @ shard(0)) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";
const SLOTS: &str = "fn f(a: bf16[R, D] @ shard(0), ids: i32[M, K] @ shard(0), dy: bf16[M, N] @ shard(0), w: bf16[E, D, N] @ shard(0)) {
    ragged(a, ids) -> grouped_gemm(w) -> combine_grad(dy)
}";

#[cfg(feature = "verbs")]
const WHOLE: &str = "fn f(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ partial) { gather(a) -> gemm(b) -> reduce_scatter }";

/// A small machine: tasks queue up on few CTAs, messages in the fifo.
fn config(nodes: u32, local: u32, net: NicOrdering) -> Config {
    Config {
        ranks: nodes * local,
        nodes,
        net,
        block: [64, 128, 64],
        chunk_bytes: 4096,
        compute_sms: Some(3),
        intra_comm_sms: Some(2),
        copy_stages: 4,
        ..Config::default()
    }
}

fn run(
    source: &str,
    rows: u64,
    config: &Config,
    net: &NetOptions,
    options: &CpuOptions,
    processes: Option<&mut dyn Bootstrap>,
) -> Result<NetRun, mk_harness::HarnessError> {
    Prepared::new(source, rows, config).run(net, options, processes)
}

/// A pipeline with its plan.
struct Prepared {
    program: Program,
    bound: Bound,
    plan: Plan,
}

impl Prepared {
    fn new(source: &str, rows: u64, config: &Config) -> Prepared {
        Prepared::with(source, rows, 136, config)
    }

    fn with(source: &str, rows: u64, k: u64, config: &Config) -> Prepared {
        let program = Program::parse(source).expect("parses");
        // Of experts K are the slots of a token, and R is room for any routing.
        let routed = program.symbol("E").is_some();
        let (k, experts) = (if routed { 2 } else { k }, 2 * u64::from(config.ranks) - 1);
        let room = u64::from(config.ranks) * 128 * (2 + (2 * rows).div_ceil(128));
        let more = [("H", 2), ("G", 1), ("D", 64), ("E", experts), ("R", room)];
        let dims = [[("M", rows), ("K", k), ("N", 72), ("B", 1)].as_slice(), &more].concat();
        let dims = dims.iter().filter(|(name, _)| program.symbol(name).is_some());
        let dims: BTreeMap<_, _> = dims.map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let mut config = config.clone();
        if source.contains("attention") || routed {
            // That of tiles of GEMMs.
            config.block = Config::default().block;
        }
        if routed {
            // The CTAs that multiply move rows, too.
            config.intra_comm_sms = None;
        }
        let (plan, _) = compile(&program, &bound, &config).expect("compiles");
        Prepared { program, bound, plan }
    }

    fn run(
        &self,
        net: &NetOptions,
        options: &CpuOptions,
        processes: Option<&mut dyn Bootstrap>,
    ) -> Result<NetRun, mk_harness::HarnessError> {
        let Prepared { program, bound, plan } = self;
        let case = Case { program, bound, ranks: plan.mesh.size() as usize };
        run_over_network(case, plan, options, net, processes)
    }
}

fn judged(run: &NetRun, what: &str) {
    for (launch, judged) in run.run.judged.iter().enumerate() {
        for rank in run.ranks.clone() {
            assert!(
                judged[rank].passes(),
                "{what}, launch {launch}, rank {rank}: {}",
                judged[rank]
            );
        }
    }
    assert!(run.counts.iter().all(|c| c.commands > 0), "{what}: a proxy without commands");
}

fn options(launches: u32) -> CpuOptions {
    CpuOptions { schedule: Schedule::Random, seed: 1, launches, ..CpuOptions::default() }
}

const ORDERINGS: [NicOrdering; 2] = [NicOrdering::InOrder, NicOrdering::Unordered];

#[test]
fn loopback() {
    let all = [GATHER, SCATTER, ALL, CHAIN, RING, BACK, LAYER, SLOTS];
    for (n, source) in all.into_iter().enumerate() {
        for net in some(ORDERINGS, 2) {
            let worlds = [(2, 2), (3, 1), (2, 1), (2, 2), (3, 2), (2, 1), (2, 2), (3, 1)];
            let (nodes, local) = worlds[n];
            let config = config(nodes, local, net);
            let run =
                run(source, 300, &config, &NetOptions::new(Wire::Loopback), &options(4), None);
            judged(&run.unwrap_or_else(|e| panic!("{source} {net:?}: {e}")), source);
        }
    }
}

/// One axis inside nodes, the other over them.
const TWO_AXES: [&str; 3] = [
    "fn f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(0, dp)) {
        gather(a, tp) -> gemm(b) -> all_reduce(dp)
    }",
    "fn f(a: bf16[M, K] @ shard(0, dp) @ shard(1, tp), b: bf16[K, N] @ shard(0, tp)) {
        gather(a, dp) -> gemm(b) -> reduce_scatter(tp)
    }",
    "fn f(q: bf16[B, M, H, D] @ zigzag(1, dp) @ shard(2, tp), k: bf16[B, M, H, D] @ zigzag(1, dp) @ shard(2, tp),
          v: bf16[B, M, H, D] @ zigzag(1, dp) @ shard(2, tp)) {
        ring(k, v, dp) -> attention(q, causal)
    }",
];

#[test]
fn two_axes() {
    for source in TWO_AXES {
        for (net, nodes) in ORDERINGS.into_iter().zip([2, 3]) {
            let mesh = vec![("dp".into(), nodes), ("tp".into(), 2)];
            let config = Config { mesh, ..config(nodes, 2, net) };
            let options = (NetOptions::new(Wire::Loopback), options(3));
            let shape = NetOptions { shape: shuffled(2), ..options.0 };
            // K is cut by both axes.
            let run = Prepared::with(source, 300, 144, &config).run(&shape, &options.1, None);
            judged(&run.unwrap_or_else(|e| panic!("{source} {net:?}: {e}")), source);
        }
    }
}

/// A slow network that lets writes overtake each other as far as it may.
fn shuffled(seed: u64) -> Shape {
    let latency = Duration::from_micros(300);
    Shape { bytes_per_s: Some(50e6), latency, reorder: Some(seed), faults: Vec::new() }
}

#[test]
fn shuffled_loopback() {
    for (n, source) in [GATHER, ALL, CHAIN, RING, BACK, LAYER, SLOTS].into_iter().enumerate() {
        for net in some(ORDERINGS, 2) {
            let options = options(3);
            let shape =
                NetOptions { shape: shuffled(n as u64 + 1), ..NetOptions::new(Wire::Loopback) };
            let run = run(source, 260, &config(2, 2, net), &shape, &options, None);
            judged(&run.unwrap_or_else(|e| panic!("{source} {net:?}: {e}")), source);
        }
    }
}

/// Immediates of a later launch that come early wait for those before.
#[test]
fn full_fifo_and_blocked_posts() {
    for net in ORDERINGS {
        let faults = vec![Fault::Blocks { at: 2, times: 50 }];
        let shape = Shape { faults, ..shuffled(3) };
        let net_options = NetOptions { shape, ..NetOptions::new(Wire::Loopback) };
        let config = Config { chunk_bytes: 2048, ..config(2, 1, net) };
        let run = run(GATHER, 700, &config, &net_options, &options(3), None);
        judged(&run.unwrap_or_else(|e| panic!("{net:?}: {e}")), "blocked");
    }
}

/// In a child: network and name of the run.
const CHILD: &str = "MK_NETWORK_CASE";

/// A network between two processes.
struct Net {
    options: NetOptions,
    ordering: NicOrdering,
    local: u32,
    sources: Vec<&'static str>,
}

/// A provider of libfabric; `verbs`, over one connection for each lane; `verbs striped`, over four with immediates.
fn net(network: &str) -> Net {
    match network {
        #[cfg(feature = "verbs")]
        "verbs" | "verbs striped" => {
            let ordering = ORDERINGS[usize::from(network != "verbs")];
            // What an end is made of comes from the plan, but for the number of queue pairs of the striped one.
            let verbs = mk_runtime::transport::verbs::Options::new(
                mk_runtime::transport::Ordering::Unordered,
            );
            let options = NetOptions::new(Wire::Verbs(verbs));
            Net { options, ordering, local: 1, sources: vec![WHOLE, RING, LAYER] }
        }
        // "efa", by the library of `mk_efa`, among them.
        provider => {
            let address = provider.starts_with("tcp").then(|| "127.0.0.1".to_string());
            let options = NetOptions::new(Wire::Ofi { provider: provider.into(), address });
            let local = if provider == "shm" { 1 } else { 2 };
            let sources = vec![GATHER, ALL, CHAIN, RING, BACK, LAYER, SLOTS];
            Net { options, ordering: NicOrdering::Unordered, local, sources }
        }
    }
}

/// Processes meet as those of a host do, or, over TCP, as those of two, at a port that their name ends with.
fn meet(network: &str, name: &str, rank: u32) -> Result<Box<dyn Bootstrap>, mk_runtime::Error> {
    let limit = Duration::from_secs(60);
    if !network.starts_with("tcp") {
        return Ok(Box::new(UnixBootstrap::meet(name, rank, 2, limit)?));
    }
    let port = name.split('-').find_map(|part| part.strip_prefix("at")?.parse::<u16>().ok());
    let address = ([127, 0, 0, 1], port.expect("a port")).into();
    let token = Token::new(format!("the secret of {name}").as_bytes())?;
    let meeting = Meeting { address, token, rank, world_size: 2, limit };
    Ok(Box::new(TcpBootstrap::meet(&meeting)?))
}

/// All the plans that two processes run over a network.
fn part(network: &str, rank: u32, name: &str) -> Result<(), mk_harness::HarnessError> {
    let Net { options: net, ordering, local, sources } = net(network);
    // Both processes have the seed.
    let seed = drawn::seed() as usize;
    for (n, source) in sources.into_iter().enumerate() {
        if !drawn::whole() && (seed + n).is_multiple_of(2) {
            continue;
        }
        let name = format!("{name}-{n}");
        let mut all = meet(network, &name, rank)?;
        let config = config(2, local, ordering);
        let run = run(source, 300, &config, &net, &options(4), Some(&mut *all))?;
        assert_eq!(run.ranks.len(), local as usize);
        judged(&run, source);
    }
    Ok(())
}

/// Whether the network is here.
fn open(network: &str) -> Result<(), TransportError> {
    use mk_runtime::transport::{ofi, verbs};
    match net(network).options.wire {
        Wire::Verbs(options) => verbs::open(0, &options).map(drop),
        _ => ofi::Ofi::open(0, &ofi::Options::new(network)).map(drop),
    }
}

fn in_two(network: &str) {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr());
    let port = free.expect("a port").port();
    let name = format!("network-{}-{}-at{port}", network.replace(' ', "-"), std::process::id());
    let mut child = Command::new(env::current_exe().expect("a path"));
    child.args(["--exact", "child", "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::null());
    child.env(CHILD, format!("{network}\n{name}")).env("MK_SEED", drawn::seed().to_string());
    // Before there is another process: it is not here, or it is not wanted.
    match open(network) {
        Ok(()) => {}
        Err(TransportError::Unavailable { transport, what, .. }) => {
            let need = match transport.as_str() {
                "verbs" => mk_skip::Need::Rdma,
                _ => mk_skip::Need::Fabric,
            };
            mk_skip::skip(need, format!("{transport}: {what}"));
            return;
        }
        Err(error) => panic!("{error}"),
    }
    let mut child = child.spawn().expect("a process");
    let ran = part(network, 0, &name);
    let status = child.wait().expect("its end");
    ran.unwrap_or_else(|e| panic!("{network}: {e}"));
    assert!(status.success(), "rank 1: {status}");
}

#[test]
fn two_processes_over_tcp() {
    in_two("tcp;ofi_rxm");
}

#[test]
fn two_processes_over_shm() {
    in_two("shm");
}

/// Runs the calling test again, with the provider `efa` of `mk_efa` for libfabric, once for each order of its writes.
/// Whether this is such a run.
fn over_efa(test: &str, orders: &[&str]) -> bool {
    if env::var_os(mk_efa::VARIABLE).is_some() {
        return true;
    }
    let library = mk_efa::directory().expect("a library");
    for order in orders {
        let mut again = Command::new(env::current_exe().expect("a path"));
        again.args(["--exact", test, "--nocapture"]).stdin(Stdio::null());
        again.env("MK_FABRIC_DIR", &library).env(mk_efa::VARIABLE, order);
        again.env("MK_SEED", drawn::seed().to_string());
        let out = again.output().expect("a process");
        let [ran, errors] = [&out.stdout, &out.stderr].map(|text| String::from_utf8_lossy(text));
        let whole = ran.contains("1 passed") && !ran.contains("SKIPPED");
        assert!(out.status.success() && whole, "{test}, {order}: {ran}{errors}");
    }
    false
}

#[test]
fn two_processes_over_efa() {
    if over_efa("two_processes_over_efa", &["in order", "11"]) {
        in_two("efa");
    }
}

#[cfg(feature = "verbs")]
#[test]
fn two_processes_over_verbs() {
    in_two("verbs");
}

#[cfg(feature = "verbs")]
#[test]
fn two_processes_over_verbs_striped() {
    in_two("verbs striped");
}

/// The second process of a test. Nothing when nobody has started it as such.
#[test]
fn child() {
    let Ok(spec) = env::var(CHILD) else { return };
    let (network, name) = spec.split_once('\n').expect("two lines");
    part(network, 1, name).unwrap_or_else(|e| panic!("{network}: {e}"));
}
