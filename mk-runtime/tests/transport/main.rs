//! Transports against their contract: `contract.rs` on every one of them, with both ranks in one process (two threads),
//! and, over libfabric and libibverbs, in two.

mod contract;
mod faults;
mod processes;
mod side;
#[cfg(feature = "verbs")]
mod verbs_faults;

use contract::CASES;
use mk_runtime::TransportError;
use mk_runtime::net::GpuArena;
use mk_runtime::transport::{
    Network, Ordering, TRANSPORTS, Transport, loopback, ofi,
    rails::Rails,
    shaped::{Shape, Shaped},
    verbs,
};
use mk_runtime::world::World;
use side::{Control, Memory, Side};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

/// The two ends of a network, or why it is not here.
type Ends = Result<[Box<dyn Transport>; 2], TransportError>;

/// What the modules below test: rows of [`TRANSPORTS`], set so or so.
const HERE: [&str; 4] = ["loopback", "tcp", "shm", "verbs"];
/// What needs hosts of its own (`processes::two_hosts`).
const BETWEEN_HOSTS: [&str; 1] = ["efa"];

/// A network by its name in the table, and what follows that name: `verbs striped`, `tcp, 2 rails`.
fn network(name: &str, case: &str) -> Network {
    let (base, set) = name.split_at(name.find([',', ' ']).unwrap_or(name.len()));
    // Long where the peer is well and the machine may be busy.
    let ends = ["dead_peer", "bad_key", "longer_arena", "receiver_closes"].contains(&case);
    let silence = Duration::from_secs(if ends { 1 } else { 20 });
    let ordering = match set {
        " striped" | " unordered" => Ordering::Unordered,
        _ => Ordering::InOrder,
    };
    match Network::named(base) {
        Network::Loopback(_) => Network::Loopback(loopback::Options::new(2, ordering)),
        // Two endpoints on one interface: what an EFA machine has several devices for.
        Network::Ofi(options) => {
            let rails = if set == ", 2 rails" { 2 } else { 1 };
            let address = options.provider.starts_with("tcp").then(|| "127.0.0.1".to_string());
            Network::Ofi(ofi::Options { address, silence, rails, ..options })
        }
        Network::Verbs(_) => Network::Verbs(verbs::Options::new(ordering)),
    }
}

/// An end of a network that processes share.
fn open(name: &str, case: &str, rank: u32) -> Result<Box<dyn Transport>, TransportError> {
    let mut ends = network(name, case).open([rank])?;
    ends.pop().ok_or(TransportError::Closed)
}

fn both(name: &str, case: &str) -> Ends {
    let ends = network(name, case).open(0..2)?;
    ends.try_into().map_err(|_| TransportError::Closed)
}

/// Two networks, each a network card of either rank.
fn rails(name: &str, case: &str) -> Ends {
    let [[a, b], [c, d]] = [both(name, case)?, both(name, case)?];
    Ok([Rails::over(vec![a, c])?, Rails::over(vec![b, d])?])
}

fn shaped(name: &str, case: &str) -> Ends {
    let shape = Shape {
        bytes_per_s: Some(20e9),
        latency: Duration::from_micros(20),
        reorder: Some(7),
        ..Shape::default()
    };
    Ok(both(name, case)?.map(|end| Box::new(Shaped::new(end, shape.clone())) as _))
}

/// A new transport has its cases here, or says where else.
#[test]
fn no_transport_is_left_out() {
    for row in TRANSPORTS {
        let tested = HERE.contains(&row.name) || BETWEEN_HOSTS.contains(&row.name);
        assert!(tested, "no module of this suite is about `{}`", row.name);
    }
}

/// Provider `efa` is refused for want of a device or of a newer library, and an unknown one by its name.
#[test]
fn providers_that_are_not_here() {
    if present(open("tcp", "", 0)).is_none() {
        return;
    }
    for provider in ["efa", "nothing"] {
        let error = open(provider, "", 0).err().expect("no such device");
        let text = error.to_string();
        assert!(text.contains(provider), "{text}");
        let expected =
            matches!(error, TransportError::Unavailable { .. } | TransportError::Refused { .. });
        assert!(expected, "{text}");
    }
}

/// libfabric's ends of provider `shm` in one process share memory, and closing one takes it from the other.
#[test]
fn shm_has_one_end_in_a_process() {
    let _one = processes::one_shm();
    let Some(first) = present(open("shm", "", 0)) else { return };
    let error = open("shm", "", 1).err().expect("a second end");
    assert!(matches!(error, TransportError::Refused { .. }), "{error}");
    drop(first);
}

struct Pipe(Sender<Vec<u8>>, Receiver<Vec<u8>>);

impl Control for Pipe {
    fn send(&mut self, bytes: &[u8]) {
        // The other rank may have ended.
        let _ = self.0.send(bytes.to_vec());
    }

