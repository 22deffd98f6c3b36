//! Where everything lies: signal words, workspace, scratch, caller tensors.

use super::error::{EmitError, Result};
use mk_abi::{TensorArg, TensorDirection, WorkspaceLayout, device::SymHeader};
use mk_plan::{
    Arena, BufId, Entity, FamId, NetPlan, Plan, Points, Schedule, SigId, Space, in_place,
};
use std::collections::HashMap;

/// Alignment of a signal array: no two arrays share a cache line.
const SIGNAL_ALIGN: u64 = 128;
/// Alignment of a buffer.
const BUFFER_ALIGN: u64 = 1024;
/// Most bytes of a buffer on a rank: more than any GPU has.
const MAX_BYTES: u64 = 1 << 40;

/// Memory layout of a plan.
pub(super) struct Layout {
    /// Word offset of each signal array in symmetric memory; of net words, in the range of the net arena.
    pub signals: Arena<SigId, u64>,
    /// Of families with a dynamic schedule that agents run on end, by the first of them: the word that counts what has
    /// been taken.
    pub taken: HashMap<FamId, u64>,
    /// Place of each buffer.
    pub buffers: Arena<BufId, Place>,
    pub tensors: Vec<TensorArg>,
    pub workspace: WorkspaceLayout,
    /// What lies in net memory, where ranks are on several nodes.
    pub net: Option<NetPlan>,
}

/// Where a buffer is, and how its rows lie.
pub(super) struct Place {
    pub at: At,
    /// Elements from one row to the next, on each rank.
    pub pitch: Vec<i64>,
    /// Extents on each rank.
    pub shape: Vec<Vec<i64>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// Index of the caller tensor.
    Tensor(u32),
    /// Byte offset in symmetric memory.
    Symmetric(u64),
    /// Byte offset in scratch.
    Scratch(u64),
    /// Byte offset in the range of the net arena.
    Net(u64),
}

/// How many words or rows some extents make: kernels number them with an `int`.
fn flat(place: impl Fn() -> String, extents: &[i64], of: &str) -> Result<u64> {
    let n = extents.iter().try_fold(1i64, |n, e| n.checked_mul((*e).max(0)));
    n.filter(|n| *n <= i64::from(i32::MAX)).map(|n| n as u64).ok_or_else(|| {
        let what = format!("has more than {} {of} on a rank", i32::MAX);
        EmitError::unsupported(place(), what)
    })
}

fn no_nodes(place: String) -> EmitError {
    EmitError::unsupported(place, "is of a network, and the plan has no nodes (`nic … local=`)")
}

pub(super) fn layout(plan: &Plan, points: &Points<'_>) -> Result<Layout> {
    let ranks = 0..plan.mesh.size() as usize;
    let net = NetPlan::new(plan, points)?;
    let mut signals = Arena::new();
    let mut top = size_of::<SymHeader>() as u64;
    for (id, s) in plan.signals.iter() {
        if s.net {
            let word = net.as_ref().and_then(|net| net.signals[id]);
            signals
                .push(word.map(u64::from).ok_or_else(|| no_nodes(format!("{id} {:?}", s.name)))?);
            continue;
        }
        signals.push(top / 4);
        let mut words = 0;
        for rank in ranks.clone() {
            let shape = points.signal_shape(id, rank)?;
            words = words.max(flat(|| format!("{id} {:?}", s.name), &shape, "words")?);
        }
        top = (top + words * 4).next_multiple_of(SIGNAL_ALIGN);
    }
    let mut taken = HashMap::new();
    for run in plan.roles.keys().flat_map(|role| plan.runs(role)) {
        if plan.families[run[0]].schedule == Schedule::Dynamic {
            taken.insert(run[0], top / 4);
            top += SIGNAL_ALIGN;
        }
    }
    let zeroed_bytes = top.next_multiple_of(BUFFER_ALIGN);
    let (mut symmetric, mut scratch) = (zeroed_bytes, 0u64);
    let mut buffers = Arena::new();
    let mut tensors: Vec<TensorArg> = Vec::new();
    let mut places = HashMap::new();
    for (id, b) in plan.buffers.iter() {
        let mut place = Place { at: At::Scratch(0), pitch: Vec::new(), shape: Vec::new() };
        let mut bytes = 0;
        for rank in ranks.clone() {
            let shape = points.shape(id, rank)?;
            let pitch = points.pitch(id, rank)?;
            let name = || format!("{id} {:?}", b.name);
            let rows = flat(name, &shape[..shape.len() - 1], "rows")?;
            let all = rows.checked_mul(pitch.max(0) as u64 * b.dtype.size_bytes());
            bytes = bytes.max(all.filter(|n| *n <= MAX_BYTES).ok_or_else(|| {
                EmitError::unsupported(name(), "is larger than the memory of any GPU")
            })?);
            place.shape.push(shape);
            place.pitch.push(pitch);
        }
        let bytes = bytes.next_multiple_of(BUFFER_ALIGN);
        place.at = match b.space {
            Space::In | Space::Out => {
                let direction =
                    if b.space == Space::In { TensorDirection::In } else { TensorDirection::Out };
                let (name, dtype) = (b.name.clone(), b.dtype);
                places.insert(id, tensors.len() as u32);
                let own_rows = b.own_rows;
                tensors.push(TensorArg { name, dtype, direction, in_place: None, own_rows });
                At::Tensor(tensors.len() as u32 - 1)
            }
            Space::Workspace => {
                symmetric += bytes;
                At::Symmetric(symmetric - bytes)
            }
            Space::Scratch => {
                scratch += bytes;
                At::Scratch(scratch - bytes)
            }
            Space::Net => {
                let place = net.as_ref().and_then(|net| net.buffers[id]);
                At::Net(place.ok_or_else(|| no_nodes(format!("{id} {:?}", b.name)))?)
            }
        };
        debug_assert_eq!(buffers.len(), id.index());
        buffers.push(place);
    }
    for (result, parameter) in in_place(plan) {
        if let (Some(result), Some(parameter)) = (places.get(&result), places.get(&parameter))
            && let Some(tensor) = tensors.get_mut(*result as usize)
        {
            tensor.in_place = Some(*parameter);
        }
    }
    let workspace =
        WorkspaceLayout { symmetric_bytes: symmetric, zeroed_bytes, scratch_bytes: scratch };
    Ok(Layout { signals, taken, buffers, tensors, workspace, net })
}
