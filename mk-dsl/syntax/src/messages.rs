//! The message catalogue: every mistake, what it is called and what to do about it.
//!
//! House rules: the message says what is wrong, in lower case, without a full stop; the help
//! says what to write. Words of the source are in backticks.

/// Rows of the catalogue: `text`, or `placed` of a placement that does not fit; a name and what it is told; the
/// message; the help, behind `=>` where it is computed.
macro_rules! messages {
    ($($(#[$doc:meta])* $kind:ident $name:ident($($arg:ident: $of:ty),*)
        $message:literal; $($help:literal)? $(=> $computed:expr)?;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name($($arg: $of),*) -> Text {
            $kind(format!($message), $(format!($help))? $($computed)?)
        }
    )*};
}

mod attention;
mod dispatch;
mod gemm;
mod grouped;
mod quantize;
mod rmsnorm;
mod rope;
mod view;

use crate::alias;
use crate::diag::Text;
use crate::limits::{MAX_BYTES, MAX_DEPTH, MAX_IDENT};
use crate::ops;
use crate::program::{DType, MAX_AXES, MAX_DIM, MAX_DIMS};

pub(crate) use attention::*;
pub(crate) use dispatch::*;
pub(crate) use gemm::*;
pub(crate) use grouped::*;
pub(crate) use quantize::*;
pub(crate) use rmsnorm::*;
pub(crate) use rope::*;
pub(crate) use view::*;

fn text(message: impl Into<String>, help: impl Into<String>) -> Text {
    Text { message: message.into(), help: help.into(), is_placement: false }
}

/// A sum has to be made before an operation.
pub(crate) fn reduce_before(op: &str) -> String {
    format!("write `reduce_scatter ->` or `all_reduce ->` before `{op}`")
}

/// Another placement of a value before an operation; what has no name of its own gets it on the way.
fn declare(name: &str, placements: &str, op: &str) -> String {
    match name.starts_with('`') {
        true => format!("declare {name} {placements}"),
        false => format!("write `gather ->` before `{op}`"),
    }
}

/// Of a placement that does not fit; the help is said where no single edit of the text helps.
fn placed(message: impl Into<String>, help: impl Into<String>) -> Text {
    Text { is_placement: true, ..text(message, help) }
}

pub(crate) fn dimensions(n: usize) -> String {
    format!("{n} dimension{}", if n == 1 { "" } else { "s" })
}

fn did_you_mean(near: Option<&str>, otherwise: impl Into<String>) -> String {
    near.map_or_else(|| otherwise.into(), |near| format!("did you mean `{near}`?"))
}

// ---- characters and brackets ----

messages! {
    text too_long(n_bytes: usize)
        "the text has {n_bytes} bytes, more than {MAX_BYTES}";
        "split it into several pipelines";
    text too_deep()
        "brackets are nested more than {MAX_DEPTH} deep";
        "name the inner parts with `let`";
    text unexpected_char(c: char)
        "unexpected character {c:?}";
        "remove it";
    text not_ascii()
        "a name has letters other than ASCII";
        "use `a`-`z`, `A`-`Z`, `0`-`9` and `_`";
    text name_too_long()
        "a name has more than {MAX_IDENT} characters";
        "choose a shorter one";
}

pub(crate) fn unclosed(open: &str, close: &str) -> Text {
    let what = if open.len() == 1 { format!("`{open}`") } else { format!("this {open}") };
    text(format!("{what} is never closed"), format!("add the matching `{close}`"))
}

pub(crate) fn unopened(close: &str) -> Text {
    text(
        format!("`{close}` closes nothing"),
        format!(
            "remove it, or open it before with `{}`",
            match close {
                ")" => "(",
                "]" => "[",
                _ => "{",
            }
        ),
    )
}

messages! {
    text mismatched(found: &str, wanted: &str)
        "`{found}` does not match the bracket that it closes";
        "write `{wanted}`";
    text bad_number(number: &str)
        "`{number}` is not a number here";
        "write decimal digits, for instance `8192`, or `0.5` in `scale`";
}

pub(crate) fn bad_dim(number: &str) -> Text {
    let message = match number {
        "" => "the number is missing".to_owned(),
        number => format!("`{number}` is not a whole number"),
    };
    text(message, "write decimal digits, for instance `8192`")
}

// ---- grammar ----

/// What the grammar wants at some place, and what to write there.
macro_rules! expected {
    ($($name:ident: $what:literal, $help:literal;)*) => {
        /// What the grammar wants at some place.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Expected {
            $($name),*
        }

        pub(crate) fn expected(expected: Expected, found: &str) -> Text {
            let (what, help) = match expected {
                $(Expected::$name => ($what, $help)),*
            };
            text(format!("expected {what}, found {found}"), help)
        }
    };
}

