//! A GEMM that is a whole kernel, in closed form: waves of tiles that each take their steps, and what all SMs ask of
//! the cache and of memory meanwhile. Fitted to products of random shapes ([`Products`]); the discrete-event run of the
//! same plan says where the time goes.

use super::{error::Result, model::DeviceModel, products::Products, work::gcd};
use mk_plan::{
    ALayout, Access, MmaTile, Mode, Operand, Plan, Points, Store, TableSet, mma_consumers,
    mma_swaps, row_dim,
};

/// The share of memory's rate at which matrices come that an epilogue reads (one H200: 16.8 MB take 9 us more, 58.7 MB
/// 26 to 35), and where the next tile's warpgroup multiplies meanwhile (117 MB take 29 us more).
const READS: [f64; 2] = [0.45, 0.9];

/// Seconds of a step along K whose rows of B are shifted: TMA takes as long for boxes of 64 columns as for those of 128
/// (one H200, 160 shapes of `benches/random_shapes --odd --rows 1 128`).
pub(crate) fn shifted_step_s(product: Option<&MmaTile>) -> f64 {
    const STEP_S: f64 = 0.62e-6;
    match product {
        Some(MmaTile { shifted: true, .. }) => STEP_S,
        _ => 0.0,
    }
}

impl Products {
    /// A power mean: times that are nearly equal add up, else the longer one counts.
    fn join(&self, times: &[f64]) -> f64 {
        times.iter().map(|t| t.powf(self.power)).sum::<f64>().powf(1.0 / self.power)
    }

    /// Seconds of a step along K that waits for nothing; `None` without figures for these tiles.
    fn step_s(&self, block: [u32; 2]) -> Option<f64> {
        let [step_s, column_s, element_s] = self.swapped_s;
        let [rows, columns] = block.map(f64::from);
        let longer = if mma_consumers(block) == 3 { self.three } else { 1.0 };
        let swapped = || longer * (step_s + columns * (column_s + rows * element_s));
        let known = self.steps.iter().find(|s| s.0 == block).map(|s| s.1);
        known.or_else(|| mma_swaps(block).then(swapped))
    }
}

