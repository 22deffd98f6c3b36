//! Nodes on GPUs of their own, whose copy engines carry messages between arenas in memory of the GPUs.

use crate::{
    nodes::{ORDERS, shuffled},
    rig::{alone, in_parallel},
    scenario::{Res, config_for},
};
use mk::{
    Bound, Program,
    abi::KernelSource,
    emit, passes,
    runtime::{
        InstanceOptions, World,
        jit::{self, Compiled, JitOptions},
        net::{ArenaMemory, Net, NetOptions},
        transport::{Ordering, shaped::Shape},
    },
    settings::{Config, NicOrdering},
};
use mk_harness::{Case, gpu::Session};
use mk_skip::{Need, skip};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// A pipeline, sizes for a test and for a measurement, and what a rank of it computes alone, where that is one kernel.
struct Row {
    name: &'static str,
    text: &'static str,
    small: &'static [(&'static str, u64)],
    large: &'static [(&'static str, u64)],
    alone: Option<(&'static str, &'static [(&'static str, u64)])>,
}

const GEMM: &str = "fn alone(a: bf16[M, K], b: bf16[K, N]) { gemm(a, b) }";
const SQUARE: &[(&str, u64)] = &[("M", 8192), ("K", 8192), ("N", 8192)];

const ROWS: [Row; 6] = [
    Row {
        name: "gather -> gemm",
        text: "fn gathered(a: bf16[M, K] @ shard(0), b: bf16[K, N]) { gather(a) -> gemm(b) }",
        small: &[("M", 1000), ("K", 512), ("N", 768)],
        large: SQUARE,
        alone: Some((GEMM, SQUARE)),
    },
    Row {
        name: "gemm -> reduce_scatter",
        text: "fn scattered(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> reduce_scatter }",
        small: &[("M", 1000), ("K", 512), ("N", 768)],
        large: &[("M", 8192), ("K", 16384), ("N", 8192)],
        alone: Some((GEMM, SQUARE)),
    },
    Row {
        name: "gemm -> all_reduce",
        text: "fn reduced(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> all_reduce }",
        small: &[("M", 1000), ("K", 512), ("N", 768)],
        large: &[("M", 8192), ("K", 16384), ("N", 8192)],
        alone: Some((GEMM, SQUARE)),
    },
    Row {
        name: "ring -> attention",
        text: "fn ringed(q: bf16[B, S, H, D] @ shard(1), k: bf16[B, S, G, D] @ shard(1), v: bf16[B, S, G, D] @ shard(1)) {
            ring(k, v) -> attention(q)
        }",
        small: &[("B", 1), ("S", 1000), ("H", 4), ("G", 2), ("D", 128)],
        large: &[("B", 1), ("S", 16384), ("H", 32), ("G", 32), ("D", 128)],
        alone: Some((
            "fn alone(q: bf16[B, S, H, D], k: bf16[B, T, H, D], v: bf16[B, T, H, D]) { attention(q, k, v) }",
            &[("B", 1), ("S", 8192), ("T", 16384), ("H", 32), ("D", 128)],
        )),
    },
    Row {
        name: "ring -> attention_dk",
        text: "fn keys(q: bf16[B, S, H, D] @ zigzag(1), do: bf16[B, S, H, D] @ zigzag(1), stats: f32[B, H, S, 4] @ zigzag(2),
                       k: bf16[B, S, G, D] @ zigzag(1), v: bf16[B, S, G, D] @ zigzag(1)) {
            let dk = ring(q, do, stats) -> attention_dk(k, v, causal);
            (dk, dk -> attention_dv)
        }",
        small: &[("B", 1), ("S", 1000), ("H", 4), ("G", 2), ("D", 128)],
        large: &[],
        alone: None,
    },
    Row {
        name: "MoE layer",
        text: "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
                        w: bf16[E, H, 2, I] @ shard(0), v: bf16[E, I, H] @ shard(0)) {
            dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate)
        }",
        small: &[("T", 600), ("K", 2), ("E", 8), ("H", 136), ("I", 72)],
        large: &[("T", 8192), ("K", 8), ("E", 128), ("H", 2048), ("I", 768)],
        alone: None,
    },
];

/// A kernel and its pipeline.
struct Prepared {
    program: Program,
    bound: Bound,
    source: KernelSource,
    compiled: Compiled,
}

