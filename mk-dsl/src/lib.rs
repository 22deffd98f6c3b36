//! The macros `pipeline!` and `#[pipelined]`: `write -> check -> expand`.
//!
//! - `source`: the tokens written as text, and the token behind each byte of it;
//! - check: [`mk_syntax`], the same as for run-time strings;
//! - `expand`: a function that returns the program, or the mistakes on their tokens;
//! - `annotation`: the text of a pipeline from a struct and its attribute, and what the struct
//!   gets.
//!
//! Architecture invariant: the macros know nothing of the language save where an item's name
//! and its parameters are. They check the very text that they embed.

mod annotation;
mod expand;
mod messages;
mod source;

use proc_macro::TokenStream;

/// Declares a pipeline, checked when the macro expands.
///
/// ```ignore
/// mk::pipeline! {
///     /// Column-parallel linear layer.
///     pub fn linear(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) -> bf16[M, N] @ shard(1) {
///         gather(x) -> gemm(w)
///     }
/// }
/// let program: mk::Program = linear();
/// ```
///
/// The item becomes a function of its name, visibility, docs and attributes, without
/// parameters, that returns the checked `mk::Program`. `docs/dsl.md` describes the language.
///
/// # Errors
///
/// Each mistake is a compile error on its token, with a help line; the function is declared all
/// the same, so that its uses are no further errors.
#[proc_macro]
pub fn pipeline(input: TokenStream) -> TokenStream {
    expand::pipeline(input.into()).into()
}

/// Declares a pipeline on a struct that holds one rank's tensors of it.
///
/// ```ignore
/// /// Row-parallel linear layer.
/// #[mk::pipelined(gather(a) -> gemm(b) -> reduce_scatter)]
/// pub struct RowParallel {
///     #[tensor(bf16[M, K] @ shard(0))]
///     pub a: DeviceTensor,
///     #[tensor(bf16[K, N] @ partial)]
///     pub b: DeviceTensor,
///     #[result(bf16[M, N] @ shard(0))]
///     pub out: DeviceTensor,
/// }
/// let program: &'static mk::Program = RowParallel::pipeline();
/// instance.launch(&streams, &[rank0.arguments(), rank1.arguments()])?;
/// ```
///
/// The attribute has the body of a pipeline, after its runtime symbols if it has any:
/// `#[mk::pipelined(<M: dyn <= 8192> gather(x) -> gemm(w))]`. Every field says in the words of the
/// language what tensor it is; its Rust type is the user's choice, any `mk::AsTensor`. The struct
/// keeps its visibility, docs, generics and other attributes, and gets two functions of its own
/// visibility:
///
/// - `fn pipeline() -> &'static mk::Program`;
/// - `fn arguments(&self) -> mk::runtime::RankTensors`, what `mk::runtime::Instance::launch` takes
///   for one rank.
///
/// (It is not called `pipeline` as the item macro is, because Rust has one name for both kinds; and
/// the types stand in attributes, because Rust reads a struct before a macro sees it.)
///
/// # Errors
///
/// As for [`pipeline!`].
#[proc_macro_attribute]
pub fn pipelined(arguments: TokenStream, item: TokenStream) -> TokenStream {
    annotation::pipelined(arguments.into(), item.into()).into()
}
