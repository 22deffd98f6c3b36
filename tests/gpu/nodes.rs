//! Nodes that share one GPU: their ranks map only the memory of their own node, and everything else goes through fifo, proxy and a
//! network of this process.

use crate::{
    rig::{alone, in_parallel},
    scenario::{Case, Kernel, Res, Scenario, config_for, good},
};
use mk::{
    runtime::{
        Error, Graph, InstanceOptions, World,
        bench::Gate,
        jit::JitOptions,
        net::{Net, NetOptions},
        transport::{
            HostMemory, Notify, Ordering, Posted, Transport, Write,
            loopback::{self, LoopbackNetwork},
            shaped::{Fault, Shape},
        },
    },
    settings::{Config, NicOrdering},
    trace::{Span, What},
};
use mk_skip::{Need, skip};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const PIPELINES: [&str; 4] = [
    "gather(a) -> gemm(b)",
    "gemm(a, b) -> reduce_scatter",
    "gemm(a, b) -> all_reduce",
    "gather(a) -> gemm(b) -> reduce_scatter",
];

/// Nodes of one GPU; says so when there is none.
pub fn world(test: &str, nodes: u32, ranks: u32) -> Option<World> {
    match World::on_nodes(&vec![0; ranks as usize], nodes) {
        Ok(world) => Some(world),
        Err(e) if e.is_no_device() => {
            skip(Need::Gpus(1), e);
            None
        }
        Err(e) => panic!("{test}: {e}"),
    }
}

fn case(pipeline: &'static str, nodes: u32, net: NicOrdering, shape: [u64; 3]) -> Case {
    let [m, k, n] = shape;
    let shapes = vec![("a", vec![m, k]), ("b", vec![k, n])];
    Case { pipeline, shapes, config: Config { nodes, net, ..Config::default() } }
}

fn options(net: &Net, chaos_seed: u32) -> InstanceOptions {
    let limit = Duration::from_secs(10);
    InstanceOptions {
        poison: Some(0xFF),
        wait_limit: limit,
        entry_limit: limit,
        net: Some(net.clone()),
        chaos_seed,
        chaos_max: Duration::from_micros(if chaos_seed == 0 { 0 } else { 30 }),
        ..InstanceOptions::default()
    }
}

/// A network of microseconds, on which writes overtake each other as far as they may.
pub fn shuffled(seed: u64) -> NetOptions {
    let latency = Duration::from_micros(20);
    let shape = Shape { latency, reorder: Some(seed), ..Shape::default() };
    NetOptions { shape, ..NetOptions::default() }
}

pub const ORDERS: [(NicOrdering, Ordering); 2] =
    [(NicOrdering::InOrder, Ordering::InOrder), (NicOrdering::Unordered, Ordering::Unordered)];

#[test]
fn two_nodes_of_one_rank() -> Res<()> {
    launches_and_replays("two_nodes_of_one_rank", 2, 2)
}

#[test]
fn two_nodes_of_two_ranks() -> Res<()> {
    launches_and_replays("two_nodes_of_two_ranks", 2, 4)
}

/// 20 launches and 100 replays of each pipeline, with delays of the agents and of the network.
fn launches_and_replays(test: &str, nodes: u32, ranks: u32) -> Res<()> {
    let _alone = alone();
    let Some(world) = world(test, nodes, ranks) else { return Ok(()) };
    let of = |order| PIPELINES.map(|pipeline| case(pipeline, nodes, order, [1000, 512, 768]));
    let cases = [of(NicOrdering::InOrder), of(NicOrdering::Unordered)].concat();
    let mut kernels = in_parallel(&cases, |case| Kernel::new(case, &world)).into_iter();
    for (i, (order, ordering)) in (1..).zip(ORDERS) {
        let net = Net::loopback(&world, ordering, &shuffled(i))?;
        for (n, pipeline) in (1..).zip(PIPELINES) {
            let what = format!("{pipeline} on {nodes} nodes of {ranks} ranks, {order:?}");
            let begin = Instant::now();
            let kernel = kernels.next().ok_or("a kernel for each case")??;
            let mut s = Scenario::bind(&kernel, &world, &options(&net, n))?;
            for epoch in 1..=20 {
                let norm = s.step(epoch).map_err(|e| format!("{what}, launch {epoch}: {e}"))?;
                assert!(good(&norm), "{what}, launch {epoch}: {norm:?}");
            }
            let (refs, args) = (s.stream_refs(), s.args());
            let instance = &mut s.instance;
            let mut graphs = Graph::capture(&s.streams, || instance.launch(&refs, &args))?;
            for replay in 1..=100 {
                s.refill(1000 + replay)?;
                for (graph, stream) in graphs.iter_mut().zip(&refs) {
                    graph.launch(*stream)?;
                }
                s.streams.iter().try_for_each(|s| s.synchronize())?;
                s.instance.check()?;
                let norm = s.worst(1000 + replay)?;
                assert!(good(&norm), "{what}, replay {replay}: {norm:?}");
            }
            drop(graphs);
            println!("ok {what}: 20 launches, 100 replays, {:.1?}", begin.elapsed());
        }
        println!("counts {ordering:?}: {:?}", net.counts());
    }
    Ok(())
}

