//! What agents did, and on which clocks.

/// A thread of control of a CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Agent {
    /// Fills the ring.
    Loader,
    /// Sends tiles, or writes copies.
    Storer,
    /// Announces the launch.
    Enter,
    /// The CTA as a whole.
    Frame,
    /// A warpgroup that computes, or adds up; the first also copies.
    Compute(u32),
}

impl Agent {
    pub(super) fn new(place: u32) -> Agent {
        match place {
            0 => Agent::Loader,
            1 => Agent::Storer,
            2 => Agent::Enter,
            3 => Agent::Frame,
            n => Agent::Compute(n - 4),
        }
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Agent::Loader => "loader",
            Agent::Storer => "storer",
            Agent::Enter => "enter",
            Agent::Frame => "cta",
            Agent::Compute(0) => "compute 0",
            Agent::Compute(_) => "compute 1",
        }
    }

    pub(super) fn place(self) -> u32 {
        match self {
            Agent::Loader => 0,
            Agent::Storer => 1,
            Agent::Enter => 2,
            Agent::Frame => 3,
            Agent::Compute(n) => 4 + n,
        }
    }
}

/// A signal word: whose memory it is in, and at which byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word {
    /// Whose.
    pub rank: u32,
    /// Bytes from the start of the rank's symmetric memory.
    pub offset: u64,
}

/// What an agent did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// The CTA was in the kernel.
    Cta,
    /// A task.
    Task {
        /// The family.
        family: u32,
        /// Linear index in the role.
        task: u32,
        /// Nanoseconds at internal edges: `drained` second, all others first.
        stalled: [f64; 2],
    },
    /// A wait for a signal.
    Wait {
        /// The family.
        family: u32,
        /// The edge.
        edge: u32,
        /// The task.
        task: u32,
        /// The word.
        on: Word,
        /// Whether it is the launch before that the wait asks for.
        before: bool,
    },
    /// A post, from before the word was raised.
    Post {
        /// The family.
        family: u32,
        /// The edge.
        edge: u32,
        /// The task.
        task: u32,
        /// The word.
        to: Word,
    },
    /// The posts of a rank's entry, one to each rank.
    Enter {
        /// The edge.
        edge: u32,
        /// The byte in every rank's symmetric memory.
        offset: u64,
    },
}

/// Something with a begin and an end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The rank.
    pub rank: u32,
    /// The CTA.
    pub cta: u32,
    /// Who.
    pub agent: Agent,
    /// What.
    pub what: What,
    /// Nanoseconds since the first CTA of any rank began.
    pub begin: f64,
    /// Likewise.
    pub end: f64,
}

impl Span {
    /// Nanoseconds.
    pub fn length(&self) -> f64 {
        self.end - self.begin
    }
}

/// What is known of a rank's clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankClock {
    /// The rank.
    pub rank: u32,
    /// Nanoseconds from one tick of its timer to the next, as seen in the records.
    pub tick_ns: u64,
    /// Cycles per microsecond.
    pub mhz: f64,
    /// Records that no longer were in a ring.
    pub lost: u64,
    /// Records that were made after one with a later time: the timer went back.
    pub disordered: u64,
}
