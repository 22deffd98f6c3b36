//! What a machine can do, as measured.

use super::{error::ModelError, products::Products, raw::RawFigures};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Figures of one GPU among its peers. Seconds and bytes throughout; times are of a launch at the clock that long
/// compute leaves, not of the first microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceModel {
    /// Name of the GPU, as the driver says it.
    pub gpu: String,
    /// When, on what and by which command it was measured.
    pub measured: String,
    /// What it has, as the driver says it: other GPUs' figures follow from these in proportion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chip: Option<Chip>,
    /// From the release of all ranks to the first task, and from the last task to the end of the kernel, together.
    pub launch_s: f64,
    /// From the first task to the begin of a copy engine's first copy, beside what it waits for.
    #[serde(default = "engine_begin_s", alias = "gate_s")]
    pub engine_begin_s: f64,
    /// From the request of a first operand to its arrival, where nothing was loaded ahead.
    pub fill_s: f64,
    /// From a post to the end of a wait on the same GPU.
    pub flag_local_s: f64,
    /// From a post to the end of a wait on another GPU.
    pub flag_peer_s: f64,
    /// From the last store of a tile or copy to its post: writes are waited for.
    pub written_s: f64,
    /// Memory bandwidth of a GPU, all SMs together.
    pub hbm_bytes_per_s: f64,
    /// Memory bandwidth where an operand B `[k, n]` comes in slices of 128 bytes, one for each step of k: a tile of 64
    /// columns. Narrower tiles have less.
    pub hbm_slices_bytes_per_s: f64,
    /// Memory bandwidth for an operand B that passes through the cache and leaves it first; as that of others where
    /// nobody measured it.
    #[serde(default)]
    pub hbm_once_bytes_per_s: f64,
    /// Last-level cache.
    pub l2_bytes: f64,
    /// Bytes of row blocks that one wave of tiles reads from which on each of its CTAs reads its own from memory: those
    /// that share a row block drift apart along K. Of fewer bytes the share is as their square.
    #[serde(default = "drift_bytes")]
    pub drift_bytes: f64,
    /// How much longer steps take where warpgroups multiply by turns: one of them issues at a time.
    #[serde(default = "ping_pong")]
    pub ping_pong: f64,
    /// How much longer compute takes at the clock that it leaves after long.
    #[serde(default = "throttle")]
    pub throttle: f64,
    /// Half of that after this time of compute.
    #[serde(default = "throttle_s")]
    pub throttle_s: f64,
    /// What a GPU sends over its links, all ranks sending at once.
    pub link_bytes_per_s: f64,
    /// Rate of a network card to other nodes. `mk probe` measures no network: the default is 400 Gb/s, a line rate.
    #[serde(default = "card_bytes_per_s")]
    pub card_bytes_per_s: f64,
    /// From the end of a message to the end of the wait for its word on another node. The default is not measured.
    #[serde(default = "card_s")]
    pub card_s: f64,
    /// Rate at which one SM loads a GEMM's running sums before a tile continues them; its tensor cores wait.
    #[serde(default = "carry_bytes_per_s")]
    pub carry_bytes_per_s: f64,
    /// Rate at which one SM's epilogue reads an operand from memory; its tensor cores wait.
    #[serde(default = "operand_bytes_per_s")]
    pub operand_bytes_per_s: f64,
    /// The same of what its epilogue saves.
    #[serde(default = "save_bytes_per_s")]
    pub save_bytes_per_s: f64,
    /// What a line of 128 bytes of an operand takes on one SM, where all SMs load: rows that do not begin at lines
    /// touch two.
    #[serde(default = "line_s")]
    pub line_s: f64,
    /// What the CTAs of a cluster take to show each other that their sums are there, and that they have been read.
    #[serde(default = "exchange_s")]
    pub exchange_s: f64,
    /// The rate at which they then read them.
    #[serde(default = "exchange_bytes_per_s")]
    pub exchange_bytes_per_s: f64,
    /// How much longer tiles take, as a share of their time, that leave for peers from CTAs which have several dealt
    /// out to them: some CTAs are slower than others, and the last one counts.
    #[serde(default = "uneven")]
    pub uneven: f64,
    /// GEMMs, by tile shape.
    pub tiles: Vec<TileRate>,
    /// GEMMs that are a whole kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<Products>,
    /// What one SM moves.
    pub movers: Movers,
    /// What was measured with no plan in between, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<RawFigures>,
}

