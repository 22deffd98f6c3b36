//! Faults between processes, one process per GPU.

use crate::children::{Children, say, world as connect};
use crate::rig::{BESIDE, Case, DYNAMIC, ENGINE, GATHER, QUEUED, Rig, compile, options};
use crate::{Watchdog, alone, world};
use mk::runtime::{
    Error, Instance, InstanceOptions, Stream, World,
    jit::{self, JitOptions},
    world::UnixBootstrap,
};
use std::time::{Duration, Instant};

/// The rank that fails.
const VICTIM: u32 = 1;
const SOON: Duration = Duration::from_secs(30);

/// A new instance in the same world: its results, for comparison with one process's.
fn again(world: &World) {
    let mut rig = Rig::new(world, &GATHER, &options()).expect("binds again");
    for (rank, hash) in rig.step(2).expect("works again") {
        say(format!("AFTER {rank} {hash:x}"));
    }
}

/// What [`again`] should say on a world of those GPUs.
fn expected(devices: &[i32]) -> Vec<String> {
    let world = World::on_devices(devices).expect("a world");
    let mut rig = Rig::new(&world, &GATHER, &options()).expect("binds");
    let all = rig.step(2).expect("runs");
    all.iter().map(|(rank, hash)| format!("{rank} {hash:x}")).collect()
}

fn failed(begin: Instant, error: &Error) {
    say(format!("ERR {:.3} s: {error}", begin.elapsed().as_secs_f64()));
}

/// Starts a case on all GPUs, and gives what the processes said of their errors; checks what comes after.
fn play(
    case: &'static str,
    killed: bool,
    needed: &[&str],
    during: impl FnOnce(&mut Children, u32),
) {
    let _alone = alone();
    let Some(world) = world(case) else { return };
    let _watchdog = Watchdog::new(case, Duration::from_secs(120));
    let size = world.size();
    drop(world);
    let survivors: Vec<i32> =
        (0..size).filter(|r| !killed || *r != VICTIM).map(|r| r as i32).collect();
    let expected = expected(&survivors);
    let mut children = Children::start(case, 0..size, size);
    during(&mut children, size);
    let said = children.finish("", Duration::from_secs(90));
    let of = |prefix: &str| -> Vec<&str> {
        said.iter().filter_map(|(_, line)| line.strip_prefix(prefix)).collect()
    };
    for (rank, line) in said.iter().filter(|(_, l)| !l.starts_with("AFTER") && l != "DONE") {
        println!("  {case}: rank {rank}: {line}");
    }
    let errors = of("ERR ");
    assert_eq!(errors.len(), survivors.len(), "{case}: an error on each surviving rank");
    for error in errors {
        for text in needed {
            assert!(error.contains(text), "{case}: no {text:?} in {error}");
        }
    }
    assert_eq!(of("AFTER "), expected, "{case}: what works afterwards");
    println!("ok {case} on {size} processes");
}

pub fn never_launches(rank: u32, _size: u32) {
    awaited(rank, &GATHER);
}

pub fn never_launches_engine(rank: u32, _size: u32) {
    awaited(rank, &ENGINE);
}

pub fn never_launches_queued(rank: u32, _size: u32) {
    awaited(rank, &QUEUED);
}

fn awaited(rank: u32, case: &Case) {
    let world = connect();
    let mut rig = Rig::new(&world, case, &options()).expect("binds");
    rig.step(1).expect("a first launch");
    world.barrier(SOON).expect("all are here");
    let begin = Instant::now();
    let outcome = if rank == VICTIM {
        Ok(())
    } else {
        rig.launch().expect("launches");
        rig.instance.synchronize()
    };
    world.barrier(SOON).expect("all are here");
    // The rank that launched nothing finds the others' records.
    failed(begin, &outcome.and_then(|()| rig.instance.check()).expect_err("nobody came"));
    drop(rig);
    again(&world);
}

#[test]
fn a_rank_that_never_launches() {
    play("never_launches", false, &["rank 1 did not enter the launch", " at e"], |_, _| ());
}

#[test]
fn a_rank_that_never_launches_where_copy_engines_gather() {
    let needed = &["rank 1 did not enter the launch", " at e"];
    play("never_launches_engine", false, needed, |_, _| ());
}

