//! A case with each rank in a process of its own: rank 1 is this test binary, started again.

use super::contract::{self, CASES};
use super::side::{Control, Side};
use std::env;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// In a child: case, network and socket.
const CHILD: &str = "MK_TRANSPORT_CASE";

/// Frames over a socket.
struct Socket {
    stream: UnixStream,
    read: Vec<u8>,
}

impl Socket {
    fn new(stream: UnixStream) -> Socket {
        stream.set_nonblocking(true).unwrap();
        Socket { stream, read: Vec::new() }
    }
}

impl Control for Socket {
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
    let mut side = Side::new(0, end, Box::new(Socket::new(stream)), area, nothing);
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
    let stream = UnixStream::connect(path).unwrap();
    let area = CASES.iter().find(|c| c.0 == case).expect("a case").1;
    let end = super::open(network, case, 1).unwrap();
    // No destructor runs: that of a process that is killed does not.
    // SAFETY: ends the process, and nothing else.
    let die: fn() = || unsafe { nix::libc::_exit(0) };
    let mut side = Side::new(1, end, Box::new(Socket::new(stream)), area, die);
    contract::run(case, &mut side);
}