/// What a GPU has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Their highest clock.
    pub clock_hz: f64,
    /// Last-level cache.
    pub l2_bytes: f64,
    /// Memory's clock, both edges, times the width of its bus.
    pub memory_bytes_per_s: f64,
}

/// A GEMM's tile on one SM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileRate {
    /// Rows and columns.
    pub block: [u32; 2],
    /// One step of 64 along k.
    pub step_s: f64,
    /// What a tile takes beside its steps: the epilogue, as far as it is not under the next tile's main loop.
    pub tile_s: f64,
}

/// Methods by which one SM moves bytes.
macro_rules! movers {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// What one SM moves, by method. Bytes are those that are written, to all places; for sums those read and
        /// written.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Movers {
            $($(#[$meta])* pub $name: Mover,)*
        }

        impl Movers {
            /// Each with its name.
            pub fn all(&self) -> Vec<(&'static str, Mover)> {
                vec![$((stringify!($name), self.$name)),*]
            }

            /// The one at this place of the list.
            pub(crate) fn at(&mut self, place: usize) -> Option<&mut Mover> {
                [$(&mut self.$name),*].into_iter().nth(place)
            }
        }
    };
}

movers! {
    /// Bulk copies inside a GPU.
    bulk_local,
    /// Bulk copies to peers.
    bulk_push,
    /// Bulk copies from a peer.
    bulk_pull,
    /// Loads and stores inside a GPU.
    ldst_local,
    /// Loads, and stores to peers.
    ldst_push,
    /// Loads from a peer, and stores.
    ldst_pull,
    /// Sums of what lies on the GPU.
    sum_local,
    /// Sums whose result goes to peers.
    sum_push,
    /// Sums of what lies on peers.
    sum_pull,
    /// A GEMM's tile written to a peer.
    tile_push,
    /// The copy engine, to peers, all ranks at once: not one SM, but all of them.
    #[serde(default = "Mover::engine")]
    engine,
}

/// A method's rate on one SM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mover {
    /// Bytes a second, alone.
    pub bytes_per_s: f64,
    /// What a task takes beside its bytes.
    pub task_s: f64,
}