#[test]
fn a_rank_that_never_launches_with_a_dynamic_tile_scheduler() {
    let needed = &["rank 1 did not enter the launch", " at e"];
    play("never_launches_queued", false, needed, |_, _| ());
}

/// Launches until something is wrong.
fn until_error(rig: &mut Rig) -> Error {
    let begin = Instant::now();
    while begin.elapsed() < SOON {
        if let Err(error) = rig.launch().and_then(|()| rig.instance.synchronize()) {
            return error;
        }
    }
    panic!("no error within {SOON:?}");
}

/// What survivors do: look at the dead rank's memory, be refused, and build a world without it.
fn survive(mut rig: Rig, world: World, rank: u32, size: u32) {
    // One launch after another with the dead rank's memory mapped; then it is read from here.
    let memory = rig.instance.symmetric().download(VICTIM, 0, 4096);
    say(match memory {
        Ok(bytes) => format!(
            "MEMORY of the dead rank is readable ({} of 4096 bytes are not 0)",
            bytes.iter().filter(|b| **b != 0).count()
        ),
        Err(error) => format!("MEMORY of the dead rank is gone: {error}"),
    });
    let refused = rig.launch().expect_err("the world is broken");
    assert!(
        matches!(refused, Error::Poisoned { .. } | Error::PeerGone { rank: VICTIM, .. }),
        "{refused}"
    );
    let begin = Instant::now();
    drop(rig);
    let barrier = world.barrier(SOON).expect_err("a rank is dead");
    assert!(matches!(barrier, Error::PeerGone { rank: VICTIM, .. }), "{barrier}");
    drop(world);
    say(format!("DROP took {:.3} s", begin.elapsed().as_secs_f64()));
    let run = format!("survivors/{}", std::env::var("TORCHELASTIC_RUN_ID").expect("set"));
    let new_rank = if rank > VICTIM { rank - 1 } else { rank };
    let bootstrap = UnixBootstrap::meet(&run, new_rank, size - 1, SOON).expect("meets");
    again(&World::connect(Box::new(bootstrap), rank as i32).expect("a smaller world"));
}

pub fn killed_at_work(rank: u32, size: u32) {
    at_work(rank, size, GATHER);
}

pub fn killed_at_work_engine(rank: u32, size: u32) {
    at_work(rank, size, ENGINE);
}

pub fn killed_at_work_queued(rank: u32, size: u32) {
    at_work(rank, size, QUEUED);
}

fn at_work(rank: u32, size: u32, case: Case) {
    let world = connect();
    let large = Case { size: (4096, 2048, 4096), ..case };
    let mut rig = Rig::new(&world, &large, &options()).expect("binds");
    rig.step(1).expect("a first launch");
    say("READY");
    let begin = Instant::now();
    failed(begin, &until_error(&mut rig));
    survive(rig, world, rank, size);
}

fn kill(children: &mut Children, size: u32) {
    children.wait_for("READY", size as usize, Duration::from_secs(60));
    std::thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    children.kill(VICTIM);
    children.wait_for("ERR", size as usize - 1, Duration::from_secs(10));
    println!("  errors on all survivors {:.3} s after the kill", begin.elapsed().as_secs_f64());
}

#[test]
fn a_rank_killed_at_work() {
    play("killed_at_work", true, &["rank 1 is gone"], kill);
}

#[test]
fn a_rank_killed_while_copy_engines_work() {
    play("killed_at_work_engine", true, &["rank 1 is gone"], kill);
}

#[test]
fn a_rank_killed_with_a_dynamic_tile_scheduler() {
    play("killed_at_work_queued", true, &["rank 1 is gone"], kill);
}

pub fn killed_while_awaited(rank: u32, size: u32) {
    let world = connect();
    // The bound alone would take a minute.
    let patient = InstanceOptions {
        wait_limit: Duration::from_secs(60),
        entry_limit: Duration::from_secs(60),
        ..options()
    };
    let mut rig = Rig::new(&world, &GATHER, &patient).expect("binds");
    rig.step(1).expect("a first launch");
    world.barrier(SOON).expect("all are here");
    if rank == VICTIM {
        say("READY");
        std::thread::sleep(Duration::from_secs(90));
        return;
    }
    rig.launch().expect("launches");
    say("READY");
    let begin = Instant::now();
    failed(begin, &rig.instance.synchronize().expect_err("a rank is dead"));
    survive(rig, world, rank, size);
}

