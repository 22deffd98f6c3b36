//! Rows that TMA takes: those of the operands that GEMMs and attention load and store through tensor maps (PTX ISA,
//! "Tensors": strides are multiples of 16 bytes).

use super::{
    check::StructureError,
    points::{Points, Result},
};
use std::collections::BTreeSet;

/// What strides of a tensor map are multiples of.
const STRIDE_BYTES: i64 = 16;

impl Points<'_> {
    /// The operands whose rows TMA cannot take: not a multiple of 16 bytes apart on some rank, or as far apart as a
    /// launch says.
    ///
    /// # Errors
    /// Where a pitch has no value.
    pub fn rows_for_tma(&self) -> Result<Vec<StructureError>> {
        let mut out = Vec::new();
        for (id, x) in self.plan.families.iter() {
            let loaded = x.leaf.through_tma();
            let buffers = x.accesses.iter().filter(|a| loaded.contains(&a.operand));
            let buffers: BTreeSet<_> = buffers.map(|a| (a.buffer, a.operand)).collect();
            for (buffer, operand) in buffers {
                let b = &self.plan.buffers[buffer];
                if b.shape.len() < 2 {
                    continue;
                }
                let row = b.pitch.as_ref().or(b.shape.last());
                let varies = self.plan.dims.iter().any(|(dim, d)| {
                    d.runtime_max.is_some() && row.is_some_and(|row| row.names_dim(dim))
                });
                let mut wrong = varies.then(|| "as many elements as a launch says".to_string());
                for rank in 0..self.plan.mesh.size() as usize {
                    let pitch = self.pitch(buffer, rank)?;
                    let bytes = pitch.saturating_mul(b.dtype.size_bytes() as i64);
                    if bytes % STRIDE_BYTES != 0 {
                        wrong.get_or_insert(format!("{bytes} bytes"));
                    }
                }
                if let Some(wrong) = wrong {
                    let message = format!(
                        "`{operand}` goes through TMA, and rows of {buffer} {:?} are {wrong} apart: give it a pitch \
                         that is a multiple of {STRIDE_BYTES} bytes",
                        b.name
                    );
                    let place = format!("{id} {:?}", x.name);
                    out.push(StructureError { place, message, too_large: false });
                }
            }
        }
        Ok(out)
    }
}