/// All results, as bytes.
fn results(s: &Scenario) -> Res<Vec<Vec<f32>>> {
    let i = s.source.tensors.iter().position(|t| t.name == "out").ok_or("no result")?;
    Ok(s.tensors.iter().map(|t| t[i].download_f32()).collect::<Result<_, _>>()?)
}

/// A gather's product has the bits that one node gives; sums have the same in order, unordered and again.
#[test]
fn bits() -> Res<()> {
    let _alone = alone();
    let Some(nodes) = world("bits", 2, 4) else { return Ok(()) };
    let one = World::shared(0, 4)?;
    for pipeline in PIPELINES {
        let mut seen = Vec::new();
        for (order, ordering) in ORDERS {
            let net = Net::loopback(&nodes, ordering, &shuffled(9))?;
            let case = case(pipeline, 2, order, [1000, 512, 768]);
            let mut s = Scenario::new(&case, &nodes, &options(&net, 5))?;
            assert!(good(&s.step(7)?));
            seen.push(results(&s)?);
            assert!(good(&s.step(8)?));
            assert!(good(&s.step(7)?));
            seen.push(results(&s)?);
        }
        if pipeline.starts_with("gather") && !pipeline.contains("reduce") {
            let whole = case(pipeline, 1, NicOrdering::InOrder, [1000, 512, 768]);
            let limits = InstanceOptions { net: None, ..options_of_one() };
            let mut s = Scenario::new(&whole, &one, &limits)?;
            assert!(good(&s.step(7)?));
            seen.push(results(&s)?);
        }
        let bits = |all: &[Vec<f32>]| -> Vec<Vec<u32>> {
            all.iter().map(|r| r.iter().map(|x| x.to_bits()).collect()).collect()
        };
        let first = bits(&seen[0]);
        assert!(seen.iter().all(|other| bits(other) == first), "{pipeline}: other bits");
        println!("ok {pipeline}: {} runs with the same bits", seen.len());
    }
    Ok(())
}

fn options_of_one() -> InstanceOptions {
    let limit = Duration::from_secs(10);
    InstanceOptions { wait_limit: limit, entry_limit: limit, ..InstanceOptions::default() }
}

/// A link that stands still: a right answer within the limit, and an error that names the edge past it; a fifo that is full for a while.
#[test]
fn stalls() -> Res<()> {
    let _alone = alone();
    let Some(world) = world("stalls", 2, 2) else { return Ok(()) };
    let stall = |at, time| NetOptions {
        shape: Shape { faults: vec![Fault::Stalls { at, time }], ..Shape::default() },
        ..NetOptions::default()
    };
    let case = case(PIPELINES[0], 2, NicOrdering::InOrder, [4096, 512, 256]);
    let kernel = Kernel::new(&case, &world)?;
    let net = Net::loopback(&world, Ordering::InOrder, &stall(3, Duration::from_secs(3)))?;
    let mut s = Scenario::bind(&kernel, &world, &options(&net, 0))?;
    let begin = Instant::now();
    assert!(good(&s.step(1)?));
    assert!(begin.elapsed() > Duration::from_secs(2), "nothing stood still");
    assert!(good(&s.step(2)?));
    drop(s);
    drop(net);
    let net = Net::loopback(&world, Ordering::InOrder, &stall(3, Duration::from_secs(4)))?;
    let limits = InstanceOptions { wait_limit: Duration::from_secs(1), ..options(&net, 0) };
    let mut s = Scenario::bind(&kernel, &world, &limits)?;
    let begin = Instant::now();
    let error = s.step(1).err().ok_or("a launch over a dead link ended")?;
    let text = error.to_string();
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    // What the card brings: of one rank on each node, the rows themselves.
    assert!(text.contains("gemm.peers") && text.contains("arrived"), "{text}");
    assert!(matches!(s.instance.launch(&s.stream_refs(), &s.args()), Err(Error::Poisoned { .. })));
    println!("ok stalls: {text}");
    Ok(())
}

