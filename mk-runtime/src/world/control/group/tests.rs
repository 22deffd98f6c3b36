use super::super::{Bootstrap, UnixBootstrap, watch::GRACE};
use super::*;
use crate::world::SharedPages;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(5))
}

fn connect(rank: u32, names: Vec<Vec<u8>>, listener: &LocalListener) -> Result<Group, Error> {
    let topology = Topology::one_node(names.len() as u32);
    let addresses: Vec<_> =
        names.into_iter().map(|n| PeerAddress::Near(String::from_utf8(n).unwrap())).collect();
    Group::connect(rank, &topology, &addresses, listener, None, Orders::new()?)
}

/// Builds a group per rank, each on a thread, as processes would.
fn ranks<T: Send>(run: &str, size: u32, work: impl Fn(Group, u32) -> T + Sync) -> Vec<T> {
    let run = format!("group/{run}/{}", std::process::id());
    std::thread::scope(|scope| {
        let start = |rank| {
            let (run, work) = (&run, &work);
            scope.spawn(move || {
                let mut b = UnixBootstrap::meet(run, rank, size, Duration::from_secs(10)).unwrap();
                let listener = LocalListener::open().unwrap();
                let names = b.all_gather(listener.name().as_bytes()).unwrap();
                work(connect(rank, names, &listener).unwrap(), rank)
            })
        };
        let all: Vec<_> = (0..size).map(start).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn bytes_and_descriptors_reach_everybody() {
    ranks("reach", 4, |group, rank| {
        for round in 0..50u8 {
            let all = group.all_gather("round", &[rank as u8, round], soon()).unwrap();
            let expected: Vec<Vec<u8>> = (0..4).map(|r| vec![r, round]).collect();
            assert_eq!(all, expected);
        }
        let (_, fd) = SharedPages::create(8).unwrap();
        let mut file = std::fs::File::from(fd);
        file.write_all(&[rank as u8]).unwrap();
        let all = group.all_fds("files", file.into(), 0..4, soon()).unwrap();
        for (peer, fd) in all.into_iter().enumerate() {
            let Some(fd) = fd else {
                assert_eq!(peer as u32, rank);
                continue;
            };
            // Ranks share the descriptor's place in the file.
            let mut byte = [99];
            std::fs::File::from(fd).read_exact_at(&mut byte, 0).unwrap();
            assert_eq!(u32::from(byte[0]), peer as u32);
        }
        group.all_gather("end", &[], soon()).unwrap();
    });
}

/// Four processes on two nodes: bytes go to all, memory to those of the node.
#[test]
fn descriptors_stay_on_their_node() {
    let topology = Topology::nodes_of(4, 2).unwrap();
    ranks("nodes", 4, |group, rank| {
        let (_, fd) = SharedPages::create(8).unwrap();
        let mut file = std::fs::File::from(fd);
        file.write_all(&[rank as u8]).unwrap();
        let node = topology.reach(rank);
        let all = group.all_fds("files", file.into(), node.clone(), soon()).unwrap();
        assert_eq!(all.len(), 2);
        for (peer, fd) in node.zip(all) {
            assert_eq!(fd.is_none(), peer == rank);
            let Some(fd) = fd else { continue };
            let mut byte = [99];
            std::fs::File::from(fd).read_exact_at(&mut byte, 0).unwrap();
            assert_eq!(u32::from(byte[0]), peer);
        }
        let all = group.all_gather("end", &[rank as u8], soon()).unwrap();
        assert_eq!(all, [[0], [1], [2], [3]]);
    });
}

#[test]
fn one_failure_is_everybodys() {
    let errors = ranks("fails", 3, |group, rank| {
        let mine = match rank {
            1 => Err(Error::Shape { what: "no room".into() }),
            _ => Ok(()),
        };
        let error = group.agree("bind", mine, soon()).unwrap_err().to_string();
        // And the group goes on.
        group.agree("again", Ok::<_, Error>(()), soon()).unwrap();
        error
    });
    assert_eq!(errors, ["bind: rank 1 failed: no room", "no room", "bind: rank 1 failed: no room"]);
}

#[test]
fn another_call_is_an_error_on_all() {
    let errors = ranks("astray", 2, |group, rank| {
        let call = if rank == 0 { "bind a" } else { "bind b" };
        let error = group.all_gather(call, &[], soon()).unwrap_err();
        // What the sockets hold is not to be trusted any more.
        assert!(group.all_gather("next", &[], soon()).is_err());
        error
    });
    assert!(errors.iter().all(|e| matches!(e, Error::Disagree { .. })), "{errors:?}");
}

#[test]
fn silence_ends_and_names_the_rank() {
    let errors = ranks("silent", 3, |group, rank| {
        if rank == 2 {
            std::thread::sleep(Duration::from_millis(400));
            return None;
        }
        let deadline = Deadline::within(Duration::from_millis(100));
        Some(group.all_gather("bind", &[], deadline).unwrap_err())
    });
    for error in errors.iter().flatten() {
        assert!(matches!(error, Error::PeerSilent { ranks, .. } if ranks == &[2]), "{error}");
    }
}

struct Raised(AtomicU32);

fn weak(raised: &Arc<Raised>) -> Weak<dyn Member> {
    Arc::downgrade(raised) as Weak<dyn Member>
}

impl Member for Raised {
    fn raise(&self, by: u32) {
        self.0.store(by + 1, Ordering::Release);
    }

    fn text(&self, rank: u32) -> String {
        format!("what rank {rank} launches")
    }
}

#[test]
fn a_death_is_noticed_and_raised_after_the_grace() {
    ranks("death", 3, |group, rank| {
        if rank == 1 {
            // As a kill does it: the sockets close, and no farewell is said.
            let Group { links, watch, .. } = group;
            for stream in links.into_inner().unwrap().streams.iter().flatten() {
                stream.shutdown(std::net::Shutdown::Both).unwrap();
            }
            std::thread::sleep(Duration::from_millis(1500));
            drop(watch);
            return;
        }
        let raised = Arc::new(Raised(AtomicU32::new(0)));
        group.join(1, weak(&raised));
        let begin = Instant::now();
        while raised.0.load(Ordering::Acquire) == 0 && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(raised.0.load(Ordering::Acquire), 2);
        assert!(begin.elapsed() >= Duration::from_millis(900), "{:?}", begin.elapsed());
        assert_eq!(group.dead(), Some(1));
        let error = group.all_gather("bind", &[], soon()).unwrap_err();
        assert!(matches!(error, Error::PeerGone { rank: 1, .. }), "{error}");
        // The survivors leave together, or one would see the other's death too.
        std::thread::sleep(Duration::from_millis(300));
    });
}

/// A process that may open no more files says so, of itself, and the group goes on.
#[test]
fn a_descriptor_that_does_not_fit_is_an_error_of_its_process() {
    use nix::libc;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    let (mine, theirs) = UnixStream::pair().unwrap();
    let mut links =
        Links { streams: vec![None, Some(mine)], far: vec![None, None], calls: 0, broken: None };
    let mut peer =
        Links { streams: vec![Some(theirs), None], far: vec![None, None], calls: 0, broken: None };
    // SAFETY: both processes have what they need, and the child ends here. The limit is the child's alone.
    match unsafe { fork() }.expect("forks") {
        ForkResult::Child => {
            let fd = SharedPages::create(8).map(|(_, fd)| fd);
            let none = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
            // SAFETY: reads a struct.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) };
            let said = fd.and_then(|fd| links.all_fds(0, "files", fd, 0..2, soon())?);
            let refused =
                matches!(&said, Err(Error::System { what, .. }) if what.contains("ulimit"));
            let goes_on = links.all_gather(0, "next", &[], soon()).is_ok();
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(refused) + 2 * i32::from(goes_on)) }
        }
        ForkResult::Parent { child } => {
            let (_, fd) = SharedPages::create(8).unwrap();
            peer.all_fds(1, "files", fd, 0..2, soon()).unwrap().unwrap();
            peer.all_gather(1, "next", &[], soon()).unwrap();
            assert_eq!(waitpid(child, None).expect("waits"), WaitStatus::Exited(child, 3));
        }
    }
}

/// A fork of a process (a worker that loads data) has the page, and not the thread: its end is no farewell of the
/// process.
#[test]
fn a_fork_does_not_leave_for_its_process() {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    ranks("forks", 2, |group, rank| {
        if rank == 0 {
            let begin = Instant::now();
            while group.dead().is_none() && begin.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(group.dead(), Some(1));
            return;
        }
        let Group { links, watch, .. } = group;
        // SAFETY: the child drops the watch, which allocates nothing and takes no lock, and ends.
        match unsafe { fork() }.expect("forks") {
            ForkResult::Child => {
                drop(watch);
                // SAFETY: ends the process.
                unsafe { nix::libc::_exit(7) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).expect("waits"), WaitStatus::Exited(child, 7));
            }
        }
        for stream in links.into_inner().unwrap().streams.iter().flatten() {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1500));
        drop(watch);
    });
}

