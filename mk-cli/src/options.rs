//! The options that say which plan is meant.

use crate::source::{self, Form};
use clap::{Args, ValueEnum};
use mk::settings::{self, Config, NicOrdering, Setting};
use std::collections::BTreeMap;
use std::path::Path;

/// Ranks of a pipeline for which nothing else is said.
pub const DEFAULT_RANKS: u32 = 4;

/// A pipeline, its sizes and how it is compiled.
#[derive(Args, Clone, Debug)]
pub struct PipelineArgs {
    /// A pipeline such as "gather(a) -> gemm(b)", a file x.mk that holds one, or (where no settings are searched) a
    /// plan x.plan or x.json; - is any of them on stdin
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
    /// Axes of the ranks and their extents, the last one's ranks side by side: tp=2,dp=2. Along axes that the pipeline
    /// does not place anything over, ranks do the same with tensors of their own [default: all ranks along the
    /// pipeline's axis]
    #[arg(long, value_name = "AXIS=N,...", value_parser = mesh)]
    pub mesh: Option<Mesh>,
    /// Nodes that the ranks are on, as many on each; between nodes only network cards carry data [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=mk::abi::device::MAX_RANKS as i64))]
    pub nodes: Option<u32>,
    /// In which order the network between nodes delivers [default: in-order]
    #[arg(long, value_name = "ORDER", requires = "nodes")]
    pub net: Option<Net>,
    /// Take what `mk tune` measured to be the best, or else what the cost model takes for it; not with `--set`
    #[arg(long)]
    pub tuned: bool,
    /// Settings, as `mk explain` prints them: `block=128x128x64 split_k=2` (repeatable); docs/tuning.md lists them
    #[arg(long = "set", value_name = "NAME=VALUE ...", value_parser = words)]
    pub set: Vec<Words>,
    /// One of the pipelines of a text that has several.
    #[arg(skip)]
    pub item: Option<String>,
}

/// Order of delivery of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Net {
    /// Words follow data, as on InfiniBand RC.
    InOrder,
    /// Receivers count, as on SRD.
    Unordered,
}

/// A mesh's axes, of two or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh(pub Vec<(String, u32)>);

/// Settings as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words(Vec<(&'static Setting, String)>);

impl PipelineArgs {
    /// Whether it names a plan, as text or as JSON.
    pub fn is_plan(&self) -> bool {
        source::form(&self.pipeline) != Form::Pipeline
    }

    /// Whether the ranks are on several nodes.
    pub fn over_nodes(&self) -> bool {
        self.nodes.is_some_and(|n| n > 1)
    }

    /// Axes of the ranks, if they are given.
    pub fn axes(&self) -> Vec<(String, u32)> {
        self.mesh.as_ref().map_or_else(Vec::new, |mesh| mesh.0.clone())
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        let of_mesh = self.mesh.as_ref().map(|mesh| mesh.0.iter().map(|(_, n)| n).product());
        self.ranks.or(of_mesh).unwrap_or(DEFAULT_RANKS)
    }

    /// The settings that are given, in the order of the command line.
    pub fn settings(&self) -> impl Iterator<Item = &(&'static Setting, String)> {
        self.set.iter().flat_map(|words| &words.0)
    }

    /// The options that a plan has no use for, as they were written.
    pub fn given(&self) -> Vec<&'static str> {
        let all = [
            ("--dim", self.dims.is_empty()),
            ("--shape", self.shapes.is_empty()),
            ("--ranks", self.ranks.is_none()),
            ("--mesh", self.mesh.is_none()),
            ("--nodes", self.nodes.is_none()),
            ("--net", self.net.is_none()),
            ("--tuned", !self.tuned),
            ("--set", self.set.is_empty()),
        ];
        all.into_iter().filter(|(_, absent)| !absent).map(|(name, _)| name).collect()
    }

    /// The world and the settings that the options say.
    ///
    /// # Errors
    /// If a setting is given twice.
    pub fn config(&self) -> Result<Config, String> {
        let net = match self.net {
            None | Some(Net::InOrder) => NicOrdering::InOrder,
            Some(Net::Unordered) => NicOrdering::Unordered,
        };
        let (ranks, nodes) = (self.ranks(), self.nodes.unwrap_or(1));
        let mut config = Config { ranks, mesh: self.axes(), nodes, net, ..Config::default() };
        let words = self.settings().map(|(setting, value)| format!("{}={value}", setting.name));
        let text = words.collect::<Vec<_>>().join(" ");
        settings::read(&mut config, &text).map_err(|e| e.to_string())?;
        Ok(config)
    }
}

