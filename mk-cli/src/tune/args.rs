//! The command line of `mk tune`.

use super::list::values;
use crate::{gpus::GpuList, options::PipelineArgs};
use clap::ValueEnum;
use mk::tune::Limits;
use std::path::PathBuf;

/// Options of `mk tune`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) pipeline: Option<PipelineArgs>,
    /// File of which each line holds the arguments of one pipeline, as on this command line; # begins a comment
    #[arg(long, value_name = "FILE", conflicts_with = "PipelineArgs")]
    pub(super) list: Option<PathBuf>,
    /// Compare predictions with what an earlier run wrote by --json, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["PipelineArgs", "list"])]
    pub(super) from: Option<PathBuf>,
    /// Where times come from
    #[arg(long, value_enum, default_value_t = Device::Cuda)]
    pub(super) device: Device,
    #[command(flatten)]
    pub(super) gpus: GpuList,
    /// Measure only as many candidates as this, those that the model takes for the best; with `--device model`, print
    /// so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) top: Option<u32>,
    /// Figures of the machine, as `mk probe` writes them [default: those of this GPU, or of an H200]
    #[arg(long, value_name = "FILE")]
    pub(super) model: Option<PathBuf>,
    /// Values of a setting to try instead of the usual ones, for instance intra_comm_sms=8,16 (repeatable)
    #[arg(long = "try", value_name = "SETTING=A,B", value_parser = values)]
    pub(super) tries: Vec<(String, Vec<String>)>,
    /// Print every candidate, also those that were refused, with the reason
    #[arg(long)]
    pub(super) all: bool,
    /// Write everything that was measured as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Rounds in which every candidate is timed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Seed of the inputs
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Device {
    /// Measured on GPUs
    Cuda,
    /// Predicted by the cost model
    Model,
}

impl Args {
    pub(super) fn limits(&self) -> Limits {
        Limits { rounds: self.rounds.into(), ..Limits::default() }
    }
}
