//! Attention, and its gradients.

use super::{Cost, Done};
use crate::{
    CostError, Result,
    model::TileRate,
    unroller::Unroller,
    work::{Flow, Kind, Out, Tile, memory},
};
use mk_plan::{AttendTile, Family, Mode, Operand, Point, Schedule, Task};

/// A leaf in whose inner loop queries meet keys.
pub(super) struct Attends {
    /// Rows of a tile, rows of a block of the other side, elements of a head.
    pub block: [u32; 3],
    /// Columns of all products of each block that are as deep as it has rows.
    pub wide: u32,
    pub stages: u32,
    /// Depth of all products of each block with its rows.
    pub deep: u32,
    /// What comes in blocks.
    pub moving: Operand,
}

impl Cost for AttendTile {
    fn jobs(&self, u: &mut Unroller<'_>, task: &Task, _: f64) -> Done {
        let x = u.family(task);
        u.attention(task, x, &attends(self))
    }

    fn length(&self, u: &Unroller<'_>, task: &Task) -> Result<Option<i64>> {
        u.attended(task, &attends(self))
    }
}

fn attends(x: &AttendTile) -> Attends {
    let (block, stages) = (x.block, x.stages);
    Attends { block, stages, deep: block[2], wide: x.value_dim(), moving: Operand::K }
}

impl Unroller<'_> {
    /// Blocks that a tile of attention goes through, with one more for what it begins and ends with, where it goes to
    /// the next CTA that is free; `None` where tiles take turns.
    pub(super) fn attended(&self, task: &Task, attends: &Attends) -> Result<Option<i64>> {
        if self.plan.families[task.family].schedule != Schedule::Dynamic {
            return Ok(None);
        }
        let mut length = 1;
        for i in 0..self.points.inner(task)?.max(1) {
            length += self.blocks(task, i, attends)?;
        }
        Ok(Some(length))
    }

    /// Blocks of the other side that a tile of attention meets at an iteration.
    fn blocks(&self, task: &Task, i: i64, attends: &Attends) -> Result<i64> {
        let [_, others, depth] = attends.block.map(i64::from);
        let block = (others * depth).max(1);
        let accesses = &self.plan.families[task.family].accesses;
        let mut blocks = 0;
        for a in accesses.iter().filter(|a| a.operand == attends.moving) {
            self.points.for_each::<CostError>(task, i, None, a.when.as_ref(), |at| {
                let len = self.points.region(at, a)?.map_or(0, |r| r.len());
                blocks += (len + block - 1) / block;
                Ok(())
            })?;
        }
        Ok(blocks)
    }

    /// A tile of attention, or of its gradients: a job for each chunk, with waits of its own. A block is as long as the
    /// GEMMs in it are in tiles of GEMMs, which is the least that it can be: the exponentials are taken to be
    /// under them.
    pub(super) fn attention(&mut self, task: &Task, x: &Family, attends: &Attends) -> Result<()> {
        if x.inner.is_none() {
            return Err(Unroller::unsupported(task, x));
        }
        let Attends { block: [rows, others, _], stages, deep, wide, .. } = *attends;
        let iterations = self.points.inner(task)?.max(1);
        let known = self.model.tile([rows, others]);
        // A step is 64 deep and `others` wide: scores are as deep as heads, results `others`, and as wide as heads.
        let block_s = f64::from(deep + wide) / 64.0 * known.step_s;
        let mut out = 0.0;
        for a in x.accesses.iter().filter(|a| a.mode != Mode::Read || a.at == Point::Start) {
            out += self.points.region(task, a)?.map_or(0.0, |r| self.bytes(&r));
        }
        for i in 0..iterations {
            let waits = self.waits(task, x, i)?;
            let from = self.work.flows.len();
            let blocks = self.blocks(task, i, attends)?;
            let last = i + 1 == iterations;
            let flow = Flow { resource: memory(task.rank()), bytes: out };
            let out = (last && out > 0.0).then_some(Out { flow, alone_s: 0.0 });
            let main_s = blocks as f64 * block_s;
            let tile_s = if last { known.tile_s } else { 0.0 };
            let rate = TileRate { tile_s, ..known };
            let ahead_s = f64::from(stages) * block_s;
            let none = self.work.posts.len()..self.work.posts.len();
            let posts = if last { self.posts(task, x)? } else { none };
            let kind = Kind::Tile(Tile { rate, ahead_s, overlaps: false, held_s: 0.0, out });
            self.push(task, kind, main_s, from, waits, posts);
        }
        Ok(())
    }
}