expected! {
    Arg: "an argument", "write a name or a number, as in `gemm(w)` or `scale(0.5)`";
    ArgSeparator: "`,` or `)`", "arguments are separated by commas: `gemm(a, b)`";
    Arrow: "`->`", "stages are joined by `->`: `gather(a) -> gemm(b)`";
    Axis: "the name of a mesh axis", "write for instance `shard(0, tp)`";
    Body: "`{`", "write the body in braces: `{ gather(x) -> gemm(w) }`";
    Bound: "the upper bound", "write a number: `<M: dyn <= 8192>`";
    ChainSeparator: "`->`, `,` or `)`", "several results are written `(a -> gelu, b)`";
    Dim: "a dimension", "write a symbol or a number, as in `bf16[M, 4096]`";
    DimSeparator: "`,` or `]`", "a dimension is one symbol or one number: `bf16[M, 4096]`";
    Dyn: "`: dyn` or `: own`", "a symbol declared here is known at launch: `<M: dyn <= 8192>`";
    EndOfBody: "`}`", "close the body";
    EndOfChain: "`->` or the end", "a pipeline is one chain, or one `pub fn`";
    EndOfGroup: "`)`", "close the placement, as in `shard(0)` or `shard(0, tp)`";
    EndOfItem: "the end", "a source has one pipeline; move the next one to its own";
    Fn: "`fn`", "write `pub fn name(x: bf16[M, K]) { .. }`";
    ItemName: "the pipeline's name", "write `pub fn name(..) { .. }`";
    LetName: "a name", "write `let h = gather(x);`";
    LetValue: "`=`", "write `let h = gather(x);`";
    NoAttribute: "`pub fn`", "remove the attribute: only doc comments are read here";
    NoSemicolon: "`->` or `}`", "remove it: the last chain is the result";
    Number: "a number", "write for instance `-0.5`";
    ParamName: "a parameter", "write `x: bf16[M, K] @ shard(0)`";
    ParamSeparator: "`,` or `)`", "parameters are separated by commas";
    ParamType: "`:` and a type", "write `x: bf16[M, K] @ shard(0)`";
    Params: "`(`", "write the parameters: `(x: bf16[M, K] @ shard(0))`";
    Placement: "a placement", "write `shard(0)`, `replicate` or `partial`";
    Result: "a chain", "end with the result: `gather(x) -> gemm(w)`";
    ResultSeparator: "`,` or `)`", "several results are written `-> (bf16[M, K], bf16[M, F])`";
    RuntimeSeparator: "`,` or `>`", "write `<M: dyn <= 8192>`";
    Semicolon: "`->` or `;`", "end the binding: `let h = gather(x);`";
    ShardDim: "the sharded dimension", "write its position: `shard(0)`";
    Scales: "`(`", "write the block that shares a factor: `scaled(1, K)`, `scaled(1, 128)` or `scaled(128, 128)`";
    Shape: "`[`", "write the shape: `bf16[M, K]`";
    Stage: "an operation", "write for instance `gemm(w)`";
    SymbolName: "a symbol", "write `<M: dyn <= 8192>`";
    Transpose: "`t`", "stages are joined by `->`; after a name only `.t` (transposed) may follow";
    Type: "a type", "write `bf16[M, K] @ shard(0)`";
}

pub(crate) fn nested_call(inner: &str) -> Text {
    let (message, help) = match ops::find(inner) {
        Some(_) => (
            format!("`{inner}` stands where a tensor is wanted"),
            format!("write it before: `{inner}(..) -> ..`, or `let h = {inner}(..);`"),
        ),
        None => (
            format!("`{inner}` is called where a tensor is wanted"),
            "write the name of a tensor; operations follow `->`".into(),
        ),
    };
    text(message, help)
}

messages! {
    text own_rows(name: &str)
        "`{name}: own` is a number of rows, each rank's own, and stands behind others here";
        "let it be the first dimension, or declare `{name}: dyn`, the same on all ranks";
    text runtime_in_shape(name: &str)
        "the kind of `{name}` stands in a shape";
        "declare it once, before the parameters: `fn name<{name}: dyn <= 8192>(..)`";
}

// ---- names ----

