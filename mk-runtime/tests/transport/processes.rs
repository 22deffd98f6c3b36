//! A case with each rank in a process of its own: rank 1 is this test binary, started again, here or on another host.

use super::contract::{self, CASES};
use super::side::{Control, Memory, Side};
use std::env;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// In a child: case, network and socket.
const CHILD: &str = "MK_TRANSPORT_CASE";
/// On each of two hosts: rank, address at which rank 0 listens, and network. `0 10.0.0.1:7000 efa`.
const HOSTS: &str = "MK_TRANSPORT_HOSTS";

/// Frames over a socket that does not block.
struct Socket<S> {
    stream: S,
    read: Vec<u8>,
}

fn local(stream: UnixStream) -> Socket<UnixStream> {
    stream.set_nonblocking(true).unwrap();
    Socket { stream, read: Vec::new() }
}

fn remote(stream: TcpStream) -> Socket<TcpStream> {
    stream.set_nonblocking(true).unwrap();
    stream.set_nodelay(true).unwrap();
    Socket { stream, read: Vec::new() }
}

impl<S: Read + Write + Send> Control for Socket<S> {
    fn send(&mut self, bytes: &[u8]) {
        let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
        frame.extend(bytes);
        // Small enough for the socket's buffer. The other rank may have ended.
        let _ = self.stream.write_all(&frame);
    }

    fn try_recv(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) if self.read.is_empty() => panic!("the other rank has ended"),
            Ok(n) => self.read.extend(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => panic!("{e}"),
        }
        let (length, rest) = self.read.split_first_chunk::<4>()?;
        let frame = rest.get(..u32::from_le_bytes(*length) as usize)?.to_vec();
        self.read.drain(..4 + frame.len());
        Some(frame)
    }
}

/// Runs a case in this process and another one.
pub fn in_two(network: &str, case: &str) {
    // A process has one end of `shm`, and tests run side by side.
    let _one = (network == "shm").then(one_shm);
    let Some(end) = super::present(super::open(network, case, 0)) else { return };
    let path = env::temp_dir().join(format!(
        "mk-transport-{}-{case}-{}",
        std::process::id(),
        network.replace([';', ' '], "-")
    ));
    let listener = UnixListener::bind(&path).unwrap();
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "processes::child", "--nocapture"]).stdin(Stdio::null());
    child.env(CHILD, format!("{case}\n{network}\n{}", path.display()));
    child.stdout(Stdio::null());
    let mut child = child.spawn().unwrap();
    listener.set_nonblocking(true).unwrap();
    let begin = Instant::now();
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => {
                assert!(child.try_wait().unwrap().is_none(), "the other process has ended");
                super::side::bounded(begin, "the other process");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    };
    std::fs::remove_file(&path).unwrap();
    let area = CASES.iter().find(|c| c.0 == case).expect("a case").1;
    let nothing: fn() = || {};
    let memory = Memory::of_host(area);
    let mut side = Side::new(0, end, memory, Box::new(local(stream)), area, nothing);
    contract::run(case, &mut side);
    // A child that still waits for this rank sees the socket close.
    drop(side);
    let status = child.wait().unwrap();
    assert!(status.success(), "rank 1: {status}");
}

/// Held by whoever has this process's end of `shm`.
pub fn one_shm() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rank 1 of a case. Nothing when nobody has started it as such.
#[test]
fn child() {
    let Ok(spec) = env::var(CHILD) else { return };
    let [case, network, path] = spec.splitn(3, '\n').collect::<Vec<_>>()[..] else {
        panic!("{spec}")
    };
    let control: Box<dyn Control> = match path.strip_prefix("tcp:") {
        None => Box::new(local(UnixStream::connect(path).unwrap())),
        Some(address) => Box::new(remote(reach(address))),
    };
    let area = CASES.iter().find(|c| c.0 == case).expect("a case").1;
    let end = super::open(network, case, 1).unwrap();
    // No destructor runs: that of a process that is killed does not.
    // SAFETY: ends the process, and nothing else.
    let die: fn() = || unsafe { nix::libc::_exit(0) };
    let mut side = Side::new(1, end, Memory::of_host(area), control, area, die);
    contract::run(case, &mut side);
}

/// Connects to rank 0, which may not listen yet.
fn reach(address: &str) -> TcpStream {
    let begin = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(_) => super::side::bounded(begin, "rank 0"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// All cases between two hosts, for networks that do not join processes of one. Nothing unless the environment names them.
#[test]
fn two_hosts() {
    let Ok(spec) = env::var(HOSTS) else { return };
    let [rank, address, network] = spec.splitn(3, ' ').collect::<Vec<_>>()[..] else {
        panic!("{HOSTS}={spec}: rank, address of rank 0, network")
    };
    if rank == "1" {
        for (case, ..) in CASES {
            let mut child = Command::new(env::current_exe().unwrap());
            child.args(["--exact", "processes::child", "--nocapture"]).stdin(Stdio::null());
            child.env(CHILD, format!("{case}\n{network}\ntcp:{address}"));
            let status = child.status().unwrap();
            assert!(status.success(), "{case}: {status}");
        }
        return;
    }
    let listener = TcpListener::bind(address).unwrap();
    for (case, area, _) in CASES {
        let (stream, _) = listener.accept().unwrap();
        let end = super::open(network, case, 0).unwrap();
        let nothing: fn() = || {};
        let memory = Memory::of_host(*area);
        let mut side = Side::new(0, end, memory, Box::new(remote(stream)), *area, nothing);
        contract::run(case, &mut side);
        println!("{network}: {case}");
    }
}
