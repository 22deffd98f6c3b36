//! Gradients of attention.

use super::{
    Mask, Record, STATS,
    attend::{read_cap, read_values, write_cap, write_values},
};
use crate::{
    contract::{Allowed, Arity, Contract, EdgeSpec, Elements, OneType, OperandSpec},
    names::{
        Agent::{Consumers, Loader, Storer},
        Mode, Operand, Point, Proxy, Side,
    },
    text::{Cursor, Result},
};
use mk_dtype::{F32_BYTES, HALF_BYTES};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// What gradients of attention are of, which is what a tile of them keeps: the other side comes in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GradOf {
    /// Queries.
    Queries,
    /// Keys and values.
    Keys,
    /// Keys alone: of wide heads, whose other sum has no room beside.
    KeysAlone,
    /// Values alone.
    ValuesAlone,
}

impl GradOf {
    /// Operands that a task has from its start on.
    pub const fn held(self) -> &'static [Operand] {
        match self {
            GradOf::Queries => &[Operand::Q, Operand::Do, Operand::Stats],
            _ => &[Operand::K, Operand::V],
        }
    }

    /// Operands that come in blocks.
    pub const fn moving(self) -> &'static [Operand] {
        match self {
            GradOf::Queries => &[Operand::K, Operand::V],
            _ => &[Operand::Q, Operand::Do, Operand::Stats],
        }
    }

    /// The side that a tile is of.
    pub const fn side(self) -> Side {
        match self {
            GradOf::Queries => Side::Queries,
            _ => Side::Keys,
        }
    }

    /// Results.
    pub const fn made(self) -> &'static [Operand] {
        match self {
            GradOf::Queries => &[Operand::Dq],
            GradOf::Keys => &[Operand::Dk, Operand::Dv],
            GradOf::KeysAlone => &[Operand::Dk],
            GradOf::ValuesAlone => &[Operand::Dv],
        }
    }
}

/// Bytes of a tile of attention's gradients, and of as many blocks of the other side as there are stages, of values
/// that are so wide; and of the queries' statistics.
pub fn attend_grad_smem_bytes(
    of: GradOf,
    [rows, others, depth]: [u32; 3],
    values: u32,
    stages: u32,
) -> u32 {
    let moved = others.saturating_mul(stages);
    let queries = if of == GradOf::Queries { rows } else { moved };
    let elements = rows.saturating_add(moved).saturating_mul(depth.saturating_add(values));
    let stats = queries.saturating_mul(STATS * F32_BYTES);
    elements.saturating_mul(HALF_BYTES).saturating_add(stats)
}

/// Gradients of one block of queries, against keys and values; or of one of keys and values, against queries. What the
/// other side has at a step is the rows of its accesses; the leaf goes through them in blocks, the last of which may be
/// short. Weights are `exp(scale * q·k - lse)`, 0 in rows whose `lse` is -inf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttendGradTile {
    /// Gradients of what.
    pub of: GradOf,
    /// Rows of a tile, rows of a block of the other side, elements of a head.
    pub block: [u32; 3],
    /// As [`AttendTile`](super::AttendTile) has them.
    pub values: Option<u32>,
    /// Factor on q·k, by its f32 bits.
    pub scale: u32,
    /// Shared-memory stages, of a block of the other side each.
    pub stages: u32,
    /// Which keys a query attends to.
    pub mask: Mask,
    /// As [`AttendTile`](super::AttendTile) has it.
    pub cap: Option<u32>,
}

impl AttendGradTile {
    pub(super) fn read(c: &mut Cursor<'_>, of: GradOf) -> Result<AttendGradTile> {
        let (block, values, scale) = (c.block()?, read_values(c)?, c.setting("scale")?);
        let (stages, mask) = (c.stages()?, Mask::read(c)?);
        Ok(AttendGradTile { of, block, values, scale, stages, mask, cap: read_cap(c)? })
    }

