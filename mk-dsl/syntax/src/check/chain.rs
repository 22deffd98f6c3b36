//! Chains: from stage to stage.

use super::args::Args;
use super::checker::{Call, Checker, Value, Wanted};
use super::grouped;
use crate::ast::{Chain, Operand, Stage, Word};
use crate::diag::MAX_SHOWN;
use crate::messages;
use crate::ops::{self, OpKind};
use crate::program::{DType, Op};

impl<'a> Checker<'a, '_> {
    /// The value of a chain; `None` after a report.
    pub(super) fn chain(&mut self, chain: &Chain<'a>) -> Option<Value> {
        let value = self.stages(chain)?;
        if let Some(ring) = &value.ring {
            return self.sink.refuse(ring.span, messages::ring_elsewhere());
        }
        Some(value)
    }

    fn stages(&mut self, chain: &Chain<'a>) -> Option<Value> {
        let mut value = chain.input.and_then(|input| self.input(input, &chain.stages));
        for (i, stage) in chain.stages.iter().enumerate() {
            value = match stage {
                Some(stage) => self.stage(value, stage, &chain.stages[i + 1..]),
                None => None,
            };
        }
        value
    }

    /// What enters a chain.
    fn input(&mut self, input: Operand<'a>, stages: &[Option<Stage<'a>>]) -> Option<Value> {
        let shape = self.shape_before(input, stages);
        let placement = self.infer_input(stages, shape.n_dims());
        let wanted = Wanted { dtype: DType::Bf16, shape, placement };
        // What cannot be read, or is misspelt, may be meant as a `gemm`.
        let may_multiply = stages.first().is_some_and(|stage| {
            let op = stage.as_ref().and_then(|stage| ops::find(stage.name.text));
            op.is_none_or(|op| op.kind == OpKind::Gemm)
        });
        if may_multiply { self.factor(input, wanted) } else { self.value(input, wanted) }
    }

    fn stage(
        &mut self,
        input: Option<Value>,
        stage: &Stage<'a>,
        rest: &[Option<Stage<'a>>],
    ) -> Option<Value> {
        let op = stage.name;
        let Some(info) = ops::find(op.text) else {
            self.unknown_op(op);
            return None;
        };
        let mut input = input;
        if let Some(ring) = input.as_ref().and_then(|x| x.ring.as_ref())
            && !matches!(info.kind, OpKind::Attention | OpKind::AttentionDq | OpKind::AttentionDk)
        {
            self.sink.push(ring.span, messages::ring_elsewhere());
            input = None;
        }
        use OpKind::{Cast, Dequantize, Dispatch, Gather, Gemm, GroupedGemm, Ragged};
        let scaled =
            matches!(info.kind, Dequantize | Dispatch | Gather | Gemm | GroupedGemm | Ragged);
        let takes = scaled || info.kind == Cast;
        if let Some(x) = input.take_if(|x| x.ty.dtype.is_storage() && !takes) {
            let sums = matches!(info.kind, OpKind::ReduceScatter | OpKind::AllReduce);
            let text = messages::storage_only(op.text, &x.label, x.ty.dtype, sums);
            self.sink.push(op.span, text);
        }
        if let Some(x) = input.take_if(|x| x.scales.is_some() && !scaled) {
            self.sink.push(op.span, messages::scaled_elsewhere(op.text, &x.label));
        }
        let ragged = input.as_ref().and_then(|x| x.ragged);
        if ragged.is_some() && !grouped::takes_ragged(info.kind) {
            self.sink.push(op.span, messages::ragged_elsewhere(op.text));
            input = None;
        }
        let call = Call { op, input, args: Args::of(stage), rest };
        let n_before = self.nodes.len();
        let value = self.of_kind(info.kind, call);
        self.report_counts(op, n_before);
        match (value, ragged) {
            // Says anew whose rows they are.
            (value, _) if info.kind == OpKind::Ragged => value,
            // Of tokens.
            (value, _)
                if matches!(
                    info.kind,
                    OpKind::Combine | OpKind::CombineGrad | OpKind::WeighGrad | OpKind::Dropped
                ) =>
            {
                value
            }
            // Of experts.
            (value, _) if info.kind == OpKind::GroupedWgrad => value,
            (Some(value), Some(counts)) => Some(self.keep_ragged(value, counts)),
            (value, _) => value,
        }
    }

    fn of_kind(&mut self, kind: OpKind, call: Call<'_, 'a>) -> Option<Value> {
        match kind {
            OpKind::Ragged => self.ragged(call),
            OpKind::GroupedGemm => self.grouped_gemm(call),
            OpKind::GroupedWgrad => self.grouped_wgrad(call),
            OpKind::Dispatch => self.dispatch(call),
            OpKind::Dropped => self.dropped(call),
            OpKind::Combine => self.combine(call),
            OpKind::CombineGrad => self.combine_grad(call),
            OpKind::Weigh => self.weigh(call),
            OpKind::WeighGrad => self.weigh_grad(call),
            OpKind::Gather => self.gather(call),
            OpKind::ReduceScatter => self.reduce_scatter(call),
            OpKind::AllReduce => self.all_reduce(call),
            OpKind::AllToAll => self.all_to_all(call),
            OpKind::Gemm => self.gemm(call),
            OpKind::Bias => self.bias(call),
            OpKind::Mul => self.mul(call),
            OpKind::Add => self.add(call),
            OpKind::Curve(curve) => self.nonlinear(call, Op::Curve(curve)),
            OpKind::Slope(curve) => self.slope(call, curve),
            OpKind::SwigluGrad => self.swiglu_grad(call),
            OpKind::Swiglu => self.swiglu(call),
            OpKind::RmsNorm => self.rmsnorm(call),
            OpKind::RmsNormGrad => self.rmsnorm_grad(call),
            OpKind::Rope => self.rope(call, false),
            OpKind::RopeGrad => self.rope(call, true),
            OpKind::View => self.view(call),
            OpKind::Scale => self.scale(call),
            OpKind::Cast => self.cast(call),
            OpKind::Quantize => self.quantize(call),
            OpKind::Dequantize => self.dequantize(call),
            OpKind::Ring => self.ring(call),
            OpKind::Attention => self.attention(call),
            OpKind::Lse => self.lse(call),
            OpKind::AttentionStats => self.attention_stats(call),
            OpKind::AttentionDq => self.attention_dq(call),
            OpKind::AttentionDk => self.attention_dk(call),
            OpKind::AttentionDv => self.attention_dv(call),
            OpKind::AttentionDsinks => self.attention_dsinks(call),
        }
    }

    fn unknown_op(&mut self, op: Word<'a>) {
        if self.names.contains_key(op.text) {
            self.sink.push(op.span, messages::not_an_operation(op.text));
            return;
        }
        let suggested = self.sink.len() < MAX_SHOWN;
        self.sink.push(op.span, messages::unknown_op(op.text, suggested));
    }
}
