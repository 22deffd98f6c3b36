//! Messages of `dispatch` and `combine`.

use super::{declare, placed, text};
use crate::diag::Text;
use crate::program::{DType, RAGGED_BLOCK};

messages! {
    text dispatch_factors(name: &str)
        "`dispatch` sends factors of 128 elements of a token, and {name} has others";
        "declare it `scaled(1, 128)`";
    text dispatch_weights(name: &str, dtype: DType)
        "{name} is `{dtype}`, and rows of eight bits are multiplied by no weights on the way";
        "leave the weights out, and give them to `combine`; or dispatch tokens of 16 bits";
    text dispatch_capacity()
        "a capacity is a number of rows";
        "write `capacity = R`, rows of all ranks together, whole blocks of {RAGGED_BLOCK} on each, or leave it out: \
         then there is room for any routing";
    text capacity_in_blocks(rows: u64)
        "a capacity of {rows} rows is no number of whole blocks";
        "write a multiple of {RAGGED_BLOCK}, whole blocks on each rank, or leave it out: then there is room for any \
         routing";
    text too_many_slots(slots: u64, name: &str, experts: u64)
        "each token names {slots} experts, and {name} has {experts}";
        "a token goes to each expert once: give it up to {experts} of them";
    text drop_of_some(name: &str)
        "rows by {name} are dropped in one place, and not in another";
        "write `drop` in each `dispatch(x, ids, capacity = R, drop)` and `ragged(x, ids, drop)`, or in none";
    text dropped_of(name: &str)
        "`dropped` counts the rows that `dispatch` drops, and {name} has none of those";
        "write `let rows = dispatch(x, ids, capacity = R, drop)`, and return `rows -> dropped`";
    text dropped_read(op: &str)
        "`{op}` reads how many rows are dropped";
        "return the number, and let nothing else read it";
    text drop_of_counts(name: &str)
        "`drop` is of rows that experts of tokens route, and {name} counts rows";
        "leave `drop` out";
    text drop_without_capacity()
        "nothing is dropped without a capacity: there is room for any routing";
        "write `dispatch(x, ids, capacity = R, drop)`, or leave `drop` out";
    text dispatch_rank(name: &str, shape: &str)
        "tokens are `[T, H]`, and {name} is `{shape}`";
        "give it two dimensions: tokens and columns";
    placed dispatch_placement(name: &str, found: &str)
        "`dispatch` sends each rank's own tokens, and {name} is `{found}`";
        => declare(name, "`@ shard(0)`", "dispatch");
    placed dispatch_axes(name: &str, found: &str)
        "experts are over one axis of the mesh, and {name} is `{found}`";
        "let tokens be `shard(0)` over the axis of their experts alone: ranks along other axes have tokens of their \
         own, or the same";
    placed combine_columns(name: &str, found: &str)
        "tokens get whole rows back, and {name} is `{found}`";
        "let the last `grouped_gemm` sum over what ranks share, and reduce behind `combine`";
    placed beside_tokens(op: &str, wanted: &str, name: &str, found: &str)
        "`{op}` needs {name} as `{wanted}`, like the tokens, and it is `{found}`";
        "declare {name} `@ {wanted}`";
    text dispatch_ids(name: &str, found: &str)
        "`dispatch` needs the experts of each token, and {name} is `{found}`";
        "declare it `i32[T, K]` or `i64[T, K]`";
    text weights_of_slots(op: &str, name: &str, found: &str)
        "`{op}` needs a weight for each expert of a token, and {name} is `{found}`";
        "declare it `f32[T, K]`";
    text route_tokens(wanted: &str, name: &str, found: &str)
        "a route needs `{wanted}` in {name}, and it has `{found}`";
        "tokens are `[T, H]`, and their experts and weights `[T, K]`";
    text combine_grad_dy(wanted: &str, name: &str, found: &str)
        "`combine_grad` needs gradients `{wanted}` of tokens, and {name} is `{found}`";
        "declare {name} `{wanted}`";
    text weigh_grad_rows(wanted: &str, name: &str, found: &str)
        "`weigh_grad` needs the rows `{wanted}` that were weighed, and {name} is `{found}`";
        "declare {name} `{wanted}`";
    text weigh_of(op: &str, name: &str)
        "`{op}` is of rows that a route names, and {name} has none";
        "write `dispatch(x, ids) -> {op}(..)`, or `ragged(rows, ids) -> {op}(..)`";
    text combine_of(op: &str, name: &str)
        "`{op}` brings back what was dispatched, and {name} was not";
        "write `dispatch(x, ids) -> grouped_gemm(w) -> combine(weights)`";
}
