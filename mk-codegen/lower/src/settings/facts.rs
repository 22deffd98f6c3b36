//! What settings depend on: a selected kernel, as far as they need to know it.

use std::cmp::Reverse;

/// What decides which settings a kernel can have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Ranks.
    pub ranks: u32,
    /// Gathered operands, and gathered results.
    pub gathers: Vec<GatheredRows>,
    /// GEMMs.
    pub products: Vec<Product>,
    /// Sums over ranks, behind GEMMs or of the caller's tensors.
    pub sums: Vec<Sum>,
    /// Whether keys, or queries, go to other ranks' attention.
    pub ring: bool,
    /// Whether tokens go to the ranks of their experts, or rows of experts back to their tokens.
    pub routed: bool,
    /// Rows that go back as a sum for each token: tokens of a rank, at most, and slots of each.
    pub returns: Option<[u64; 2]>,
    /// Whether their number comes with each launch, and each rank's part is lowered as its own: on one node.
    pub parts: bool,
    /// Whether rows are ragged: in blocks of 128, as many in each as a launch says.
    pub ragged: bool,
    /// Groups of ragged rows: matrices of a GEMM, of which each block has one.
    pub groups: u64,
    /// Global rows and columns of the first result.
    pub first: [u64; 2],
}

/// Rows that are gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatheredRows {
    /// The tensor.
    pub name: String,
    /// Whether bulk copies take its rows: multiples of 16 bytes, without gaps.
    pub bulk: bool,
    /// Whether every launch has as many.
    pub fixed: bool,
    /// Whether the kernel makes them.
    pub made: bool,
    /// Whether tiles may hold rows of several ranks.
    pub spans: bool,
    /// Whether factors come with them.
    pub scaled: bool,
    /// Whether they stay inside nodes, where the kernel has several.
    pub inside: bool,
}

/// Rows of a rank up to which tiles that hold rows of several ranks are worth trying.
const FEW_SHARD_ROWS: u64 = 256;

/// A GEMM with its elementwise epilogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Product {
    /// Global rows and columns of its result.
    pub extents: [u64; 2],
    /// Whether its operand A is gathered.
    pub gathered: bool,
    /// Whether another GEMM reads it.
    pub read: bool,
    /// Whether the caller gets it as it is.
    pub result: bool,
    /// Whether its epilogue is gated (`swiglu`).
    pub gated: bool,
    /// Whether an elementwise operation follows it, other than a cast.
    pub plain: bool,
    /// Whether its K can be cut: it is plain, and as deep on every rank.
    pub divisible: bool,
    /// Whether it stores, or saves, other than 16 bits.
    pub odd_bits: bool,
    /// Its K, where no launch decides it and every rank has as much of it.
    pub depth: Option<u64>,
    /// Whether its operands are the caller's, as the loops of tiles take them, and it saves nothing on the way.
    pub alone: bool,
    /// Whether TMA takes rows of both operands.
    pub whole: bool,
    /// Whether rows of operand B begin at any element, and tiles can shift them.
    pub shifts: bool,
    /// Whether its operands have eight bits.
    pub narrow: bool,
    /// Whether steps along K have factors of their own.
    pub blocks: bool,
    /// Whether results are quantised, in blocks of 128 columns.
    pub quantized: bool,
}

/// A sum over ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The GEMM that it adds; none for a caller's tensor.
    pub product: Option<usize>,
    /// Whether every rank gets all of it (`all_reduce`).
    pub all: bool,
    /// Whether elementwise operations follow it.
    pub epilogue: bool,
    /// Whether TMA can store its rows, on every rank.
    pub tma_rows: bool,
    /// Whether it stays inside nodes, where the kernel has several.
    pub inside: bool,
    /// Global rows and columns.
    pub extents: [u64; 2],
}

/// The fewest rows, and of those the most columns: the order of results says nothing.
fn fewest(extents: impl Iterator<Item = [u64; 2]>) -> Option<[u64; 2]> {
    extents.min_by_key(|[rows, columns]| (*rows, Reverse(*columns)))
}

impl Facts {
    /// Whether there are GEMMs.
    pub fn multiplies(&self) -> bool {
        !self.products.is_empty()
    }

    /// Whether rows are gathered.
    pub fn gathers(&self) -> bool {
        !self.gathers.is_empty()
    }

    /// Whether results of GEMMs are quantised.
    pub fn quantizes(&self) -> bool {
        self.products.iter().any(|p| p.quantized)
    }

    /// Whether gathered rows come with factors.
    pub fn scaled_gathers(&self) -> bool {
        self.gathers.iter().any(|g| g.scaled)
    }

    /// Whether something is summed over ranks.
    pub fn sums(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Whether some sum goes to every rank.
    pub fn all_reduces(&self) -> bool {
        self.sums.iter().any(|s| s.all)
    }

    /// Whether elementwise operations follow some sum.
    pub fn finishes_sums(&self) -> bool {
        self.sums.iter().any(|s| s.epilogue)
    }

    /// Whether some GEMM has operands of eight bits.
    pub fn narrow(&self) -> bool {
        self.products.iter().any(|p| p.narrow)
    }

    /// Whether some GEMM has factors of steps along K.
    pub fn blocks(&self) -> bool {
        self.products.iter().any(|p| p.blocks)
    }

    /// Whether some GEMM is gated.
    pub fn gated(&self) -> bool {
        self.products.iter().any(|p| p.gated)
    }

    /// Whether no GEMM has an elementwise epilogue.
    pub fn plain(&self) -> bool {
        self.products.iter().all(|p| p.plain)
    }

    /// Whether ranks exchange anything.
    pub fn communicates(&self) -> bool {
        self.ranks > 1 && (self.gathers() || self.sums() || self.ring || self.routed)
    }

    /// Global rows and columns of the GEMMs that no other reads: the fewest. Without GEMMs, of the first result.
    pub fn extents(&self) -> [u64; 2] {
        fewest(self.last_products()).unwrap_or(self.first)
    }

    /// The most rows of these GEMMs.
    pub fn most_rows(&self) -> u64 {
        self.last_products().map(|[rows, _]| rows).max().unwrap_or(self.first[0])
    }

    /// Global rows and columns of the sums: the fewest.
    pub fn sum_extents(&self) -> [u64; 2] {
        fewest(self.sums.iter().map(|s| s.extents)).unwrap_or(self.first)
    }

    fn last_products(&self) -> impl Iterator<Item = [u64; 2]> {
        self.products.iter().filter(|p| !p.read).map(|p| p.extents)
    }

    /// The sums of GEMMs.
    pub(super) fn product_sums(&self) -> impl Iterator<Item = (&Sum, &Product)> {
        self.sums.iter().filter_map(|s| Some((s, self.products.get(s.product?)?)))
    }

    /// Rows that lie together: those of a gathered operand, and of a result that is summed, are cut by owner, unless
    /// tiles hold few rows of several owners.
    pub(super) fn shard_rows(&self, rows: u64) -> u64 {
        let cut = self.sums() || self.gathers() && !self.spans_few(rows);
        if cut { rows / u64::from(self.ranks.max(1)) } else { rows }
    }

    /// Whether tiles may hold so many gathered rows, few of each rank.
    pub(super) fn spans_few(&self, rows: u64) -> bool {
        let spans = self.gathers() && self.gathers.iter().all(|g| g.spans) && !self.sums();
        spans && rows / u64::from(self.ranks.max(1)) < FEW_SHARD_ROWS
    }
}