    fn try_recv(&mut self) -> Option<Vec<u8>> {
        match self.1.try_recv() {
            Ok(bytes) => Some(bytes),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the other rank has ended"),
        }
    }
}

/// Runs a case in two threads.
fn in_threads(ends: Ends, case: &str) {
    let area = CASES.iter().find(|c| c.0 == case).expect("a case").1;
    in_memory(ends, [0, 1].map(|_| Memory::of_host(area)), case);
}

/// The same with arenas on two GPUs, or on one and on its host.
fn on_gpus(ends: Ends, case: &str) {
    let area = CASES.iter().find(|c| c.0 == case).expect("a case").1;
    let world = World::on_nodes(&[0, 1], 2).or_else(|_| World::shared(0, 1));
    let world = match world {
        Ok(world) => world,
        Err(error) if error.is_no_device() => return mk_skip::skip(mk_skip::Need::Gpus(1), error),
        Err(error) => panic!("{error}"),
    };
    let memory = |rank| match world.local_ranks().contains(&rank) {
        true => Memory::Gpu(GpuArena::new(&world, rank, Memory::bytes(area)).unwrap().into()),
        false => Memory::of_host(area),
    };
    println!("arenas on {} GPUs", world.size());
    in_memory(ends, [memory(0), memory(1)], case);
}

fn in_memory(ends: Ends, [of_a, of_b]: [Memory; 2], case: &str) {
    let Some([a, b]) = present(ends) else { return };
    let (to_b, from_a) = channel();
    let (to_a, from_b) = channel();
    let area = CASES.iter().find(|c| c.0 == case).expect("a case").1;
    let nothing: fn() = || {};
    let mut ranks = [
        Side::new(0, a, of_a, Box::new(Pipe(to_b, from_b)), area, nothing),
        Side::new(1, b, of_b, Box::new(Pipe(to_a, from_a)), area, nothing),
    ];
    let [first, second] = &mut ranks;
    std::thread::scope(|scope| {
        scope.spawn(|| contract::run(case, second));
        contract::run(case, first);
    });
}

/// Skips the test where libfabric, or an RDMA device, is not here.
fn present<T>(ends: Result<T, TransportError>) -> Option<T> {
    match ends {
        Ok(ends) => Some(ends),
        Err(TransportError::Unavailable { transport, what, .. }) => {
            let need = match transport.as_str() {
                "verbs" => mk_skip::Need::Rdma,
                _ => mk_skip::Need::Fabric,
            };
            mk_skip::skip(need, format!("{transport}: {what}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A test for each case.
macro_rules! contract {
    ($($transport:ident: $run:expr;)*) => {$(
        mod $transport {
            contract!(@cases $run; sizes flood order delivered pressure dead_peer dead_writer bad_key longer_arena refusals
                sender_closes receiver_closes);
        }
    )*};
    (@cases $run:expr; $($case:ident)*) => {
        $(#[test] fn $case() { $run(stringify!($case)) })*
        #[test] fn no_case_is_left_out() {
            let names: Vec<_> = crate::contract::CASES.iter().map(|c| c.0).collect();
            assert_eq!(names, [$(stringify!($case)),*]);
        }
    };
}

contract! {
    loopback_in_order: |case| crate::in_threads(crate::both("loopback", case), case);
    loopback_unordered: |case| crate::in_threads(crate::both("loopback unordered", case), case);
    loopback_in_order_of_gpus: |case| crate::on_gpus(crate::both("loopback", case), case);
    loopback_unordered_of_gpus: |case| crate::on_gpus(crate::both("loopback unordered", case), case);
    rails_in_order: |case| crate::in_threads(crate::rails("loopback", case), case);
    rails_unordered: |case| crate::in_threads(crate::rails("loopback unordered", case), case);
    shaped_in_order: |case| crate::in_threads(crate::shaped("loopback", case), case);
    shaped_unordered: |case| crate::in_threads(crate::shaped("loopback unordered", case), case);
    ofi_tcp: |case| crate::in_threads(crate::both("tcp", case), case);
    ofi_tcp_rails: |case| crate::in_threads(crate::both("tcp, 2 rails", case), case);
    ofi_tcp_processes: |case| crate::processes::in_two("tcp", case);
    ofi_shm_processes: |case| crate::processes::in_two("shm", case);
}

// Without the feature there is nothing that could be skipped. `cargo xtask softroce` runs these where there is a device.
#[cfg(feature = "verbs")]
contract! {
    verbs_in_order: |case| crate::in_threads(crate::both("verbs", case), case);
    verbs_striped: |case| crate::in_threads(crate::both("verbs striped", case), case);
    verbs_in_order_processes: |case| crate::processes::in_two("verbs", case);
    verbs_striped_processes: |case| crate::processes::in_two("verbs striped", case);
}
