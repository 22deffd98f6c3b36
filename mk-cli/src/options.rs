//! The options that say which plan is meant.

use clap::Args;
use mk::passes::{Gather, Head, Tail};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::str::FromStr;

/// Ranks of a pipeline for which nothing else is said.
pub const DEFAULT_RANKS: u32 = 4;

/// A pipeline, its sizes and how it is compiled.
#[derive(Args, Clone, Debug)]
pub struct PipelineArgs {
    /// A pipeline such as "gather(a) -> gemm(b)", a file x.mk that holds one, or (where no settings are searched) a plan x.plan
    #[arg(value_name = "PIPELINE")]
    pub pipeline: String,
    /// Number for a symbol; overrides the header of an .mk file (repeatable)
    #[arg(long = "dim", value_name = "NAME=NUMBER", value_parser = dim)]
    pub dims: Vec<(String, u64)>,
    /// Global shape of a tensor, for instance a=8192x4096 (repeatable)
    #[arg(long = "shape", value_name = "NAME=AxB", value_parser = shape)]
    pub shapes: Vec<(String, Vec<u64>)>,
    /// Number of ranks [default: 4; a plan has its own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=mk::abi::device::MAX_RANKS as i64))]
    pub ranks: Option<u32>,
    /// Take what `mk tune` measured to be the best, or else what the cost model takes for it; not with options that say how
    /// to lower
    #[arg(long)]
    pub tuned: bool,
    /// CTAs of a role, for instance intra_comm=8 (repeatable)
    #[arg(long = "sms", value_name = "ROLE=N", value_parser = sms)]
    pub sms: Vec<(String, u32)>,
    /// Rows, columns and depth of a matrix product's tile [default: 128x256x64]
    #[arg(long, value_name = "MxNxK", value_parser = block)]
    pub block: Option<[u32; 3]>,
    /// Blocks of rows at the end of each shard, at most, whose tiles have fewer columns, or are cut into parts along k, at most so many, for instance 1x64 or 2x256/4 [default: none]
    #[arg(long, value_name = "BLOCKSxCOLUMNS[/PARTS]")]
    pub tail: Option<OrNone<Tail>>,
    /// Columns of the tiles of a gathered operand's own rows, less than the others have, so that all CTAs share them [default: as the others]
    #[arg(long, value_name = "N")]
    pub own_columns: Option<OrNone<NonZeroU32>>,
    /// First tiles with fewer columns, and how many, so that not all leave at once and links have something to carry sooner, for instance 64x128 [default: none]
    #[arg(long, value_name = "TILESxCOLUMNS")]
    pub head: Option<OrNone<Head>>,
    /// How an all_reduce moves its summands: one-shot and by-columns are for few rows
    #[arg(long, value_enum)]
    pub all_reduce: Option<AllReduce>,
    /// Which CTAs add up what products leave [default: beside]
    #[arg(long, value_enum)]
    pub sums: Option<Sums>,
    /// Bytes that one communication task moves to each peer, at most, but at least eight rows [default: 524288]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk_bytes: Option<u32>,
    /// Slices of the inner dimension in which gathered rows travel, at most; whole where no such number fits [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub k_slices: Option<u32>,
    /// Who pushes gathered rows to the peers: `sms`, or `engine`, the copy engine, which announces a shard as a whole or in parts, at most so many, `engine/4` [default: sms]
    #[arg(long, value_name = "WHO")]
    pub gather: Option<Gather>,
    /// Parts of the inner dimension that are multiplied at the same time, at most, where sums follow [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub split_k: Option<u32>,
    /// Who adds those parts [default: rank]
    #[arg(long)]
    pub fold: Option<Fold>,
    /// Row blocks that are walked together before the next columns' tiles [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub group_rows: Option<u32>,
    /// How the two warpgroups that multiply share the tiles of a CTA; ping-pong takes 128 rows and at most 160 columns [default: cooperative]
    #[arg(long)]
    pub consumers: Option<Consumers>,
    /// Which CTA runs which tile of a product, which sum and which copy through registers [default: static]
    #[arg(long)]
    pub tile_schedule: Option<TileSchedule>,
}

/// [`mk::passes::Schedule`] as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TileSchedule {
    /// Every so many each
    Static,
    /// In order, the next is for whoever is free
    Dynamic,
}

/// [`mk::passes::Consumers`] as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Consumers {
    /// Each has its part of every tile
    Cooperative,
    /// Tiles of their own, in turn: one multiplies while the other brings its results out
    #[value(alias = "ping_pong")]
    PingPong,
}

/// [`mk::passes::Fold`] as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fold {
    /// The rank that made them, before anything leaves it
    Rank,
    /// The owner of the sum, with those of the other ranks
    Owner,
}

/// [`mk::passes::Sums`] as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sums {
    /// CTAs of their own, meanwhile
    Beside,
    /// Those that multiply, when they are done
    After,
    /// Those that multiply, tile by tile: sums go from rank to rank
    Ring,
    /// The memory of the owner, to which tiles are sent one after the other
    #[value(alias = "on_write")]
    OnWrite,
    /// The owner, at the end of each of its own tiles
    Epilogue,
}

