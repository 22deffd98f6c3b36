//! What goes wrong on the way between nodes: each ends within its bound, in a right answer or in an error that says what happened.

use super::{ALL, BACK, GATHER, LAYER, Prepared, RING, SLOTS, config, judged, net, options, run};
use mk_codegen::settings::NicOrdering::{self, InOrder, Unordered};
use mk_harness::{CpuOptions, HarnessError, NetOptions, Routing, Wire};
use mk_runtime::{
    Bootstrap, Error, TransportError, UnixBootstrap,
    transport::shaped::{Fault, Shape},
};
use std::{
    env,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const TCP: &str = "tcp;ofi_rxm";

fn broken(faults: Vec<Fault>) -> NetOptions {
    let shape = Shape { faults, ..Shape::default() };
    NetOptions { shape, ..NetOptions::new(Wire::Loopback) }
}

fn fails(source: &str, order: NicOrdering, net: &NetOptions) -> (HarnessError, Duration) {
    let begin = Instant::now();
    let ran = run(source, 300, &config(2, 1, order), net, &options(3), None);
    let error = ran.err().unwrap_or_else(|| panic!("{source}: ended over a broken network"));
    (error, begin.elapsed())
}

#[test]
fn a_link_that_stands_still_for_a_while() {
    let stall = vec![Fault::Stalls { at: 4, time: Duration::from_secs(3) }];
    for source in super::some([GATHER, RING, LAYER], 3) {
        let (begin, stall) = (Instant::now(), broken(stall.clone()));
        let ran = run(source, 300, &config(2, 1, InOrder), &stall, &options(3), None);
        judged(&ran.unwrap_or_else(|e| panic!("{e}")), "a stalled link");
        assert!(begin.elapsed() > Duration::from_secs(2), "nothing stood still");
    }
}

/// The error names the edges whose words do not come.
#[test]
fn a_link_that_stands_still_for_too_long() {
    let stall = vec![Fault::Stalls { at: 4, time: Duration::from_secs(30) }];
    let patience = Duration::from_millis(400);
    // The end is not drained for as long either.
    let net = NetOptions { patience, silence: patience, ..broken(stall) };
    for source in [GATHER, RING, LAYER] {
        let (error, time) = fails(source, InOrder, &net);
        let text = error.to_string();
        assert!(text.contains("nothing has come for") && text.contains("\"relay\""), "{text}");
        assert!(time < Duration::from_secs(15), "{time:?}");
    }
}

#[test]
fn a_write_that_fails() {
    for (source, order) in [
        (GATHER, InOrder),
        (ALL, Unordered),
        (RING, Unordered),
        (BACK, InOrder),
        (LAYER, Unordered),
        (SLOTS, InOrder),
    ] {
        let (error, time) = fails(source, order, &broken(vec![Fault::Fails(5)]));
        let text = error.to_string();
        assert!(text.contains("has failed at e") && text.contains("it fails"), "{text}");
        assert!(time < Duration::from_secs(20), "{time:?}");
    }
}

#[test]
fn a_peer_that_is_gone() {
    for source in [GATHER, BACK, LAYER] {
        let (error, _) = fails(source, Unordered, &broken(vec![Fault::Gone(3)]));
        let text = error.to_string();
        assert!(text.contains("the transport to rank"), "{text}");
    }
}

/// A plan for another class of network is refused before anything runs.
#[test]
fn networks_that_do_not_keep_the_order() {
    if let Some(net) = impatient(TCP) {
        let error = run(GATHER, 300, &config(2, 1, InOrder), &net, &options(1), None).unwrap_err();
        assert!(error.to_string().contains("net=unordered"), "{error}");
    }
}

/// A provider of libfabric, with little patience.
fn impatient(provider: &str) -> Option<NetOptions> {
    let silence = Duration::from_millis(600);
    match super::open(provider) {
        Ok(()) => Some(NetOptions { silence, ..net(provider).options }),
        Err(error @ TransportError::Unavailable { .. }) => {
            mk_skip::skip(mk_skip::Need::Fabric, error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// In a child: how it ends, the name of the run, the number of the pipeline that runs, and the provider.
const CHILD: &str = "MK_NETWORK_FAULT";

/// Pipelines whose processes end, their rows, and more launches than there is time for.
const ENDLESS: [(&str, u64, u32); 3] =
    [(GATHER, 300, 2_500), (RING, 100, 2_500), (LAYER, 60, 1_500)];

fn start(how: &str, name: &str, which: usize, provider: &str) -> Child {
    let mut child = Command::new(env::current_exe().expect("a path"));
    child.args(["--exact", "faults::child", "--nocapture"]).stdin(Stdio::null());
    child
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .env(CHILD, format!("{how}\n{name}\n{which}\n{provider}"));
    child.spawn().expect("a process")
}

/// A process that is killed in the middle of its launches, if it is to be.
struct Mortal {
    processes: UnixBootstrap,
    killed: bool,
}

impl Bootstrap for Mortal {
    fn rank(&self) -> u32 {
        self.processes.rank()
    }

    fn world_size(&self) -> u32 {
        self.processes.world_size()
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let all = self.processes.all_gather(mine)?;
        // The last thing before the first launch.
        if self.killed && mine.is_empty() {
            thread::spawn(|| {
                thread::sleep(Duration::from_millis(400));
                // No destructor runs: that of a process that is killed does not.
                // SAFETY: ends the process, and nothing else.
                unsafe { nix::libc::_exit(0) }
            });
        }
        Ok(all)
    }

    fn lost(&mut self) -> Option<u32> {
        self.processes.lost()
    }
}

/// A run that its peer, or a routing, ends.
fn endless(
    rank: u32,
    name: &str,
    which: usize,
    net: &NetOptions,
    how: &str,
) -> Result<(), HarnessError> {
    let (source, rows, launches) = ENDLESS[which];
    let prepared = Prepared::new(source, rows, &config(2, 1, Unordered));
    let processes = UnixBootstrap::meet(name, rank, 2, Duration::from_secs(60))?;
    let mut all = Mortal { processes, killed: how == "killed" };
    let routing = if how == "misled" { Routing::Wrong } else { Routing::default() };
    let options = CpuOptions { routing, ..options(launches) };
    prepared.run(net, &options, Some(&mut all)).map(drop)
}

/// A process that is killed in the middle of a launch is an error of the other within two seconds.
fn killed(provider: &str) {
    let Some(net) = impatient(provider) else { return };
    for which in 0..ENDLESS.len() {
        let name = format!("killed-{}-{which}", std::process::id());
        let mut child = start("killed", &name, which, provider);
        let died = thread::spawn(move || {
            child.wait().expect("its end");
            Instant::now()
        });
        let error = endless(0, &name, which, &net, "").expect_err("a run without its peer");
        let ended = Instant::now();
        let late = ended.saturating_duration_since(died.join().expect("a time"));
        assert!(late < Duration::from_secs(2), "{late:?}: {error}");
        assert!(error.to_string().contains("network"), "{error}");
    }
}

/// A process whose network breaks, or whose tokens go to an expert that is not there, ends, and so does the other.
fn broken_or_misled(how: &str, provider: &str, pipelines: &[usize]) {
    let Some(net) = impatient(provider) else { return };
    for &which in pipelines {
        let name = format!("{how}-{}-{which}", std::process::id());
        let mut child = start(how, &name, which, provider);
        let error = endless(0, &name, which, &net, how).expect_err("a run without its peer");
        let begin = Instant::now();
        let status = child.wait().expect("its end");
        assert!(status.success() && begin.elapsed() < Duration::from_secs(5), "{status}: {error}");
        assert!(how != "misled" || said_of_ids(&error), "{error}");
    }
}

fn said_of_ids(error: &HarnessError) -> bool {
    error.to_string().contains("goes to expert")
}

#[test]
fn a_killed_process() {
    killed(TCP);
}

#[test]
fn a_broken_process() {
    broken_or_misled("broken", TCP, &[0, 1, 2]);
}

/// Of two hosts one has a wrong id: both say so, for all tables are made everywhere.
#[test]
fn a_wrong_id() {
    broken_or_misled("misled", TCP, &[2]);
}

/// The same over `efa`, whose writes come in no order; and a link of it that stands still.
#[test]
fn faults_over_efa() {
    if super::over_efa("faults::faults_over_efa", &["5"]) {
        killed("efa");
        broken_or_misled("broken", "efa", &[1, 2]);
        broken_or_misled("misled", "efa", &[2]);
        let stall = |time| Shape {
            faults: vec![Fault::Stalls { at: 4, time: Duration::from_secs(time) }],
            ..Shape::default()
        };
        for source in [RING, LAYER] {
            let short = NetOptions { shape: stall(2), ..net("efa").options };
            let ran = run(source, 100, &config(2, 1, Unordered), &short, &options(2), None);
            judged(&ran.unwrap_or_else(|e| panic!("{e}")), "a stalled link");
            let patience = Duration::from_millis(400);
            let long = NetOptions { shape: stall(30), patience, silence: patience, ..short };
            let (error, _) = fails(source, Unordered, &long);
            assert!(error.to_string().contains("nothing has come for"), "{error}");
        }
    }
}

/// The second process of a test. Nothing when nobody has started it as such.
#[test]
fn child() {
    let Ok(spec) = env::var(CHILD) else { return };
    let [how, name, which, provider] = spec.split('\n').collect::<Vec<_>>()[..] else {
        panic!("{spec}")
    };
    let Some(mut net) = impatient(provider) else { return };
    if how == "broken" {
        net.shape.faults = vec![Fault::Fails(200)];
    }
    let error =
        endless(1, name, which.parse().expect("a number"), &net, how).expect_err("a run that ends");
    assert!(error.to_string().contains("it fails") || said_of_ids(&error), "{error}");
}