#[test]
fn a_rank_killed_while_others_wait_for_it() {
    play("killed_while_awaited", true, &["the process of rank 1 is gone", " at e"], kill);
}

/// Rank 1 ends as a process does whose work has failed: with a farewell, and without the launch that the others wait for.
pub fn left(rank: u32, size: u32) {
    let world = connect();
    let minute = Duration::from_secs(60);
    let patient = InstanceOptions { wait_limit: minute, entry_limit: minute, ..options() };
    let mut rig = Rig::new(&world, &GATHER, &patient).expect("binds");
    rig.step(1).expect("a first launch");
    world.barrier(SOON).expect("all are here");
    if rank == VICTIM {
        return;
    }
    rig.launch().expect("launches");
    let begin = Instant::now();
    failed(begin, &rig.instance.synchronize().expect_err("a rank has left"));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    survive(rig, world, rank, size);
}

#[test]
fn a_rank_that_leaves_while_others_wait_for_it() {
    play("left", true, &["the process of rank 1 is gone", " at e"], |_, _| ());
}

/// All bind one kernel while another waits for rank 1, of which another thread launches it a little later.
pub fn bound_meanwhile(rank: u32, _size: u32) {
    let world = connect();
    let minute = Duration::from_secs(60);
    let patient = InstanceOptions { wait_limit: minute, entry_limit: minute, ..options() };
    for case in [&BESIDE[0], &GATHER] {
        let mut rig = Rig::new(&world, case, &patient).expect("binds");
        let hashes = rig.step(1).expect("a first launch");
        rig.refill(1).expect("fills");
        let other = compile(&Case { size: (512, 512, 512), ..GATHER }, world.size());
        let compiled = jit::compile(&other, &JitOptions::default()).expect("compiles");
        world.barrier(SOON).expect("all are here");
        let begin = Instant::now();
        let bound = std::thread::scope(|threads| {
            if rank == VICTIM {
                threads.spawn(|| {
                    std::thread::sleep(Duration::from_secs(1));
                    rig.launch().expect("launches");
                });
            } else {
                rig.launch().expect("launches");
            }
            Instance::bind(&world, &other, &compiled, &patient).expect("binds meanwhile")
        });
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
        say(format!("BOUND after {:.3} s", took.as_secs_f64()));
        rig.instance.synchronize().expect("all have launched");
        assert_eq!(rig.hashes().expect("downloads"), hashes);
        drop(bound);
    }
}

#[test]
fn a_kernel_is_bound_while_another_waits() {
    let case = "bound_meanwhile";
    let _alone = alone();
    let Some(world) = world(case) else { return };
    let _watchdog = Watchdog::new(case, Duration::from_secs(120));
    let size = world.size();
    drop(world);
    let said = Children::start(case, 0..size, size).finish("BOUND", Duration::from_secs(90));
    assert_eq!(said.len(), 2 * size as usize, "{said:?}");
    println!("ok {case}: {said:?}");
}

pub fn aborted(rank: u32, _size: u32) {
    gives_up(rank, &GATHER, 1);
}

pub fn aborted_engine(rank: u32, _size: u32) {
    gives_up(rank, &ENGINE, 1);
}

/// More launches than there are hardware queues, each on a stream of its own.
pub fn aborted_behind(rank: u32, _size: u32) {
    gives_up(rank, &GATHER, 40);
}

fn gives_up(rank: u32, case: &Case, launches: u32) {
    let world = connect();
    // The bounds alone would take a minute.
    let minute = Duration::from_secs(60);
    let patient = InstanceOptions { wait_limit: minute, entry_limit: minute, ..options() };
    let mut rig = Rig::new(&world, case, &patient).expect("binds");
    rig.step(1).expect("a first launch");
    if rank != VICTIM {
        // The victim never launches: all others wait for it. Streams first, since making some dozens waits for the GPU.
        let streams = (0..launches).map(|_| Stream::per_rank(&world).expect("streams"));
        for streams in streams.collect::<Vec<_>>() {
            rig.change_streams(streams);
            rig.launch().expect("launches");
        }
    }
    world.barrier(SOON).expect("all are here");
    let begin = Instant::now();
    if rank == 0 {
        rig.instance.abort();
    }
    let mut outcome = rig.instance.synchronize();
    while outcome.is_ok() && begin.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(5));
        outcome = rig.instance.check();
    }
    failed(begin, &outcome.expect_err("rank 0 gave up"));
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    world.barrier(SOON).expect("all are here");
    drop(rig);
    again(&world);
}

