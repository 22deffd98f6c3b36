//! Attention.

use super::{Mask, Record, Store};
use crate::{
    contract::{Allowed, Arity, Contract, EdgeSpec, Elements, OneType, OperandSpec},
    names::{
        Agent::{Consumers, Loader, Storer},
        Mode, Operand, Point, Proxy,
    },
    text::{Cursor, Result},
};
use mk_dtype::HALF_BYTES;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// Where attention keeps its accumulator, maximum and sum between ring steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carry {
    /// In registers: the ring is the task's inner loop.
    Registers,
    /// In declared f32 scratch: each step is a task of its own.
    Scratch,
}

/// ` cap=0x42480000`, if there is one.
pub(super) fn write_cap(cap: Option<u32>, f: &mut Formatter<'_>) -> fmt::Result {
    cap.map_or(Ok(()), |cap| write!(f, " cap=0x{cap:08x}"))
}

pub(super) fn read_cap(c: &mut Cursor<'_>) -> Result<Option<u32>> {
    if c.peek().text == "cap" { c.setting("cap").map(Some) } else { Ok(None) }
}

/// ` values=128`, where heads of values have other elements.
pub(super) fn write_values(values: Option<u32>, f: &mut Formatter<'_>) -> fmt::Result {
    values.map_or(Ok(()), |wide| write!(f, " values={wide}"))
}

pub(super) fn read_values(c: &mut Cursor<'_>) -> Result<Option<u32>> {
    if c.peek().text == "values" { c.setting("values").map(Some) } else { Ok(None) }
}

/// Bytes of a block of queries, and of as many blocks of keys and of values, that are so wide, as there are stages.
pub fn attend_smem_bytes([rows, keys, depth]: [u32; 3], values: u32, stages: u32) -> u32 {
    let blocks = keys.saturating_mul(stages).saturating_mul(depth.saturating_add(values));
    rows.saturating_mul(depth).saturating_add(blocks).saturating_mul(HALF_BYTES)
}

/// One block of queries against keys and values, with a running maximum and sum. The keys of a step are the rows of its
/// `k` access; the leaf goes through them in blocks, the last of which may be short. With a sink sums have its
/// exponential, too. Rows without a key have a result of 0 and a logarithm of -inf, or the sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttendTile {
    /// Queries of a tile, keys of a block, elements of a head.
    pub block: [u32; 3],
    /// Elements of a head of values, and of results, where they are not as many.
    pub values: Option<u32>,
    /// Heads of each query that are rows beside each other, all of the same keys.
    pub heads: u32,
    /// Where the state is between steps.
    pub carry: Carry,
    /// Factor on q·k, by its f32 bits.
    pub scale: u32,
    /// Shared-memory stages, of a block of keys and one of values each.
    pub stages: u32,
    /// Which keys a query attends to.
    pub mask: Mask,
    /// Scores `s` are `cap * tanh(s / cap)`, by its f32 bits.
    pub cap: Option<u32>,
    /// How `o` is written.
    pub store: Store,
}

impl AttendTile {
    pub(super) fn read(c: &mut Cursor<'_>) -> Result<AttendTile> {
        let (block, values) = (c.block()?, read_values(c)?);
        let heads = if c.peek().text == "heads" { c.setting("heads")? } else { 1 };
        let carry = match c.choice("carry", &["registers", "scratch"])? {
            "registers" => Carry::Registers,
            _ => Carry::Scratch,
        };
        let (scale, stages) = (c.setting("scale")?, c.stages()?);
        let (mask, cap) = (Mask::read(c)?, read_cap(c)?);
        let store = Store::read(c)?;
        Ok(AttendTile { block, values, heads, carry, scale, stages, mask, cap, store })
    }

    /// Elements of a head of values.
    pub fn value_dim(&self) -> u32 {
        self.values.unwrap_or(self.block[2])
    }
}

