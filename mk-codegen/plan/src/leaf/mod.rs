//! Leaf tasks: the work of a family's tasks. A leaf is one record in one file: its fields, and what follows from them
//! ([`Record`]). Every judge has a file for it, too; [`of_leaf!`](crate::of_leaf) hands it the record.

mod attend;
mod attend_grad;
mod copy;
mod dot;
mod host_copy;
mod mask;
mod merge;
mod mma;
mod nic_send;
mod norm;
mod quant;
mod record;
mod reduce;
mod rope;
mod signal;
mod sink;
mod stats;
mod store;
mod swiglu_grad;
mod tabulate;

pub use attend::{AttendTile, Carry, attend_smem_bytes};
pub use attend_grad::{AttendGradTile, GradOf, attend_grad_smem_bytes};
pub use copy::{COPY_STAGE_BYTES, CopyTile, CopyVia};
pub use dot::DotTile;
pub use host_copy::HostCopy;
pub use mask::Mask;
pub use merge::MergeTile;
pub use mma::{ALayout, BLayout, Consumers, MmaTile};
pub use nic_send::NicSend;
pub use norm::NormTile;
pub use quant::QuantTile;
pub use record::Record;
pub use reduce::ReduceTile;
pub use rope::RopeTile;
pub use signal::{Enter, Signal};
pub use sink::SinkTile;
pub use stats::{STATS, StatsTile};
pub use store::Store;
pub use swiglu_grad::SwigluGradTile;
pub use tabulate::{Tabulate, Tabulation};

use crate::text::{Cursor, Result};
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// What one task does. Few and generic: a new pipeline adds none unless it needs new arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leaf {
    /// [`Signal`].
    Signal,
    /// [`Enter`].
    Enter,
    /// [`CopyTile`].
    CopyTile(CopyTile),
    /// [`MmaTile`].
    MmaTile(MmaTile),
    /// [`ReduceTile`].
    ReduceTile(ReduceTile),
    /// [`DotTile`].
    DotTile(DotTile),
    /// [`SwigluGradTile`].
    SwigluGradTile(SwigluGradTile),
    /// [`AttendTile`].
    AttendTile(AttendTile),
    /// [`StatsTile`].
    StatsTile(StatsTile),
    /// [`SinkTile`].
    SinkTile(SinkTile),
    /// [`MergeTile`].
    MergeTile(MergeTile),
    /// [`AttendGradTile`].
    AttendGradTile(AttendGradTile),
    /// [`NormTile`].
    NormTile(NormTile),
    /// [`RopeTile`].
    RopeTile(RopeTile),
    /// [`QuantTile`].
    QuantTile(QuantTile),
    /// [`NicSend`].
    NicSend,
    /// [`HostCopy`].
    HostCopy,
    /// [`Tabulate`].
    Tabulate(Tabulate),
}

/// Evaluates an expression with the record of a leaf, whatever its type: `of_leaf!(leaf, x => x as &dyn Judge)`. The
/// one match over all leaves; a judge that a leaf is missing in does not compile.
#[macro_export]
macro_rules! of_leaf {
    ($leaf:expr, $x:ident => $do:expr) => {
        $crate::of_leaf!(@ $leaf, $x, $do, [Signal Enter NicSend HostCopy]
            [CopyTile MmaTile ReduceTile AttendTile MergeTile StatsTile AttendGradTile Tabulate NormTile DotTile
             RopeTile QuantTile SinkTile SwigluGradTile])
    };
    (@ $leaf:expr, $x:ident, $do:expr, [$($unit:ident)*] [$($record:ident)*]) => {
        match $leaf {
            $($crate::Leaf::$unit => {
                let $x = &$crate::leaf::$unit;
                $do
            })*
            $($crate::Leaf::$record($x) => $do,)*
        }
    };
}

impl Deref for Leaf {
    type Target = dyn Record;

    fn deref(&self) -> &Self::Target {
        of_leaf!(self, x => x)
    }
}