/// `suggested`: whether one is looked for.
pub(crate) fn unknown_op(name: &str, suggested: bool) -> Text {
    let known = if suggested { alias::help(name) } else { None };
    let near = if suggested { ops::near(name) } else { None };
    let all = || did_you_mean(near, format!("the operations are {}", ops::written_list()));
    text(format!("unknown operation `{name}`"), known.unwrap_or_else(all))
}

messages! {
    text runtime_twice(name: &str)
        "the runtime symbol `{name}` is declared twice";
        "declare it once in `<..>`";
    text runtime_unused(name: &str)
        "the runtime symbol `{name}` is no dimension of a parameter";
        "use it in a shape, as in `x: bf16[{name}, K]`, or remove it from `<..>`";
    text bound_later(name: &str)
        "`{name}` is used before its `let`";
        "move the `let` up: bindings are read in order";
    text unknown_name(name: &str, near: Option<&str>)
        "cannot find `{name}`";
        => did_you_mean(near, format!("add the parameter `{name}: bf16[..]`"));
    text defined_twice(name: &str)
        "`{name}` is defined twice";
        "choose another name for one of them";
    text reserved_name(name: &str, what: &str)
        "`{name}` is the name of {what}";
        "choose another name for the tensor";
    text unused(name: &str)
        "`{name}` is never used";
        "remove it, or use it in the body";
}

pub(crate) fn unknown_dtype(name: &str, near: Option<&str>) -> Text {
    let all = DType::ALL.map(|d| format!("`{d}`")).join(", ");
    text(format!("unknown dtype `{name}`"), did_you_mean(near, format!("the dtypes are {all}")))
}

messages! {
    text unknown_placement(name: &str, near: Option<&str>)
        "unknown placement `{name}`";
        => did_you_mean(near, "the placements are `shard(dim)`, `zigzag(dim)`, `replicate` and `partial`");
    text unknown_axis(name: &str, near: Option<&str>, known: &str)
        "unknown mesh axis `{name}`";
        => did_you_mean(near, format!("the mesh axes are {known}"));
}

// ---- types ----

messages! {
    text f32_parameter(name: &str)
        "`{name}` is `f32`: such a parameter may only be the argument of `add`, `mul`, `bias`, `rope`, `sinks` or of \
         a derivative";
        "declare it `bf16`, or `@ partial` if ranks have contributions to it";
    text no_dims()
        "a tensor needs at least one dimension";
        "write the shape: `bf16[M, K]`";
    text dim_out_of_range(value: u64)
        "the dimension {value} is outside 1..={MAX_DIM}";
        "choose a number in that range";
}

pub(crate) fn shard_out_of_range(dim: u64, n_dims: usize) -> Text {
    text(
        format!("there is no dimension {dim}: the tensor has {}", dimensions(n_dims)),
        format!("dimensions count from 0: choose one from 0 to {}", n_dims.saturating_sub(1)),
    )
}

messages! {
    text axis_twice(axis: &str)
        "the placement over `{axis}` is given twice";
        "give one placement for each mesh axis";
    text zigzag_beside_shard(dim: usize)
        "dimension {dim} is sharded over two mesh axes, over one of them in zigzag";
        "let one axis have it in zigzag, or both as `shard`";
    text nested_otherwise(outer: &str, inner: &str)
        "shards over `{inner}` are parts of shards over `{outer}`, and elsewhere it is the other way round";
        "where both share a dimension, let `{outer}` come first everywhere, or everywhere `{inner}`";
    text all_to_all_dims()
        "`all_to_all` takes the dimension that becomes sharded and the one that becomes whole";
        "write `all_to_all(split = 2, concat = 1)`";
    text all_to_all_same(dim: usize)
        "`all_to_all` splits and concatenates dimension {dim}";
        "name two dimensions, as in `all_to_all(split = 2, concat = 1)`";
    placed all_to_all_of(name: &str, found: &str, dim: usize)
        "`all_to_all(concat = {dim})` needs a value that is `shard({dim})`, and {name} is `{found}`";
        "remove `all_to_all`";
    text gather_of_outer(outer: &str, inner: &str, dim: usize)
        "dimension {dim} is sharded over `{inner}` within its shards over `{outer}`";
        "write `gather({inner})` before it";
    text too_many_axes()
        "more than {MAX_AXES} mesh axes";
        "use fewer axes";
    text too_many_dims()
        "more than {MAX_DIMS} dimensions";
        "merge some of them";
    text which_axis(what: &str, axes: &str)
        "{what} needs a mesh axis here";
        "name one of {axes}, as in `shard(0, tp)` or `gather(tp)`";
}

