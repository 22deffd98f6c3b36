//! Processes as two hosts, which share GPU 0: they meet over TCP, map nothing of each other, and send through libfabric.
//!
//! What a second machine would do otherwise is its addresses, its token and its speed.

use crate::children::{Children, say};
use crate::rig::{Case, GATHER, Rig, compile_over, options};
use crate::{Watchdog, alone};
use mk::abi::KernelSource;
use mk::function::reserved_sms;
use mk::runtime::{
    Error, InstanceOptions, TransportError, World,
    net::{Net, NetOptions},
    transport::{Ordering, ofi},
};
use mk::settings::{Config, NicOrdering};
use mk_skip::{Need, skip};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const CASES: [Case; 3] = [
    Case { size: (1000, 512, 768), ..GATHER },
    Case { pipeline: "gemm(a, b) -> reduce_scatter", size: (1000, 512, 768), ..GATHER },
    Case { pipeline: "gemm(a, b) -> all_reduce", size: (1000, 512, 768), ..GATHER },
];
const LAUNCHES: u64 = 20;
const REPLAYS: u64 = 100;

/// GPUs take turns between processes, so that a launch takes some of their turns.
fn patient(chaos_seed: u32) -> InstanceOptions {
    InstanceOptions {
        wait_limit: Duration::from_secs(20),
        entry_limit: Duration::from_secs(30),
        chaos_seed,
        chaos_max: Duration::from_micros(if chaos_seed == 0 { 0 } else { 30 }),
        ..options()
    }
}

fn source(world: &World, case: &Case, nodes: u32) -> KernelSource {
    let mut config =
        Config { ranks: world.size(), nodes, net: NicOrdering::Unordered, ..Config::default() };
    config.reserved_sms = reserved_sms(world, &config.target, 0);
    compile_over(case, &config)
}

/// Launches with fresh inputs, then replays of a graph.
fn play(rig: &mut Rig, mut told: impl FnMut(u64, u32, u64)) -> Result<(), Error> {
    for epoch in 1..=LAUNCHES {
        for (rank, hash) in rig.step(epoch)? {
            told(epoch, rank, hash);
        }
    }
    let mut graphs = rig.capture()?;
    let refs = rig.refs();
    for epoch in LAUNCHES + 1..=LAUNCHES + REPLAYS {
        rig.refill(epoch)?;
        for (graph, stream) in graphs.iter_mut().zip(&refs) {
            graph.launch(*stream)?;
        }
        rig.wait()?;
        if epoch % 5 == 0 {
            for (rank, hash) in rig.hashes()? {
                told(epoch, rank, hash);
            }
        }
    }
    Ok(())
}

/// The part of a process in the world that its environment describes, with the network that they choose.
fn connect() -> World {
    let world = World::from_env().expect("connects");
    assert_eq!(world.topology().nodes(), 2);
    let net = Net::of(&world).expect("a network");
    assert!(!net.in_order());
    world
}

pub fn same(_rank: u32, _size: u32) {
    let world = connect();
    for (i, case) in CASES.iter().enumerate() {
        let begin = Instant::now();
        let mut rig = Rig::with(&world, source(&world, case, 2), &patient(5)).expect("binds");
        let played = play(&mut rig, |epoch, rank, hash| {
            say(format!("HASH {i} {epoch} {rank} {hash:x}"));
        });
        played.expect("runs");
        say(format!("TIME {i} {:.1?}", begin.elapsed()));
    }
    let counts = Net::of(&world).expect("a network").counts();
    say(format!("COUNTS {counts:?}"));
}

/// What one process computes, by case, epoch and rank: with nodes over threads that copy, or as one node.
fn one_process(world: &World, nodes: u32, cases: &[Case]) -> BTreeMap<String, String> {
    let net = (nodes > 1).then(|| {
        Net::loopback(world, Ordering::Unordered, &NetOptions::default()).expect("a network")
    });
    let mut out = BTreeMap::new();
    for (i, case) in cases.iter().enumerate() {
        let options = InstanceOptions { net: net.clone(), ..patient(0) };
        let mut rig = Rig::with(world, source(world, case, nodes), &options).expect("binds");
        let played = play(&mut rig, |epoch, rank, hash| {
            out.insert(format!("{i} {epoch} {rank}"), format!("{hash:x}"));
        });
        played.expect("runs");
    }
    out
}

