//! Flows of data between families: signals before there are signals.

use crate::ir::{Agent, Completion, Each, Expr, FamId, Operand, Point, Var};

/// Data that families write and others read, handed over word by word.
pub(in crate::passes) struct Flow {
    /// Name of the signal.
    pub name: &'static str,
    /// Extents of its array.
    pub shape: Vec<Expr>,
    pub from: Vec<Writer>,
    /// Posts to each word, in each launch.
    pub count: Expr,
    pub to: Vec<Reader>,
}

/// A family that raises words of a flow.
pub(in crate::passes) struct Writer {
    pub family: FamId,
    /// The operand that it writes through, which decides the completion.
    pub operand: Operand,
    /// The word that a task raises, and on which rank.
    pub word: Vec<Expr>,
    pub rank: Expr,
    pub each: Option<Each>,
    pub when: Option<Expr>,
    /// By how much: rows, where a word counts rows and another family posts the credit for those that are missing.
    pub amount: Expr,
    /// When in the task.
    pub at: Point,
    /// The agent that posts, where it is not the last one of the leaf.
    pub by: Option<Agent>,
    /// The completion that it posts after, where it is not that of the operand's proxy.
    pub after: Option<Completion>,
}

/// A family that waits for words of a flow.
pub(in crate::passes) struct Reader {
    pub family: FamId,
    /// The operand that needs the data, which decides the agent that waits.
    pub operand: Operand,
    pub word: Vec<Expr>,
    pub each: Option<Each>,
    pub when: Option<Expr>,
    /// When in the task; at each iteration of the inner loop, where word or condition name it, else at the start.
    pub at: Option<Point>,
    /// Launches back: 1 for memory that alternates between launches.
    pub lag: u32,
}

impl Writer {
    /// One post at the end of each task, on the own rank.
    pub fn new(family: FamId, operand: Operand, word: Vec<Expr>) -> Writer {
        Writer {
            family,
            operand,
            word,
            rank: Var::RANK.into(),
            each: None,
            when: None,
            amount: 1.into(),
            at: Point::End,
            by: None,
            after: None,
        }
    }

    /// On another rank.
    pub fn on(self, rank: Expr) -> Writer {
        Writer { rank, ..self }
    }

    /// On several ranks.
    pub fn on_each(self, rank: Expr, each: Each) -> Writer {
        Writer { rank, each: Some(each), ..self }
    }

    /// Of some tasks only.
    pub fn when(self, when: Option<Expr>) -> Writer {
        Writer { when, ..self }
    }
}

impl Reader {
    /// One word, before the operand is touched.
    pub fn new(family: FamId, operand: Operand, word: Vec<Expr>) -> Reader {
        Reader { family, operand, word, each: None, when: None, at: None, lag: 0 }
    }

    /// Several words.
    pub fn each(self, each: Each) -> Reader {
        Reader { each: Some(each), ..self }
    }

    /// Of some tasks only.
    pub fn when(self, when: Option<Expr>) -> Reader {
        Reader { when, ..self }
    }
}
