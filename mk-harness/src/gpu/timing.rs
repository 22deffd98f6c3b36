//! How long a launch takes.

use super::{Session, allocate, ranks};
use crate::Result;
use mk_runtime::{
    Graph, Stream,
    bench::{Gate, median},
};

/// Sets of tensors that launches take in turn, so that none finds its inputs in a cache.
const SETS: u64 = 3;
/// Launches that are timed.
const LAUNCHES: usize = 20;

/// Times of a launch on the slowest rank, from the moment all ranks are released.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The median, in milliseconds.
    pub median_ms: f32,
    /// The shortest, in milliseconds.
    pub least_ms: f32,
    /// How many launches there were.
    pub launches: usize,
}

impl Session<'_> {
    /// Times launches (replays, if a launch was captured) by CUDA events: inputs rotate, caches are flushed between
    /// them.
    ///
    /// # Errors
    /// [`HarnessError::Runtime`](crate::HarnessError::Runtime).
    pub fn time(&mut self) -> Result<Timing> {
        let mut sets = Vec::new();
        for set in 0..SETS {
            let arguments = allocate(&self.world, self.source, &self.dims)?;
            self.fill_arguments(&arguments, set + 1)?;
            sets.push(arguments);
        }
        let gate = Gate::new(&self.world, &self.jit)?;
        let streams: Vec<_> = gate.streams().iter().map(Stream::as_ref).collect();
        let arguments: Vec<_> = sets.iter().map(ranks).collect();
        let mut graphs = Vec::new();
        if !self.graphs.is_empty() {
            for set in &arguments {
                let (instance, dims) = (self.kernel.instance(), &self.dims);
                let launch = || instance.launch_with(&streams, set, dims);
                graphs.push(Graph::capture(gate.streams(), launch)?);
            }
        }
        let mut times = Vec::new();
        // The first round of sets warms up.
        for i in 0..LAUNCHES + sets.len() {
            let set = i % sets.len();
            let ms = gate.time_ms(|| match graphs.get_mut(set) {
                Some(graphs) => graphs.iter_mut().zip(&streams).try_for_each(|(g, s)| g.launch(*s)),
                None => self.kernel.instance().launch_with(&streams, &arguments[set], &self.dims),
            })?;
            self.kernel.instance().check()?;
            if i >= sets.len() {
                times.push(ms);
            }
        }
        let least_ms = times.iter().copied().fold(f32::INFINITY, f32::min);
        Ok(Timing { median_ms: median(&mut times), least_ms, launches: LAUNCHES })
    }
}
