//! Attention and its gradients.

use super::{Reference, code, flat, mismatch, params::Params, same_rank};
use crate::{Result, gpu::DeviceTensor};
use mk_abi::DType;

/// What attention and its gradients are computed with besides their tensors.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'d> {
    /// Queries see keys at their own place and before.
    pub causal: bool,
    /// The most keys that a query sees of those.
    pub window: Option<u32>,
    /// Factor on scores.
    pub scale: f32,
    /// What scores stay below.
    pub cap: Option<f32>,
    /// Of queries.
    pub queries: Places,
    /// Of keys, for gradients; [`Reference::attend`] takes the keys of a whole sequence.
    pub keys: Places,
    /// Where documents begin, of packed sequences.
    pub documents: Option<&'d DeviceTensor>,
    /// What the sums of each head have the exponential of, too, f32 `[H]`.
    pub sinks: Option<&'d DeviceTensor>,
}

/// Where rows of a tensor are in the sequence: so many from `first` on, the others from `second` on.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The place of the first row.
    pub first: i64,
    /// How many rows follow from there.
    pub count: u64,
    /// The place of the row behind those.
    pub second: i64,
}

impl Places {
    fn words(self) -> [u64; 3] {
        [self.first as u64, self.count, self.second as u64]
    }
}

/// The memory of a tensor that may be there, and how many numbers it has; 0 without.
fn memory(tensor: Option<&DeviceTensor>) -> [u64; 2] {
    tensor.map_or([0, 0], |t| [t.as_arg().ptr(), t.elements()])
}

impl Attend<'_> {
    /// How scores are made of queries and keys, and their types.
    fn scores(&self, q: &DeviceTensor, k: &DeviceTensor) -> Result<[u32; 6]> {
        let (scale, cap) = (self.scale.to_bits(), self.cap.unwrap_or(0.0).to_bits());
        Ok([u32::from(self.causal), self.window.unwrap_or(0), scale, cap, code(q)?, code(k)?])
    }
}

impl Reference {
    /// Attention in fp32: `o` f32 `[B, S, H, E]` and `lse` f32 `[B, H, S]` from `q` `[B, S, H, D]`, `k` `[B, T, G, D]`
    /// and `v` `[B, T, G, E]`, of any float types, `D` and `E` at most 256. All on one rank.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for shapes, types or ranks that do not fit;
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn attend(
        &self,
        [o, lse]: [&DeviceTensor; 2],
        [q, k, v]: [&DeviceTensor; 3],
        how: Attend<'_>,
    ) -> Result<()> {
        let shapes = (q.shape(), k.shape());
        let (&[batch, queries, heads, depth], &[batch_k, keys, groups, depth_k]) = shapes else {
            return Err(mismatch(format!("attention of {:?} to {:?}", q.shape(), k.shape())));
        };
        let wide = v.shape().last().copied().unwrap_or(0);
        let fits = (batch, depth) == (batch_k, depth_k)
            && depth <= 256
            && groups > 0
            && heads.is_multiple_of(groups)
            && (&k.shape()[..3], k.dtype()) == (v.shape().get(..3).unwrap_or(&[]), v.dtype())
            && wide <= 256
            && o.shape() == [batch, queries, heads, wide]
            && lse.shape() == [batch, heads, queries]
            && [o.dtype(), lse.dtype()] == [DType::F32; 2]
            && how.sinks.is_none_or(|s| (s.shape(), s.dtype()) == (&[heads][..], DType::F32));
        if !fits {
            let [q, k, v, o, lse] = [q, k, v, o, lse].map(|t| t.shape().to_vec());
            return Err(mismatch(format!(
                "attention of {q:?} to {k:?} and {v:?} is not {o:?}, {lse:?}"
            )));
        }
        same_rank(&[o, lse, q, k, v])?;
        let (kernels, context) = self.on(o.rank())?;
        let params = Params::of(&[o, lse, q, k, v])
            .words([batch, queries, keys, heads, groups, depth, wide])
            .words(how.queries.words())
            .words(memory(how.documents))
            .words([memory(how.sinks)[0]])
            .halves(how.scores(q, k)?);
        let rows = batch.saturating_mul(queries).saturating_mul(heads);
        params.run(&kernels.attend, context, [flat(rows.saturating_mul(32)), 1])
    }