/// Who has made as many launches may leave; who is missed in one is as good as dead.
#[test]
fn a_rank_that_leaves_before_a_launch_is_missed() {
    for (theirs, mine) in [(2, 2), (1, 2)] {
        ranks(&format!("missed/{theirs}"), 2, |group, rank| {
            let launches = if rank == 1 { theirs } else { mine };
            (0..launches).for_each(|_| group.launching(Some(1)).unwrap());
            group.all_gather("launched", &[], soon()).unwrap();
            if rank == 1 {
                return;
            }
            let raised = Arc::new(Raised(AtomicU32::new(0)));
            group.join(1, weak(&raised));
            let begin = Instant::now();
            while raised.0.load(Ordering::Acquire) == 0 && begin.elapsed() < GRACE + GRACE / 2 {
                std::thread::sleep(Duration::from_millis(5));
            }
            let missed = theirs < mine;
            assert_eq!(raised.0.load(Ordering::Acquire), if missed { 2 } else { 0 });
            assert_eq!(group.dead(), missed.then_some(1));
            let error = group.launching(Some(1)).unwrap_err();
            assert!(matches!(error, Error::PeerGone { rank: 1, .. }), "{error}");
        });
    }
}

/// One that is behind when another leaves catches up.
#[test]
fn launches_that_a_leaver_has_made_are_still_made() {
    ranks("behind", 2, |group, rank| {
        if rank == 1 {
            (0..3).for_each(|_| group.launching(Some(1)).unwrap());
            return;
        }
        while group.watch.left().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        (0..3).for_each(|_| group.launching(Some(1)).unwrap());
        assert!(group.launching(Some(1)).is_err());
        assert_eq!(group.dead(), None);
    });
}

