//! The values of settings that a search tries for a kernel.

use super::{config::Config, facts::Facts, rules};
use mk_plan::{mma_shifts, mma_swaps, target};

/// Tiles of few rows, where few columns make enough of them.
pub const FLAT: &str = "64x128x64";

/// Tiles that one consumer multiplies while the other brings results out.
pub const BY_TURNS: &str = "128x128x64";

/// Bytes of a chunk of few rows.
pub const SMALL_CHUNK: &str = "8192";

/// A last wave that is all of few rows, in parts along K.
pub const IN_PARTS: &str = "16x192/3";

/// Its tiles.
pub const IN_PARTS_BLOCK: &str = "128x192x64";

/// SMs that send them: 24 were the best of 4, 12, 24 and 32 for 256 to 448 rows of two H200, by 1 to 18 %.
pub const MANY_SENDERS: &str = "24";

/// Rows up to which an `all_reduce` whose rows are not cut is worth its slots, which are as large as the result for
/// each rank.
const FEW_ROWS: u64 = 1024;

/// Rows up to which only tiles that shift rows of operand B are worth trying, where those begin at any element.
const FEW_SHIFTED: u64 = 128;

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(T::to_string).collect()
}

pub(super) fn blocks(facts: &Facts) -> Vec<String> {
    if !facts.multiplies() {
        return Vec::new();
    }
    let [rows, most] = [facts.extents()[0], facts.most_rows()].map(|rows| facts.shard_rows(rows));
    let mut blocks = vec!["128x256x64", "128x128x64"];
    if !facts.gated() {
        blocks.insert(1, "128x192x64");
        blocks.push("128x160x64");
        let alone = !facts.narrow() && rules::shared_depth(facts).is_some();
        // Alone, a tile's sums leave no registers for an elementwise operation.
        if most >= 256 && (facts.plain() || !alone) {
            blocks.extend(["256x128x64", "256x160x64"]);
        }
        let small = alone_and_small(facts);
        if facts.ragged {
            blocks.push("64x256x64");
        } else if most >= 384 && 4 * tiles(facts, [192, 192]) >= 3 * sms() {
            blocks.push("192x192x64");
        }
        if rows <= 64 || alone && rows <= 512 {
            blocks.extend(["64x256x64", FLAT]);
        }
        if rows > 64 && rows <= 512 || small {
            // Factors of blocks lie along 128 columns.
            blocks.push(if facts.blocks() { FLAT } else { "128x64x64" });
        }
    } else if most >= 256 {
        blocks.push("256x128x64");
    }
    // Other tiles would repack operand B for few rows.
    let shifts = rows <= FEW_SHIFTED && facts.products.iter().any(|p| p.shifts);
    let mut texts = if shifts { Vec::new() } else { texts(&blocks) };
    if rules::swaps(&Config::default(), facts) {
        let swapped = swapped(facts, rows, shifts).filter(|b| !shifts || mma_shifts(*b));
        texts.extend(swapped.map(|[m, n]| format!("{m}x{n}x64")));
    }
    texts
}

/// How many tiles of a block cover the result.
fn tiles(facts: &Facts, block: [u32; 2]) -> u64 {
    let [rows, columns] = facts.extents();
    rows.div_ceil(block[0].into()) * columns.div_ceil(block[1].into())
}

/// SMs of the default target.
fn sms() -> u64 {
    target::by_name(&Config::default().target).map_or(0, |t| u64::from(t.sms))
}

/// Tiles with swapped operands: of those that cut so many rows into as many blocks, the flattest. Of 64 columns where
/// two waves take all of them, and of 192 where there are rows for what three warpgroups multiply.
fn swapped(facts: &Facts, rows: u64, only: bool) -> impl Iterator<Item = [u32; 2]> {
    let each = move |columns: u32| {
        let heights = rules::swapped_rows(columns).into_iter().flatten();
        let blocks = move |m: u32| rows.div_ceil(m.into());
        // Of few rows alone a tile has fewer than 48: others would load operand B once more.
        let least = move |m: u32| m >= 48 || rows <= m.into();
        // Of `only` swapped ones some heights are missing.
        let flatter = move |m: u32| match only && !mma_swaps([m - 16, columns]) {
            true => m - 32,
            false => m - 16,
        };
        let flattest = move |m: &u32| {
            let other = || blocks(*m) != blocks(flatter(*m));
            least(*m) && (*m == 16 || !least(flatter(*m)) || other())
        };
        let worth = move |m: &u32| match columns {
            64 => tiles(facts, [*m, 64]) <= 2 * sms(),
            192 => rows > 128,
            _ => true,
        };
        heights.filter(flattest).filter(worth).map(move |m| [m, columns])
    };
    [64, 128, 192, 256].into_iter().flat_map(each)
}

/// Whether there is a GEMM alone of which tiles of 128 x 128 do not fill the GPU.
fn alone_and_small(facts: &Facts) -> bool {
    rules::shared_depth(facts).is_some() && tiles(facts, [128, 128]) <= sms()
}

pub(super) fn consumers(facts: &Facts) -> Vec<String> {
    if facts.multiplies() { texts(&["cooperative", "ping_pong"]) } else { Vec::new() }
}

pub(super) fn group_m(facts: &Facts) -> Vec<String> {
    // Of other GEMMs no number was better than that of the rows on every depth (docs/decisions/tile-order.md).
    if facts.ragged { texts(&[8, 1, 16]) } else { Vec::new() }
}

