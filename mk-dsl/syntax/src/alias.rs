//! Names of operations in torch, JAX, NCCL and papers, and what to write here.

use crate::ops::folded;

/// Words for one thing.
struct Alias {
    /// As others write them; case and underscores do not count.
    names: &'static [&'static str],
    says: Says,
}

/// What to do about a name.
#[derive(Clone, Copy)]
enum Says {
    /// This operation does it; a pipeline that is accepted shows how.
    Write { op: &'static str, like: &'static str },
    /// Nothing here does it: why, or what does in its place.
    Nothing(&'static str),
}
use Says::{Nothing, Write};

const NO_NORM: &str = "of norms a pipeline has `rmsnorm` alone: compute others, dropout and lookups before, and hand \
    in the result";
const NO_MOVE: &str =
    "ranks exchange data by `gather`, `reduce_scatter`, `all_reduce`, `ring` and `dispatch`";
const NO_LAYOUT: &str = "a pipeline has `view` of rows as heads alone: declare the tensor in the shape that the next \
    operation reads";
const NO_CURVE: &str = "the activations are `gelu`, `gelu_tanh`, `silu`, `relu` and `swiglu`";

/// A row for each thing: what others call it, and what to do.
macro_rules! aliases {
    ($([$($name:ident)*] => $says:expr;)*) => {
        const ALIASES: &[Alias] = &[$(Alias { names: &[$(stringify!($name)),*], says: $says }),*];
    };
}

aliases! {
    [count_dropped dropped_tokens num_dropped overflow]
        => Write { op: "dropped",
            like: "let rows = dispatch(x, ids, capacity = R, drop); (rows -> grouped_gemm(w), rows -> dropped)" };
    [all_gather all_gather_into_tensor all_gather_tensor nccl_all_gather unshard]
        => Write { op: "gather", like: "gather(a) -> gemm(b)" };
    [matmul mm bmm dot linear addmm einsum dense fc product column_parallel column_parallel_linear]
        => Write { op: "gemm", like: "gather(a) -> gemm(b)" };
    [row_parallel row_parallel_linear] => Write { op: "gemm", like: "gemm(a, b) -> reduce_scatter" };
    [reduce_scatter_tensor nccl_reduce_scatter psum_scatter scatter_reduce]
        => Write { op: "reduce_scatter", like: "gemm(a, b) -> reduce_scatter" };
    [all_to_all_single all2all]
        => Write { op: "all_to_all", like: "all_to_all(x, split = 2, concat = 1) -> attention(k, v)" };
    [nccl_all_reduce psum all_reduce_sum reduce] => Write { op: "all_reduce", like: "gemm(a, b) -> all_reduce" };
    [all_to_all_v moe_dispatch permute_tokens]
        => Write { op: "dispatch", like: "dispatch(x, ids) -> grouped_gemm(w) -> combine(weights)" };
    [moe_combine unpermute unpermute_tokens]
        => Write { op: "combine", like: "dispatch(x, ids) -> grouped_gemm(w) -> combine(weights)" };
    [grouped_mm grouped_matmul group_gemm moe experts ragged_dot]
        => Write { op: "grouped_gemm", like: "ragged(x, counts) -> grouped_gemm(w)" };
    [sdpa scaled_dot_product_attention flash_attention flash_attn flash_attn_func mha multi_head_attention
     self_attention softmax]
        => Write { op: "attention", like: "attention(q, k, v, causal)" };
    [ring_attention context_parallel] => Write { op: "ring", like: "ring(k, v) -> attention(q, causal)" };
    [logsumexp softmax_lse] => Write { op: "lse", like: "let o = attention(q, k, v); (o, o -> lse)" };
    [add_bias bias_add] => Write { op: "bias", like: "gather(a) -> gemm(b) -> bias(c)" };
    [plus residual residual_add sum skip] => Write { op: "add", like: "gather(a) -> gemm(b) -> add(c)" };
    [multiply times hadamard] => Write { op: "mul", like: "gather(a) -> gemm(b) -> mul(c)" };
    [div divide alpha mul_scalar] => Write { op: "scale", like: "gather(a) -> gemm(b) -> scale(0.5)" };
    [to type astype convert half bfloat16 float float16 float32]
        => Write { op: "cast", like: "gather(a) -> gemm(b) -> cast(f32)" };
    [swish] => Write { op: "silu", like: "gather(a) -> gemm(b) -> silu" };
    [glu silu_and_mul] => Write { op: "swiglu", like: "gather(a) -> gemm(b) -> swiglu" };
    [gelu_new gelu_fast new_gelu fast_gelu approximate_gelu]
        => Write { op: "gelu_tanh", like: "gather(a) -> gemm(b) -> gelu_tanh" };
    [rotary rotary_embedding apply_rotary_pos_emb] => Write { op: "rope", like: "x -> rope(t)" };
    [transpose t permute swapaxes] => Write { op: "gemm", like: "gather(a) -> gemm(b.t)" };
    [layer_norm norm batch_norm dropout embedding topk cross_entropy] => Nothing(NO_NORM);
    [broadcast scatter send recv isend irecv ppermute barrier] => Nothing(NO_MOVE);
    [reshape unflatten rearrange] => Write { op: "view", like: "x -> view(B, S, H, D)" };
    [flatten contiguous squeeze unsqueeze cat concat split chunk] => Nothing(NO_LAYOUT);
    [sigmoid tanh geglu leaky_relu elu mish softplus quick_gelu] => Nothing(NO_CURVE);
}

/// What to do about a name that others use: its help line.
pub(crate) fn help(name: &str) -> Option<String> {
    let word = folded(name);
    let is_of = |alias: &&Alias| alias.names.iter().any(|n| folded(n) == word);
    Some(match ALIASES.iter().find(is_of)?.says {
        Write { op, like } => format!("use `{op}`, as in `{like}`"),
        Nothing(why) => why.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Program, ops};
    use std::collections::BTreeSet;

    #[test]
    fn every_alias_names_an_accepted_pipeline() {
        for alias in ALIASES {
            for name in alias.names {
                let said = Program::parse(&format!("gather(a) -> {name}(b)")).unwrap_err();
                assert_eq!(said.iter().count(), 1, "{said}");
                let said = &said.iter().next().unwrap().help;
                let Write { op, like } = alias.says else {
                    assert_eq!(Some(said.clone()), help(name), "{name}");
                    continue;
                };
                assert_eq!(*said, format!("use `{op}`, as in `{like}`"), "{name}");
                assert!(like.contains(op), "{like}");
                Program::parse(like).unwrap_or_else(|mistakes| panic!("{name}: {mistakes}"));
            }
        }
    }

    #[test]
    fn an_alias_is_one_word_and_no_operation() {
        let mut known: BTreeSet<String> = ops::OPS.iter().map(|op| folded(op.name)).collect();
        for name in ALIASES.iter().flat_map(|alias| alias.names) {
            assert!(known.insert(folded(name)), "{name} stands twice");
        }
    }

    #[test]
    fn case_and_underscores_do_not_count() {
        for (name, says) in [
            ("AllReduce", "did you mean `all_reduce`?"),
            ("reducescatter", "did you mean `reduce_scatter`?"),
            ("ncclAllGather", "use `gather`, as in `gather(a) -> gemm(b)`"),
            ("LayerNorm", NO_NORM),
        ] {
            let said = Program::parse(&format!("a -> {name}")).unwrap_err();
            assert_eq!(said.iter().next().unwrap().help, says, "{name}");
        }
    }
}