#[test]
fn an_abort_reaches_the_other_processes() {
    play("aborted", false, &["rank 0 set the abort flag", " at e"], |_, _| ());
}

#[test]
fn an_abort_reaches_the_other_processes_past_what_is_queued() {
    let needed = &["rank 0 set the abort flag", " at e"];
    play("aborted_behind", false, needed, |_, _| ());
}

#[test]
fn an_abort_reaches_the_other_processes_where_copy_engines_gather() {
    let needed = &["rank 0 set the abort flag", " at e"];
    play("aborted_engine", false, needed, |_, _| ());
}

pub fn corrupted_word(rank: u32, _size: u32) {
    let world = connect();
    let mut rig = Rig::new(&world, &GATHER, &options()).expect("binds");
    rig.step(1).expect("a first launch");
    if rank == 0 {
        // The words that count arrivals here fall behind.
        let text = rig.source.cuda.split("constexpr u64 kSig1 = ").nth(1);
        let word: u64 = text
            .and_then(|t| t.split(';').next()?.parse().ok())
            .expect("the kernel names its signals");
        let zeroed = rig.source.workspace.zeroed_bytes;
        rig.instance.symmetric().fill(word * 4, zeroed, 0).expect("clears");
    }
    world.barrier(SOON).expect("all are here");
    rig.launch().expect("launches");
    let begin = Instant::now();
    let mut outcome = rig.instance.synchronize();
    // A rank whose kernel needs nothing more of rank 0 ends well, and hears of it a little later.
    while outcome.is_ok() && begin.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(5));
        outcome = rig.instance.check();
    }
    failed(begin, &outcome.expect_err("rank 0 cannot finish"));
    world.barrier(SOON).expect("all are here");
    drop(rig);
    again(&world);
}

#[test]
fn a_corrupted_signal_word() {
    play("corrupted_word", false, &["kernel", "rank 0", "arrived", "to reach"], |_, _| ());
}