type Reader = fn(&mut Cursor<'_>) -> Result<Leaf>;

/// Leaves of the text format by name.
const READERS: &[(&str, Reader)] = &[
    ("signal", |_| Ok(Leaf::Signal)),
    ("enter", |_| Ok(Leaf::Enter)),
    ("copy_tile", |c| CopyTile::read(c).map(Leaf::CopyTile)),
    ("mma_tile", |c| MmaTile::read(c).map(Leaf::MmaTile)),
    ("reduce_tile", |c| ReduceTile::read(c).map(Leaf::ReduceTile)),
    ("dot_tile", |_| Ok(Leaf::DotTile(DotTile { plain: false }))),
    ("pick_tile", |_| Ok(Leaf::DotTile(DotTile { plain: true }))),
    ("swiglu_grad_tile", |_| Ok(Leaf::SwigluGradTile(SwigluGradTile))),
    ("attend_tile", |c| AttendTile::read(c).map(Leaf::AttendTile)),
    ("merge_tile", |c| Ok(Leaf::MergeTile(MergeTile { block: c.block()? }))),
    ("stats_tile", |c| Ok(Leaf::StatsTile(StatsTile { block: c.block()? }))),
    ("sink_tile", |_| Ok(Leaf::SinkTile(SinkTile))),
    ("attend_dq_tile", |c| AttendGradTile::read(c, GradOf::Queries).map(Leaf::AttendGradTile)),
    ("attend_dkv_tile", |c| AttendGradTile::read(c, GradOf::Keys).map(Leaf::AttendGradTile)),
    ("attend_dk_tile", |c| AttendGradTile::read(c, GradOf::KeysAlone).map(Leaf::AttendGradTile)),
    ("attend_dv_tile", |c| AttendGradTile::read(c, GradOf::ValuesAlone).map(Leaf::AttendGradTile)),
    ("norm_tile", |c| NormTile::read(c, false).map(Leaf::NormTile)),
    ("norm_grad_tile", |c| NormTile::read(c, true).map(Leaf::NormTile)),
    ("rope_tile", |_| Ok(Leaf::RopeTile(RopeTile { back: false }))),
    ("rope_back_tile", |_| Ok(Leaf::RopeTile(RopeTile { back: true }))),
    ("quantize_tile", |c| QuantTile::read(c, false).map(Leaf::QuantTile)),
    ("dequantize_tile", |c| QuantTile::read(c, true).map(Leaf::QuantTile)),
    ("nic_send", |_| Ok(Leaf::NicSend)),
    ("host_copy", |_| Ok(Leaf::HostCopy)),
    ("tabulate_blocks", |c| Tabulate::read_blocks(c).map(Leaf::Tabulate)),
    ("tabulate_begins", |c| Tabulate::read_begins(c).map(Leaf::Tabulate)),
    ("tabulate_bounds", |c| Tabulate::read_bounds(c).map(Leaf::Tabulate)),
    ("tabulate_meets", |c| Tabulate::read_meets(c).map(Leaf::Tabulate)),
    ("tabulate_route", |c| Tabulate::read_route(c).map(Leaf::Tabulate)),
];

impl Leaf {
    /// Reads a leaf with its settings.
    pub(super) fn read(c: &mut Cursor<'_>) -> Result<Leaf> {
        let names: Vec<_> = READERS.iter().map(|r| r.0).collect();
        let name = c.one_of(&names)?;
        let reader = READERS.iter().find(|r| r.0 == name).ok_or_else(|| c.expected("a leaf"))?;
        reader.1(c)
    }

    /// Whether two leaves of one role run on the same barriers and stages: GEMMs that differ in nothing that these
    /// depend on, gradients of keys beside those of values, and leaves that are equal.
    pub fn shares_ring(&self, other: &Leaf) -> bool {
        match (self, other) {
            (Leaf::MmaTile(a), Leaf::MmaTile(b)) => a.shares_ring(b),
            (Leaf::AttendGradTile(a), Leaf::AttendGradTile(b)) => {
                a.of.side() == b.of.side() && *a == AttendGradTile { of: a.of, ..b.clone() }
            }
            _ => self == other,
        }
    }

    /// The record of a GEMM's tile.
    pub fn product(&self) -> Option<&MmaTile> {
        match self {
            Leaf::MmaTile(x) => Some(x),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EpilogueOp, RoutePart, Side};

    /// One of each leaf.
    fn leaves() -> Vec<Leaf> {
        let mma = |epilogue: Vec<EpilogueOp>| {
            Leaf::MmaTile(MmaTile {
                block: [128, 256, 64],
                stages: 3,
                a_layout: ALayout::Mk,
                b_layout: BLayout::Kn,
                shifted: false,
                store: Store::Tma,
                consumers: Consumers::Cooperative,
                cluster: 1,
                multicast: [1, 1],
                epilogue,
            })
        };
        let grad = |of| {
            Leaf::AttendGradTile(AttendGradTile {
                of,
                block: [128, 64, 64],
                values: None,
                scale: 0,
                stages: 2,
                mask: Mask::Bounds,
                cap: None,
            })
        };
        let attend = |carry| {
            Leaf::AttendTile(AttendTile {
                block: [128, 128, 64],
                values: None,
                heads: 4,
                carry,
                scale: 0,
                stages: 2,
                mask: Mask::Bounds,
                cap: None,
                store: Store::Direct,
            })
        };
        let route = |part| {
            Leaf::Tabulate(Tabulate {
                of: Tabulation::Route {
                    part,
                    experts: 4,
                    ranks: 2,
                    stride: 3,
                    rows: 8,
                    blocks: 4,
                    keep: 0,
                    local: 0,
                },
            })
        };
        let tails = vec![EpilogueOp::Bias, EpilogueOp::Mul, EpilogueOp::Save, EpilogueOp::Carry];
        let copies = [CopyVia::Bulk, CopyVia::Ldst, CopyVia::Gather];
        let mut all = vec![Leaf::Signal, Leaf::Enter, Leaf::NicSend, Leaf::HostCopy, mma(tails)];
        all.extend(copies.map(|via| Leaf::CopyTile(CopyTile { via, stages: 1 })));
        let of = [GradOf::Queries, GradOf::Keys, GradOf::KeysAlone, GradOf::ValuesAlone];
        all.extend(of.map(grad));
        all.extend([Carry::Registers, Carry::Scratch].map(attend));
        all.extend(RoutePart::ALL.iter().map(|part| route(*part)));
        all.push(Leaf::Tabulate(Tabulate { of: Tabulation::Blocks { rows: 8 } }));
        all.push(Leaf::Tabulate(Tabulate { of: Tabulation::Begins { rows: 8 } }));
        let side = Side::Keys;
        let mask = Mask::Causal;
        let of = Tabulation::Bounds { rows: 8, side, mask };
        all.push(Leaf::Tabulate(Tabulate { of }));
        let of = Tabulation::Meets { rows: 8, part: 4, side, mask };
        all.push(Leaf::Tabulate(Tabulate { of }));
        all.push(Leaf::ReduceTile(ReduceTile { epilogue: vec![EpilogueOp::Bias] }));
        all.extend([false, true].map(|back| Leaf::RopeTile(RopeTile { back })));
        all.extend([false, true].map(|grad| Leaf::NormTile(NormTile { eps: 0, grad })));
        let quant = |back| Leaf::QuantTile(QuantTile { narrow: mk_abi::DType::E4m3, back });
        all.extend([false, true].map(quant));
        all.extend([false, true].map(|plain| Leaf::DotTile(DotTile { plain })));
        all.push(Leaf::SwigluGradTile(SwigluGradTile));
        all.push(Leaf::StatsTile(StatsTile { block: [128, 64] }));
        all.push(Leaf::SinkTile(SinkTile));
        all.push(Leaf::MergeTile(MergeTile { block: [128, 64] }));
        all
    }

    /// An operand that the list forgets could have any type.
    #[test]
    fn every_operand_of_a_contract_is_in_one_group() {
        for leaf in leaves() {
            let groups = leaf.elements();
            for spec in leaf.contract().operands {
                let of = groups.iter().filter(|g| g.operands.contains(&spec.operand)).count();
                assert_eq!(of, 1, "{} {}", leaf.name(), spec.operand);
            }
        }
    }
}