    /// Statistics `[B, H, S, 4]` that gradients of attention take, of results and their gradients `[B, S, H, D]` and
    /// logarithms `[B, H, S]`: of each query the logarithm, the sum of `o * d_o`, and two zeros. Statistics and
    /// logarithms are f32. All on one rank.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for shapes, types or ranks that do not fit;
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn attend_stats(&self, to: &DeviceTensor, [o, d_o, lse]: [&DeviceTensor; 3]) -> Result<()> {
        let fits = match o.shape() {
            &[batch, queries, heads, _] => {
                d_o.shape() == o.shape()
                    && lse.shape() == [batch, heads, queries]
                    && to.shape() == [batch, heads, queries, 4]
                    && [lse.dtype(), to.dtype()] == [DType::F32; 2]
            }
            _ => false,
        };
        let (true, &[batch, queries, heads, depth]) = (fits, o.shape()) else {
            let [o, d_o, lse, to] = [o, d_o, lse, to].map(|t| t.shape().to_vec());
            return Err(mismatch(format!(
                "statistics of {o:?}, {d_o:?} and {lse:?} are not {to:?}"
            )));
        };
        same_rank(&[to, o, d_o, lse])?;
        let (kernels, context) = self.on(o.rank())?;
        let params = Params::of(&[to, o, d_o, lse]).words([batch, queries, heads, depth]);
        let params = params.halves([code(o)?, code(d_o)?]);
        let rows = batch.saturating_mul(queries).saturating_mul(heads);
        params.run(&kernels.attend_stats, context, [flat(rows.saturating_mul(32)), 1])
    }

    /// Gradients of the queries of an attention, f32, of queries, results' gradients, statistics, keys and values. All
    /// on one rank.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for shapes, types or ranks that do not fit;
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn attend_dq(
        &self,
        dq: &DeviceTensor,
        operands: [&DeviceTensor; 5],
        how: Attend<'_>,
    ) -> Result<()> {
        let [q, ..] = operands;
        let rows = q.elements().checked_div(q.shape().last().copied().unwrap_or(1)).unwrap_or(0);
        let params = self.gradient(&[(dq, q.shape())], operands, how)?;
        let (kernels, context) = self.on(q.rank())?;
        params.run(&kernels.attend_dq, context, [flat(rows.saturating_mul(32)), 1])
    }

    /// The same of keys and values.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for shapes, types or ranks that do not fit;
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn attend_dkv(
        &self,
        [dk, dv]: [&DeviceTensor; 2],
        operands: [&DeviceTensor; 5],
        how: Attend<'_>,
    ) -> Result<()> {
        let [_, _, _, k, v] = operands;
        let rows = k.elements().checked_div(k.shape().last().copied().unwrap_or(1)).unwrap_or(0);
        let params = self.gradient(&[(dk, k.shape()), (dv, v.shape())], operands, how)?;
        let (kernels, context) = self.on(k.rank())?;
        params.run(&kernels.attend_dkv, context, [flat(rows.saturating_mul(32)), 1])
    }

    fn gradient(
        &self,
        results: &[(&DeviceTensor, &[u64])],
        [q, d_o, stats, k, v]: [&DeviceTensor; 5],
        how: Attend<'_>,
    ) -> Result<Params> {
        let shapes = (q.shape(), k.shape());
        let (&[batch, queries, heads, depth], &[batch_k, keys, groups, depth_k]) = shapes else {
            return Err(mismatch(format!("attention of {:?} to {:?}", q.shape(), k.shape())));
        };
        let wide = v.shape().last().copied().unwrap_or(0);
        let fits = (batch, depth) == (batch_k, depth_k)
            && depth <= 256
            && groups > 0
            && heads.is_multiple_of(groups)
            && wide <= 256
            && (&[batch, keys, groups, wide][..], k.dtype()) == (v.shape(), v.dtype())
            && (&[batch, queries, heads, wide][..], q.dtype()) == (d_o.shape(), d_o.dtype())
            && stats.shape() == [batch, heads, queries, 4]
            && stats.dtype() == DType::F32
            && results.iter().all(|(t, shape)| t.shape() == *shape && t.dtype() == DType::F32);
        let made = results.iter().map(|(t, _)| *t);
        if !fits {
            let all = [q, d_o, stats, k, v].map(|t| t.shape().to_vec());
            let made: Vec<_> = made.map(|t| t.shape().to_vec()).collect();
            return Err(mismatch(format!("gradients of attention of {all:?} are not {made:?}")));
        }
        let all: Vec<_> = made.chain([q, d_o, stats, k, v]).collect();
        same_rank(&all)?;
        Ok(Params::of(&all)
            .words([batch, queries, keys, heads, groups, depth, wide])
            .words(how.queries.words())
            .words(how.keys.words())
            .words(memory(how.documents))
            .halves(how.scores(q, k)?))
    }
}
