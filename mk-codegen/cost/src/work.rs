//! Jobs on lanes, and what they move over which resource.

use super::model::TileRate;
use mk_plan::FamId;

/// Everything that a run needs.
pub(super) struct Work {
    pub jobs: Vec<Job>,
    /// Jobs of each lane, in order: a range of `jobs`.
    pub lanes: Vec<Lane>,
    pub waits: Vec<Need>,
    pub posts: Vec<Give>,
    pub flows: Vec<Flow>,
    pub words: usize,
    pub ranks: usize,
    /// When the first tasks can begin.
    pub begin_s: f64,
}

/// A CTA, its bulk copies where it also does something else, or an agent of its own.
pub(super) struct Lane {
    pub rank: usize,
    /// Number of the CTA on its rank.
    pub cta: u32,
    pub role: usize,
    pub jobs: std::ops::Range<usize>,
}

/// A task.
pub(super) struct Job {
    pub family: FamId,
    pub linear: u32,
    pub rank: u32,
    pub kind: Kind,
    /// Seconds that the task takes by itself, its stores excluded where they go on under the next task.
    pub main_s: f64,
    pub main_flows: std::ops::Range<usize>,
    pub waits: std::ops::Range<usize>,
    pub posts: std::ops::Range<usize>,
}

impl Job {
    /// The task that it is, or an iteration of.
    pub fn of_task(&self) -> (u32, FamId, u32) {
        (self.rank, self.family, self.linear)
    }
}

/// What a lane does with a task.
pub(super) enum Kind {
    /// Only posts.
    Signal,
    /// Moves or adds, one task after the other.
    Move,
    /// A GEMM's tile.
    Tile(Tile),
}

pub(super) struct Tile {
    pub rate: TileRate,
    /// How much of the next tile is loaded ahead.
    pub ahead_s: f64,
    /// Whether another warpgroup multiplies the next tile, while this one's brings its results out.
    pub overlaps: bool,
    /// What of that holds it up all the same, of matrices that the epilogue reads and saves.
    pub held_s: f64,
    /// The result, if it leaves by itself.
    pub out: Option<Out>,
}

#[derive(Clone, Copy)]
pub(super) struct Out {
    pub flow: Flow,
    /// Seconds that the store takes by itself.
    pub alone_s: f64,
}

/// A wait for a word.
pub(super) struct Need {
    pub word: u32,
    pub count: i64,
}

/// A post.
pub(super) struct Give {
    pub word: u32,
    pub add: i64,
    pub reach: Reach,
}

/// Where the word of a post is.
#[derive(Clone, Copy)]
pub(super) enum Reach {
    Own,
    Peer,
    /// On another node, behind a message.
    Node,
}

/// Bytes over a resource.
#[derive(Clone, Copy)]
pub(super) struct Flow {
    pub resource: u32,
    pub bytes: f64,
}

/// Resources of a rank.
pub(super) const RESOURCES: u32 = 3;

/// Memory of a rank.
pub(super) fn memory(rank: usize) -> u32 {
    RESOURCES * rank as u32
}

/// What a rank sends to others of its node.
pub(super) fn link(rank: usize) -> u32 {
    RESOURCES * rank as u32 + 1
}

/// What its network card sends to other nodes.
pub(super) fn card(rank: usize) -> u32 {
    RESOURCES * rank as u32 + 2
}

/// Whether a resource is a link.
pub(super) fn is_link(resource: u32) -> bool {
    resource % RESOURCES == 1
}

/// Whether it is a network card.
pub(super) fn is_card(resource: u32) -> bool {
    resource % RESOURCES == 2
}

pub(super) fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
