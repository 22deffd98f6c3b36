//! Messages of `dispatch` and `combine`.

use super::{declare, placed, text};
use crate::diag::Text;
use crate::program::{DType, RAGGED_BLOCK};

pub(crate) fn dispatch_factors(name: &str) -> Text {
    text(
        format!("`dispatch` sends factors of 128 elements of a token, and {name} has others"),
        "declare it `scaled(1, 128)`",
    )
}

pub(crate) fn dispatch_weights(name: &str, dtype: DType) -> Text {
    text(
        format!(
            "{name} is `{dtype}`, and rows of eight bits are multiplied by no weights on the way"
        ),
        "leave the weights out, and give them to `combine`; or dispatch tokens of 16 bits",
    )
}

pub(crate) fn dispatch_capacity() -> Text {
    text(
        "a capacity is a number of rows",
        format!(
            "write `capacity = R`, rows of all ranks together, whole blocks of {RAGGED_BLOCK} on each, or leave it \
             out: then there is room for any routing"
        ),
    )
}

pub(crate) fn capacity_in_blocks(rows: u64) -> Text {
    text(
        format!("a capacity of {rows} rows is no number of whole blocks"),
        format!(
            "write a multiple of {RAGGED_BLOCK}, whole blocks on each rank, or leave it out: then there is room for \
             any routing"
        ),
    )
}

pub(crate) fn too_many_slots(slots: u64, name: &str, experts: u64) -> Text {
    text(
        format!("each token names {slots} experts, and {name} has {experts}"),
        format!("a token goes to each expert once: give it up to {experts} of them"),
    )
}

pub(crate) fn drop_of_some(name: &str) -> Text {
    text(
        format!("rows by {name} are dropped in one place, and not in another"),
        "write `drop` in each `dispatch(x, ids, capacity = R, drop)` and `ragged(x, ids, drop)`, or in none",
    )
}

pub(crate) fn drop_of_counts(name: &str) -> Text {
    text(
        format!("`drop` is of rows that experts of tokens route, and {name} counts rows"),
        "leave `drop` out",
    )
}

pub(crate) fn drop_without_capacity() -> Text {
    text(
        "nothing is dropped without a capacity: there is room for any routing",
        "write `dispatch(x, ids, capacity = R, drop)`, or leave `drop` out",
    )
}

pub(crate) fn dispatch_rank(name: &str, shape: &str) -> Text {
    text(
        format!("tokens are `[T, H]`, and {name} is `{shape}`"),
        "give it two dimensions: tokens and columns",
    )
}

pub(crate) fn dispatch_placement(name: &str, found: &str) -> Text {
    placed(
        format!("`dispatch` sends each rank's own tokens, and {name} is `{found}`"),
        declare(name, "`@ shard(0)`", "dispatch"),
    )
}

pub(crate) fn dispatch_axes(name: &str, found: &str) -> Text {
    placed(
        format!("experts are over one axis of the mesh, and {name} is `{found}`"),
        "let tokens be `shard(0)` over the axis of their experts alone: ranks along other axes have tokens of their \
         own, or the same",
    )
}

pub(crate) fn combine_columns(name: &str, found: &str) -> Text {
    placed(
        format!("tokens get whole rows back, and {name} is `{found}`"),
        "let the last `grouped_gemm` sum over what ranks share, and reduce behind `combine`",
    )
}

pub(crate) fn beside_tokens(op: &str, wanted: &str, name: &str, found: &str) -> Text {
    placed(
        format!("`{op}` needs {name} as `{wanted}`, like the tokens, and it is `{found}`"),
        format!("declare {name} `@ {wanted}`"),
    )
}

pub(crate) fn dispatch_ids(name: &str, found: &str) -> Text {
    text(
        format!("`dispatch` needs the experts of each token, and {name} is `{found}`"),
        "declare it `i32[T, K]` or `i64[T, K]`",
    )
}

pub(crate) fn weights_of_slots(op: &str, name: &str, found: &str) -> Text {
    text(
        format!("`{op}` needs a weight for each expert of a token, and {name} is `{found}`"),
        "declare it `f32[T, K]`",
    )
}

pub(crate) fn route_tokens(wanted: &str, name: &str, found: &str) -> Text {
    text(
        format!("a route needs `{wanted}` in {name}, and it has `{found}`"),
        "tokens are `[T, H]`, and their experts and weights `[T, K]`",
    )
}

pub(crate) fn combine_grad_dy(wanted: &str, name: &str, found: &str) -> Text {
    text(
        format!("`combine_grad` needs gradients `{wanted}` of tokens, and {name} is `{found}`"),
        format!("declare {name} `{wanted}`"),
    )
}

pub(crate) fn combine_of(op: &str, name: &str) -> Text {
    text(
        format!("`{op}` brings back what was dispatched, and {name} was not"),
        "write `dispatch(x, ids) -> grouped_gemm(w) -> combine(weights)`",
    )
}
