//! Where the net words and net buffers of a plan lie in an instance's range of the net arena: the same on every rank,
//! in the kernel and on the executor.

use super::{
    entity::{Arena, BufId, FamId, SigId},
    expr::Expr,
    plan::{NicOrdering, Plan, Space, TableSource},
    points::{Points, Region, Result},
    tables::{TableSet, entries},
};
use mk_abi::NetLayout;

/// Alignment of a buffer, as in symmetric memory.
const BUFFER_ALIGN: u64 = 1024;
/// Alignment of what lies between words and buffers.
const LINE: u64 = 128;

/// Places of net words and net buffers.
#[derive(Clone, Debug)]
pub struct NetPlan {
    /// First word of each signal's array, of those that hosts raise.
    pub signals: Arena<SigId, Option<u32>>,
    /// First byte of each net buffer.
    pub buffers: Arena<BufId, Option<u64>>,
    /// What the runtime knows of it.
    pub layout: NetLayout,
}

impl NetPlan {
    /// Of a plan over nodes; none for others.
    ///
    /// # Errors
    /// Where an extent has no value.
    pub fn new(plan: &Plan, points: &Points<'_>) -> Result<Option<NetPlan>> {
        let Some((nic, local)) = plan.nic.and_then(|nic| nic.local.map(|local| (nic, local)))
        else {
            return Ok(None);
        };
        let world = plan.mesh.size();
        let ranks = || 0..world as usize;
        let product = |shape: &[i64]| shape.iter().map(|n| (*n).max(0) as u64).product::<u64>();
        let (mut signals, mut words) = (Arena::new(), 0u64);
        for (id, signal) in plan.signals.iter() {
            if !signal.net {
                signals.push(None);
                continue;
            }
            signals.push(Some(words as u32));
            let mut most = 0;
            for rank in ranks() {
                most = most.max(product(&points.signal_shape(id, rank)?));
            }
            words = (words + most).min(u64::from(u32::MAX - 1));
        }
        let hashes = (4 * words).next_multiple_of(LINE);
        let first = (hashes + 8 * u64::from(world)).next_multiple_of(BUFFER_ALIGN);
        let (mut buffers, mut top) = (Arena::new(), first);
        for (id, buffer) in plan.buffers.iter() {
            if buffer.space != Space::Net {
                buffers.push(None);
                continue;
            }
            buffers.push(Some(top));
            let mut most = 0;
            for rank in ranks() {
                let shape = points.shape(id, rank)?;
                let rows = product(&shape[..shape.len().saturating_sub(1)]);
                let pitch = points.pitch(id, rank)?.max(0) as u64;
                most = most.max(rows * pitch * buffer.dtype.size_bytes());
            }
            top += most.next_multiple_of(BUFFER_ALIGN);
        }
        let layout = NetLayout {
            local,
            in_order: nic.ordering == NicOrdering::InOrder,
            fifo: nic.fifo.max(1).next_power_of_two(),
            lanes: nic.lanes.max(1),
            words: words as u32,
            hashes,
            buffers: first,
            bytes: top,
            message_bytes: longest(plan)?,
        };
        Ok(Some(NetPlan { signals, buffers, layout }))
    }

    /// Byte of a region's first element, in the range. None for memory that is not net.
    ///
    /// # Errors
    /// Where an extent has no value.
    pub fn place(&self, points: &Points<'_>, region: &Region) -> Result<Option<u64>> {
        let Some(base) = self.buffers[region.buffer] else { return Ok(None) };
        let shape = points.shape(region.buffer, region.rank)?;
        let pitch = points.pitch(region.buffer, region.rank)?;
        let last = shape.len().saturating_sub(1);
        let mut rows = 0;
        for (d, (at, _)) in region.dims.iter().enumerate().take(last) {
            rows = rows * shape[d] + at;
        }
        let column = region.dims.last().map_or(0, |d| d.0);
        let element = (rows * pitch + column).max(0) as u64;
        Ok(Some(base + element * points.plan.buffers[region.buffer].dtype.size_bytes()))
    }
}

impl Plan {
    /// Whether a family of sends tells of a node's entry: its messages have no data, whatever the sizes.
    pub fn enters_node(&self, family: FamId) -> bool {
        let f = &self.families[family];
        let none = |a: &super::plan::Access| a.region.iter().any(|(_, n)| *n == Expr::Const(0));
        f.leaf.sends() && f.accesses.iter().all(none)
    }
}

/// Bytes of the longest message: as many rows as any launch may say.
fn longest(plan: &Plan) -> Result<u64> {
    let tables = TableSet::new(plan, |_, id| match &plan.tables[id].source {
        TableSource::Runtime { max, .. } => vec![*max; entries(&plan.tables[id])],
        _ => Vec::new(),
    });
    let (points, mut most) = (Points::new(plan, &tables), 0);
    for (id, family) in plan.families.iter().filter(|(_, f)| f.leaf.sends()) {
        for rank in 0..plan.mesh.size() as usize {
            for task in points.tasks(id, rank, 1)? {
                for access in family.accesses.iter().filter(|a| !a.operand.looks_up()) {
                    let elements = points.region(&task, access)?.map_or(0, |r| r.len());
                    let bytes = plan.buffers[access.buffer].dtype.size_bytes();
                    most = most.max(elements.max(0) as u64 * bytes);
                }
            }
        }
    }
    Ok(most)
}
