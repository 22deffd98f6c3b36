//! The unrolled plan: tasks, accesses, waits and posts on every rank, and the numbering of words and boxes.
//!
//! Epochs of the same [`Class`] (same residue of the slot period, same tables) are unrolled once and shared: what
//! differs between them is only the epoch number. An event's *step* is 0 for `start`, `1 + i` for iteration `i` of the
//! inner loop, and `1 + n` for `end`; within a step an agent first waits, then accesses, then posts.

use super::{
    boxes::{BoxId, Boxes},
    family::FamInfo,
    rotation::{Rotation, Turned},
    spans::LiveId,
};
use mk_plan::{Entity, FamId, Family, Mode, Plan, Proxy, SigId};
use std::ops::Range;

pub(super) struct TaskRec {
    pub family: FamId,
    pub rank: u32,
    /// Steps: iterations of the inner loop, and 2.
    pub steps: u32,
    pub domain: Box<[i64]>,
    pub accs: Range<u32>,
    pub waits: Range<u32>,
    pub posts: Range<u32>,
}

#[derive(Clone, Copy)]
pub(super) struct AccRec {
    pub task: u32,
    pub line: u32,
    pub agent: u8,
    pub proxy: Proxy,
    pub mode: Mode,
    pub step: u32,
    pub boxed: BoxId,
    pub version: i64,
    /// Of ranks that are folded: the turn of the task that makes this access to memory of rank 0.
    pub turn: u32,
}

#[derive(Clone, Copy)]
pub(super) struct WaitRec {
    pub task: u32,
    pub line: u32,
    pub agent: u8,
    pub step: u32,
    pub word: u32,
    pub count: i64,
}

#[derive(Clone, Copy)]
pub(super) struct PostRec {
    pub task: u32,
    pub line: u32,
    pub agent: u8,
    pub step: u32,
    pub word: u32,
    pub add: i64,
}

/// The rank that an access names, whether there is memory in its region or none.
#[derive(Clone, Copy)]
pub(super) struct NamedRec {
    pub task: u32,
    pub line: u32,
    pub rank: u32,
}

/// All events of one epoch; of ranks that are folded, those of rank 0. Events of a task are contiguous and ascend in
/// step.
#[derive(Default)]
pub(super) struct Class {
    pub tasks: Vec<TaskRec>,
    pub accs: Vec<AccRec>,
    pub waits: Vec<WaitRec>,
    pub posts: Vec<PostRec>,
    /// Where there is more than a node, or a send: of accesses to nothing, and of all of sends.
    pub named: Vec<NamedRec>,
    /// Tasks of each rank.
    pub ranks: Vec<Range<u32>>,
    /// Posts to each word: `by_word[starts[w]..starts[w + 1]]`.
    starts: Vec<u32>,
    by_word: Vec<u32>,
}

impl Class {
    /// Posts to a word, by index.
    pub fn posts_of(&self, word: u32) -> &[u32] {
        let w = word as usize;
        &self.by_word[self.starts[w] as usize..self.starts[w + 1] as usize]
    }

    /// An empty one, with room for as many events as another one has.
    pub fn with_room(&self) -> Class {
        Class {
            tasks: Vec::with_capacity(self.tasks.len()),
            accs: Vec::with_capacity(self.accs.len()),
            waits: Vec::with_capacity(self.waits.len()),
            posts: Vec::with_capacity(self.posts.len()),
            ..Class::default()
        }
    }

    pub fn index_words(&mut self, words: usize, rotation: Rotation) {
        self.starts = vec![0; words + 1];
        for p in &self.posts {
            self.starts[rotation.own(p.word) as usize + 1] += 1;
        }
        for w in 0..words {
            self.starts[w + 1] += self.starts[w];
        }
        let mut next = self.starts.clone();
        self.by_word = vec![0; self.posts.len()];
        for (i, p) in self.posts.iter().enumerate() {
            let slot = &mut next[rotation.own(p.word) as usize];
            self.by_word[*slot as usize] = i as u32;
            *slot += 1;
        }
    }
}

/// Signal words of all ranks, numbered densely.
pub(super) struct Words {
    /// First word of each signal on each rank, with its extents.
    pub arrays: Vec<Vec<(u32, Vec<i64>)>>,
    /// How many there are; of ranks that are folded, on each.
    pub total: usize,
}

