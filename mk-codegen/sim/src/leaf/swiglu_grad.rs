//! Gradients of gated rows.

use super::{Compute, Regions, Values, Write, broadcast};
use crate::context::{Context, misfit};
use crate::math::{silu, slope_of};
use mk_dtype::Curve;
use mk_plan::{Operand, SwigluGradTile};

impl Compute for SwigluGradTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        // Of a row that is not there.
        if regions.is_empty() {
            return Ok(Vec::new());
        }
        let of_step = |operand: Operand| {
            let all = context.pieces.iter().filter(|p| p.operand == operand);
            all.into_iter().find(|p| p.phase == to.phase).map(|p| &p.tile.data[..])
        };
        let [Some(d), Some(h), Some(&[weight])] = Self::READS.map(of_step) else {
            return Err(misfit("a row has not gradients, gates, ups, and one weight"));
        };
        if h.len() != 2 * d.len() {
            return Err(misfit("gates and ups of a row are not as many as its gradients"));
        }
        let (gates, ups) = h.split_at(d.len());
        let activated = gates.iter().zip(ups).map(|(gate, up)| silu(*gate) * up);
        let made: Vec<f32> = match to.operand {
            Operand::E1 => activated.map(|y| weight * y).collect(),
            Operand::E2 => vec![activated.zip(d).fold(0.0, |sum, (y, d)| d.mul_add(y, sum))],
            _ => {
                let d = || d.iter().map(|d| weight * d).zip(gates);
                let of_gates = d().zip(ups);
                let of_gates =
                    of_gates.map(|((d, gate), up)| d * slope_of(Curve::Silu, *gate) * up);
                of_gates.chain(d().map(|(d, gate)| d * silu(*gate))).collect()
            }
        };
        broadcast(regions, |_| Ok(made.clone()))
    }
}