/// Words of NAME=VALUE, each a setting with one of its values.
fn words(text: &str) -> Result<Words, String> {
    settings::read(&mut Config::default(), text).map_err(|e| e.to_string())?;
    let words: Vec<_> = text
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .filter_map(|(name, value)| Some((settings::by_name(name)?, value.to_string())))
        .collect();
    if words.is_empty() { Err("write NAME=VALUE".into()) } else { Ok(Words(words)) }
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
    let plain = text.chars().all(|c| c.is_ascii_digit() || c == '_');
    if !plain || !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("`{text}` is not a whole number from 0 up"));
    }
    text.replace('_', "").parse().map_err(|_| format!("`{text}` is too large a number"))
}

fn dim(text: &str) -> Result<(String, u64), String> {
    let (name, value) = pair(text, "M=8192")?;
    Ok((name, number(value)?))
}

/// At most as many ranks as a world has: products do not overflow.
fn mesh(text: &str) -> Result<Mesh, String> {
    let mut axes: Vec<(String, u32)> = Vec::new();
    let mut ranks = 1;
    for word in text.split(',') {
        let (name, value) = pair(word, "tp=2,dp=2")?;
        if axes.iter().any(|(other, _)| *other == name) {
            return Err(format!("the axis `{name}` is given twice"));
        }
        let extent = number(value)?;
        ranks *= extent;
        if !(1..=mk::abi::device::MAX_RANKS as u64).contains(&ranks) {
            return Err(format!("a mesh has 1 to {} ranks", mk::abi::device::MAX_RANKS));
        }
        axes.push((name, extent as u32));
    }
    Ok(Mesh(axes))
}

fn extents(text: &str) -> Result<Vec<u64>, String> {
    text.split('x').map(number).collect()
}

fn shape(text: &str) -> Result<(String, Vec<u64>), String> {
    let (name, value) = pair(text, "a=8192x4096")?;
    Ok((name, extents(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_words_of_the_table() {
        let Words(read) = words("block=128x128x64  consumers=ping-pong").expect("reads");
        assert_eq!(read.iter().map(|(s, _)| s.name).collect::<Vec<_>>(), ["block", "consumers"]);
        let error = |text: &str| words(text).expect_err(text);
        assert!(error("blok=1x1x1").contains("the settings are block, stages"));
        assert!(error("consumers=both").contains("takes cooperative | ping_pong"));
        assert!(
            error("split_k=-1").contains("no value") && error("split_k").contains("NAME=VALUE")
        );
        assert!(error("").contains("NAME=VALUE"));
    }

    #[test]
    fn what_can_be_read() {
        assert_eq!(dim("M=8_192"), Ok(("M".into(), 8192)));
        assert_eq!(shape("a=8192x64"), Ok(("a".into(), vec![8192, 64])));
        for bad in ["M", "M=", "=3", "M=-3", "M=_3", "M=99999999999999999999"] {
            assert!(dim(bad).is_err(), "{bad}");
        }
        let Mesh(axes) = mesh("tp=2, dp=4").expect("a mesh");
        assert_eq!(axes, [("tp".to_string(), 2), ("dp".to_string(), 4)]);
        for bad in ["tp", "tp=0", "tp=2,tp=2", "tp=8,dp=16", "tp=2,,dp=2", "a=99999999,b=99999999"]
        {
            assert!(mesh(bad).is_err(), "{bad}");
        }
        assert!(shape("a=8x").is_err());
        assert!(once("dim", &[("M".into(), 1), ("M".into(), 1)]).is_err());
    }
}