/// The others were told that it is silent, so it must not hear them.
#[test]
fn a_rank_after_its_own_deadline_fails_too() {
    let errors = ranks("late", 2, |group, rank| {
        let deadline = Deadline::within(Duration::from_millis(100));
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(400));
        }
        let error = group.all_gather("bind", &[], deadline).unwrap_err();
        std::thread::sleep(Duration::from_millis(400));
        error
    });
    for error in &errors {
        assert!(matches!(error, Error::PeerSilent { ranks, .. } if ranks == &[1]), "{error}");
    }
}

#[test]
fn a_message_that_is_too_long_is_its_ranks_error_on_all() {
    let errors = ranks("long", 3, |group, rank| {
        let mine = vec![7; if rank == 1 { wire::MAX_FRAME } else { 1 }];
        group.all_gather("say", &mine, soon()).unwrap_err().to_string()
    });
    let expected = format!("say: rank 1 failed: its message is longer than {} bytes", 64 << 10);
    assert_eq!(errors, [expected.as_str(); 3]);
}

#[test]
fn an_error_without_a_text_is_one() {
    #[derive(Debug)]
    struct Silent;
    impl std::fmt::Display for Silent {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            Ok(())
        }
    }
    impl From<Error> for Silent {
        fn from(_: Error) -> Silent {
            Silent
        }
    }
    let outcomes = ranks("textless", 2, |group, rank| {
        group.agree("bind", if rank == 1 { Err(Silent) } else { Ok(()) }, soon()).is_err()
    });
    assert_eq!(outcomes, [true, true]);
}

/// As where a process ends between the gather of names and the mesh.
#[test]
fn a_rank_that_ended_before_the_mesh_is_named() {
    let run = format!("group/ended/{}", std::process::id());
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let start = |rank| {
            let run = &run;
            scope.spawn(move || {
                let mut b = UnixBootstrap::meet(run, rank, 2, Duration::from_secs(10)).unwrap();
                let listener = LocalListener::open().unwrap();
                let names = b.all_gather(listener.name().as_bytes()).unwrap();
                b.barrier().unwrap();
                if rank == 0 {
                    drop(listener);
                    b.barrier().unwrap();
                    return None;
                }
                b.barrier().unwrap();
                connect(rank, names, &listener).err()
            })
        };
        let all: Vec<_> = (0..2).map(start).collect();
        all.into_iter().filter_map(|t| t.join().unwrap()).collect()
    });
    assert!(
        matches!(&errors[..], [Error::SeveralHosts { what }] if what.contains("rank 0") && what.contains("has ended")),
        "{errors:?}"
    );
}

