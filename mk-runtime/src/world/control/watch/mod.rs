//! Notices that a process of the world has died, or makes other launches than this one, and tells kernels that wait for
//! it.
//!
//! A socket closes when its process ends, however it ends. A process that leaves of its own will says so in shared
//! memory first, and how many launches it has made: its part of those is done, and a kernel of ours that is still at
//! work on what it sent must not be disturbed. Of a launch behind them it will be no part, so that for those it is as
//! good as dead.
//!
//! Ranks launch the same kernels in the same order. If the n-th launches of two ranks differ, each kernel waits for one
//! that the other rank launches later; the rank that launches second detects it.
//!
//! Processes of other hosts say the same in messages (`mesh/`), which the thread reads and writes: what they have told
//! stands in a page as if they had written it there. Of two hosts both may come first; each then finds out by the
//! other's message.

mod shared;
mod thread;

#[cfg(test)]
pub(super) use shared::GRACE;
pub(crate) use shared::Member;

use super::mesh::{Bell, Far, Message, Stream};
use super::page::Page;
use crate::{Error, Result};
use shared::{Shared, differing};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// A launch that another rank did not make, or another in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Astray {
    /// Which, from 1.
    pub(super) launch: u64,
    pub(super) peer: u32,
    /// The instance that the peer launched.
    pub(super) theirs: u32,
}

/// The processes that are watched for.
pub(super) struct Others {
    /// Sockets to those of this host, by rank.
    pub(super) near: Vec<Option<UnixStream>>,
    /// Their pages.
    pub(super) pages: Vec<Option<Page>>,
    /// Connections to those of other hosts.
    pub(super) far: Vec<(u32, Stream)>,
    /// Those that launches are compared with: one of each host, whose own processes compare them with each other.
    pub(super) alike: Vec<u32>,
    /// What wakes the thread, and where it hears that.
    pub(super) bell: Arc<Bell>,
    pub(super) ears: UnixStream,
}

/// The watching thread. Dropping it says farewell to the other processes; not in a fork of the process, which has
/// neither.
pub(super) struct Watch {
    /// The process that is watched for.
    process: u32,
    shared: Arc<Shared>,
    mine: Arc<Page>,
    /// By rank; none for this one.
    theirs: Vec<Option<Arc<Page>>>,
    far: Vec<Arc<Far>>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("dead", &self.dead()).finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches for other processes; `mine` is the page of this one.
    pub(super) fn start(mine: Page, others: Others) -> Result<Watch> {
        let Others { near, pages, far, alike, bell, ears } = others;
        let mut theirs: Vec<_> = pages.into_iter().map(|p| p.map(Arc::new)).collect();
        let mut peers = Vec::new();
        for ((rank, stream), page) in (0..).zip(near).zip(&theirs) {
            if let (Some(stream), Some(page)) = (stream, page) {
                peers.push(thread::Peer::near(rank, stream, page.clone()));
            }
        }
        let mut outboxes = Vec::new();
        for (rank, stream) in far {
            let page = Arc::new(Page::told()?);
            if let Some(place) = theirs.get_mut(rank as usize) {
                *place = Some(page.clone());
            }
            outboxes.push(stream.far.clone());
            peers.push(thread::Peer::far(rank, stream, page, alike.contains(&rank)));
        }
        let shared = Arc::<Shared>::default();
        let mine = Arc::new(mine);
        let watching = thread::Watching {
            shared: shared.clone(),
            mine: mine.clone(),
            bell: bell.clone(),
            ears,
            peers,
        };
        let thread = std::thread::Builder::new()
            .name("mk-watch".into())
            .spawn(move || watching.run())
            .map_err(|e| Error::System { call: "the start of a thread", what: e.to_string() })?;
        let process = std::process::id();
        Ok(Watch { process, shared, mine, theirs, far: outboxes, bell, thread: Some(thread) })
    }

    pub(super) fn dead(&self) -> Option<u32> {
        match self.shared.dead.load(Ordering::Acquire) {
            0 => None,
            mask => Some(mask.trailing_zeros()),
        }
    }

    /// Whether this one has, or left so.
    pub(super) fn is_dead(&self, rank: u32) -> bool {
        self.shared.dead.load(Ordering::Acquire) >> rank & 1 == 1
    }

    /// A process that has left of its own will.
    #[cfg(test)]
    pub(super) fn left(&self) -> Option<u32> {
        self.shared.count().last.map(|(_, rank)| rank)
    }

