//! Element types of a leaf's operands: the one list that structure check (and so verifier and executor) and emitter read.
//!
//! A leaf converts between the groups of operands that it has here, and nowhere else: what moves bytes has one group, a product
//! multiplies operands of one type and may store another. The executor rounds to whatever a buffer has; a kernel would not.

use super::{
    check::StructureError,
    entity::FamId,
    leaf::{EPILOGUE_OPERANDS, Leaf, Operand, RoutePart, Tabulation},
    plan::{Access, Family, Plan},
};
use mk_abi::DType;

/// Types that a template takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Any: bytes are moved.
    Any,
    /// What tensor cores multiply.
    Half,
    /// What sums and results are rounded to.
    Float,
    /// Factors, logarithms, statistics, carried state.
    F32,
    /// Entries of tables.
    I32,
    /// A caller's experts of tokens.
    Experts,
}

impl Elements {
    /// The types.
    pub const fn list(self) -> &'static [DType] {
        use DType::{Bf16, F16, F32, I32, I64};
        match self {
            Elements::Any => &[Bf16, F16, F32, I32, I64],
            Elements::Half => &[Bf16, F16],
            Elements::Float => &[Bf16, F16, F32],
            Elements::F32 => &[F32],
            Elements::I32 => &[I32],
            Elements::Experts => &[I32, I64],
        }
    }
}

/// Operands that have one type, and which types these are. Where `first` is given, it is of the first access alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneType {
    /// The operands.
    pub operands: Vec<Operand>,
    /// Their types.
    pub of: Elements,
    /// Types of the first access, which is by itself.
    pub first: Option<Elements>,
}

impl Leaf {
    /// The groups of operands that have one type each. Every operand of the contract is in one.
    pub fn elements(&self) -> Vec<OneType> {
        use Operand::*;
        let group =
            |operands: &[Operand], of| OneType { operands: operands.into(), of, first: None };
        let tails = || EPILOGUE_OPERANDS.map(|e| group(&[e], Elements::Float));
        let mut groups = match self {
            Leaf::Signal | Leaf::Enter => vec![],
            Leaf::CopyTile { .. } | Leaf::HostCopy | Leaf::NicSend => {
                vec![group(&[Src, Dst], Elements::Any)]
            }
            Leaf::MmaTile { .. } => {
                let mut all =
                    vec![group(&[A, B], Elements::Half), group(&[C, AccIn], Elements::Float)];
                all.extend(tails());
                all
            }
            Leaf::ReduceTile { .. } => {
                let mut all = vec![group(&[Src], Elements::Float), group(&[Dst], Elements::Float)];
                all.push(group(&[W], Elements::F32));
                all.extend(tails());
                all
            }
            Leaf::AttendTile { .. } => vec![
                group(&[Q, K, V, O], Elements::Half),
                group(&[Lse], Elements::F32),
                group(&[AccIn, AccOut, StatIn, StatOut], Elements::F32),
            ],
            Leaf::StatsTile { .. } => {
                vec![group(&[O, Do], Elements::Half), group(&[Lse, Dst], Elements::F32)]
            }
            Leaf::AttendGradTile { .. } => vec![
                group(&[Q, K, V, Do, Dq, Dk, Dv], Elements::Half),
                group(&[Stats], Elements::F32),
            ],
            Leaf::Tabulate { of } => {
                let ids = match of {
                    Tabulation::Blocks { .. } => false,
                    Tabulation::Route { part, .. } => {
                        matches!(part, RoutePart::Lists | RoutePart::Wanted | RoutePart::Places)
                    }
                };
                let first = ids.then_some(Elements::Experts);
                vec![
                    OneType { first, ..group(&[Src], Elements::I32) },
                    group(&[Dst], Elements::I32),
                ]
            }
        };
        groups.push(group(&[Tab], Elements::I32));
        groups
    }
}

