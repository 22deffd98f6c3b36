//! The types of settings, and their texts.

use super::text::Text;
use mk_plan::{Consumers, Schedule};

/// M, N and K of a GEMM's tile: `128x256x64`.
pub type Block = [u32; 3];

/// Which agents push gathered rows to the peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// CTAs of their own: a chunk is read once and written to every peer. Rows of a pitch that bulk copies cannot take
    /// go through registers.
    #[default]
    Sms,
    /// The GPU's copy engine, which takes no SM: to one peer after the other. The kernel begins when every rank has
    /// entered the launch. For rows of a multiple of 16 bytes, and as many in every launch.
    CopyEngine {
        /// Parts of a shard that are announced one by one, at most; 32 or fewer.
        parts: u32,
    },
}

/// Where the contributions to a `reduce_scatter` or `all_reduce` behind a GEMM are reduced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// On dedicated SMs, while the others multiply.
    #[default]
    DedicatedSms,
    /// On the SMs that multiply, after the last wave: for products of one or two waves of tiles, which need every SM
    /// and end all at once.
    AfterLastWave,
    /// Fused into the epilogue, in a ring: a sum goes from rank to rank, each adds its tile and passes it on, and the
    /// owner of the rows is the last. The sum has the dtype of the result on its way, so that it is rounded on every
    /// rank; the order of ranks is fixed, and so are the bits. For a `reduce_scatter` of a GEMM whose operand A is
    /// not gathered.
    Ring,
}

/// How an `all_reduce` moves its contributions. All add in the order of ranks, in f32, and round once: the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AllReduce {
    /// Contributions go to the owners of their rows, sums to every rank: each link carries `2 (n - 1) / n` of the
    /// result.
    #[default]
    TwoShot,
    /// Every rank reads the contributions of all ranks and adds them for itself: one hop instead of two, `n - 1`
    /// results over each link. For few rows.
    OneShot,
    /// As in two shots, but columns have owners: column block `j` belongs to rank `j % n`. For rows that are too few to
    /// be cut.
    ByColumns,
}

/// What of experts' rows goes back to the rank of their token, inside a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Returns {
    /// The row of each slot, which the token's rank reads where it is.
    #[default]
    Rows,
    /// The weighted sum of each rank's rows, rounded to the dtype of the result: one row from each rank.
    Sums,
}

/// Smaller tiles for the last rows: narrower, or in parts along k, or both. The last wave, which does not fill the GPU,
/// is then short, and rows that arrive last are multiplied by many SMs. For GEMMs that are results as they are; of a
/// gathered operand, the last rows of every peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastWave {
    /// Blocks of rows at the end of each shard.
    pub blocks: u32,
    /// Columns of their tiles: a multiple of 64; fewer than the others have, or as many if there are parts.
    pub columns: u32,
    /// Parts of K (split-K), at most. Each makes a contribution in f32, and all CTAs that multiply
    /// add them up at the end, in order.
    pub parts: u32,
}

/// CTAs of a cluster that load operands together (TMA multicast): their tiles lie one below the other and share B, and
/// side by side and share A. One or two of each, not both one. For GEMMs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// Tiles one below the other.
    pub below: u32,
    /// Tiles side by side.
    pub beside: u32,
}

impl Text for Multicast {
    const FORM: &'static str = "ROWSxCOLUMNS";

    fn write(&self) -> String {
        format!("{}x{}", self.below, self.beside)
    }

    fn read(text: &str) -> Option<Multicast> {
        let (below, beside) = text.split_once('x')?;
        Some(Multicast { below: u32::read(below)?, beside: u32::read(beside)? })
    }
}

impl Text for u32 {
    const FORM: &'static str = "N";

    fn write(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Option<u32> {
        // `parse` takes a sign.
        text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
    }
}

impl Text for Block {
    const FORM: &'static str = "MxNxK";

    fn write(&self) -> String {
        self.map(|n| n.to_string()).join("x")
    }

    fn read(text: &str) -> Option<Block> {
        let mut parts = text.split('x').map(u32::read);
        let block = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(block)
    }
}

impl Text for Gather {
    const FORM: &'static str = "sms | copy_engine[/PARTS]";

    fn write(&self) -> String {
        match self {
            Gather::Sms => "sms".into(),
            Gather::CopyEngine { parts: 1 } => "copy_engine".into(),
            Gather::CopyEngine { parts } => format!("copy_engine/{parts}"),
        }
    }

    fn read(text: &str) -> Option<Gather> {
        match text.split_once('/') {
            None if text == "sms" => Some(Gather::Sms),
            None if text == "copy_engine" => Some(Gather::CopyEngine { parts: 1 }),
            Some(("copy_engine", parts)) => {
                Some(Gather::CopyEngine { parts: u32::read(parts).filter(|n| *n > 0)? })
            }
            _ => None,
        }
    }
}

impl Text for LastWave {
    const FORM: &'static str = "BLOCKSxCOLUMNS[/PARTS]";

    fn write(&self) -> String {
        let LastWave { blocks, columns, parts } = self;
        let parts = if *parts > 1 { format!("/{parts}") } else { String::new() };
        format!("{blocks}x{columns}{parts}")
    }

    fn read(text: &str) -> Option<LastWave> {
        let (tiles, parts) = text.split_once('/').unwrap_or((text, "1"));
        let (blocks, columns) = tiles.split_once('x')?;
        let number = |t: &str| u32::read(t);
        Some(LastWave { blocks: number(blocks)?, columns: number(columns)?, parts: number(parts)? })
    }
}

/// A value of a few that have names.
macro_rules! words {
    ($type:ty, $form:literal, $($word:literal => $value:path),+) => {
        impl Text for $type {
            const FORM: &'static str = $form;

            fn write(&self) -> String {
                match self {
                    $($value => $word.into(),)+
                }
            }

            fn read(text: &str) -> Option<$type> {
                match text.replace('-', "_").as_str() {
                    $($word => Some($value),)+
                    _ => None,
                }
            }
        }
    };
}

words!(Reduction, "dedicated_sms | after_last_wave | ring",
    "dedicated_sms" => Reduction::DedicatedSms,
    "after_last_wave" => Reduction::AfterLastWave,
    "ring" => Reduction::Ring);
words!(AllReduce, "two_shot | one_shot | by_columns",
    "two_shot" => AllReduce::TwoShot,
    "one_shot" => AllReduce::OneShot,
    "by_columns" => AllReduce::ByColumns);
words!(Returns, "rows | sums",
    "rows" => Returns::Rows,
    "sums" => Returns::Sums);
words!(Consumers, "cooperative | ping_pong",
    "cooperative" => Consumers::Cooperative,
    "ping_pong" => Consumers::PingPong);
words!(Schedule, "static | dynamic",
    "static" => Schedule::Static,
    "dynamic" => Schedule::Dynamic);
