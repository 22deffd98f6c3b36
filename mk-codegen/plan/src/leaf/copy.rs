//! Copies by a CTA.

use super::{Leaf, Record};
use crate::{
    contract::{Allowed, Arity, Contract, EdgeSpec, Elements, OneType, OperandSpec},
    names::{
        Agent::{Copier, Loader, Storer},
        Mode, Operand, Point, Proxy,
    },
    text::{Cursor, Result},
};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// Bytes of one stage of a bulk copy.
pub const COPY_STAGE_BYTES: u32 = 16 * 1024;

/// How a copy moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyVia {
    /// Bulk copies through shared memory; each row's bytes, addresses and pitch are multiples of 16.
    Bulk,
    /// Ordinary loads and stores: any pitch.
    Ldst,
    /// Ordinary loads and stores of rows that are each looked up.
    Gather,
}

/// Copies `src` to every `dst`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyTile {
    /// How.
    pub via: CopyVia,
    /// Shared-memory stages, for bulk copies.
    pub stages: u32,
}

impl CopyVia {
    /// A copy by these means.
    pub fn leaf(self, stages: u32) -> Leaf {
        Leaf::CopyTile(CopyTile { via: self, stages })
    }
}

impl CopyTile {
    pub(super) fn read(c: &mut Cursor<'_>) -> Result<CopyTile> {
        let via = match c.choice("via", &["bulk", "ldst", "gather"])? {
            "bulk" => CopyVia::Bulk,
            "gather" => CopyVia::Gather,
            _ => CopyVia::Ldst,
        };
        Ok(CopyTile { via, stages: c.stages()? })
    }
}

impl Record for CopyTile {
    fn name(&self) -> &'static str {
        "copy_tile"
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let via = match self.via {
            CopyVia::Bulk => "bulk",
            CopyVia::Ldst => "ldst",
            CopyVia::Gather => "gather",
        };
        write!(f, " via={via} stages={}", self.stages)
    }

    fn contract(&self) -> Contract {
        let ends = |reader, writer, proxy| {
            vec![
                OperandSpec::new(Operand::Src, Mode::Read, reader, proxy, Arity::Many),
                OperandSpec::new(Operand::Dst, Mode::Write, writer, proxy, Arity::Many),
                OperandSpec::tab(reader),
            ]
        };
        if self.via != CopyVia::Bulk {
            return Contract::of_one(Copier, ends(Copier, Copier, Proxy::Generic));
        }
        Contract {
            agents: vec![Loader, Storer],
            operands: ends(Loader, Storer, Proxy::Async),
            edges: vec![
                EdgeSpec::flow("full", Loader, Storer),
                EdgeSpec::back("empty", Storer, Loader, self.stages),
            ],
            smem_bytes: self.stages.saturating_mul(COPY_STAGE_BYTES),
        }
    }

    fn allowed(&self, _: bool) -> Allowed {
        use Point::{End, Start};
        let (waits, by) = match self.via {
            CopyVia::Bulk => (vec![(Loader, Start), (Storer, Start)], Storer),
            CopyVia::Ldst | CopyVia::Gather => (vec![(Copier, Start)], Copier),
        };
        let operands = vec![
            (Operand::Src, &[Start][..]),
            (Operand::Dst, &[Start, End]),
            (Operand::Tab, &[Start]),
        ];
        Allowed { operands, waits, posts: vec![(by, End)], inner: false }
    }

    fn types(&self) -> Vec<OneType> {
        vec![OneType::new(&[Operand::Src, Operand::Dst], Elements::Any)]
    }

    fn pipeline(&self) -> Option<(&[u32], u32)> {
        Some((&[], self.stages))
    }

    fn copies(&self) -> bool {
        true
    }

    fn has_dynamic_schedule(&self) -> bool {
        self.via != CopyVia::Bulk
    }
}