impl Plan {
    /// Checks that every operand has elements of a type that its leaf takes there.
    ///
    /// # Errors
    /// All accesses to memory of another type, in the order of the text.
    pub fn check_elements(&self) -> Result<(), Vec<StructureError>> {
        let errors: Vec<_> = self.families.keys().flat_map(|id| self.mistyped(id)).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// The mistakes of one family.
    pub(super) fn mistyped(&self, id: FamId) -> Vec<StructureError> {
        let x = &self.families[id];
        let place = format!("{id} {:?}", x.name);
        let all = x.leaf.elements().into_iter().flat_map(|group| self.unlike(x, &group));
        let wrong = |message| StructureError { place: place.clone(), message, too_large: false };
        all.map(wrong).collect()
    }

    fn unlike(&self, x: &Family, group: &OneType) -> Vec<String> {
        let leaf = x.leaf.name();
        let dtype = |a: &Access| self.buffers.get(a.buffer).map(|b| b.dtype);
        let (mut out, mut known): (Vec<String>, Option<(Operand, DType)>) = (Vec::new(), None);
        let accesses = x.accesses.iter().filter(|a| group.operands.contains(&a.operand));
        for (i, a) in accesses.enumerate() {
            let alone = group.first.filter(|_| i == 0);
            let (Some(is), of) = (dtype(a), alone.unwrap_or(group.of)) else { continue };
            let takes = of.list().iter().map(|t| t.name()).collect::<Vec<_>>().join(", ");
            if !of.list().contains(&is) {
                out.push(format!("`{}` of {leaf} is {takes}, and {} {is}", a.operand, a.buffer));
            } else if alone.is_none() {
                let (first, want) = *known.get_or_insert((a.operand, is));
                if want != is {
                    let what = format!(
                        "{leaf} converts nothing, {want} to {is}: `{}` in {} is {is}, and `{first}` {want}",
                        a.operand, a.buffer
                    );
                    out.push(what);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALayout, BLayout, Carry, Consumers, CopyVia, EpilogueOp, GradOf, Mask, Store};

    /// One of each leaf.
    fn leaves() -> Vec<Leaf> {
        let mma = |epilogue: Vec<EpilogueOp>| Leaf::MmaTile {
            block: [128, 256, 64],
            stages: 3,
            a_layout: ALayout::Mk,
            b_layout: BLayout::Kn,
            store: Store::Tma,
            consumers: Consumers::Cooperative,
            cluster: 1,
            multicast: [1, 1],
            epilogue,
        };
        let grad = |of| Leaf::AttendGradTile {
            of,
            block: [128, 64, 64],
            scale: 0,
            stages: 2,
            mask: Mask::Full,
        };
        let attend = |carry| Leaf::AttendTile {
            block: [128, 128, 64],
            carry,
            scale: 0,
            stages: 2,
            mask: Mask::Full,
            store: Store::Direct,
        };
        let route = |part| Leaf::Tabulate {
            of: Tabulation::Route { part, experts: 4, ranks: 2, rows: 8, blocks: 4, keep: 0 },
        };
        let tails = vec![EpilogueOp::Bias, EpilogueOp::Mul, EpilogueOp::Save, EpilogueOp::Carry];
        let copies = [CopyVia::Bulk, CopyVia::Ldst, CopyVia::Gather];
        let mut all = vec![Leaf::Signal, Leaf::Enter, Leaf::NicSend, Leaf::HostCopy, mma(tails)];
        all.extend(copies.map(|via| Leaf::CopyTile { via, stages: 1 }));
        all.extend([GradOf::Queries, GradOf::Keys].map(grad));
        all.extend([Carry::Registers, Carry::Scratch].map(attend));
        all.extend(RoutePart::ALL.iter().map(|part| route(*part)));
        all.push(Leaf::Tabulate { of: Tabulation::Blocks { rows: 8 } });
        all.push(Leaf::ReduceTile { epilogue: vec![EpilogueOp::Bias] });
        all.push(Leaf::StatsTile { block: [128, 64] });
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