impl Prepared {
    fn new(text: &str, sizes: &[(&str, u64)], config: &Config) -> Res<Prepared> {
        let program = Program::parse(text)?;
        let sizes: BTreeMap<_, _> = sizes.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&sizes, &BTreeMap::new())?.on(&program, config.ranks)?;
        let (plan, _proof) = passes::compile(&program, &bound, config)?;
        let source = emit::emit(&plan)?;
        let compiled = jit::compile(&source, &JitOptions::default())?;
        Ok(Prepared { program, bound, source, compiled })
    }

    fn bind<'p>(&'p self, world: &World, net: Option<&Net>, chaos: u64) -> Res<Session<'p>> {
        let (program, bound) = (&self.program, &self.bound);
        let case = Case { program, bound, ranks: world.size() as usize };
        let limit = Duration::from_secs(10);
        let options = InstanceOptions {
            poison: Some(0xFF),
            wait_limit: limit,
            entry_limit: limit,
            net: net.cloned(),
            chaos_seed: u32::from(chaos > 0),
            chaos_max: Duration::from_micros(chaos),
            ..InstanceOptions::default()
        };
        Ok(Session::bind(world, case, &self.source, &self.compiled, &options, 7)?)
    }
}

/// Whether all ranks hold what they should.
fn right(session: &mut Session<'_>) -> Res<()> {
    let tolerance = session.tolerance()?;
    for (rank, norms) in session.norms()?.iter().enumerate() {
        if !tolerance.accepts(norms) {
            return Err(format!("rank {rank}: {}", tolerance.beside(norms)).into());
        }
    }
    Ok(())
}

/// A rank on each of the first GPUs; says so when there are fewer.
fn world(test: &str, nodes: u32, ranks: usize) -> Option<World> {
    match World::on_nodes(&(0..ranks as i32).collect::<Vec<_>>(), nodes) {
        Ok(world) => Some(world),
        Err(e) if e.is_no_device() => {
            skip(Need::Gpus(ranks), e);
            None
        }
        Err(e) => panic!("{test}: {e}"),
    }
}

fn config(world: &World, nodes: u32, net: NicOrdering) -> Config {
    config_for(world, &Config { nodes, net, ..Config::default() })
}

fn on_gpus(options: NetOptions) -> NetOptions {
    NetOptions { memory: ArenaMemory::Gpu, ..options }
}

/// Launches under delays, on a network on which writes overtake each other; then captured.
#[test]
fn pipelines_over_copy_engines() -> Res<()> {
    let _alone = alone();
    for ranks in [2, 4] {
        let test = "pipelines_over_copy_engines";
        let Some(world) = world(test, 2, ranks) else { return Ok(()) };
        let cases: Vec<_> = ROWS.iter().flat_map(|row| ORDERS.map(|order| (row, order))).collect();
        let kernels = in_parallel(&cases, |(row, (net, _))| {
            Prepared::new(row.text, row.small, &config(&world, 2, *net))
        });
        for (seed, ((row, (_, ordering)), kernel)) in (1..).zip(cases.iter().zip(kernels)) {
            let what = format!("{} on {ranks} GPUs, {ordering:?}", row.name);
            let begin = Instant::now();
            let net = Net::loopback(&world, *ordering, &on_gpus(shuffled(seed)))?;
            let kernel = kernel.map_err(|e| format!("{what}: {e}"))?;
            let mut session = kernel.bind(&world, Some(&net), 30)?;
            for launch in 1..=40 {
                session.fill(launch)?;
                if launch == 20 {
                    session.capture()?;
                }
                let ran = session.launch().map_err(Into::into).and_then(|()| right(&mut session));
                ran.map_err(|e| format!("{what}, launch {launch}: {e}"))?;
            }
            println!("ok {what}: 40 launches, half of them captured, {:.1?}", begin.elapsed());
        }
    }
    Ok(())
}

/// Messages of arenas on GPUs go over PCIe as commands and words. Lanes that wait look there for what the host says, and
/// did so until a copy took half a millisecond: a layer had 26 times the time of one whose arenas are on the host.
#[test]
fn lanes_that_wait_hold_up_no_copies() -> Res<()> {
    let _alone = alone();
    let Some(world) = world("lanes_that_wait_hold_up_no_copies", 2, 2) else { return Ok(()) };
    let sizes = [("T", 2400), ("K", 8), ("E", 128), ("H", 2048), ("I", 768)];
    let layer = ROWS.iter().find(|row| row.name == "MoE layer").ok_or("no layer")?;
    let kernel = Prepared::new(layer.text, &sizes, &config(&world, 2, NicOrdering::InOrder))?;
    let timed = |memory| -> Res<f32> {
        let options = NetOptions { memory, arena_bytes: 1 << 28, ..NetOptions::default() };
        let net = Net::loopback(&world, Ordering::InOrder, &options)?;
        let mut session = kernel.bind(&world, Some(&net), 0)?;
        session.fill(1)?;
        session.launch()?;
        right(&mut session)?;
        Ok(session.time()?.median_ms)
    };
    let (host, gpu) = (timed(ArenaMemory::Host)?, timed(ArenaMemory::Gpu)?);
    println!("arenas on the host {host:.3} ms, on GPUs {gpu:.3}");
    assert!(gpu < 5.0 * host, "{gpu} ms of GPUs' arenas, {host} of the host's");
    Ok(())
}