/// How long a plan takes that is one GEMM and nothing else, on the rank with the most; `None` for other plans, for
/// GEMMs with an inner loop or whose epilogue saves matrices, for stores past TMA outside a cluster, and where the
/// model has no figures of such tiles.
///
/// # Errors
/// Where an expression of the plan has no value.
pub fn alone_s(plan: &Plan, model: &DeviceModel) -> Result<Option<f64>> {
    let (Some(figures), [(id, x)]) =
        (&model.products, &plan.families.iter().collect::<Vec<_>>()[..])
    else {
        return Ok(None);
    };
    let Some(MmaTile { block, stages, a_layout, cluster, multicast, consumers, store, .. }) =
        x.leaf.product()
    else {
        return Ok(None);
    };
    let other = |a: &Access| !matches!(a.operand, Operand::A | Operand::B | Operand::C);
    let matrices = || x.accesses.iter().filter(|a| other(a) && a.region.len() > 1);
    let saves = matrices().any(|a| a.mode == Mode::Write);
    let lines = *store == Store::Tma || *cluster > 1;
    let Some(step_s) = figures.step_s([block[0], block[1]]).filter(|_| lines) else {
        return Ok(None);
    };
    let step_s = step_s.max(shifted_step_s(x.leaf.product()));
    if !plan.keeps_nothing() || saves || x.inner.is_some() {
        return Ok(None);
    }
    let operand = |o| x.accesses.iter().find(|a| a.operand == o);
    let (Some(a), Some(b), Some(c)) =
        (operand(Operand::A), operand(Operand::B), operand(Operand::C))
    else {
        return Ok(None);
    };
    let tables = TableSet::new(plan, |_, _| Vec::new());
    let points = Points::new(plan, &tables);
    let mut longest: f64 = 0.0;
    for rank in 0..plan.mesh.size() as usize {
        let tiles = points.count(*id, rank, 1, mk_plan::MAX_TASKS)? as f64;
        let [of_a, of_b, of_c] = [a, b, c].map(|x| points.shape(x.buffer, rank));
        let (of_a, of_b, of_c) = (of_a?, of_b?, of_c?);
        let depth = match a_layout {
            ALayout::Mk => of_a.last().copied(),
            ALayout::Km => row_dim(a).and_then(|d| of_a.get(d).copied()),
        };
        let bytes = |shape: &[i64], x: &Access| {
            let size = plan.buffers[x.buffer].dtype.size_bytes() as f64;
            shape.iter().map(|n| *n as f64).product::<f64>() * size
        };
        // How far rows begin from lines: 0 at lines.
        let off = |x: &Access| -> Result<f64> {
            let size = plan.buffers[x.buffer].dtype.size_bytes() as i64;
            let pitch = points.pitch(x.buffer, rank)? * size;
            Ok(1.0 - gcd(pitch.max(1), 128) as f64 / 128.0)
        };
        let [off_a, off_b] = [off(a)?, off(b)?];
        let mut read = 0.0;
        for x in matrices() {
            read += bytes(&points.shape(x.buffer, rank)?, x);
        }
        let rows = of_c.first().map_or(0.0, |m| (*m as f64).min(f64::from(block[0])));
        let shape = Shape {
            tiles,
            lanes: f64::from(plan.workers(x.role).max(1)),
            steps: (depth.unwrap_or(0) as f64 / f64::from(block[2])).ceil(),
            rows,
            a: bytes(&of_a, a),
            b: bytes(&of_b, b),
            read,
            lines: [f64::from(block[0]) * (1.0 + off_a), f64::from(block[1]) * (1.0 + off_b)],
            off: [off_a, off_b],
            out: rows
                * f64::from(x.leaf.out_columns())
                * plan.buffers[c.buffer].dtype.size_bytes() as f64,
        };
        let ping_pong = *consumers == mk_plan::Consumers::PingPong;
        let way = Way {
            block: [block[0], block[1]],
            step_s,
            stages: *stages,
            parts: *cluster,
            multicast: *multicast,
            ping_pong,
        };
        longest = longest.max(figures.seconds(&shape, &way));
    }
    Ok(Some(longest))
}

/// A GEMM's sizes, in tiles.
struct Shape {
    tiles: f64,
    /// CTAs, or clusters, that take tasks.
    lanes: f64,
    steps: f64,
    /// Of a tile.
    rows: f64,
    /// Bytes of the operands.
    a: f64,
    b: f64,
    /// Bytes of matrices that the epilogue reads.
    read: f64,
    /// Lines of 128 bytes that a step touches of each.
    lines: [f64; 2],
    /// How far the rows of each begin from lines: 0 at lines.
    off: [f64; 2],
    /// Bytes of a tile of results.
    out: f64,
}

/// How it is made.
struct Way {
    block: [u32; 2],
    /// A step where nothing holds it up.
    step_s: f64,
    stages: u32,
    parts: u32,
    multicast: [u32; 2],
    ping_pong: bool,
}

