//! Messages of `ragged` and `grouped_gemm`.

use super::{declare, placed, text};
use crate::diag::Text;
use crate::program::{DType, RAGGED_BLOCK};

messages! {
    text ragged_rank(name: &str, shape: &str)
        "ragged rows are `[R, K]`, and {name} is `{shape}`";
        "give it two dimensions: rows of all experts, in blocks of {RAGGED_BLOCK}, and columns";
    text grouped_dtype(name: &str)
        "experts take `bf16`, `f16`, or eight bits with factors, and {name} is none of these";
        "convert it before: `cast(bf16)`";
    text grouped_factors(name: &str, block: &str)
        "`grouped_gemm` of eight bits has factors of blocks, and {name} has others, or none";
        "declare it `{block}`";
    text narrow_stack(name: &str, dtype: DType)
        "tensor cores read `{dtype}` along K, the last dimension, and {name} is read along another";
        "store it `[E, N, K]`, or `[E, 2, N, K]` before `swiglu`, and write `grouped_gemm(w.t)`";
    text ragged_counts(name: &str, found: &str)
        "`ragged` needs the rows of each expert, and {name} is `{found}`";
        "declare it `i32[E]`";
    text ragged_counts_made(name: &str)
        "`ragged` reads the caller's counts, and {name} is made by the pipeline";
        "let it be a parameter";
    placed ragged_placement(name: &str, found: &str)
        "ragged rows are those of the rank's experts, and {name} is `{found}`";
        => declare(name, "`@ shard(0)` or `@ replicate`", "ragged");
    placed beside_ragged(op: &str, wanted: &str, name: &str, found: &str)
        "`{op}` needs {name} as `{wanted}`, like the rows, and it is `{found}`";
        "declare {name} `@ {wanted}`";
    text ragged_elsewhere(op: &str)
        "`{op}` does not take ragged rows";
        "ragged rows go into `grouped_gemm`, `swiglu`, and what works element by element except `bias`";
    text grouped_of(name: &str)
        "`grouped_gemm` multiplies ragged rows, and nothing says which rows of {name} are whose";
        "write `ragged(x, counts) -> grouped_gemm(w)`";
    text grouped_rank(name: &str, shape: &str)
        "`grouped_gemm` needs a stack of matrices, and {name} is `{shape}`";
        "declare it `[E, K, N]`, or `[E, K, 2, N]` before `swiglu`";
    text grouped_transposed(rows: &str, name: &str, shape: &str)
        "`grouped_gemm` sums over the columns of {rows}, and those of {name}, read the other way round, are `{shape}`";
        "of rows `[R, N]` declare the matrices `[E, K, N]`, and of `[R, 2, N]` `[E, K, 2, N]`";
    text grouped_dim(what: &str, wanted: &str, name: &str, found: &str)
        "`grouped_gemm` needs {what} `{wanted}` in {name}, and it has `{found}`";
        "rows are `[R, K]`, counts `[E]`, and the stack of matrices `[E, K, N]`";
    text bias_of_experts(name: &str)
        "`bias` adds a vector of each expert to its rows, and no product made {name}";
        "put it behind `grouped_gemm(w)`: `grouped_gemm(w) -> bias(b)` with `b: [E, N]`";
    text wgrad_of(name: &str)
        "`grouped_wgrad` sums over the rows of experts, and nothing says which rows of {name} are whose";
        "write `ragged(x, counts) -> grouped_wgrad(dy)`";
    text wgrad_experts()
        "a route says which experts tokens go to, and not how many experts there are";
        "write `grouped_wgrad(dy, experts = E)`, with a number or a dimension";
    text wgrad_rank(name: &str, shape: &str)
        "`grouped_wgrad` sums over rows `[R, N]`, and {name} is `{shape}`";
        "give it rows `[R, N]`, or `[R, 2, N]` as `swiglu_grad` makes them";
    text wgrad_rows(wanted: &str, name: &str, found: &str)
        "`grouped_wgrad` needs as many rows, `{wanted}`, in {name}, and it has `{found}`";
        "both are rows of the same experts";
    text integer_parameter(name: &str)
        "`{name}` has integers, which nothing computes with";
        "use them as counts, `ragged(x, counts)`, as experts of tokens, `dispatch(x, ids)`, or as documents, \
         `attention(q, k, v, cu_seqlens = cu)`";
    text cast_to_integers()
        "a value cannot become integers";
        "use `bf16`, `f16` or `f32`";
}