/// Arenas on one GPU, between whose parts no copy goes on under a kernel.
#[test]
fn arenas_of_one_gpu_are_refused() -> Res<()> {
    let Some(world) = crate::nodes::world("arenas_of_one_gpu_are_refused", 2, 2) else {
        return Ok(());
    };
    let options = on_gpus(NetOptions { arena_bytes: 1 << 20, ..NetOptions::default() });
    let error = Net::loopback(&world, Ordering::InOrder, &options).expect_err("one GPU");
    assert!(error.to_string().contains("copies stand still"), "{error}");
    Ok(())
}

/// How much of the longer of computing and sending is hidden, at rates of network cards. Prints the figures.
#[test]
fn overlap_of_copy_engines() -> Res<()> {
    let _alone = alone();
    let Some(world) = world("overlap_of_copy_engines", 2, 2) else { return Ok(()) };
    let (one, same) = (World::shared(0, 1)?, World::on_devices(&[0, 1])?);
    let rows: Vec<&Row> = ROWS.iter().filter(|row| !row.large.is_empty()).collect();
    let cases: Vec<_> = rows.iter().flat_map(|row| ORDERS.map(|order| (*row, order))).collect();
    let kernels = in_parallel(&cases, |(row, (net, _))| {
        Prepared::new(row.text, row.large, &config(&world, 2, *net))
    });
    // A rank's part alone, on as many SMs; of a layer, the layer on one node.
    let kernels = kernels.into_iter().collect::<Res<Vec<_>>>()?;
    let apart =
        in_parallel(&kernels.iter().step_by(2).zip(&rows).collect::<Vec<_>>(), |(k, row)| {
            let ctas = k.source.roles.iter().find(|r| r.name == "compute").map(|r| r.ctas);
            let config = Config { compute_sms: ctas, ..Config::default() };
            match row.alone {
                Some((text, sizes)) => Prepared::new(text, sizes, &config_for(&one, &config)),
                None => Prepared::new(row.text, row.large, &config_for(&same, &Config::default())),
            }
        });
    let mut computed = Vec::new();
    for (row, kernel) in rows.iter().zip(apart) {
        let world = if row.alone.is_some() { &one } else { &same };
        let kernel = kernel?;
        let mut session = kernel.bind(world, None, 0)?;
        computed.push(f64::from(session.time()?.median_ms));
    }
    println!("| row | network | GB/s | compute ms | wire ms | mk ms | max(compute, wire) / mk |");
    for rate in [25e9, 50e9] {
        for (i, ((row, (_, ordering)), kernel)) in cases.iter().zip(&kernels).enumerate() {
            let shape = Shape {
                bytes_per_s: Some(rate),
                latency: Duration::from_micros(5),
                reorder: (*ordering == Ordering::Unordered).then_some(7),
                faults: Vec::new(),
            };
            let options = NetOptions { shape, arena_bytes: 1 << 30, ..NetOptions::default() };
            let net = Net::loopback(&world, *ordering, &on_gpus(options))?;
            let mut session = kernel.bind(&world, Some(&net), 0)?;
            let sent = || net.counts().iter().map(|c| c.bytes).max().unwrap_or(0);
            session.fill(1)?;
            session.launch()?;
            right(&mut session).map_err(|e| format!("{}: {e}", row.name))?;
            std::thread::sleep(Duration::from_millis(20));
            let wire = 1e3 * sent() as f64 / rate;
            let (ours, compute) = (f64::from(session.time()?.median_ms), computed[i / 2]);
            println!(
                "| {} | {ordering:?} | {:.0} | {compute:.3} | {wire:.3} | {ours:.3} | {:.3} |",
                row.name,
                rate / 1e9,
                compute.max(wire) / ours
            );
        }
    }
    Ok(())
}
