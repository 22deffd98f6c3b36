//! What the agents of one task hand each other: loaded tiles, sums, and the progress of each agent.

use super::{
    Result, SimError,
    math::{Attention, Gradients, Tile},
};
use mk_plan::{Agent, Operand};

/// A moment of a task: 0 is its start, 1 to n the iterations of its inner loop, n + 1 its end.
pub(super) type Phase = i64;

/// Data of one task while any agent is in it.
#[derive(Default)]
pub(super) struct Context {
    /// What was loaded and is still needed.
    pub pieces: Vec<Piece>,
    /// Sum of a GEMM, so far.
    pub sum: Option<Tile>,
    /// State of attention, so far.
    pub attention: Option<Attention>,
    /// Gradients of attention, so far.
    pub gradients: Option<Gradients>,
    /// Phases that each agent has completed.
    passed: Vec<(Agent, Phase)>,
    /// Loads under way, by agent and phase.
    loads: Vec<(Agent, Phase)>,
    /// Agents that have left the task.
    pub left: usize,
}

/// What one repetition of an access has read.
pub(super) struct Piece {
    pub operand: Operand,
    pub phase: Phase,
    /// Value of the access's `each` variable, if it has one.
    pub each: Option<i64>,
    /// Number of the access in its family.
    pub line: usize,
    /// The first row of its buffer that it has.
    pub row: i64,
    pub tile: Tile,
}

impl Context {
    pub fn pass(&mut self, agent: Agent, phase: Phase) {
        match self.passed.iter_mut().find(|p| p.0 == agent) {
            Some(p) => p.1 = phase + 1,
            None => self.passed.push((agent, phase + 1)),
        }
    }

    pub fn begin_load(&mut self, agent: Agent, phase: Phase) {
        self.loads.push((agent, phase));
    }

    pub fn end_load(&mut self, agent: Agent, phase: Phase) {
        if let Some(i) = self.loads.iter().position(|l| *l == (agent, phase)) {
            self.loads.swap_remove(i);
        }
    }

    /// Whether an agent has passed a phase and all that it loaded up to it has arrived.
    pub fn arrived(&self, agent: Agent, phase: Phase) -> bool {
        self.passed.iter().any(|p| p.0 == agent && p.1 > phase)
            && !self.loads.iter().any(|l| l.0 == agent && l.1 <= phase)
    }

    /// The newest piece of an operand up to a phase.
    pub fn latest(&self, operand: Operand, phase: Phase) -> Option<&Tile> {
        let of = self.pieces.iter().filter(|p| p.operand == operand && p.phase <= phase);
        of.max_by_key(|p| p.phase).map(|p| &p.tile)
    }

    /// The first row of the first source.
    pub fn first_row(&self) -> usize {
        let src = self.pieces.iter().find(|p| p.operand == Operand::Src);
        src.map_or(0, |p| p.row.max(0) as usize)
    }

    /// All pieces of an operand, in the order of repetitions.
    pub fn all(&self, operand: Operand) -> impl Iterator<Item = &Tile> {
        let mut list: Vec<_> = self.pieces.iter().filter(|p| p.operand == operand).collect();
        list.sort_by_key(|p| p.each);
        list.into_iter().map(|p| &p.tile)
    }

    /// Sources of a copy or reduction that is stored in `phase`, in the order of steps, repetitions and lines: at the
    /// end of the task all of them, in a step those of the step, or of the start if the step has none.
    pub fn sources(&self, phase: Phase, last: Phase) -> Vec<&Piece> {
        let of = |from: Phase, to: Phase| {
            let mut list: Vec<_> = self
                .pieces
                .iter()
                .filter(|p| p.operand == Operand::Src && (from..=to).contains(&p.phase))
                .collect();
            list.sort_by_key(|p| (p.phase, p.each, p.line));
            list
        };
        let list = if phase == last { of(0, last) } else { of(phase, phase) };
        if list.is_empty() { of(0, 0) } else { list }
    }

    /// The factor of a contribution.
    pub fn factor(&self, of: &Piece) -> Result<Option<f32>> {
        let mut all = self.pieces.iter().filter(|p| p.operand == Operand::W);
        let factor = all.find(|p| (p.phase, p.each) == (of.phase, of.each));
        match factor.map(|p| &p.tile.data[..]) {
            Some([factor]) => Ok(Some(*factor)),
            None => Ok(None),
            _ => Err(misfit("a contribution has no factor of one element")),
        }
    }

    /// Forgets pieces of a phase.
    pub fn forget(&mut self, operands: &[Operand], phase: Phase) {
        self.pieces.retain(|p| p.phase != phase || !operands.contains(&p.operand));
    }

    /// How many numbers it holds.
    pub fn held(&self) -> u64 {
        let pieces = self.pieces.iter().map(|p| &p.tile);
        let state = self.attention.iter().flat_map(|s| [&s.acc, &s.stat]);
        let gradients = self.gradients.iter().flat_map(|g| match g {
            Gradients::Queries(sum) => vec![sum],
            Gradients::Keys { keys, values } => vec![keys, values],
        });
        let all = pieces.chain(&self.sum).chain(state).chain(gradients);
        all.map(|t| t.data.len() as u64).sum()
    }
}

/// A message about operands that do not fit, with the task still to be named.
pub(super) fn misfit(message: impl Into<String>) -> SimError {
    SimError::Operands { place: String::new(), message: message.into() }
}