/// Figures where nobody measured another.
macro_rules! defaults {
    ($($(#[$meta:meta])* $name:ident = $figure:literal;)*) => {$(
        $(#[$meta])*
        fn $name() -> f64 {
            $figure
        }
    )*};
}

defaults! {
    /// 400 Gb/s.
    card_bytes_per_s = 50e9;
    /// Not measured.
    card_s = 5e-6;
    /// On an H200, where nobody measured another.
    engine_begin_s = 9.5e-6;
    /// On an H200, where nobody measured another: 1 us for 128 x 256 elements of 16 bits.
    carry_bytes_per_s = 65.5e9;
    /// On an H200, where nobody measured another: 13 to 18 by GEMMs alone with `mul` (docs/decisions/cost-model.md).
    operand_bytes_per_s = 16e9;
    /// On an H200, where nobody measured another: 1.24 to 1.5 by GEMMs whose columns are no multiple of 64.
    line_s = 1.3e-9;
    /// On an H200, where nobody measured another: 2 to 4 by products of few rows.
    exchange_s = 2.6e-6;
    /// The same of tiles with more rows: 7 to 9 for 128 x 256.
    exchange_bytes_per_s = 14e9;
    /// The same of results from before: 34 to 44.
    save_bytes_per_s = 38e9;
    /// On H100s: raster groups of 4096 rows of 16384 and 32768 elements take 1.13 and 1.8 times as long as of 1024
    /// (docs/decisions/tile-order.md).
    drift_bytes = 260e6;
    /// On two H100s, 19 plans of random shapes.
    ping_pong = 1.12;
    /// On H100s: GEMMs of 3 ms take 6 % longer than their steps at first, those of 21 ms 14 %.
    throttle = 0.17;
    /// See [`throttle`].
    throttle_s = 5.6e-3;
    /// On an H200, where nobody measured another: in the middle of what the dynamic scheduler gains on four
    /// (docs/decisions/tile-order.md).
    uneven = 0.025;
}

impl Mover {
    /// An H200's copy engine, where nobody measured another: the rate by `mk probe --raw`, the time of a copy by
    /// gathers.
    fn engine() -> Mover {
        Mover { bytes_per_s: 385e9, task_s: 4.7e-6 }
    }

    /// Seconds that a task takes by itself.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.task_s + bytes / self.bytes_per_s
    }
}

fn shipped(text: &str) -> DeviceModel {
    DeviceModel::parse(text).expect("the shipped model reads; tested")
}

impl DeviceModel {
    /// The models that ship with mk.
    pub fn shipped_models() -> Vec<&'static DeviceModel> {
        vec![DeviceModel::h200(), DeviceModel::h100()]
    }

    /// Two H100s of one host, with 80 GB of HBM3 each, NVLink.
    pub fn h100() -> &'static DeviceModel {
        static MODEL: LazyLock<DeviceModel> = LazyLock::new(|| shipped(include_str!("h100.json")));
        &MODEL
    }

    /// Four H200s of one host, NVLink.
    pub fn h200() -> &'static DeviceModel {
        static MODEL: LazyLock<DeviceModel> = LazyLock::new(|| shipped(include_str!("h200.json")));
        &MODEL
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ModelError`] for what is no JSON of a model, and for figures that no machine has.
    pub fn parse(text: &str) -> Result<DeviceModel, ModelError> {
        let mut model: DeviceModel = serde_json::from_str(text)?;
        if model.hbm_once_bytes_per_s == 0.0 {
            model.hbm_once_bytes_per_s = model.hbm_bytes_per_s;
        }
        model.check()?;
        Ok(model)
    }

    /// The text of a file.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    fn check(&self) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Value { what });
        let movers = self.movers.all();
        let rates = named!(self;
            hbm_bytes_per_s hbm_slices_bytes_per_s hbm_once_bytes_per_s link_bytes_per_s
            card_bytes_per_s carry_bytes_per_s operand_bytes_per_s save_bytes_per_s exchange_bytes_per_s l2_bytes
            drift_bytes);
        let of_movers = movers.iter().map(|(name, m)| (*name, m.bytes_per_s));
        let (of_products, more) = self.products.as_ref().map(Products::all).unzip();
        let of_products = of_products.into_iter().flatten();
        if let Some((name, v)) = rates
            .into_iter()
            .chain(of_products)
            .chain(of_movers)
            .find(|r| !(1e3..=1e18).contains(&r.1))
        {
            return refuse(format!("{name} is {v}, and must be 1e3 to 1e18"));
        }
        let times = named!(self;
            launch_s engine_begin_s fill_s flag_local_s flag_peer_s card_s written_s line_s
            exchange_s uneven throttle throttle_s);
        let of_tiles = self.tiles.iter().flat_map(|t| [("step_s", t.step_s), ("tile_s", t.tile_s)]);
        let of_movers = movers.iter().map(|(name, m)| (*name, m.task_s));
        let all =
            times.into_iter().chain(of_tiles).chain(of_movers).chain(more.into_iter().flatten());
        if let Some((name, v)) = all.into_iter().find(|t| !(0.0..=1.0).contains(&t.1)) {
            return refuse(format!("{name} is {v}, and must be 0 to 1"));
        }
        if let Some(p) = self.products.as_ref().filter(|p| !(1.0..=16.0).contains(&p.power)) {
            return refuse(format!("power is {}, and must be 1 to 16", p.power));
        }
        let factors = self.products.as_ref().map(Products::factors);
        let mut factors = factors.into_iter().flatten().chain([("ping_pong", self.ping_pong)]);
        if let Some((name, v)) = factors.find(|f| !(0.1..=10.0).contains(&f.1)) {
            return refuse(format!("{name} is {v}, and must be 0.1 to 10"));
        }
        if self.tiles.is_empty() || self.tiles.iter().any(|t| t.step_s <= 0.0) {
            return refuse("it needs a tile shape, with a time for each step".into());
        }
        self.raw.as_ref().map_or(Ok(()), RawFigures::check)
    }

    /// The share of row blocks, of which a wave reads so many bytes, that tiles do not share but read from memory
    /// again.
    pub(crate) fn unshared(&self, bytes: f64) -> f64 {
        (bytes / self.drift_bytes).powi(2).min(1.0)
    }

    /// What so much compute takes at the clock that it leaves, beside what it takes at first.
    pub(crate) fn throttled_s(&self, compute_s: f64) -> f64 {
        self.throttle * compute_s * compute_s / (compute_s + self.throttle_s).max(f64::MIN_POSITIVE)
    }

    /// The rate of a tile shape; of one that was not measured, in proportion to the nearest.
    pub fn tile(&self, block: [u32; 2]) -> TileRate {
        let area = |b: [u32; 2]| f64::from(b[0]) * f64::from(b[1]);
        let distance = |t: &&TileRate| (area(t.block) / area(block).max(1.0)).ln().abs();
        if let Some(known) = self.tiles.iter().find(|t| t.block == block) {
            return *known;
        }
        let nearest = self.tiles.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let fallback = TileRate { block, step_s: f64::MIN_POSITIVE, tile_s: 0.0 };
        nearest.map_or(fallback, |t| {
            let scale = area(block) / area(t.block);
            TileRate { block, step_s: t.step_s * scale, tile_s: t.tile_s * scale }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_models_read_and_are_written_as_they_were_read() {
        for model in DeviceModel::shipped_models() {
            assert_eq!(DeviceModel::parse(&model.to_json()).unwrap(), *model);
        }
    }

    #[test]
    fn figures_that_cannot_be_are_refused() {
        let refusal = |change: fn(&mut DeviceModel)| {
            let mut model = DeviceModel::h200().clone();
            change(&mut model);
            DeviceModel::parse(&model.to_json()).map_or_else(|e| e.to_string(), |_| String::new())
        };
        assert!(refusal(|m| m.hbm_bytes_per_s = 0.0).contains("hbm_bytes_per_s is 0"));
        assert!(refusal(|m| m.movers.sum_pull.task_s = -1.0).contains("sum_pull is -1"));
        assert!(refusal(|m| m.tiles.clear()).contains("needs a tile shape"));
        let slower = |m: &mut DeviceModel| m.products.iter_mut().for_each(|p| p.three = -1.04);
        assert!(refusal(slower).contains("three is -1.04, and must be 0.1 to 10"));
        assert!(DeviceModel::parse("{}").is_err());
    }

    #[test]
    fn a_rate_that_nobody_measured_is_that_of_others() {
        let known = DeviceModel::h200();
        let line = "  \"hbm_once_bytes_per_s\": 3800000000000.0,\n";
        assert!(known.to_json().contains(line));
        let model = DeviceModel::parse(&known.to_json().replace(line, "")).unwrap();
        assert_eq!(model.hbm_once_bytes_per_s, known.hbm_bytes_per_s);
        assert_ne!(known.hbm_once_bytes_per_s, known.hbm_bytes_per_s);
    }

    #[test]
    fn a_shape_that_was_not_measured_is_scaled() {
        let model = DeviceModel::h200();
        let (whole, half) = (model.tile([128, 64]), model.tile([128, 32]));
        assert!((half.step_s - whole.step_s / 2.0).abs() < 1e-12);
    }
}
