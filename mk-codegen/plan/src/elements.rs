//! Operands have elements of types that their leaf takes ([`Record::elements`](super::leaf::Record::elements)): the one
//! list that structure check (and so verifier and executor) and emitter read.
//!
//! A leaf converts between the groups of operands that it has here, and nowhere else: what moves bytes has one group, a
//! GEMM multiplies operands of one type and may store another. The executor rounds to whatever a buffer has; a
//! kernel would not.

use super::{
    check::StructureError,
    contract::OneType,
    entity::FamId,
    names::{Mode, Operand},
    plan::{Access, Family, Plan},
};
use mk_abi::DType;

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
            if a.mode == Mode::Accumulate && is.is_storage() {
                out.push(format!("`{}` of {leaf} adds to {}, which is {is}", a.operand, a.buffer));
            } else if !of.has(is) {
                let takes = of.names();
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