    /// Elements of a head of values.
    pub fn value_dim(&self) -> u32 {
        self.values.unwrap_or(self.block[2])
    }
}

impl Record for AttendGradTile {
    fn name(&self) -> &'static str {
        match self.of {
            GradOf::Queries => "attend_dq_tile",
            GradOf::Keys => "attend_dkv_tile",
            GradOf::KeysAlone => "attend_dk_tile",
            GradOf::ValuesAlone => "attend_dv_tile",
        }
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let AttendGradTile { block: [m, n, d], values, scale, stages, mask, cap, .. } = self;
        write!(f, " block={m}x{n}x{d}")?;
        write_values(*values, f)?;
        write!(f, " scale=0x{scale:08x} stages={stages} mask={mask}")?;
        write_cap(*cap, f)
    }

    fn contract(&self) -> Contract {
        let read =
            |o: &Operand, arity| OperandSpec::new(*o, Mode::Read, Loader, Proxy::Async, arity);
        let arity = if self.of == GradOf::Keys { Arity::Optional } else { Arity::One };
        let made = self.of.made().iter();
        let made =
            made.map(|o| OperandSpec::new(*o, Mode::Write, Consumers, Proxy::Generic, arity));
        let held = self.of.held().iter().map(|o| read(o, Arity::One));
        let moving = self.of.moving().iter().map(|o| read(o, Arity::Many));
        let [own, other] = match self.of {
            GradOf::Queries => [["q_full", "q_empty"], ["kv_full", "kv_empty"]],
            _ => [["kv_full", "kv_empty"], ["q_full", "q_empty"]],
        };
        // Consumers store past shared memory, and tell the storer when they have.
        Contract {
            agents: vec![Loader, Consumers, Storer],
            operands: held.chain(moving).chain(self.mask.operands()).chain(made).collect(),
            edges: vec![
                EdgeSpec::flow(own[0], Loader, Consumers),
                EdgeSpec::once(own[1], Consumers, Loader),
                EdgeSpec::flow(other[0], Loader, Consumers),
                EdgeSpec::back(other[1], Consumers, Loader, self.stages),
                EdgeSpec::flow("staged", Consumers, Storer),
                EdgeSpec::once("drained", Storer, Consumers),
            ],
            smem_bytes: attend_grad_smem_bytes(self.of, self.block, self.value_dim(), self.stages)
                .saturating_add(self.mask.smem_bytes(self.block[0])),
        }
    }

    fn allowed(&self, _: bool) -> Allowed {
        use Point::{End, Inner, Start};
        let held = self.of.held().iter().map(|o| (*o, &[Start][..]));
        let moving = self.of.moving().iter().map(|o| (*o, &[Start, Inner][..]));
        let made = self.of.made().iter().map(|o| (*o, &[End][..]));
        Allowed {
            operands: held.chain(moving).chain(self.mask.points()).chain(made).collect(),
            waits: vec![(Loader, Start), (Loader, Inner)],
            posts: vec![(Storer, End)],
            inner: true,
        }
    }

    fn types(&self) -> Vec<OneType> {
        use Operand::{Bounds, Dk, Do, Dq, Dv, K, Q, Span, Stats, V};
        vec![
            OneType::new(&[Bounds, Span], Elements::I32),
            OneType::new(&[Q, K, V, Do, Dq, Dk, Dv], Elements::Half),
            OneType::new(&[Stats], Elements::F32),
        ]
    }

    fn through_tma(&self) -> Vec<Operand> {
        [self.of.held(), self.of.moving()].concat()
    }

    fn pipeline(&self) -> Option<(&[u32], u32)> {
        Some((&self.block, self.stages))
    }

    fn mask(&self) -> Option<Mask> {
        Some(self.mask)
    }

    fn queries_move(&self) -> bool {
        self.of.side() == Side::Keys
    }

    fn has_dynamic_schedule(&self) -> bool {
        true
    }
}