#[test]
fn leaving_is_not_dying() {
    ranks("leaves", 2, |group, rank| {
        if rank == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(group.dead(), None);
        let error = group.all_gather("bind", &[], soon()).unwrap_err();
        assert!(matches!(error, Error::PeerGone { rank: 1, .. }), "{error}");
    });
}

/// The second to come sees it; the first is told, and by whom and why.
#[test]
fn a_rank_that_launches_something_else_is_told() {
    ranks("astray", 3, |group, rank| {
        let members = [1, 2].map(|i| {
            let member = Arc::new(Raised(AtomicU32::new(0)));
            group.join(i, weak(&member));
            member
        });
        let round = || group.all_gather("round", &[], soon()).unwrap();
        group.launching(Some(2)).unwrap();
        // Those that overlap others come in any order, and are none of these.
        (0..rank).for_each(|_| group.launching(None).unwrap());
        round();
        if rank != 1 {
            group.launching(Some(1)).unwrap();
        }
        round();
        if rank == 1 {
            let error = group.launching(Some(2)).unwrap_err();
            let Error::OutOfStep { launch: 2, rank: 1, peer: 0, ours, theirs } = &error else {
                panic!("{error}")
            };
            assert_eq!((&**ours, &**theirs), ("what rank 1 launches", "what rank 0 launches"));
        }
        round();
        let told = members.each_ref().map(|m| m.0.load(Ordering::Acquire));
        for told in [0, 2] {
            let other = group.other_launch(1, told, 1);
            assert_eq!(other.as_deref(), Some("what rank 1 launches"));
        }
        assert_eq!(group.other_launch(1, 0, 2), None);
        assert_eq!(group.other_launch(2, 0, 1), None);
        let launched = [(1, 0, 2), (1, 0, 1), (2, 0, 1), (3, 0, 1)]
            .map(|(n, rank, peer)| group.launched(n, rank, peer));
        assert_eq!(launched, [true, false, true, false]);
        round();
        assert_eq!(told, [if rank == 1 { 2 } else { 0 }, 0]);
        // What comes next is in step again.
        group.launching(Some(2)).unwrap();
        round();
    });
}

/// Four processes, each in a world of those of its row and in one of those of its column. Three launch a kernel of one
/// of them, then of the other, so that each waits for the next.
#[test]
fn launches_of_two_worlds_that_wait_for_each_other() {
    let run = format!("group/crossed/{}", std::process::id());
    let pair = |axis: &str, group: u32, place: u32, orders: &Arc<Orders>| {
        let run = format!("{run}/{axis}{group}");
        let mut b = UnixBootstrap::meet(&run, place, 2, Duration::from_secs(10)).unwrap();
        let listener = LocalListener::open().unwrap();
        let names = b.all_gather(listener.name().as_bytes()).unwrap();
        let names = names.into_iter().map(|n| PeerAddress::Near(String::from_utf8(n).unwrap()));
        let (names, topology) = (names.collect::<Vec<_>>(), Topology::one_node(2));
        Group::connect(place, &topology, &names, &listener, None, orders.clone()).unwrap()
    };
    let work = &|rank: u32| {
        let orders = Orders::new().unwrap();
        let (row, column) = (rank / 2, rank % 2);
        let tp = pair("tp", row, column, &orders);
        let dp = pair("dp", column, row, &orders);
        // The second world tells of the lists of the first ones.
        assert_eq!(orders.known().unwrap().len(), 4);
        let raised = [&tp, &dp].map(|world| {
            let member = Arc::new(Raised(AtomicU32::new(0)));
            world.join(1, weak(&member));
            member
        });
        // A row, and then all.
        let round = || {
            for world in [&tp, &dp] {
                world.all_gather("round", &[], soon()).unwrap();
            }
        };
        // In one order, any number of them.
        for _ in 0..300 {
            for world in [&tp, &dp] {
                world.launching(Some(1)).unwrap();
            }
        }
        round();
        let order = if column == row { [&tp, &dp] } else { [&dp, &tp] };
        order[0].launching(Some(1)).unwrap();
        round();
        if rank > 0 {
            order[1].launching(Some(1)).unwrap();
        }
        round();
        if rank == 0 {
            let error = order[1].launching(Some(1)).unwrap_err();
            let Error::Crossed { launch: 301, rank: 0, ours } = &error else { panic!("{error}") };
            assert_eq!(ours, "what rank 0 launches");
            // Kernels of the launch that is not made give up, on every rank.
            assert_eq!(raised.each_ref().map(|r| r.0.load(Ordering::Acquire)), [0, 1]);
        }
        round();
    };
    std::thread::scope(|s| (0..4).map(|rank| s.spawn(move || work(rank))).for_each(drop));
}

