//! Why a call cannot be made.

use mk_abi::DType;
use mk_codegen::{check::CheckError, passes::LowerError, sim::SimError, trace::TraceError};
use mk_syntax::BindErrors;

mk_abi::errors! {
    /// A failure between a checked pipeline and a launch.
    #[derive(Debug)]
    #[non_exhaustive]
    FunctionError {
        /// Tensors or sizes that do not fit the pipeline.
        Argument from Box<ArgumentError>,
        /// The pipeline, with these sizes, has no plan.
        Lower from LowerError,
        /// The plan has no kernel.
        Check from CheckError,
        /// A kernel of another pipeline.
        Mismatch("{what}") {
            what: String = "What does not fit",
        },
        /// The CPU executor stopped.
        Sim from SimError,
        /// What a kernel recorded cannot be read.
        Trace from TraceError,
        /// Compiling, binding or launching failed, or a kernel gave up.
        Runtime from mk_runtime::Error,
    }
}

/// A result of this crate.
pub(crate) type Result<T, E = FunctionError> = std::result::Result<T, E>;

impl From<ArgumentError> for FunctionError {
    fn from(error: ArgumentError) -> FunctionError {
        FunctionError::Argument(Box::new(error))
    }
}

impl FunctionError {
    pub(crate) fn mismatch(what: impl Into<String>) -> FunctionError {
        FunctionError::Mismatch { what: what.into() }
    }
}

mk_abi::errors! {
    /// Why tensors or sizes do not fit a pipeline.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    ArgumentError {
        /// Another number of something.
        Count("{given} {what} were given, and {expected} are needed: {names}") {
            what: &'static str = "What is counted",
            given: usize = "Given",
            expected: usize = "Needed",
            names: String = "What they are",
        },
        /// A size is given for something that the pipeline does not have.
        Unknown("the pipeline has no {what} `{name}`\n  help: {help}") {
            what: &'static str = "`tensor` or `symbol`",
            name: String = "The name given",
            help: String = "What there is",
        },
        /// A number that a tensor of integers does not hold.
        Integer(
            "`{tensor}`, which is {dtype}, has {value} at {at} on rank {rank}\n  help: give whole numbers from -2^24 \
             to 2^24, which the executor holds exactly"
        ) {
            tensor: String = "The tensor",
            dtype: DType = "Its type",
            rank: u32 = "The rank",
            at: usize = "The place, row-major",
            value: String = "The number",
        },
        /// A number of ranks that no world has.
        Ranks("{ranks} ranks: a world has 1 to {most}") {
            ranks: u32 = "Given",
            most: u32 = "The most",
        },
        /// A pipeline over several axes, on ranks in a row.
        Axes(
            "the pipeline is over the axes `{axes}`, and the world's ranks have none\n  help: make the world of a \
             mesh that has them: mk.World.from_torch(group=mesh), of a torch DeviceMesh"
        ) {
            axes: String = "Their names",
        },
        /// A mesh of other ranks.
        Mesh("the mesh {mesh} is not of {ranks} ranks\n  help: let the extents' product be the ranks") {
            mesh: String = "Its axes",
            ranks: u32 = "The ranks",
        },
        /// A pipeline over an axis that the mesh lacks.
        Axis(
            "the pipeline is over the axis `{axis}`, and the world's mesh is {mesh}\n  help: name one of its axes, as \
             in `shard(0, tp)` or `gather(a, tp)`; or make a world of one axis: \
             mk.World.from_torch(group=mesh[\"tp\"])"
        ) {
            axis: String = "The axis",
            mesh: String = "The mesh's axes",
        },
        /// A tensor with elements of another type.
        DType("`{tensor}` is {given}, and the pipeline says {expected}\n  help: {help}") {
            tensor: String = "The tensor",
            expected: DType = "What the pipeline says",
            given: DType = "What was given",
            help: String = "What to do",
        },
        /// A tensor with another number of dimensions.
        Dimensions("`{tensor}` has {expected} dimensions in the pipeline, and {given:?} has {}", given.len()) {
            tensor: String = "The tensor",
            expected: usize = "Dimensions in the pipeline",
            given: Vec<u64> = "The shape given",
        },
        /// Two sources give one symbol different numbers.
        Conflict("`{symbol}` is {first} by {first_from}, and {second} by {second_from}\n  help: {help}") {
            symbol: String = "The symbol",
            first: u64 = "The first number",
            first_from: String = "Where it comes from",
            second: u64 = "The second number",
            second_from: String = "Where it comes from",
            help: String = "What to do",
        },
        /// An extent of nothing.
        Empty("`{symbol}` is 0 by {from}\n  help: give it at least 1; a call without rows need not be made") {
            symbol: String = "The symbol",
            from: String = "Where the 0 comes from",
        },
        /// An extent beyond its bound.
        TooLarge("`{symbol}` is {value} by {from}, {}", beyond(*most, *declared)) {
            symbol: String = "The symbol",
            value: u64 = "The number",
            from: String = "Where it comes from",
            most: u64 = "The most",
            declared: bool = "Whether the pipeline says so",
        },
        /// A tensor that is not what its rank holds of the global one.
        Shape(
            "`{tensor}` has shape {given:?} on rank {rank}, and {expected:?} is that rank's part of {global}\n  help: \
             {}",
            part_help(tensor, *sharded)
        ) {
            tensor: String = "The tensor",
            rank: u32 = "The rank",
            given: Vec<u64> = "The local shape given",
            expected: Vec<u64> = "The local shape that the global one gives",
            global: String = "The global shape, its placement and the number of ranks",
            sharded: bool = "Whether each rank holds another part of it",
        },
        /// A tensor that is not what a bound kernel has on its rank.
        Local("`{tensor}` has shape {given:?} on rank {rank}, and the kernel's is {expected:?}") {
            tensor: String = "The tensor",
            rank: u32 = "The rank",
            given: Vec<u64> = "The local shape given",
            expected: Vec<u64> = "The kernel's",
        },
        /// Sizes that are missing or out of range.
        Bind("{0}") = (BindErrors),
    }
}

fn beyond(most: u64, declared: bool) -> String {
    match declared {
        true => format!(
            "above its upper bound {most}\n  help: give it a number from 1 to {most}, or raise the bound"
        ),
        false => format!("outside 1..={most}\n  help: give it a number from 1 to {most}"),
    }
}

fn part_help(tensor: &str, sharded: bool) -> String {
    if !sharded {
        return "every rank brings a tensor of the global shape".into();
    }
    format!(
        "cut it as torch.chunk does; if the shards are uneven, give the global shape of `{tensor}` when compiling"
    )
}
