//! Attention and its gradients.

use super::{Reference, code, flat, mismatch, params::Params, same_rank};
use crate::{Result, gpu::DeviceTensor};
use mk_abi::DType;

/// What [`Reference::attend`] does besides its tensors.
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
    /// The place in the sequence of the first query.
    pub first: i64,
    /// How many queries follow from there.
    pub count: u64,
    /// The place of the query behind those.
    pub second: i64,
    /// Where documents begin, of packed sequences.
    pub documents: Option<&'d DeviceTensor>,
    /// What the sums of each head have the exponential of, too, f32 `[H]`.
    pub sinks: Option<&'d DeviceTensor>,
}

/// The memory of documents, and how many numbers it has; 0 without.
fn begins(documents: Option<&DeviceTensor>) -> [u64; 2] {
    documents.map_or([0, 0], |t| [t.as_arg().ptr(), t.elements()])
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

/// What gradients of attention are computed with besides their tensors.
#[derive(Clone, Copy, Debug)]
pub struct AttendGrad<'d> {
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
    /// Of keys.
    pub keys: Places,
    /// Where documents begin, of packed sequences.
    pub documents: Option<&'d DeviceTensor>,
}

impl Reference {
    /// Attention in fp32: `o` f32 `[B, S, H, E]` and `lse` f32 `[B, H, S]` from `q` `[B, S, H, D]`, `k` `[B, T, G, D]` and
    /// `v` `[B, T, G, E]`, of any float types, `D` and `E` at most 256. All on one rank.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for shapes, types or ranks that do not fit; [`Error::Cuda`](crate::Error::Cuda).
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
        let params = [o, lse, q, k, v].iter().fold(Params::new(), |p, t| p.word(t.as_arg().ptr()));
        let places = [how.first as u64, how.count, how.second as u64];
        let sizes = [&[batch, queries, keys, heads, groups, depth, wide][..], &places].concat();
        let params = sizes.into_iter().chain(begins(how.documents)).fold(params, Params::word);
        let params = params
            .word(begins(how.sinks)[0])
            .half(u32::from(how.causal))
            .half(how.window.unwrap_or(0))
            .half(how.scale.to_bits())
            .half(how.cap.unwrap_or(0.0).to_bits())
            .half(code(q)?)
            .half(code(k)?);
        let rows = batch.saturating_mul(queries).saturating_mul(heads);
        params.run(&kernels.attend, context, [flat(rows.saturating_mul(32)), 1])
    }

    /// Statistics `[B, H, S, 4]` that gradients of attention take, of results and their gradients `[B, S, H, D]` and
    /// logarithms `[B, H, S]`: of each query the logarithm, the sum of `o * d_o`, and two zeros. Statistics and
    /// logarithms are f32. All on one rank.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for shapes, types or ranks that do not fit; [`Error::Cuda`](crate::Error::Cuda).
    pub fn attend_stats(
        &self,
        stats: &DeviceTensor,
        [o, d_o, lse]: [&DeviceTensor; 3],
    ) -> Result<()> {
        let fits = match o.shape() {
            &[batch, queries, heads, _] => {
                d_o.shape() == o.shape()
                    && lse.shape() == [batch, heads, queries]
                    && stats.shape() == [batch, heads, queries, 4]
                    && [lse.dtype(), stats.dtype()] == [DType::F32; 2]
            }
            _ => false,
        };
        let (true, &[batch, queries, heads, depth]) = (fits, o.shape()) else {
            let [o, d_o, lse, stats] = [o, d_o, lse, stats].map(|t| t.shape().to_vec());
            return Err(mismatch(format!(
                "statistics of {o:?}, {d_o:?} and {lse:?} are not {stats:?}"
            )));
        };
        same_rank(&[stats, o, d_o, lse])?;
        let (kernels, context) = self.on(o.rank())?;
        let params =
            [stats, o, d_o, lse].iter().fold(Params::new(), |p, t| p.word(t.as_arg().ptr()));
        let params = [batch, queries, heads, depth].into_iter().fold(params, Params::word);
        let params = params.half(code(o)?).half(code(d_o)?);
        let rows = batch.saturating_mul(queries).saturating_mul(heads);
        params.run(&kernels.attend_stats, context, [flat(rows.saturating_mul(32)), 1])
    }

    /// Gradients of the queries of an attention, f32, of queries, results' gradients, statistics, keys and values. All
    /// on one rank.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for shapes, types or ranks that do not fit; [`Error::Cuda`](crate::Error::Cuda).
    pub fn attend_dq(
        &self,
        dq: &DeviceTensor,
        operands: [&DeviceTensor; 5],
        how: AttendGrad<'_>,
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
    /// [`Error::Shape`](crate::Error::Shape) for shapes, types or ranks that do not fit; [`Error::Cuda`](crate::Error::Cuda).
    pub fn attend_dkv(
        &self,
        [dk, dv]: [&DeviceTensor; 2],
        operands: [&DeviceTensor; 5],
        how: AttendGrad<'_>,
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
        how: AttendGrad<'_>,
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
        let params = all.iter().fold(Params::new(), |p, t| p.word(t.as_arg().ptr()));
        let sizes = [batch, queries, keys, heads, groups, depth, wide];
        let places = [how.queries, how.keys].map(|p| [p.first as u64, p.count, p.second as u64]);
        let params_of =
            sizes.into_iter().chain(places.into_iter().flatten()).chain(begins(how.documents));
        let params = params_of.fold(params, Params::word);
        let params = params.half(u32::from(how.causal)).half(how.window.unwrap_or(0));
        let params = params.half(how.scale.to_bits()).half(how.cap.unwrap_or(0.0).to_bits());
        Ok(params.half(code(q)?).half(code(k)?))
    }
}