/// A write that fails ends the launch on both nodes, within two seconds.
#[test]
fn a_failed_write() -> Res<()> {
    let _alone = alone();
    let Some(world) = world("a_failed_write", 2, 2) else { return Ok(()) };
    let shape = Shape { faults: vec![Fault::Fails(5)], ..Shape::default() };
    let net = NetOptions { shape, ..NetOptions::default() };
    let net = Net::loopback(&world, Ordering::Unordered, &net)?;
    let case = case(PIPELINES[2], 2, NicOrdering::Unordered, [4096, 512, 256]);
    let mut s = Scenario::new(&case, &world, &options(&net, 0))?;
    let begin = Instant::now();
    let error = s.step(1).err().ok_or("a launch over a broken network ended")?;
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    let fault = net.fault().ok_or("the proxies know of nothing")?;
    println!("ok a failed write: {error}; {fault}");
    Ok(())
}

/// Waits for words that hosts raise are recorded, each behind the send of the other node that raises it.
#[test]
fn a_trace_over_nodes() -> Res<()> {
    let _alone = alone();
    let Some(world) = world("a_trace_over_nodes", 2, 2) else { return Ok(()) };
    let net = Net::loopback(&world, Ordering::InOrder, &NetOptions::default())?;
    let case = case(PIPELINES[0], 2, NicOrdering::InOrder, [4096, 512, 1024]);
    let kernel = Kernel::traced(&case, &world)?;
    let mut s = Scenario::bind(&kernel, &world, &options(&net, 0))?;
    for epoch in 1..=3 {
        assert!(good(&s.step(epoch)?));
        let trace = s.trace()?;
        assert!(
            trace.clocks.iter().all(|c| c.lost == 0 && c.disordered == 0),
            "{:?}",
            trace.clocks
        );
        assert!(trace.alignment.contradiction_ns < 32.0, "{:?}", trace.alignment);
        let mut waits = 0;
        for wait in &trace.spans {
            let What::Wait { on, before: false, .. } = wait.what else { continue };
            if on.rank < trace.world {
                continue;
            }
            waits += 1;
            let sent = |s: &&Span| matches!(s.what, What::Post { to, .. } if to == on);
            let by = trace.spans.iter().find(sent).ok_or("nobody sent a word that came")?;
            assert!(by.rank != wait.rank && by.begin < wait.end + 32.0, "{by:?} {wait:?}");
        }
        assert!(waits > 0, "{}", mk::trace::summary(&trace));
        println!("ok a trace over nodes: {waits} waits for the network");
    }
    Ok(())
}

