//! What leaves compute: consumers take what the loader brought, and every store asks for its values. A file for each
//! leaf.

mod attend;
mod attend_grad;
mod copy;
mod dot;
mod epilogue;
mod idle;
mod merge;
mod mma;
mod norm;
mod quant;
mod reduce;
mod rope;
mod sink;
mod stats;
mod swiglu_grad;
mod tabulate;

use super::{
    context::{Context, Phase, misfit},
    error::Result,
    math::{AttentionStep, Bounds},
};
use mk_abi::DType;
use mk_plan::{Family, Leaf, Mask, Operand, Point, Region, Side, of_leaf};

/// What attention needs to know in one phase besides its operands.
#[derive(Clone, Copy)]
pub(super) struct Attends {
    /// Places in the sequence of the first query and the first key, if they mask.
    pub at: Option<[i64; 2]>,
    /// Type of queries, and so of probabilities.
    pub kind: Option<DType>,
}

impl Attends {
    fn step(
        &self,
        scale: u32,
        mask: Mask,
        cap: Option<u32>,
        bounds: Option<Bounds>,
    ) -> AttentionStep {
        AttentionStep {
            scale: f32::from_bits(scale),
            heads: 1,
            // The first query sees keys up to this many, and each one after it one more.
            seen: self.at.filter(|_| mask != Mask::Full).map(|[q, k]| q - k + 1),
            window: mask.window().map(i64::from),
            bounds,
            cap: cap.map(f32::from_bits),
            probabilities: self.kind.unwrap_or(DType::Bf16),
        }
    }
}

/// The bounds of a tile's rows, where these mask.
fn bounds(
    context: &Context,
    attends: Attends,
    mask: Mask,
    side: Side,
    phase: Phase,
) -> Result<Option<Bounds>> {
    let found = context.latest(Operand::Bounds, phase).filter(|_| mask == Mask::Bounds);
    let (Some(tile), Some([q, k])) = (found, attends.at) else { return Ok(None) };
    let of_keys = side == Side::Keys;
    let first = if of_keys { q } else { k };
    let pair = |row: &[f32]| [0, 1].map(|i| row.get(i).map_or(0, |x| *x as i64) - first);
    let rows: Vec<[i64; 2]> = tile.data.chunks(tile.cols.max(1)).map(pair).collect();
    if rows.windows(2).any(|w| w[1][0] < w[0][0] || w[1][1] < w[0][1]) {
        return Err(misfit("`bounds` descend from one row to the next"));
    }
    Ok(Some(Bounds { rows, of_keys }))
}

/// An access that writes: of which family, to which operand, in which phase of its task, and which phase is the last.
pub(super) struct Write<'p> {
    pub family: &'p Family,
    pub operand: Operand,
    pub phase: Phase,
    pub last: Phase,
}

/// The regions of an access, with the value of `each`.
pub(super) type Regions = Vec<(Option<i64>, Region)>;

/// The values of an access, for each of its regions.
pub(super) type Values = Result<Vec<(Region, Vec<f32>)>>;

/// The arithmetic of a leaf.
trait Compute {
    /// Operands that consumers take: their arithmetic is where the latest of these is.
    fn moving(&self) -> &'static [Operand] {
        &[]
    }

    /// The arithmetic of a task's consumers in one phase.
    fn consume(&self, _: &mut Context, _: Attends, _: Phase) -> Result<()> {
        Ok(())
    }

    /// The values of one access that writes.
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values;
}

fn of(leaf: &Leaf) -> &dyn Compute {
    of_leaf!(leaf, x => x)
}

/// The arithmetic of a task's consumers in one phase.
pub(super) fn consume(
    family: &Family,
    context: &mut Context,
    point: Point,
    phase: Phase,
    attends: Attends,
) -> Result<()> {
    let moving = of(&family.leaf).moving();
    let theirs = family.accesses.iter().filter(|a| moving.contains(&a.operand));
    if theirs.map(|a| a.at).max() != Some(point) {
        return Ok(());
    }
    of(&family.leaf).consume(context, attends, phase)?;
    context.forget(moving, phase);
    Ok(())
}

/// The values of one access that writes, for each of its regions.
pub(super) fn values(to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
    of(&to.family.leaf).values(to, context, regions)
}

/// Rows and columns of a region.
fn matrix(region: &Region) -> (usize, usize) {
    let cols = region.dims.last().map_or(1, |d| d.1.max(1));
    ((region.len() / cols) as usize, cols as usize)
}

fn fits(region: &Region, n: usize) -> Result<()> {
    if region.len() == n as i64 {
        return Ok(());
    }
    Err(misfit(format!(
        "{n} elements do not fill the region {:?} of {}",
        region.dims, region.buffer
    )))
}

/// The same values to every region.
fn broadcast(regions: Regions, mut of: impl FnMut(&Region) -> Result<Vec<f32>>) -> Values {
    let mut list = Vec::with_capacity(regions.len());
    for (_, region) in regions {
        let values = of(&region)?;
        fits(&region, values.len())?;
        list.push((region, values));
    }
    Ok(list)
}
