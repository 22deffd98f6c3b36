//! Why a call cannot be made.

use mk_abi::DType;
use mk_codegen::{check::CheckError, passes::LowerError, sim::SimError, trace::TraceError};
use mk_syntax::BindErrors;
use thiserror::Error;

/// A failure between a checked pipeline and a launch.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// Tensors or sizes that do not fit the pipeline.
    #[error(transparent)]
    Argument(Box<ArgumentError>),
    /// The pipeline, with these sizes, has no plan.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The plan has no kernel.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// A kernel of another pipeline.
    #[error("{what}")]
    Mismatch {
        /// What does not fit.
        what: String,
    },
    /// The CPU executor stopped.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// What a kernel recorded cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Compiling, binding or launching failed, or a kernel gave up.
    #[error(transparent)]
    Runtime(#[from] mk_runtime::Error),
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

/// Why tensors or sizes do not fit a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// Another number of something.
    #[error("{given} {what} were given, and {expected} are needed: {names}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// Given.
        given: usize,
        /// Needed.
        expected: usize,
        /// What they are.
        names: String,
    },
    /// A size is given for something that the pipeline does not have.
    #[error("the pipeline has no {what} `{name}`\n  help: {help}")]
    Unknown {
        /// `tensor` or `symbol`.
        what: &'static str,
        /// The name given.
        name: String,
        /// What there is.
        help: String,
    },
    /// A number that a tensor of integers does not hold.
    #[error(
        "`{tensor}`, which is {dtype}, has {value} at {at} on rank {rank}\n  help: give whole numbers from -2^24 to \
         2^24, which the executor holds exactly"
    )]
    Integer {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// The rank.
        rank: u32,
        /// The place, row-major.
        at: usize,
        /// The number.
        value: String,
    },
    /// A number of ranks that no world has.
    #[error("{ranks} ranks: a world has 1 to {most}")]
    Ranks {
        /// Given.
        ranks: u32,
        /// The most.
        most: u32,
    },
    /// A pipeline over several axes, on ranks in a row.
    #[error(
        "the pipeline is over the axes `{axes}`, and the world's ranks have none\n  help: make the world of a mesh \
         that has them: mk.World.from_torch(group=mesh), of a torch DeviceMesh"
    )]
    Axes {
        /// Their names.
        axes: String,
    },
    /// A mesh of other ranks.
    #[error(
        "the mesh {mesh} is not of {ranks} ranks\n  help: let the extents' product be the ranks"
    )]
    Mesh {
        /// Its axes.
        mesh: String,
        /// The ranks.
        ranks: u32,
    },
    /// A pipeline over an axis that the mesh lacks.
    #[error(
        "the pipeline is over the axis `{axis}`, and the world's mesh is {mesh}\n  help: name one of its axes, as in \
         `shard(0, tp)` or `gather(a, tp)`; or make a world of one axis: mk.World.from_torch(group=mesh[\"tp\"])"
    )]
    Axis {
        /// The axis.
        axis: String,
        /// The mesh's axes.
        mesh: String,
    },
    /// A tensor with elements of another type.
    #[error("`{tensor}` is {given}, and the pipeline says {expected}\n  help: {help}")]
    DType {
        /// The tensor.
        tensor: String,
        /// What the pipeline says.
        expected: DType,
        /// What was given.
        given: DType,
        /// What to do.
        help: String,
    },
    /// A tensor with another number of dimensions.
    #[error("`{tensor}` has {expected} dimensions in the pipeline, and {given:?} has {}", given.len())]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Dimensions in the pipeline.
        expected: usize,
        /// The shape given.
        given: Vec<u64>,
    },
    /// Two sources give one symbol different numbers.
    #[error("`{symbol}` is {first} by {first_from}, and {second} by {second_from}\n  help: {help}")]
    Conflict {
        /// The symbol.
        symbol: String,
        /// The first number.
        first: u64,
        /// Where it comes from.
        first_from: String,
        /// The second number.
        second: u64,
        /// Where it comes from.
        second_from: String,
        /// What to do.
        help: String,
    },
    /// An extent of nothing.
    #[error(
        "`{symbol}` is 0 by {from}\n  help: give it at least 1; a call without rows need not be made"
    )]
    Empty {
        /// The symbol.
        symbol: String,
        /// Where the 0 comes from.
        from: String,
    },
    /// An extent beyond its bound.
    #[error("`{symbol}` is {value} by {from}, {}", beyond(*most, *declared))]
    TooLarge {
        /// The symbol.
        symbol: String,
        /// The number.
        value: u64,
        /// Where it comes from.
        from: String,
        /// The most.
        most: u64,
        /// Whether the pipeline says so.
        declared: bool,
    },
    /// A tensor that is not what its rank holds of the global one.
    #[error("`{tensor}` has shape {given:?} on rank {rank}, and {expected:?} is that rank's part of {global}\n  help: \
        {}",
        part_help(tensor, *sharded))]
    Shape {
        /// The tensor.
        tensor: String,
        /// The rank.
        rank: u32,
        /// The local shape given.
        given: Vec<u64>,
        /// The local shape that the global one gives.
        expected: Vec<u64>,
        /// The global shape, its placement and the number of ranks.
        global: String,
        /// Whether each rank holds another part of it.
        sharded: bool,
    },
    /// A tensor that is not what a bound kernel has on its rank.
    #[error("`{tensor}` has shape {given:?} on rank {rank}, and the kernel's is {expected:?}")]
    Local {
        /// The tensor.
        tensor: String,
        /// The rank.
        rank: u32,
        /// The local shape given.
        given: Vec<u64>,
        /// The kernel's.
        expected: Vec<u64>,
    },
    /// Sizes that are missing or out of range.
    #[error("{0}")]
    Bind(BindErrors),
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