/// Bytes per second that two ranks write to each other, at once.
fn loopback_rate(threads: usize, bytes: u64) -> Res<f64> {
    let options =
        loopback::Options { lanes: 4, threads, ..loopback::Options::new(2, Ordering::InOrder) };
    let mut fabric = LoopbackNetwork::new(options)?;
    let mut ends = [fabric.end(0)?, fabric.end(1)?];
    for end in &mut ends {
        end.register(Arc::new(HostMemory::new(2 * bytes as usize)?))?;
    }
    let cards = [ends[0].card(1)?, ends[1].card(0)?];
    ends[0].connect(1, &cards[1])?;
    ends[1].connect(0, &cards[0])?;
    let (piece, mut best) = (1u64 << 20, f64::MAX);
    for _ in 0..4 {
        let begin = Instant::now();
        let (mut posted, mut ended, mut events) = ([0u64; 2], 0, Vec::new());
        while ended < 2 * (bytes / piece) {
            for (i, end) in ends.iter_mut().enumerate() {
                let at = posted[i] * piece;
                if at < bytes {
                    let write = Write {
                        token: posted[i],
                        peer: 1 - i as u32,
                        lane: (posted[i] % 4) as u32,
                        from: at,
                        to: bytes + at,
                        bytes: piece,
                        notify: Notify::Nothing,
                    };
                    if end.post(&write)? == Posted::Taken {
                        posted[i] += 1;
                    }
                }
                end.poll(&mut events)?;
            }
            ended += events.drain(..).count() as u64;
        }
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok(bytes as f64 / best)
}

/// What is hidden of the longer of computing and sending, with the network as fast as this host copies. Prints the figures.
#[test]
fn overlap() -> Res<()> {
    let _alone = alone();
    let Some(world) = world("overlap", 2, 2) else { return Ok(()) };
    let size = 8192;
    let threads = 8;
    let rate = loopback_rate(threads, 64 << 20)?;
    println!("loopback {:.1} GB/s each way, {threads} threads", rate / 1e9);
    let gate = Gate::new(&world, &JitOptions::default())?;
    let one = World::shared(0, 2)?;
    let time = |s: &mut Scenario| -> Res<f32> {
        let (refs, args) =
            (gate.streams().iter().map(|s| s.as_ref()).collect::<Vec<_>>(), s.args());
        let mut all = Vec::new();
        for _ in 0..7 {
            all.push(gate.time_ms(|| s.instance.launch(&refs, &args))?);
        }
        s.instance.synchronize()?;
        all.sort_by(f32::total_cmp);
        Ok(all[all.len() / 2])
    };
    let options_of =
        NetOptions { arena_bytes: 512 << 20, threads: threads / 2, ..NetOptions::default() };
    // A rank's product alone, on as many SMs: all rows by its part of `b`, or all columns of its part.
    let alone = |kernel: &Kernel| {
        let source = kernel.source();
        let ctas = source.roles.iter().find(|r| r.name == "compute").map(|r| r.ctas);
        let b = source.tensors.iter().position(|t| t.name == "b").ok_or("no `b`")?;
        let b = source.ranks[0].tensor_shapes[b].clone();
        let config = Config { compute_sms: ctas, ..Config::default() };
        let shapes = vec![("a", vec![size, b[0]]), ("b", b)];
        let case = Case { pipeline: "gemm(a, b)", shapes, config };
        Kernel::with(&case, &config_for(&one, &case.config))
    };
    // A square, and then as deep a product, or as wide a one behind a gather, as takes about as long as the network.
    for pipeline in &PIPELINES[..3] {
        let sends = if pipeline.contains("all_reduce") { 2 } else { 1 };
        let wire = 1e3 * (sends * size * size) as f64 / rate;
        let measure = |times: u64| -> Res<f64> {
            let shape = match pipeline.starts_with("gather") {
                true => [size, size, size * times],
                false => [size, size * times, size],
            };
            let kernel = Kernel::new(&case(pipeline, 2, NicOrdering::InOrder, shape), &world)?;
            let net = Net::loopback(&world, Ordering::InOrder, &options_of)?;
            let mut s = Scenario::bind(&kernel, &world, &options(&net, 0))?;
            s.refill(1)?;
            s.launch()?;
            s.instance.synchronize()?;
            let norm = s.worst(1)?;
            assert!(good(&norm), "{pipeline} {shape:?}: {norm:?}");
            let ours = time(&mut s)?;
            drop(s);
            let alone = alone(&kernel)?;
            let mut g = Scenario::bind(&alone, &one, &options_of_one())?;
            g.refill(1)?;
            let compute = alone.case.config.compute_sms.unwrap_or(0);
            let product = f64::from(time(&mut g)?);
            println!(
                "{pipeline} {shape:?}: ours {ours:.3} ms, product on {compute} SMs {product:.3} ms, wire {wire:.3} ms, \
                 bound / ours {:.3}",
                product.max(wire) / f64::from(ours)
            );
            Ok(product)
        };
        let times = (wire / measure(1)?).round() as u64;
        if times > 1 {
            measure(times)?;
        }
    }
    Ok(())
}