    /// Counts a launch that is about to be made, and says what others have launched in its place, if it is of an
    /// `instance` that all ranks launch in the same order.
    ///
    /// # Errors
    /// [`Error::PeerGone`] with a rank that has left before it: it is not counted then.
    pub(super) fn launching(&self, instance: Option<u32>) -> Result<Option<Astray>> {
        let mut count = self.shared.count();
        if let Some((made, rank)) = count.last
            && count.made >= made
        {
            return Err(Error::PeerGone { rank, during: "launching".into() });
        }
        count.made += 1;
        let Some(instance) = instance else { return Ok(None) };
        count.ordered += 1;
        self.mine.note(count.ordered, instance);
        let astray = self.astray(count.ordered, instance);
        // It is not made then, and a farewell must not say so; its place stays taken. Under the same lock: the thread
        // that hears of the others' launch would tell this one to give up.
        if astray.is_some() {
            let launch = count.ordered;
            count.refuse(launch);
        }
        drop(count);
        if !self.far.is_empty() {
            self.bell.ring();
        }
        Ok(astray)
    }

    /// The number of the last launch that all ranks make in one order, if it is still that of the others.
    pub(super) fn ordered(&self) -> Option<u64> {
        let n = self.shared.count().ordered;
        let pages = self.theirs.iter().flatten().chain([&self.mine]);
        pages.into_iter().all(|page| page.counts(n)).then_some(n)
    }

    /// Takes back a launch, which keeps its place: it is not made.
    pub(super) fn refuse(&self, launch: u64) {
        self.shared.count().refuse(launch);
    }

    /// The instance that `peer` launched in the place of a launch of `instance` by `rank`, if it has.
    pub(super) fn other_launch(&self, instance: u32, rank: u32, peer: u32) -> Option<u32> {
        let (page, other) = (self.page(rank)?, self.page(peer)?);
        page.launches_of(instance).find_map(|n| differing(n, instance, page, other))
    }

    /// Whether `peer` has made the launches of `instance` that `rank` has made, too, as far as they are noted.
    pub(super) fn launched(&self, instance: u32, rank: u32, peer: u32) -> bool {
        let (Some(page), Some(other)) = (self.page(rank), self.page(peer)) else { return false };
        let mut launches = page.launches_of(instance).peekable();
        launches.peek().is_some()
            && launches
                .all(|n| page.counts(n) && other.counts(n) && other.noted(n) == Some(instance))
    }

    fn astray(&self, launch: u64, instance: u32) -> Option<Astray> {
        let peers = (0..).zip(&self.theirs).filter_map(|(r, p)| Some((r, p.as_deref()?)));
        peers.into_iter().find_map(|(peer, page)| {
            let theirs = differing(launch, instance, &self.mine, page)?;
            Some(Astray { launch, peer, theirs })
        })
    }

    fn page(&self, rank: u32) -> Option<&Page> {
        Some(self.theirs.get(rank as usize)?.as_deref().unwrap_or(&self.mine))
    }

    /// This process's further launches need not be those of others.
    pub(super) fn lose_count(&self) {
        let ordered = self.shared.count().ordered;
        if self.mine.lose_count(ordered) {
            self.say(&Message::Uncounted(ordered));
        }
    }

    /// Tells other hosts that kernels of an instance are to give up.
    pub(super) fn give_up(&self, instance: u32, by: u32, why: &str) {
        self.say(&Message::GiveUp { instance, by, why: why.into() });
    }

    fn say(&self, message: &Message) {
        for far in &self.far {
            far.say(message);
        }
    }

    pub(super) fn join(&self, instance: u32, member: Weak<dyn Member>) {
        let told = {
            let mut members = self.shared.members();
            members.here.retain(|(_, m)| m.strong_count() > 0);
            members.here.push((instance, member.clone()));
            let found = members.told.iter().find(|(of, ..)| *of == instance).cloned();
            members.told.retain(|(of, ..)| *of != instance);
            found
        };
        if let (Some((_, by, why)), Some(member)) = (told, member.upgrade()) {
            member.told(by, &why);
        }
    }

    pub(super) fn member(&self, instance: u32) -> Option<Arc<dyn Member>> {
        self.shared.member(instance)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A handle that is dropped would be that of a thread which is not here.
            std::mem::forget(self.thread.take());
            return;
        }
        self.mine.leave(self.shared.count().made);
        // Its sockets close, and the peers see it, when it has ended.
        self.bell.shut();
        // It may be the one that drops this: instances that it was telling of a death were the last to know the group.
        if self.thread.as_ref().is_some_and(|t| t.thread().id() == std::thread::current().id()) {
            self.thread = None;
        }
        if self.thread.take().is_some_and(|t| t.join().is_err()) {
            tracing::warn!("the thread that watches for dead processes has panicked");
        }
    }
}
