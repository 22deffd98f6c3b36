//! Launches of several worlds, in the order in which the processes of this host make them.
//!
//! A kernel waits for those before it on its GPU, and for its peers to launch it, too. Where ranks launch kernels of
//! two worlds in different orders, each may wait for the other: `tp` then `dp` here, `dp` then `tp` there. So every
//! process lists its launches in shared memory, and the launch that would close a circle is refused.
//!
//! Who connects to a world tells its peers of all lists that it knows. So of the axes of a mesh that become worlds one
//! after the other, every rank knows the lists of all.
//!
//! Not listed: launches that overlap others, captured ones, and those on other hosts.

use crate::Result;
use crate::world::control::rendezvous::os;
use crate::world::shared::SharedPages;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Launches in a list: the last ones.
const LISTED: u64 = 256;
/// Those of them that are read: the others may be overwritten meanwhile.
const READ: u64 = LISTED / 2;
/// Words of a list: how many launches there were, and world and number of each.
const WORDS: usize = 1 + 2 * LISTED as usize;
/// Lists that are known, at most: the last ones.
const KNOWN: usize = 64;

/// A launch: the world, and its number there, which all ranks give it.
type Launch = (u64, u64);

/// A list, as its process or another one maps it.
#[derive(Debug)]
struct List {
    /// Names it on this host.
    id: u64,
    pages: SharedPages,
    fd: OwnedFd,
}

impl List {
    fn create() -> Result<List> {
        let (pages, fd) = SharedPages::create(WORDS * size_of::<u64>())?;
        Ok(List { id: random()?, pages, fd })
    }

    fn open(id: u64, fd: OwnedFd) -> Result<List> {
        Ok(List { id, pages: SharedPages::open(&fd, WORDS * size_of::<u64>())?, fd })
    }

    /// Adds a launch. Of two processes that each add one and then read, at least one sees the other's.
    fn add(&self, (world, number): Launch) {
        let made = self.made();
        let [of, nth] = Self::place(made);
        self.word(of).store(world, Ordering::SeqCst);
        self.word(nth).store(number, Ordering::SeqCst);
        self.word(0).store(made + 1, Ordering::SeqCst);
    }

    /// How many there were.
    fn made(&self) -> u64 {
        self.word(0).load(Ordering::SeqCst)
    }

    /// Takes back the last one.
    fn withdraw(&self) {
        self.word(0).fetch_sub(1, Ordering::SeqCst);
    }

    /// The last ones, in order.
    fn launches(&self) -> Vec<Launch> {
        let end = self.made();
        let read = |i| Self::place(i).map(|at| self.word(at).load(Ordering::SeqCst)).into();
        let all: Vec<Launch> = (end.saturating_sub(READ)..end).map(read).collect();
        let late = self.made().saturating_sub(end);
        let lost = late.saturating_sub(LISTED - READ - 1).min(all.len() as u64);
        all[lost as usize..].to_vec()
    }

    fn place(launch: u64) -> [usize; 2] {
        let at = 1 + 2 * (launch % LISTED) as usize;
        [at, at + 1]
    }

    fn word(&self, i: usize) -> &AtomicU64 {
        debug_assert!(i < WORDS);
        // SAFETY: mapped for as long as the list lives and that long, aligned, and used as an atomic by every process.
        unsafe { AtomicU64::from_ptr(self.pages.start().cast::<u64>().add(i)) }
    }
}

/// The launches of this process on one GPU, and those of others that it knows of.
#[derive(Debug)]
pub(in crate::world) struct Orders {
    mine: List,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    others: Vec<List>,
    /// The world of the last launch of this process, and how many of that world have followed each other.
    last: Launch,
}

static PROCESS: Mutex<BTreeMap<i32, Arc<Orders>>> = Mutex::new(BTreeMap::new());

impl Orders {
    pub(super) fn new() -> Result<Arc<Orders>> {
        Ok(Arc::new(Orders { mine: List::create()?, known: Mutex::default() }))
    }

    /// Those of this process on a GPU.
    pub(in crate::world) fn on(gpu: i32) -> Result<Arc<Orders>> {
        // A panic elsewhere leaves a map that is still true.
        let mut all = PROCESS.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(orders) = all.get(&gpu) {
            return Ok(orders.clone());
        }
        let orders = Orders::new()?;
        all.insert(gpu, orders.clone());
        Ok(orders)
    }

    /// The names of all lists that are known, the own one first, and their files.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System).
    pub(super) fn known(&self) -> Result<Vec<(u64, OwnedFd)>> {
        let known = self.lock();
        let lists = [&self.mine].into_iter().chain(&known.others);
        let file = |list: &List| Ok((list.id, list.fd.try_clone().map_err(|e| os("dup", &e))?));
        lists.map(file).collect()
    }

    /// Takes over a list that another process has told of.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System).
    pub(super) fn learn(&self, id: u64, fd: OwnedFd) -> Result<()> {
        let others = &mut self.lock().others;
        if id == self.mine.id || others.iter().any(|list| list.id == id) {
            return Ok(());
        }
        if others.len() == KNOWN {
            others.remove(0);
        }
        others.push(List::open(id, fd)?);
        Ok(())
    }