/// [`mk::passes::AllReduce`] as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AllReduce {
    /// To the owners of the rows, and from them to everybody
    #[value(alias = "two_phase")]
    TwoPhase,
    /// Every rank reads what all ranks have
    #[value(alias = "one_shot")]
    OneShot,
    /// To the owners of the columns, and from them to everybody: where rows are too few to be cut
    #[value(alias = "by_columns")]
    ByColumns,
}

/// A setting that may be said not to be there: `none`, as it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrNone<T>(pub Option<T>);

impl<T: FromStr> FromStr for OrNone<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<OrNone<T>, T::Err> {
        match text {
            "none" => Ok(OrNone(None)),
            text => text.parse().map(|value| OrNone(Some(value))),
        }
    }
}

impl PipelineArgs {
    /// Whether it names a plan.
    pub fn is_plan(&self) -> bool {
        has_extension(&self.pipeline, "plan")
    }

    /// The options that say how to lower, as they were written.
    pub fn lowering(&self) -> Vec<&'static str> {
        let others = ["--dim", "--shape", "--ranks", "--tuned"];
        self.given().into_iter().filter(|flag| !others.contains(flag)).collect()
    }

    /// The options that a plan has no use for, as they were written.
    pub fn given(&self) -> Vec<&'static str> {
        let all = [
            ("--dim", self.dims.is_empty()),
            ("--shape", self.shapes.is_empty()),
            ("--ranks", self.ranks.is_none()),
            ("--tuned", !self.tuned),
            ("--sms", self.sms.is_empty()),
            ("--block", self.block.is_none()),
            ("--tail", self.tail.is_none()),
            ("--own-columns", self.own_columns.is_none()),
            ("--head", self.head.is_none()),
            ("--all-reduce", self.all_reduce.is_none()),
            ("--sums", self.sums.is_none()),
            ("--chunk-bytes", self.chunk_bytes.is_none()),
            ("--k-slices", self.k_slices.is_none()),
            ("--gather", self.gather.is_none()),
            ("--split-k", self.split_k.is_none()),
            ("--fold", self.fold.is_none()),
            ("--consumers", self.consumers.is_none()),
            ("--group-rows", self.group_rows.is_none()),
            ("--tile-schedule", self.tile_schedule.is_none()),
        ];
        all.into_iter().filter(|(_, absent)| !absent).map(|(name, _)| name).collect()
    }
}

/// Whether a path ends so.
pub fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|e| e == extension)
}

/// A repeated option as a map; a name that is given twice is an error.
pub fn once<T: Clone>(flag: &str, list: &[(String, T)]) -> Result<BTreeMap<String, T>, String> {
    let mut map = BTreeMap::new();
    for (name, value) in list {
        if map.insert(name.clone(), value.clone()).is_some() {
            return Err(format!("`--{flag} {name}=` is given twice"));
        }
    }
    Ok(map)
}

fn pair<'a>(text: &'a str, example: &str) -> Result<(String, &'a str), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_string(), value.trim()))
        }
        _ => Err(format!("write it as {example}")),
    }
}

/// Digits, perhaps with `_` between them.
fn number(text: &str) -> Result<u64, String> {
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    match text.replace('_', "").parse() {
        Ok(number) if digits => Ok(number),
        _ => Err(format!("`{text}` is not a number")),
    }
}

fn dim(text: &str) -> Result<(String, u64), String> {
    let (name, value) = pair(text, "M=8192")?;
    Ok((name, number(value)?))
}

fn extents(text: &str) -> Result<Vec<u64>, String> {
    text.split('x').map(number).collect()
}

fn shape(text: &str) -> Result<(String, Vec<u64>), String> {
    let (name, value) = pair(text, "a=8192x4096")?;
    Ok((name, extents(value)?))
}

fn small(n: u64) -> Result<u32, String> {
    u32::try_from(n).map_err(|_| format!("{n} is too large"))
}

fn sms(text: &str) -> Result<(String, u32), String> {
    let (name, value) = pair(text, "intra_comm=8")?;
    Ok((name, small(number(value)?)?))
}

fn block(text: &str) -> Result<[u32; 3], String> {
    match extents(text)?.as_slice() {
        [m, n, k] => Ok([small(*m)?, small(*n)?, small(*k)?]),
        _ => Err("give rows, columns and depth, for instance 128x256x64".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read() {
        assert_eq!(dim("M=8_192"), Ok(("M".into(), 8192)));
        assert_eq!(shape("a=8192x64"), Ok(("a".into(), vec![8192, 64])));
        assert_eq!(block("128x256x64"), Ok([128, 256, 64]));
        for bad in ["M", "M=", "=3", "M=-3", "M=_3", "M=99999999999999999999"] {
            assert!(dim(bad).is_err(), "{bad}");
        }
        assert!(
            shape("a=8x").is_err() && block("128x256").is_err() && sms("x=5000000000").is_err()
        );
        assert!(once("dim", &[("M".into(), 1), ("M".into(), 1)]).is_err());
    }
}