// ---- arguments ----

pub(crate) fn no_input(op: &str) -> Text {
    let usage = ops::first_usage(op).unwrap_or("`x -> ..`");
    text(format!("`{op}` has no input"), format!("a chain starts with a tensor: write {usage}"))
}

messages! {
    text missing_argument(op: &str, what: &str)
        "`{op}` needs {what}";
        => format!("write {}", ops::usage(op));
    text wrong_argument(op: &str, what: &str, found: &str)
        "`{op}` takes {what}, found `{found}`";
        => format!("write {}", ops::usage(op));
    text extra_argument(op: &str)
        "`{op}` takes no further argument";
        => format!("write {}", ops::usage(op));
    text unknown_key(op: &str, key: &str)
        "`{op}` has no argument called `{key}`";
        => format!("write {}", ops::usage(op));
    text not_an_operation(name: &str)
        "`{name}` is a tensor, and only operations follow `->`";
        "write for instance `gemm({name})` or `add({name})`";
}

// ---- operations ----

pub(crate) fn storage_only(op: &str, name: &str, dtype: DType, sums: bool) -> Text {
    let what = if sums { "sums over ranks" } else { "computes" };
    let help = match sums {
        true => format!("sum first, and round the sum: `{op} -> cast({dtype})`"),
        false => "convert it before: `cast(bf16)`".into(),
    };
    text(
        format!("`{op}` {what}, and {name} is `{dtype}`, which is only stored, moved and cast"),
        help,
    )
}

messages! {
    text dtype_mismatch(op: &str, left: DType, name: &str, right: DType)
        "`{op}` has an input of `{left}`, and {name} is `{right}`";
        "declare both with one dtype, or convert the input before: `cast({right})`";
    placed nonlinear_on_partial(op: &str, name: &str)
        "`{op}` is not linear, and {name} is `partial`: a sum not yet made";
        => reduce_before(op);
    placed adds_once_per_rank(op: &str, name: &str)
        "`{op}` to {name}, which is `partial`, would count once for each rank";
        => reduce_before(op);
    placed elementwise_placement(op: &str, wanted: &str, name: &str, found: &str)
        "`{op}` needs {name} to be `{wanted}` here, and it is `{found}`";
        => declare(name, &format!("`@ {wanted}`"), op);
}

pub(crate) fn elementwise_rank(op: &str, wanted: usize, name: &str, found: usize) -> Text {
    let (wanted, found) = (dimensions(wanted), dimensions(found));
    text(
        format!("`{op}` needs {wanted} here, and {name} has {found}"),
        format!("declare {name} with {wanted}"),
    )
}

messages! {
    text elementwise_dim(op: &str, wanted: &str, name: &str, found: &str)
        "`{op}` needs `{wanted}` here, and {name} has `{found}`";
        "declare that dimension of {name} as `{wanted}`";
}

pub(crate) fn gather_of(name: &str, found: &str, partial: bool) -> Text {
    let help = match (partial, name.starts_with('`')) {
        (true, _) => "write `reduce_scatter ->` before `gather`".into(),
        (false, true) => format!("declare {name} `@ shard(0)`, or remove `gather`"),
        (false, false) => "remove `gather`".into(),
    };
    placed(format!("`gather` needs a sharded value, and {name} is `{found}`"), help)
}

messages! {
    placed reduce_of(op: &str, name: &str, found: &str)
        "`{op}` needs a `partial` value, and {name} is `{found}`";
        "remove `{op}`";
}

// ---- results ----

pub(crate) fn result_count(declared: usize, found: usize) -> Text {
    let s = |n: usize| if n == 1 { "" } else { "s" };
    text(
        format!(
            "the signature declares {declared} result{}, and the body gives {found}",
            s(declared)
        ),
        "write several results as `(a, b)`, and their types as `-> (bf16[M, K], bf16[M, F])`",
    )
}

messages! {
    text result_type(what: &str, declared: &str, found: &str, whole: &str)
        "the result has the {what} `{found}`, and the signature declares `{declared}`";
        "the body gives `{whole}`";
}

// ---- file headers ----

messages! {
    text header_syntax()
        "this header comment is not a list of defaults";
        "write `// M = 512, K = 256`";
    text header_twice(name: &str)
        "the default of `{name}` is given twice";
        "remove one of them";
}
