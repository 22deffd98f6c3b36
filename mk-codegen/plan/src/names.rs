//! Who acts in a task, on what, when and how.

use serde::{Deserialize, Serialize};

macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        $(#[$meta])*
        pub enum $name { $($(#[$vmeta])* $variant,)* }
        impl $name {
            /// Every value.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// Every name.
            pub const NAMES: &'static [&'static str] = &[$($text),*];
            /// The name in the text format.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
            /// Reads back what [`Self::name`] gives.
            pub fn from_name(name: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|v| v.name() == name)
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use names;

names! {
    /// A thread of control inside a task.
    #[serde(rename_all = "snake_case")]
    Agent {
        /// Issues loads into shared memory.
        Loader = "loader",
        /// Does the arithmetic.
        Consumers = "consumers",
        /// Writes results back.
        Storer = "storer",
        /// Loads and stores through registers.
        Copier = "copier",
        /// The one lane of a task that only signals.
        Lead = "lead",
        /// Puts commands into the fifo.
        Issuer = "issuer",
        /// The sending host's proxy thread.
        Sender = "sender",
        /// The receiving host's proxy thread, acting for this task on the rank that it sends to.
        Receiver = "receiver",
        /// The host thread that drives a copy engine.
        Engine = "engine",
    }
}

impl Operand {
    /// Whether it is entries of a table: they say what a task does, and no task moves them.
    pub const fn looks_up(self) -> bool {
        matches!(self, Operand::Tab | Operand::Bounds | Operand::Span)
    }
}

names! {
    /// A side of attention.
    #[serde(rename_all = "snake_case")]
    Side {
        /// Queries.
        Queries = "queries",
        /// Keys and values.
        Keys = "keys",
    }
}

names! {
    /// What an access is to its leaf.
    #[serde(rename_all = "snake_case")]
    Operand {
        /// Left matrix, `[m, k]`.
        A = "a",
        /// Right matrix, `[k, n]` (or `[n, k]`).
        B = "b",
        /// Result, `[m, n]`.
        C = "c",
        /// Operand of the first epilogue operation that has one.
        E0 = "e0",
        /// Operand of the second epilogue operation that has one.
        E1 = "e1",
        /// Operand of the third epilogue operation that has one.
        E2 = "e2",
        /// Operand of the fourth epilogue operation that has one.
        E3 = "e3",
        /// Source of a copy or a reduction.
        Src = "src",
        /// Destination of a copy or a reduction.
        Dst = "dst",
        /// Factor of each source of a reduction: one element for each repetition.
        W = "w",
        /// Queries, `[rows, d]`.
        Q = "q",
        /// Keys, `[cols, d]`.
        K = "k",
        /// Values, `[cols, d]`.
        V = "v",
        /// Attention output, `[rows, d]`.
        O = "o",
        /// Logarithm of the sum of a row's exponentials, `[rows]`.
        Lse = "lse",
        /// What the sums of a head's rows have the exponential of, too, f32 `[1]`.
        Sinks = "sinks",
        /// Of each row of a tile, the first row of the other side that it meets and the one behind the last, i32
        /// `[rows, 2]`; both ascend.
        Bounds = "bounds",
        /// The same, of who brings the other side.
        Span = "span",
        /// Gradients of attention's results, `[rows, d]`.
        Do = "do",
        /// Statistics of queries, f32 `[rows, 4]`: `lse`, the product of result and gradient, and two zeros.
        Stats = "stats",
        /// Gradients of queries, `[rows, d]`.
        Dq = "dq",
        /// Gradients of keys, `[cols, d]`.
        Dk = "dk",
        /// Gradients of values, `[cols, d]`.
        Dv = "dv",
        /// Carried accumulator read, f32 `[rows, d]`; or the sums that a GEMM goes on with, `[m, n]` each.
        AccIn = "acc_in",
        /// Carried accumulator written, f32 `[rows, d]`.
        AccOut = "acc_out",
        /// Carried row maximum and row sum read, f32 `[rows, 2]`.
        StatIn = "stat_in",
        /// Carried row maximum and row sum written, f32 `[rows, 2]`.
        StatOut = "stat_out",
        /// Entries of tables in memory that expressions of the task look up: read by the leaf's first agent behind
        /// those of its waits that look nothing up, and before all others.
        Tab = "tab",
    }
}

names! {
    /// When in a task something happens.
    Point {
        /// Before the inner loop.
        Start = "start",
        /// In every iteration of the inner loop.
        Inner = "inner",
        /// After the inner loop.
        End = "end",
    }
}

names! {
    /// What an access does.
    Mode {
        /// Reads.
        Read = "read",
        /// Writes.
        Write = "write",
        /// Adds to what is there, in any order (reduce-on-write).
        Accumulate = "accumulate",
    }
}

names! {
    /// Which later reads and writes a wait protects.
    Proxy {
        /// Ordinary loads and stores.
        Generic = "generic",
        /// TMA and bulk copies: the wait is followed by a proxy fence.
        Async = "async",
        /// The network card or a copy engine, driven by the host.
        Host = "host",
    }
}

names! {
    /// What follows from a routing.
    #[serde(rename_all = "snake_case")]
    RoutePart {
        /// Which tokens of a chunk go to each expert ([`route_list`](super::route_list)).
        Lists = "lists",
        /// Which tokens the rank has an expert of, as many entries for each rank's.
        Wanted = "wanted",
        /// Rows of each of the rank's experts; where rows of each chunk begin; and the blocks.
        Counts = "counts",
        /// The token of the world in each packed row of the rank.
        Sources = "sources",
        /// Rank and packed row of each slot of each of the rank's tokens.
        Places = "places",
        /// For each of those 1 if its row is there, 0 if it was dropped. Made with the places.
        Kept = "kept",
        /// Which slot of its token each packed row of the rank is.
        Slots = "slots",
        /// How many rows of the rank's tokens are dropped: a result.
        Dropped = "dropped",
        /// How many tokens of each chunk each node has an expert of: one where it has none. Made with those below.
        Crossing = "crossing",
        /// Which tokens of each of the rank's chunks each node has an expert of, in their order.
        Leaving = "leaving",
        /// The number of each token of the world among those of its chunk that the rank's node has an expert of.
        Coming = "coming",
    }
}