impl Words {
    pub fn find(&self, rank: usize, signal: SigId, index: &[i64]) -> Option<u32> {
        let (base, shape) = self.arrays.get(rank)?.get(signal.index())?;
        let mut flat = 0i64;
        for (i, n) in index.iter().zip(shape) {
            if !(0..*n).contains(i) {
                return None;
            }
            flat = flat * n + i;
        }
        Some(base + flat as u32)
    }

    /// Extents of a signal array.
    pub fn shape(&self, rank: usize, signal: SigId) -> &[i64] {
        &self.arrays[rank][signal.index()].1
    }

    /// Rank, signal and index of a word.
    pub fn name(&self, word: u32) -> (usize, SigId, Vec<i64>) {
        let last = |arrays: &Vec<(u32, Vec<i64>)>| arrays.partition_point(|a| a.0 <= word);
        let rank = self.arrays.partition_point(|r| r.first().is_some_and(|a| a.0 <= word));
        let rank = rank.saturating_sub(1);
        let signal = last(&self.arrays[rank]).saturating_sub(1);
        let (base, shape) = &self.arrays[rank][signal];
        let mut flat = i64::from(word - base);
        let mut index = vec![0; shape.len()];
        for (slot, n) in index.iter_mut().zip(shape).rev() {
            *slot = flat % n.max(&1);
            flat /= n.max(&1);
        }
        (rank, SigId::new(signal), index)
    }
}

/// Pairs of epochs: each of the last ones as the later one, with those from so many to so many epochs back; 0 is
/// itself.
pub(super) struct Window {
    pub later: u32,
    pub near: u32,
    pub back: u32,
}

/// A plan unrolled for one choice of tables in every epoch.
pub(super) struct World<'a> {
    pub plan: &'a Plan,
    pub fams: Vec<FamInfo>,
    pub ranks: usize,
    pub words: Words,
    pub boxes: Boxes,
    pub classes: Vec<Class>,
    /// Whether rank 0 stands for all ranks.
    pub rotation: Rotation,
    /// The dimensions that it turns.
    pub turned: Option<Turned>,
    /// Class of each epoch; index 0 is epoch 1.
    pub class_of: Vec<usize>,
    /// After how many epochs the plan repeats.
    pub period: u32,
    /// Which pairs of epochs are compared.
    pub window: Window,
    /// Whether only tasks at the ends of loops are here.
    pub ends_only: bool,
    /// Extents of each buffer on each rank; with a run-time dimension for the greatest value of the first cell.
    pub shapes: Vec<Vec<Vec<i64>>>,
    /// For each class, all values of the run-time dimension that it stands for.
    pub whole: Vec<LiveId>,
    /// Whether epochs differ in tasks, waits and posts: those before the first one may be any.
    pub mixed: bool,
}

impl<'a> World<'a> {
    /// Whether something may go from node to node.
    pub fn is_far(&self) -> bool {
        let sends = |x: &Family| x.leaf.sends();
        let nodes = self.plan.nic.is_some() || self.plan.mesh.axes.iter().any(|a| a.0 == "node");
        nodes || self.plan.families.values().any(sends)
    }

    /// Ranks whose memory and words are looked at.
    pub fn ranks_looked_at(&self) -> usize {
        if self.rotation.is_folded() { 1 } else { self.ranks }
    }
    /// The rank that makes a post, to a word as it is looked at.
    pub fn poster(&self, class: &Class, p: &PostRec) -> u32 {
        let back = self.rotation.back(self.rotation.turn_of(p.word));
        self.rotation.rank(class.tasks[p.task as usize].rank, back)
    }
    /// Number of epochs.
    pub fn epochs(&self) -> u32 {
        self.class_of.len() as u32
    }
    /// The events of an epoch, counted from 1.
    pub fn class(&self, epoch: u32) -> &Class {
        &self.classes[self.class_of[epoch as usize - 1]]
    }
    /// All values of the run-time dimension that an epoch stands for.
    pub fn whole(&self, epoch: u32) -> LiveId {
        self.whole[self.class_of[epoch as usize - 1]]
    }
    pub fn info(&self, family: FamId) -> &FamInfo {
        &self.fams[family.index()]
    }
}
