//! What a task has read and computed so far.

use super::{attend::Attention, gradients::Gradients, tile::Tile, unroll::Touch};
use mk_plan::Operand;

/// What a touch has read.
pub(super) struct Piece<E> {
    pub touch: Touch,
    pub tile: Tile<E>,
    /// Blocks of 128 that its rows and columns are in, where these have factors of their own.
    pub blocks: [Vec<usize>; 2],
}

/// What a task has read and computed so far.
pub(super) struct Context<E> {
    pub pieces: Vec<Piece<E>>,
    pub sum: Option<Tile<E>>,
    pub attention: Option<Attention<E>>,
    pub gradients: Option<Gradients<E>>,
}

impl<E> Default for Context<E> {
    fn default() -> Context<E> {
        Context { pieces: Vec::new(), sum: None, attention: None, gradients: None }
    }
}

/// Why a task computes nothing.
pub(super) type Misfit = String;

/// Sources of a copy or reduction that is stored in `phase`: at the end of the task all of them, in a step those of the
/// step, or of the start if the step has none; in the order of steps, repetitions and lines.
pub(super) fn sources(reads: &mut Vec<(usize, Touch)>, phase: u32, last: u32) {
    reads.retain(|(_, t)| t.operand == Operand::Src && !t.write);
    let own = |t: &Touch| if phase == last { t.phase <= last } else { t.phase == phase };
    let any = reads.iter().any(|(_, t)| own(t));
    reads.retain(|(_, t)| if any { own(t) } else { t.phase == 0 });
    reads.sort_by_key(|(_, t)| (t.phase, t.each, t.access));
}

/// Those of the sources that a destination takes: all, or where both repeat, the one of the same repetition.
pub(super) fn paired(sources: &[(usize, Touch)], each: Option<i32>) -> Vec<usize> {
    let pairs = each.is_some() && sources.iter().any(|(_, t)| t.each.is_some());
    sources.iter().filter(|(_, t)| !pairs || t.each == each).map(|(i, _)| *i).collect()
}

impl<E: Copy + PartialEq> Context<E> {
    /// The newest piece of an operand.
    pub fn latest(&self, operand: Operand) -> Option<&Tile<E>> {
        let of = self.pieces.iter().filter(|p| p.touch.operand == operand);
        of.max_by_key(|p| p.touch.phase).map(|p| &p.tile)
    }

    /// The same, with its blocks.
    pub fn latest_piece(&self, operand: Operand) -> Option<&Piece<E>> {
        let of = self.pieces.iter().filter(|p| p.touch.operand == operand);
        of.max_by_key(|p| p.touch.phase)
    }

    pub fn sources(&self, phase: u32, last: u32) -> Vec<(usize, Touch)> {
        let mut list = self.pieces.iter().map(|p| p.touch).enumerate().collect();
        sources(&mut list, phase, last);
        list
    }
}