impl Record for AttendTile {
    fn name(&self) -> &'static str {
        "attend_tile"
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let AttendTile { block: [m, n, d], values, heads, carry, scale, stages, mask, cap, store } =
            self;
        let carry = if *carry == Carry::Registers { "registers" } else { "scratch" };
        write!(f, " block={m}x{n}x{d}")?;
        write_values(*values, f)?;
        if *heads != 1 {
            write!(f, " heads={heads}")?;
        }
        write!(f, " carry={carry} scale=0x{scale:08x} stages={stages}")?;
        write!(f, " mask={mask}")?;
        write_cap(*cap, f)?;
        write!(f, " store={}", store.name())
    }

    fn contract(&self) -> Contract {
        let op = OperandSpec::new;
        let tma = self.store == Store::Tma;
        let mut operands = vec![
            op(Operand::Q, Mode::Read, Loader, Proxy::Async, Arity::One),
            op(Operand::K, Mode::Read, Loader, Proxy::Async, Arity::Many),
            op(Operand::V, Mode::Read, Loader, Proxy::Async, Arity::Many),
        ];
        operands.extend(self.mask.operands());
        let own = |o, mode| op(o, mode, Consumers, Proxy::Generic, Arity::Optional);
        if self.carry == Carry::Scratch {
            operands.extend([Operand::AccIn, Operand::StatIn].map(|o| own(o, Mode::Read)));
        }
        // Of a step, or of a part of the keys.
        operands.extend([Operand::AccOut, Operand::StatOut].map(|o| own(o, Mode::Write)));
        let (agent, proxy) = if tma { (Storer, Proxy::Async) } else { (Consumers, Proxy::Generic) };
        operands.push(op(Operand::O, Mode::Write, agent, proxy, Arity::Optional));
        operands.push(own(Operand::Lse, Mode::Write));
        operands.push(own(Operand::Sinks, Mode::Read));
        // Queries come once a task, and `o` leaves once: from where the queries were, or past shared memory by the
        // consumers themselves, who then tell the storer when they have.
        Contract {
            agents: vec![Loader, Consumers, Storer],
            operands,
            edges: vec![
                EdgeSpec::flow("q_full", Loader, Consumers),
                EdgeSpec::once("q_empty", Consumers, Loader),
                EdgeSpec::flow("kv_full", Loader, Consumers),
                EdgeSpec::back("kv_empty", Consumers, Loader, self.stages),
                EdgeSpec { proxy_fence: tma, ..EdgeSpec::flow("staged", Consumers, Storer) },
                EdgeSpec::once("drained", Storer, Consumers),
            ],
            smem_bytes: attend_smem_bytes(self.block, self.value_dim(), self.stages)
                .saturating_add(self.mask.smem_bytes(self.block[0])),
        }
    }

    /// With the state in registers, the steps of the ring are the inner loop.
    fn allowed(&self, _: bool) -> Allowed {
        use Point::{End, Inner, Start};
        let mut operands = vec![
            (Operand::Q, &[Start][..]),
            (Operand::K, &[Start, Inner]),
            (Operand::V, &[Start, Inner]),
            (Operand::O, &[End]),
            (Operand::Lse, &[End]),
            (Operand::Sinks, &[Start]),
        ];
        operands.extend([Operand::AccIn, Operand::StatIn].map(|o| (o, &[Start][..])));
        operands.extend([Operand::AccOut, Operand::StatOut].map(|o| (o, &[End][..])));
        operands.extend(self.mask.points());
        Allowed {
            operands,
            waits: vec![(Loader, Start), (Loader, Inner), (Consumers, Start)],
            posts: vec![(Consumers, Inner), (Consumers, End), (Storer, End)],
            inner: self.carry == Carry::Registers,
        }
    }

    fn types(&self) -> Vec<OneType> {
        use Operand::{AccIn, AccOut, Bounds, K, Lse, O, Q, Sinks, Span, StatIn, StatOut, V};
        vec![
            OneType::new(&[Bounds, Span], Elements::I32),
            OneType::new(&[Q, K, V, O], Elements::Half),
            OneType::new(&[Lse, Sinks], Elements::F32),
            OneType::new(&[AccIn, AccOut, StatIn, StatOut], Elements::F32),
        ]
    }

    fn through_tma(&self) -> Vec<Operand> {
        let stored = (self.store == Store::Tma).then_some(Operand::O);
        [Operand::Q, Operand::K, Operand::V].into_iter().chain(stored).collect()
    }

    fn pipeline(&self) -> Option<(&[u32], u32)> {
        Some((&self.block, self.stages))
    }

    fn mask(&self) -> Option<Mask> {
        Some(self.mask)
    }

    fn has_dynamic_schedule(&self) -> bool {
        true
    }
}
