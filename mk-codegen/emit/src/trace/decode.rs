//! Bytes to records. Nothing here trusts them.

use super::error::TraceError;
use mk_abi::device::{TRACE_AGENTS, TraceHead, TraceKind, TraceRecord};
use mk_abi::{KernelSource, TraceLayout};
use std::mem::{offset_of, size_of};

/// What one rank brought back.
#[derive(Clone, Copy, Debug)]
pub struct RankBuffer<'a> {
    /// The rank.
    pub rank: u32,
    /// Its trace buffer.
    pub bytes: &'a [u8],
    /// Bytes from one rank's symmetric memory to the next, as the rank's GPU maps them.
    pub sym_stride_bytes: u64,
}

/// One record, read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub cta: u32,
    pub agent: u32,
    pub kind: TraceKind,
    pub family: u32,
    pub edge: u32,
    pub task: u32,
    pub at_ns: u64,
    pub begin: u32,
    pub end: u32,
    pub detail: [u32; 2],
}

/// A rank's records, by CTA, agent and order of writing.
pub(super) struct Decoded {
    pub records: Vec<Record>,
    pub lost: u64,
    pub stride_bytes: u64,
}

const HEAD: usize = size_of::<TraceHead>();
const RECORD: usize = size_of::<TraceRecord>();

/// A word of a slice that is long enough.
fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    u32::from_le_bytes(four.unwrap_or([0; 4]))
}

pub(super) fn decode(
    source: &KernelSource,
    layout: &TraceLayout,
    buffer: &RankBuffer<'_>,
    epoch: &mut Option<u32>,
) -> Result<Decoded, TraceError> {
    let (rank, world) = (buffer.rank, source.world_size);
    if rank >= world {
        return Err(TraceError::Rank { rank, world });
    }
    let (expected, given) = (layout.bytes(source.grid), buffer.bytes.len() as u64);
    if given != expected || layout.records == 0 {
        let kernel = source.name.clone();
        return Err(TraceError::Size { kernel, rank, given, expected });
    }
    let capacity = layout.records as usize;
    let mut out =
        Decoded { records: Vec::new(), lost: 0, stride_bytes: buffer.sym_stride_bytes.max(1) };
    for (i, part) in buffer.bytes.chunks_exact(HEAD + capacity * RECORD).enumerate() {
        let (cta, agent) = ((i / TRACE_AGENTS) as u32, (i % TRACE_AGENTS) as u32);
        let damaged = |what: String| TraceError::Damaged { rank, cta, agent, what };
        let field = |offset| word(part, offset);
        let launch = field(offset_of!(TraceHead, epoch));
        if launch == 0 {
            return Err(TraceError::NoLaunch { rank, cta });
        }
        let one = *epoch.get_or_insert(launch);
        if launch != one {
            return Err(TraceError::Mixed { rank, cta, one, other: launch });
        }
        let place = (field(offset_of!(TraceHead, cta)), field(offset_of!(TraceHead, agent)));
        let ring = field(offset_of!(TraceHead, capacity));
        if place != (cta, agent) || ring != layout.records {
            return Err(damaged(format!(
                "its head is that of CTA {}, agent {}, with {ring} records instead of {capacity}",
                place.0, place.1
            )));
        }
        let count = field(offset_of!(TraceHead, count)) as usize;
        let kept = count.min(capacity);
        out.lost += (count - kept) as u64;
        for n in count - kept..count {
            let at = HEAD + n % capacity * RECORD;
            let record = read(&part[at..at + RECORD], cta, agent)
                .ok_or_else(|| damaged(format!("record {n} is of no kind that there is")))?;
            let known = layout.families.iter().any(|f| f.id == record.family);
            if !known && matches!(record.kind, TraceKind::Task) {
                return Err(damaged(format!("record {n} names fam{}", record.family)));
            }
            out.records.push(record);
        }
    }
    Ok(out)
}

fn read(bytes: &[u8], cta: u32, agent: u32) -> Option<Record> {
    let what = word(bytes, offset_of!(TraceRecord, what));
    let detail = offset_of!(TraceRecord, detail);
    Some(Record {
        cta,
        agent,
        kind: TraceKind::from_u32(what & 0xff)?,
        family: what >> 8 & 0xfff,
        edge: what >> 20,
        task: word(bytes, offset_of!(TraceRecord, task)),
        at_ns: u64::from(word(bytes, 0)) | u64::from(word(bytes, 4)) << 32,
        begin: word(bytes, offset_of!(TraceRecord, begin)),
        end: word(bytes, offset_of!(TraceRecord, end)),
        detail: [word(bytes, detail), word(bytes, detail + 4)],
    })
}