impl Products {
    fn seconds(&self, s: &Shape, way: &Way) -> f64 {
        let [below, beside] = way.multicast.map(f64::from);
        let (together, parts) = (below * beside, f64::from(way.parts));
        let ctas = parts * together;
        let waves = (s.tiles / s.lanes).ceil().max(1.0);
        let steps = (s.steps / parts).ceil();
        let whole = (s.tiles / s.lanes).floor();
        let left = s.tiles - whole * s.lanes;
        let active = s.tiles.min(s.lanes) * ctas;
        let stage = (f64::from(way.block[0]) + f64::from(way.block[1])) * 128.0;
        let asked = (active * steps * stage * waves).max(1.0);
        let asks = s.lines[0] / beside + s.lines[1] / below;
        let at_lines = (1.0 - s.off[0]) * (1.0 - s.off[1]);
        let slower = match way.multicast {
            [1, 1] => 1.0,
            [_, 1] => self.multicast[0],
            [1, _] => self.multicast[1],
            _ => self.multicast[2],
        };
        let slower = match together > 1.0 {
            true => slower * (1.0 + (self.multicast_at_lines - 1.0) * at_lines),
            false => slower,
        };
        let fewer = (4.0 - f64::from(way.stages)).max(0.0);
        let slower = slower * (1.0 + self.few_stages * fewer.powi(3));
        // The last wave may have fewer tiles: then fewer CTAs load.
        let step_s = |active: f64| {
            let warm = slower
                * self.join(&[
                    way.step_s,
                    (s.lines[0] + s.lines[1]) * self.line_s,
                    active * asks * self.cache_line_s,
                ]);
            let cold_s = self.cold_s + self.latency_s / f64::from(way.stages.max(1));
            self.join(&[warm, cold_s * ((s.a + s.b) / asked).min(1.0)])
        };
        let swapped = if mma_swaps(way.block) { self.swapped_tile } else { 1.0 };
        let area = f64::from(way.block[0]) * f64::from(way.block[1]);
        let mut tile_s = self.tile_s * swapped * area / (128.0 * 256.0);
        if parts > 1.0 {
            let sums = s.rows * f64::from(way.block[1]) * 4.0;
            tile_s += self.exchange_s
                + self.exchange_cta_s * (parts - 1.0)
                + sums / self.exchange_bytes_per_s;
        }
        let [more_a, more_b] = s.off.map(|off| 1.0 + self.off_lines * off);
        let memory_s = self.join(&[
            (s.a * more_a + s.b * more_b) / self.memory_bytes_per_s,
            (s.a + s.b) / (active * self.sm_bytes_per_s),
        ]);
        let last_s = match left > 0.0 {
            true => self.join(&[steps * step_s(left * ctas), memory_s * left / s.tiles]),
            false => 0.0,
        };
        let tiles = if way.ping_pong { 1.0 } else { waves };
        let start_s = if together > 1.0 { self.multicast_s } else { 0.0 };
        // What the last tiles store.
        let out_s = s.out * (s.tiles.min(s.lanes) * together) / self.memory_bytes_per_s;
        self.launch_s
            + start_s
            + whole * self.join(&[steps * step_s(s.lanes * ctas), memory_s * s.lanes / s.tiles])
            + last_s
            + tiles * tile_s
            + out_s
            + s.read / (READS[usize::from(way.ping_pong)] * self.memory_bytes_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(tiles: f64, way: &Way) -> f64 {
        let figures = DeviceModel::h200().products.clone().expect("ships with figures of products");
        let shape = Shape {
            tiles,
            lanes: (132 / (way.parts * way.multicast[0] * way.multicast[1])).into(),
            steps: 64.0,
            rows: 128.0,
            a: 1e6,
            b: 32e6,
            read: 0.0,
            lines: [128.0, 128.0],
            off: [0.0, 0.0],
            out: 128.0 * 128.0 * 2.0,
        };
        figures.seconds(&shape, way)
    }

    #[test]
    fn few_tiles_gain_by_sharing_and_many_do_not() {
        let of = |parts, multicast| Way {
            block: [128, 128],
            step_s: 285e-9,
            stages: 4,
            parts,
            multicast,
            ping_pong: false,
        };
        assert!(seconds(16.0, &of(4, [1, 1])) < 0.8 * seconds(16.0, &of(1, [1, 1])));
        assert!(seconds(132.0, &of(4, [1, 1])) > seconds(132.0, &of(1, [1, 1])));
        // A wave more is one more.
        let (one, two) = (seconds(132.0, &of(1, [1, 1])), seconds(133.0, &of(1, [1, 1])));
        assert!(two > 1.4 * one, "{one} {two}");
    }
}
