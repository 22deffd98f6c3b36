//! Figures of GEMMs that are a whole kernel.

use serde::{Deserialize, Serialize};

/// What GEMMs alone were measured to take, caches flushed. Times are joined by a [power](Products::power): those
/// that are near add up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Products {
    /// Launch to end of a kernel without steps.
    pub launch_s: f64,
    /// Rows and columns of a tile, and a step of 64 along k where nothing else holds it up.
    pub steps: Vec<([u32; 2], f64)>,
    /// The same of tiles with swapped operands: a step, what each column of the tile adds to it, and each element.
    /// Columns are read from shared memory by 64, whatever the rows are.
    pub swapped_s: [f64; 3],
    /// How much longer it takes with three consumer warpgroups.
    #[serde(default = "one")]
    pub three: f64,
    /// What a tile of 128 x 256 takes beside its steps; others in proportion.
    pub tile_s: f64,
    /// By how much more with operands swapped.
    pub swapped_tile: f64,
    /// By how much more a step takes with three stages than with four; with two, by eight times that.
    pub few_stages: f64,
    /// A line of 128 bytes on its way to an SM.
    pub line_s: f64,
    /// A line of those that all SMs ask the cache for; one of several CTAs that load together counts once.
    pub cache_line_s: f64,
    /// A step of which all comes from memory.
    pub cold_s: f64,
    /// How long that is on its way: as many steps as there are stages share it.
    #[serde(default)]
    pub latency_s: f64,
    /// What a cluster that shares the depth takes to exchange its sums, beside their bytes.
    pub exchange_s: f64,
    /// And for each of its CTAs but one.
    pub exchange_cta_s: f64,
    /// Bytes of a tile's sums that it then adds up in a second.
    pub exchange_bytes_per_s: f64,
    /// Memory bandwidth.
    pub memory_bytes_per_s: f64,
    /// What one SM gets of it.
    pub sm_bytes_per_s: f64,
    /// By how much more an operand takes whose rows begin nowhere near lines.
    pub off_lines: f64,
    /// Times whose powers add up.
    pub power: f64,
    /// How much longer a step takes where CTAs load together: two below each other, two side by side, and four.
    pub multicast: [f64; 3],
    /// And by how much more where rows of both operands begin at lines.
    pub multicast_at_lines: f64,
    /// The start of their cluster.
    pub multicast_s: f64,
}

/// A factor that a model's file does not have.
fn one() -> f64 {
    1.0
}

/// A figure with its name.
pub(super) type Named = (&'static str, f64);

impl Products {
    /// For a GPU with memory and a clock that are so many times as fast.
    pub(super) fn faster(mut self, memory: f64, clock: f64) -> Products {
        self.memory_bytes_per_s *= memory;
        self.cold_s /= memory;
        self.latency_s /= memory;
        self.sm_bytes_per_s *= clock;
        self.exchange_bytes_per_s *= clock;
        for step_s in self.steps.iter_mut().map(|s| &mut s.1).chain(&mut self.swapped_s) {
            *step_s /= clock;
        }
        let own = [&mut self.tile_s, &mut self.line_s, &mut self.cache_line_s];
        let of_clusters = [&mut self.exchange_s, &mut self.exchange_cta_s, &mut self.multicast_s];
        for time in own.into_iter().chain(of_clusters) {
            *time /= clock;
        }
        self
    }

    /// Each figure with its name: rates, and times.
    pub(super) fn all(&self) -> ([Named; 3], Vec<Named>) {
        let rates = named!(self; exchange_bytes_per_s memory_bytes_per_s sm_bytes_per_s);
        let times = named!(self;
            launch_s tile_s line_s cache_line_s cold_s latency_s exchange_s exchange_cta_s
            multicast_s);
        let steps = self.steps.iter().map(|s| s.1).chain(self.swapped_s).map(|s| ("steps", s));
        (rates, times.into_iter().chain(steps).collect())
    }

    /// What times are multiplied with, each with its name.
    pub(super) fn factors(&self) -> [Named; 6] {
        let [below, beside, both] = self.multicast.map(|of| ("multicast", of));
        let lines = ("multicast_at_lines", self.multicast_at_lines);
        [below, beside, both, lines, ("three", self.three), ("swapped_tile", self.swapped_tile)]
    }
}