/// Who was refused a launch and leaves is missed in what the others launched, also if nothing here knows that instance
/// any more.
#[test]
fn a_refused_launch_is_not_made() {
    ranks("refused", 2, |group, rank| {
        let raised = Arc::new(Raised(AtomicU32::new(0)));
        if rank == 0 {
            group.join(1, weak(&raised));
            group.launching(Some(1)).unwrap();
        }
        group.all_gather("launched", &[], soon()).unwrap();
        if rank == 1 {
            group.launching(Some(2)).unwrap_err();
            return;
        }
        let begin = Instant::now();
        while raised.0.load(Ordering::Acquire) == 0 && begin.elapsed() < 2 * GRACE {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((raised.0.load(Ordering::Acquire), group.dead()), (2, Some(1)));
    });
}

/// The thread that tells an instance of a death may be the last that knows the group, and ends it.
#[test]
fn a_group_may_end_while_a_death_is_told() {
    struct Last(Mutex<Option<Arc<Group>>>, Arc<AtomicU32>);
    impl Member for Last {
        fn raise(&self, _: u32) {
            drop(self.0.lock().unwrap().take());
            self.1.store(1, Ordering::Release);
        }
        fn text(&self, _: u32) -> String {
            String::new()
        }
    }
    ranks("last", 2, |group, rank| {
        if rank == 1 {
            let Group { links, watch, .. } = group;
            for stream in links.into_inner().unwrap().streams.iter().flatten() {
                stream.shutdown(std::net::Shutdown::Both).unwrap();
            }
            std::thread::sleep(2 * GRACE);
            drop(watch);
            return;
        }
        let (group, ended) = (Arc::new(group), Arc::new(AtomicU32::new(0)));
        let member = Arc::new(Last(Mutex::new(None), ended.clone()));
        group.join(1, Arc::downgrade(&member) as Weak<dyn Member>);
        *member.0.lock().unwrap() = Some(group);
        let begin = Instant::now();
        while ended.load(Ordering::Acquire) == 0 && begin.elapsed() < 3 * GRACE {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(ended.load(Ordering::Acquire), 1, "the thread has not come back");
    });
}

/// However close together they come: not both miss it.
#[test]
fn one_of_two_sees_that_they_differ() {
    const ROUNDS: u32 = 300;
    let seen = ranks("close", 2, |group, rank| {
        let launch = |i| {
            group.all_gather("round", &[], soon()).unwrap();
            group.launching(Some(2 * i + rank)).is_err()
        };
        (0..ROUNDS).map(launch).collect::<Vec<_>>()
    });
    assert!(seen[0].iter().zip(&seen[1]).all(|(a, b)| *a || *b));
}

/// After a capture or a failure on one rank further launches need not fit; what was made before is still known.
#[test]
fn further_launches_are_not_compared_when_the_count_is_lost() {
    ranks("lost", 2, |group, rank| {
        let round = || group.all_gather("round", &[], soon()).unwrap();
        if rank == 0 {
            group.launching(Some(7)).unwrap();
            group.lose_count();
        }
        round();
        if rank == 1 {
            group.launching(Some(8)).unwrap_err();
        }
        round();
        group.launching(Some(rank)).unwrap();
        round();
        assert_eq!(group.other_launch(rank, rank, 1 - rank), None);
        assert!(group.other_launch(7 + rank, rank, 1 - rank).is_some());
        round();
    });
}
