//! Messages of `ragged` and `grouped_gemm`.

use super::{declare, placed, text};
use crate::diag::Text;
use crate::program::{DType, RAGGED_BLOCK};

pub(crate) fn ragged_rank(name: &str, shape: &str) -> Text {
    text(
        format!("ragged rows are `[R, K]`, and {name} is `{shape}`"),
        format!(
            "give it two dimensions: rows of all experts, in blocks of {RAGGED_BLOCK}, and columns"
        ),
    )
}

pub(crate) fn grouped_dtype(name: &str) -> Text {
    text(
        format!(
            "experts take `bf16`, `f16`, or eight bits with factors, and {name} is none of these"
        ),
        "convert it before: `cast(bf16)`",
    )
}

pub(crate) fn grouped_factors(name: &str, block: &str) -> Text {
    text(
        format!(
            "`grouped_gemm` of eight bits has factors of blocks, and {name} has others, or none"
        ),
        format!("declare it `{block}`"),
    )
}

pub(crate) fn narrow_stack(name: &str, dtype: DType) -> Text {
    text(
        format!(
            "tensor cores read `{dtype}` along K, the last dimension, and {name} is read along another"
        ),
        "store it `[E, N, K]`, or `[E, 2, N, K]` before `swiglu`, and write `grouped_gemm(w.t)`",
    )
}

pub(crate) fn ragged_counts(name: &str, found: &str) -> Text {
    text(
        format!("`ragged` needs the rows of each expert, and {name} is `{found}`"),
        "declare it `i32[E]`",
    )
}

pub(crate) fn ragged_counts_made(name: &str) -> Text {
    text(
        format!("`ragged` reads the caller's counts, and {name} is made by the pipeline"),
        "let it be a parameter",
    )
}

pub(crate) fn ragged_placement(name: &str, found: &str) -> Text {
    placed(
        format!("ragged rows are those of the rank's experts, and {name} is `{found}`"),
        declare(name, "`@ shard(0)` or `@ replicate`", "ragged"),
    )
}

pub(crate) fn beside_ragged(op: &str, wanted: &str, name: &str, found: &str) -> Text {
    placed(
        format!("`{op}` needs {name} as `{wanted}`, like the rows, and it is `{found}`"),
        format!("declare {name} `@ {wanted}`"),
    )
}

pub(crate) fn ragged_elsewhere(op: &str) -> Text {
    text(
        format!("`{op}` does not take ragged rows"),
        "ragged rows go into `grouped_gemm`, `swiglu`, and what works element by element except `bias`",
    )
}

pub(crate) fn grouped_of(name: &str) -> Text {
    text(
        format!(
            "`grouped_gemm` multiplies ragged rows, and nothing says which rows of {name} are whose"
        ),
        "write `ragged(x, counts) -> grouped_gemm(w)`",
    )
}

pub(crate) fn grouped_rank(name: &str, shape: &str) -> Text {
    text(
        format!("`grouped_gemm` needs a stack of matrices, and {name} is `{shape}`"),
        "declare it `[E, K, N]`, or `[E, K, 2, N]` before `swiglu`",
    )
}

pub(crate) fn grouped_transposed(rows: &str, name: &str, shape: &str) -> Text {
    text(
        format!(
            "`grouped_gemm` sums over the columns of {rows}, and those of {name}, read the other way round, are \
             `{shape}`"
        ),
        "of rows `[R, N]` declare the matrices `[E, K, N]`, and of `[R, 2, N]` `[E, K, 2, N]`",
    )
}

pub(crate) fn grouped_dim(what: &str, wanted: &str, name: &str, found: &str) -> Text {
    text(
        format!("`grouped_gemm` needs {what} `{wanted}` in {name}, and it has `{found}`"),
        "rows are `[R, K]`, counts `[E]`, and the stack of matrices `[E, K, N]`",
    )
}

pub(crate) fn bias_of_experts(name: &str) -> Text {
    text(
        format!("`bias` adds a vector of each expert to its rows, and no product made {name}"),
        "put it behind `grouped_gemm(w)`: `grouped_gemm(w) -> bias(b)` with `b: [E, N]`",
    )
}

pub(crate) fn wgrad_of(name: &str) -> Text {
    text(
        format!(
            "`grouped_wgrad` sums over the rows of experts, and nothing says which rows of {name} are whose"
        ),
        "write `ragged(x, counts) -> grouped_wgrad(dy)`",
    )
}

pub(crate) fn wgrad_experts() -> Text {
    text(
        "a route says which experts tokens go to, and not how many experts there are",
        "write `grouped_wgrad(dy, experts = E)`, with a number or a dimension",
    )
}

pub(crate) fn wgrad_rank(name: &str, shape: &str) -> Text {
    text(
        format!("`grouped_wgrad` sums over rows `[R, N]`, and {name} is `{shape}`"),
        "give it rows `[R, N]`, or `[R, 2, N]` as `swiglu_grad` makes them",
    )
}

pub(crate) fn wgrad_rows(wanted: &str, name: &str, found: &str) -> Text {
    text(
        format!("`grouped_wgrad` needs as many rows, `{wanted}`, in {name}, and it has `{found}`"),
        "both are rows of the same experts",
    )
}

pub(crate) fn integer_parameter(name: &str) -> Text {
    text(
        format!("`{name}` has integers, which nothing computes with"),
        "use them as counts, `ragged(x, counts)`, as experts of tokens, `dispatch(x, ids)`, or as documents, \
         `attention(q, k, v, cu_seqlens = cu)`",
    )
}

pub(crate) fn cast_to_integers() -> Text {
    text("a value cannot become integers", "use `bf16`, `f16` or `f32`")
}