    /// Lists a launch. Whether it would wait for itself: then it is not listed.
    pub(super) fn launching(&self, launch: Launch) -> bool {
        let mut known = self.lock();
        self.mine.add(launch);
        let same = if known.last.0 == launch.0 { known.last.1 } else { 0 };
        known.last = (launch.0, same + 1);
        // Along one world ranks are compared launch by launch.
        if same + 1 >= READ || same + 1 >= self.mine.made() {
            return false;
        }
        let mine = self.mine.launches();
        let lines: Vec<_> = known.others.iter().map(List::launches).chain([mine]).collect();
        let waits = waits_for_itself(&lines, launch);
        if waits {
            self.mine.withdraw();
            known.last = (launch.0, same);
        }
        waits
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // After a panic there is what was known before.
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Whether a launch is among those that must end before it does. In each of the lines, launches follow each other, and
/// launches of a world with one number end together.
fn waits_for_itself(lines: &[Vec<Launch>], launch: Launch) -> bool {
    // Of each world the last launch that is waited for. There are few worlds.
    let mut awaited = vec![launch];
    let mut behind = vec![0; lines.len()];
    loop {
        let mut found = false;
        for (line, behind) in lines.iter().zip(&mut behind) {
            let last =
                |(world, n): &Launch| awaited.iter().any(|(of, most)| of == world && n <= most);
            let at = line.iter().rposition(last).unwrap_or(0);
            for (world, n) in line.iter().take(at).skip(*behind) {
                if *world == launch.0 && *n >= launch.1 {
                    return true;
                }
                match awaited.iter_mut().find(|(of, _)| of == world) {
                    Some((_, most)) => *most = (*most).max(*n),
                    None => awaited.push((*world, *n)),
                }
            }
            found |= at > *behind;
            *behind = at.max(*behind);
        }
        if !found {
            return false;
        }
    }
}

/// A number that no other process has.
pub(super) fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(|e| os("read of /dev/urandom", &e))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worlds by letter, launches by number: `a1 b1`.
    fn line(text: &str) -> Vec<Launch> {
        let launch = |word: &str| (word.as_bytes()[0].into(), word[1..].parse().unwrap());
        text.split_whitespace().map(launch).collect()
    }

    fn waits(lines: &[&str], launch: &str) -> bool {
        let lines: Vec<_> = lines.iter().map(|text| line(text)).collect();
        waits_for_itself(&lines, line(launch)[0])
    }

    #[test]
    fn opposite_orders_close_a_circle() {
        assert!(waits(&["a1 b1", "b1 a1"], "a1"));
        assert!(waits(&["a1 a2 b1", "b1 a1"], "a1"));
        assert!(waits(&["a1 b1 a2", "a1 a2 b1"], "b1"));
        assert!(!waits(&["a1 b1", "a1 b1"], "b1"));
        assert!(!waits(&["a1 b1", "a1"], "a1"));
        // One rank is ahead by some launches.
        assert!(!waits(&["a1 b1 a2 b2 a3", "a1 b1"], "b1"));
        assert!(!waits(&["a1 a2 a3 b1", "a1 a2"], "a2"));
    }

    /// Of a mesh of 2 x 2, worlds of two ranks each: `t` and `u` along one axis, `d` and `e` along the other.
    #[test]
    fn a_circle_goes_through_ranks_that_share_no_world() {
        assert!(waits(&["t1 d1", "e1 t1", "d1 u1", "u1 e1"], "d1"));
        // Two ranks take the other order, and no circle is closed.
        assert!(!waits(&["t1 d1", "e1 t1", "d1 u1", "e1 u1"], "u1"));
        assert!(!waits(&["t1 d1", "t1 e1", "u1 d1", "u1 e1"], "e1"));
        // The launch that is missing is not there yet.
        assert!(!waits(&["t1", "e1 t1", "d1 u1", "u1 e1"], "t1"));
    }

    #[test]
    fn lists_are_shared_and_their_ends_are_read() {
        let mine = Orders::new().unwrap();
        let theirs = Orders::new().unwrap();
        for (id, fd) in theirs.known().unwrap() {
            mine.learn(id, fd).unwrap();
        }
        for (id, fd) in mine.known().unwrap() {
            theirs.learn(id, fd).unwrap();
        }
        assert_eq!((mine.known().unwrap().len(), theirs.known().unwrap().len()), (2, 2));
        for n in 1..=1000 {
            for orders in [&mine, &theirs] {
                assert!(!orders.launching((7, n)) && !orders.launching((8, n)), "{n}");
            }
        }
        assert_eq!(mine.mine.launches().len(), READ as usize);
        assert!(!mine.launching((7, 1001)) && !theirs.launching((8, 1001)));
        assert!(!mine.launching((8, 1001)), "the other has not launched it behind");
        assert!(theirs.launching((7, 1001)));
        // What is refused is not listed, and can be made when the others have given up.
        assert_eq!(theirs.mine.launches().last(), Some(&(8, 1001)));
    }
}