/// Whether there is a GPU and a network for two processes; says so when not.
fn is_here(test: &str) -> bool {
    if let Err(e) = World::local(1) {
        skip(Need::Gpus(1), format!("{test}: {e}"));
        return false;
    }
    match ofi::available("tcp;ofi_rxm") {
        Ok(_) => true,
        Err(error @ TransportError::Unavailable { .. }) => {
            skip(Need::Fabric, error);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Starts as many processes as a launcher on two hosts would.
fn start(case: &'static str, ranks: u32) -> Children {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let local = ranks / 2;
    Children::start_with(case, 0..ranks, ranks, |rank| {
        let meet = format!("127.0.0.1:{port}");
        let place = [("LOCAL_WORLD_SIZE", local), ("LOCAL_RANK", rank % local), ("MK_NODES", 2)];
        let place = place.map(|(name, value)| (name, value.to_string()));
        let more = [("MK_SHARE_GPU", "1"), ("MK_NET", "tcp"), ("MK_MEET", &meet)];
        place.into_iter().chain(more.map(|(n, v)| (n, v.to_string()))).collect()
    })
}

/// 20 launches and 100 replays of each pipeline, with delays: the bits of nodes in one process, and, of what is only gathered, of one node.
fn same_bits(test: &str, ranks: u32) {
    let _alone = alone();
    if !is_here(test) {
        return;
    }
    let _watchdog = Watchdog::new(test, Duration::from_secs(170));
    let gpus = vec![0; ranks as usize];
    let nodes = World::on_nodes(&gpus, 2).expect("two nodes");
    let expected = one_process(&nodes, 2, &CASES);
    drop(nodes);
    let one = World::shared(0, ranks as usize).expect("one node");
    for (key, hash) in one_process(&one, 1, &CASES[..1]) {
        assert_eq!(expected.get(&key), Some(&hash), "as one node: case, epoch, rank {key}");
    }
    drop(one);
    let begin = Instant::now();
    let said = start("hosts_same", ranks).finish("", Duration::from_secs(120));
    let mut seen = 0;
    for (rank, line) in &said {
        match line.strip_prefix("HASH ").and_then(|l| l.rsplit_once(' ')) {
            Some((key, hash)) => {
                let known = expected.get(key).map(String::as_str);
                assert_eq!(known, Some(hash), "case, epoch, rank: {key}");
                seen += 1;
            }
            None => println!("rank {rank}: {line}"),
        }
    }
    assert_eq!(seen, expected.len());
    let time = begin.elapsed();
    println!(
        "ok {ranks} ranks of two hosts over tcp: {seen} results with the bits of one process, {time:.1?}"
    );
}

#[test]
fn two_hosts_of_one_rank_give_the_bits_of_one_process() {
    same_bits("two_hosts_of_one_rank", 2);
}

#[test]
fn two_hosts_of_two_ranks_give_the_bits_of_one_process() {
    same_bits("two_hosts_of_two_ranks", 4);
}

fn bound(options: &InstanceOptions) -> Rig {
    let world = connect();
    let source = source(&world, &CASES[0], 2);
    Rig::with(&world, source, options).expect("binds")
}

/// Launches until something is wrong, and says what.
pub fn at_work(_rank: u32, _size: u32) {
    let mut rig = bound(&patient(0));
    rig.step(1).expect("runs");
    say("AT WORK");
    let error = (2..).find_map(|epoch| rig.step(epoch).err()).expect("an error");
    say(format!("ERR {error}"));
}

/// A host that dies ends the other's kernels.
#[test]
fn a_killed_host_ends_the_other() {
    let _alone = alone();
    if !is_here("a_killed_host_ends_the_other") {
        return;
    }
    let mut children = start("hosts_at_work", 2);
    children.wait_for("AT WORK", 2, Duration::from_secs(60));
    std::thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    children.kill(1);
    children.wait_for("ERR", 1, Duration::from_secs(20));
    let after = begin.elapsed();
    let said = children.finish("ERR ", Duration::from_secs(30));
    let error = &said[0].1;
    println!("ok a killed host: {after:.3?}: {error}");
    assert!(after < Duration::from_secs(2), "{after:?}: {error}");
    assert!(error.contains("rank 1"), "{error}");
}

/// Rank 1 gives up while rank 0's kernel waits for it.
pub fn aborted(rank: u32, _size: u32) {
    let mut rig = bound(&patient(0));
    rig.step(1).expect("runs");
    rig.refill(2).expect("fills");
    if rank == 0 {
        rig.launch().expect("launches");
        say("LAUNCHED");
        let error = rig.instance.synchronize().expect_err("the other has given up");
        say(format!("ERR {error}"));
    } else {
        std::thread::sleep(Duration::from_millis(500));
        say("ABORT");
        rig.instance.abort();
        // The connection is there until the other has heard of it.
        std::thread::sleep(Duration::from_secs(3));
    }
}

#[test]
fn an_abort_crosses_hosts() {
    let _alone = alone();
    if !is_here("an_abort_crosses_hosts") {
        return;
    }
    let mut children = start("hosts_aborted", 2);
    children.wait_for("ABORT", 1, Duration::from_secs(60));
    let begin = Instant::now();
    children.wait_for("ERR", 1, Duration::from_secs(20));
    let after = begin.elapsed();
    let said = children.finish("ERR ", Duration::from_secs(30));
    println!("ok an abort across hosts: {after:.3?}: {}", said[0].1);
    assert!(
        after < Duration::from_secs(2) && said[0].1.contains("rank 1 set the abort flag"),
        "{said:?}"
    );
}

/// Each host launches a kernel of its own.
pub fn other_kernel(rank: u32, _size: u32) {
    let world = connect();
    let mut rigs: Vec<Rig> = [0, 2]
        .map(|i| Rig::with(&world, source(&world, &CASES[i], 2), &patient(0)).expect("binds"))
        .into();
    let mine = &mut rigs[rank as usize];
    mine.refill(1).expect("fills");
    let error = mine.launch().and_then(|()| mine.instance.synchronize()).expect_err("they differ");
    say(format!("ERR {error}"));
    world.barrier(Duration::from_secs(10)).expect("both have found out");
}

#[test]
fn hosts_that_launch_different_kernels_find_out() {
    let _alone = alone();
    if !is_here("hosts_that_launch_different_kernels_find_out") {
        return;
    }
    let begin = Instant::now();
    let said = start("hosts_other_kernel", 2).finish("ERR ", Duration::from_secs(60));
    println!("ok different kernels: {:.1?}: {said:?}", begin.elapsed());
    assert_eq!(said.len(), 2);
    for (_, error) in &said {
        assert!(error.contains("must launch the same kernels"), "{error}");
    }
}
