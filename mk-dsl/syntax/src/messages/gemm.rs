//! Messages of `gemm`, its operands and their factors, and of `swiglu`.

use super::{placed, text};
use crate::diag::Text;
use crate::program::{DType, Factors};

pub(crate) fn gemm_left_rank(name: &str, shape: &str, is_gate_up: bool) -> Text {
    let help = if is_gate_up {
        "join gate and up before: `swiglu` gives `[M, F]`"
    } else {
        "give it two dimensions: `[M, K]`"
    };
    text(format!("`gemm` has a matrix on the left, and {name} is `{shape}`"), help)
}

messages! {
    text gemm_right_rank(name: &str, shape: &str)
        "`gemm` has a weight on the right, and {name} is `{shape}`";
        "give it the shape `[K, N]`, or `[K, 2, F]` with gate and up for `swiglu`";
    text gemm_contraction(left: &str, right: &str, name: &str, dim: usize)
        "`gemm` contracts `{left}` on the left with `{right}` on the right";
        "dimension {dim} of `{name}` must be `{left}`";
    text transpose_elsewhere(name: &str)
        "`{name}.t` is no operand of `gemm`, and nothing else reads a transposed tensor";
        "write `{name}` here, and `.t` where it is multiplied: `gemm({name}.t, w)`";
    text transpose_rank(name: &str, shape: &str)
        "only a matrix can be transposed, and `{name}` is `{shape}`";
        "write `{name}`, and declare it in the order that `gemm` reads";
    text gemm_over_columns(left: &str, right: &str, shape: &str)
        "{left} has three dimensions, and `{right}` is `{shape}`";
        "a product over two dimensions of columns is one of `[M, G, N]` and of the transpose of `[K, G, N]`";
    text swiglu_rank(name: &str, shape: &str)
        "`swiglu` joins gate and up, `[M, 2, F]` to `[M, F]`, and {name} is `{shape}`";
        "give the weight an axis for them, `[K, 2, F] @ shard(2)`: of a sharded `[K, 2F]`, some ranks would have \
         gates only";
    text swiglu_grad_rank(name: &str, shape: &str)
        "`swiglu_grad` takes the gradient of what `swiglu` gives, `[M, F]`, and {name} is `{shape}`";
        "write `d -> swiglu_grad(h)`, with `d: [M, F]` and `h: [M, 2, F]`, the input of `swiglu`";
    text swiglu_axis(name: &str, found: &str)
        "`swiglu` needs dimension 1 of {name} to be 2, gate and up, and it is `{found}`";
        "declare the weight as `[K, 2, F]`";
    placed swiglu_sharded(name: &str, found: &str)
        "`swiglu` needs gate and up on one rank, and {name} is `{found}`";
        "write `gather ->` before `swiglu`";
}

pub(crate) fn product_dtype(op: &str, name: &str, dtype: DType) -> Text {
    let takes = |d: &DType| d.multiplies() && (op == "gemm" || !d.is_narrow());
    let all: Vec<_> = DType::ALL.into_iter().filter(takes).map(|d| format!("`{d}`")).collect();
    let takes = all.join(if all.len() > 2 { ", " } else { " or " });
    text(
        format!("{name} is `{dtype}`, and `{op}` takes {takes}"),
        "convert it before: `cast(bf16)`",
    )
}

pub(crate) fn narrow_operand(name: &str, dtype: DType, shape: &str, turned: bool) -> Text {
    let how = if turned { "write it with `.t`" } else { "leave out `.t`" };
    text(
        format!("{name} is `{dtype}` across K, and tensor cores read 8-bit operands along K"),
        format!("store it as `{shape}`, and {how}"),
    )
}

messages! {
    text scales_of_rows()
        "factors are those of a matrix `[M, K]`: of rows, or of blocks of 128";
        "write `scaled(1, K)`, one for each row; `scaled(1, 128)`; or, of weights, `scaled(128, 128)`";
    text factors_of_operand(which: &str, name: &str, block: &str)
        "{name} is operand {which} of `gemm`, whose factors are of other blocks";
        "declare it `scaled(1, K)` or `{block}`";
}

pub(crate) fn scales_of_dtype(dtype: Option<DType>) -> Text {
    let found = dtype.map_or("?", DType::name);
    text(
        format!("tensors of eight bits are scaled, and this is `{found}`"),
        "leave out `scaled(..)`, or use `e4m3` or `e5m2`",
    )
}

messages! {
    text scales_of_partial()
        "contributions of ranks have factors of their own, and no sum has";
        "declare it `@ shard(0)`, `@ shard(1)` or `@ replicate`";
}

/// `declared` of a result: with factors or without, or with others.
pub(crate) fn scaled_result(declared: Option<Factors>, found: Option<Factors>) -> Text {
    let help = match found {
        Some(Factors::Steps) => "write `scaled(1, 128)`",
        Some(Factors::Blocks) => "write `scaled(128, 128)`",
        Some(Factors::Rows) => "write `scaled(1, K)`, K being its last dimension",
        None => "leave out `scaled(..)`, or put `quantize(e4m3, 1, 128)` behind it",
    };
    let has = |x: Option<Factors>| if x.is_some() { "factors" } else { "no factors" };
    let found = if declared.is_some() && found.is_some() { "others" } else { has(found) };
    text(format!("this result has {found}, and is declared with {}", has(declared)), help)
}

messages! {
    text scaled_elsewhere(op: &str, name: &str)
        "{name} is scaled, and `{op}` would leave its factors behind";
        "read it in `gemm` or `gather`, or put `dequantize` before it";
}

/// `turned` is an operand B that is read the other way round than it is declared.
pub(crate) fn gemm_placement(
    left: &str,
    right: &str,
    turned: Option<&str>,
    help: impl Into<String>,
) -> Text {
    let operand = match turned {
        Some(name) => format!("{name}, which is `{right}`"),
        None => format!("a `{right}` operand"),
    };
    placed(format!("`gemm` cannot multiply a `{left}` input by {operand}"), help)
}