pub(super) fn intra_comm_sms(facts: &Facts) -> Vec<String> {
    match (facts.communicates(), facts.multiplies()) {
        // The CTAs that multiply move the rows of experts, too.
        _ if facts.routed => Vec::new(),
        (true, _) if facts.ring => texts(&[1, 2, 3, 4, 6, 8]),
        (true, true) => texts(&[4, 8, 10, 12, 16, 20, 24, 32]),
        // The others only copy: what is received, or what is sent.
        (true, false) => texts(&[8, 16, 32, 64]),
        (false, _) => Vec::new(),
    }
}

pub(super) fn chunk_bytes(facts: &Facts) -> Vec<String> {
    let some = (facts.gathers() || facts.ring) && facts.ranks > 1;
    let all = if some { &[128 << 10, 256 << 10, 512 << 10][..] } else { &[] };
    // Few rows leave side by side, from as many SMs as there are.
    let few = if facts.spans_few(facts.most_rows()) { &[SMALL_CHUNK, "32768"][..] } else { &[] };
    [texts(few), texts(all)].concat()
}

fn gathers_for_products(facts: &Facts) -> bool {
    facts.gathers() && facts.multiplies() && facts.ranks > 1
}

pub(super) fn k_slices(facts: &Facts) -> Vec<String> {
    if gathers_for_products(facts) { texts(&[1, 4, 8]) } else { Vec::new() }
}

pub(super) fn gather(facts: &Facts) -> Vec<String> {
    match gathers_for_products(facts) {
        true => texts(&["sms", "copy_engine", "copy_engine/2", "copy_engine/4"]),
        false => Vec::new(),
    }
}

pub(super) fn all_reduce(facts: &Facts) -> Vec<String> {
    match facts.all_reduces() && facts.multiplies() && facts.ranks > 1 {
        true if facts.sum_extents()[0] > FEW_ROWS => texts(&["two_shot", "one_shot"]),
        true => texts(&["two_shot", "one_shot", "by_columns"]),
        false => Vec::new(),
    }
}

pub(super) fn reduction(facts: &Facts) -> Vec<String> {
    if !facts.sums() || !facts.multiplies() {
        return Vec::new();
    }
    let mut all = vec!["dedicated_sms", "after_last_wave"];
    // Every hop rounds: on many ranks that adds up.
    if (2..=8).contains(&facts.ranks) && !facts.all_reduces() && !facts.finishes_sums() {
        all.push("ring");
    }
    texts(&all)
}

pub(super) fn last_wave(facts: &Facts) -> Vec<String> {
    if !facts.multiplies() || facts.sums() {
        return Vec::new();
    }
    let mut all = texts(&["none", "1x64", "1x128", "2x64", "2x128"]);
    if facts.plain() {
        all.extend(texts(&["1x256/4", "1x256/8", "2x256/2", "2x256/4", "3x256/4"]));
        if facts.extents()[0] <= 128 {
            all.push("1x128/2".into());
        }
        all.extend(texts(all_in_parts(facts)));
    }
    let more: Vec<_> = partial_wave(facts).into_iter().filter(|t| !all.contains(t)).collect();
    all.extend(more);
    all
}

/// K of all tiles is cut where a gather stands beside less than a wave of them: a last wave of more blocks than few
/// rows have is the whole.
fn all_in_parts(facts: &Facts) -> &'static [&'static str] {
    let few = facts.extents()[0] <= FEW_ROWS && tiles(facts, [128, 128]) < sms();
    match gathers_for_products(facts) && few {
        true => &["16x128/2", "16x128/3", "16x128/4", "16x192/2", IN_PARTS, "16x192/4"],
        false => &[],
    }
}

/// Last waves of a GEMM alone that take in what is left of whole waves of default tiles, where it has several.
fn partial_wave(facts: &Facts) -> Vec<String> {
    let default = Config::default();
    let [height, width, _] = default.block.map(u64::from);
    let Some(sms) = target::by_name(&default.target).map(|t| u64::from(t.sms)) else {
        return Vec::new();
    };
    let [rows, columns] = facts.extents();
    let across = columns.div_ceil(width).max(1);
    let tiles = rows.div_ceil(height) * across;
    let (waves, left) = (tiles / sms, tiles % sms);
    if facts.ranks > 1 || waves == 0 || left == 0 {
        return Vec::new();
    }
    let (fewer, more) = (left / across, left.div_ceil(across));
    let mut all: Vec<_> =
        [fewer, more].iter().filter(|n| **n > 0).map(|n| format!("{n}x{}", width / 2)).collect();
    if facts.plain() {
        all.extend([2, 3, 4].map(|parts| format!("{more}x{width}/{parts}")));
    }
    all.dedup();
    all
}

pub(super) fn split_k(facts: &Facts) -> Vec<String> {
    let few = facts.sum_extents()[0] <= FEW_ROWS;
    if facts.sums() && facts.multiplies() && few { texts(&[1, 2, 3, 4]) } else { Vec::new() }
}

/// Clusters for GEMMs alone, of which there are fewer tiles than SMs.
pub(super) fn cluster(facts: &Facts) -> Vec<String> {
    match rules::shared_depth(facts) {
        Some(depth) if depth >= 256 && alone_and_small(facts) => texts(&[1, 2, 3, 4, 6, 8]),
        _ => Vec::new(),
    }
}

/// Clusters that load together, for GEMMs alone.
pub(super) fn multicast(facts: &Facts) -> Vec<String> {
    match rules::shared_depth(facts) {
        Some(_) if facts.extents()[0] > 128 => texts(&["none", "2x1", "1x2", "2x2"]),
        _ => Vec::new(),
    }
}

/// Where tiles leave for peers. The model knows little of it: those that were measured are measured in the other one,
/// too.
pub(super) fn tile_scheduler(facts: &Facts) -> Vec<String> {
    let leave = facts.multiplies() && facts.sums() && facts.ranks > 1;
    if leave { texts(&["static", "dynamic"]) } else { Vec::new() }
}