pub fn other_plans(rank: u32, _size: u32) {
    let world = connect();
    let begin = Instant::now();
    let differ = |case: &Case, options: &InstanceOptions, what: &str| {
        let error = Rig::new(&world, case, options).err().expect("ranks differ");
        assert!(matches!(error, Error::Disagree { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
        error
    };
    let odd = rank == VICTIM;
    let scatter = Case { pipeline: "gemm(a, b) -> reduce_scatter", ..GATHER };
    failed(begin, &differ(if odd { &scatter } else { &GATHER }, &options(), "the plan"));
    let wider = Case { size: (1024, 512, 2048), ..GATHER };
    let error = differ(if odd { &wider } else { &GATHER }, &options(), "differs from");
    say(format!("SHAPES {error}"));
    let slower = InstanceOptions { wait_limit: Duration::from_secs(9), ..options() };
    let bounds = if odd { slower } else { options() };
    let error = differ(&GATHER, &bounds, "the bind options");
    say(format!("OPTIONS {error}"));
    let seven = InstanceOptions { reserve_sms: 200, ..options() };
    let error = Rig::new(&world, &GATHER, &seven).err().expect("no room");
    assert!(matches!(error, Error::NotCoResident { .. } | Error::PeerFailed { .. }), "{error}");
    again(&world);
}

#[test]
fn ranks_with_other_plans() {
    play("other_plans", false, &["in the plan", "every rank must pass the same"], |_, _| ());
}

pub fn other_values(rank: u32, _size: u32) {
    let world = connect();
    let mut rig = Rig::new(&world, &DYNAMIC, &options()).expect("binds");
    rig.refill(1).expect("fills");
    rig.launch_rows(3000).expect("launches");
    rig.instance.synchronize().expect("all say the same");
    world.barrier(SOON).expect("all are here");
    let begin = Instant::now();
    // A rank that comes a little later finds the others' records, and is refused.
    let launched = rig.launch_rows(if rank == VICTIM { 1500 } else { 3000 });
    let mut outcome = launched.and_then(|()| rig.instance.synchronize());
    while outcome.is_ok() && begin.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(5));
        outcome = rig.instance.check();
    }
    failed(begin, &outcome.expect_err("rank 1 has other rows"));
    world.barrier(SOON).expect("all are here");
    drop(rig);
    again(&world);
}

#[test]
fn a_rank_with_other_launch_values() {
    let needed = ["entered with another plan or other per-launch values", " e"];
    play("other_values", false, &needed, |_, _| ());
}

pub fn other_kernel(rank: u32, _size: u32) {
    let world = connect();
    let minute = Duration::from_secs(60);
    let patient = InstanceOptions { wait_limit: minute, entry_limit: minute, ..options() };
    let other = Case { size: (512, 512, 512), ..GATHER };
    let mut rigs = [&GATHER, &other].map(|c| Rig::new(&world, c, &patient).expect("binds"));
    for rig in &mut rigs {
        rig.step(1).expect("a first launch");
    }
    world.barrier(SOON).expect("all are here");
    let begin = Instant::now();
    let rig = &mut rigs[usize::from(rank == VICTIM)];
    let outcome = rig.launch().and_then(|()| rig.instance.synchronize());
    failed(begin, &outcome.expect_err("each waits for the other"));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    world.barrier(SOON).expect("all are here");
    drop(rigs);
    again(&world);
}

#[test]
fn a_rank_that_launches_another_kernel() {
    let needed =
        ["every rank must launch the same kernels in the same order", "gather_gemm of a ["];
    play("other_kernel", false, &needed, |_, _| ());
}

pub fn out_of_order(rank: u32, _size: u32) {
    let world = connect();
    let other = Case { size: (512, 512, 512), ..GATHER };
    let mut rigs = [&GATHER, &other].map(|c| Rig::new(&world, c, &options()).expect("binds"));
    let mut graphs: Vec<_> = rigs
        .iter_mut()
        .flat_map(|rig| {
            rig.step(1).expect("a first launch");
            rig.capture().expect("captures")
        })
        .collect();
    world.barrier(SOON).expect("all are here");
    if rank == VICTIM {
        graphs.reverse();
    }
    let stream = rigs[0].refs()[0];
    let begin = Instant::now();
    for graph in &mut graphs {
        graph.launch(stream).expect("replays");
    }
    let outcome = rigs[0].wait().and_then(|()| rigs[1].instance.check());
    failed(begin, &outcome.expect_err("each waits for the other"));
    let refused = graphs.iter_mut().find_map(|g| g.launch(stream).err()).expect("poisoned");
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
    let _ = rigs[0].wait();
    world.barrier(SOON).expect("all are here");
    drop(graphs);
    drop(rigs);
    again(&world);
}

#[test]
fn graphs_replayed_in_another_order_on_one_rank() {
    play("out_of_order", false, &["did not enter the launch", " at e"], |_, _| ());
}

pub fn overlapping(rank: u32, _size: u32) {
    let world = connect();
    let beside = InstanceOptions { overlap: true, ..options() };
    let mut rigs = BESIDE.map(|c| Rig::new(&world, &c, &beside).expect("both fit"));
    let refused = Rig::new(&world, &BESIDE[0], &beside).err().expect("no room for a third");
    assert!(matches!(refused, Error::SmBudget { .. } | Error::PeerFailed { .. }), "{refused}");
    let begin = Instant::now();
    for epoch in 1..=50 {
        // First one after the other on all ranks, for what they should leave.
        let mut expected = Vec::new();
        for rig in &mut rigs {
            expected.push(rig.step(epoch).expect("runs"));
            rig.refill(epoch).expect("fills");
        }
        world.barrier(SOON).expect("all are here");
        let order = if rank.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        for i in order {
            rigs[i].launch().expect("launches");
        }
        for (rig, expected) in rigs.iter_mut().zip(&expected) {
            rig.instance.synchronize().expect("ends");
            assert_eq!(&rig.hashes().expect("downloads"), expected);
        }
    }
    failed(begin, &refused);
    drop(rigs);
    again(&world);
}

#[test]
fn two_plans_side_by_side_in_any_order() {
    play("overlapping", false, &["SMs of GPU"], |_, _| ());
}
