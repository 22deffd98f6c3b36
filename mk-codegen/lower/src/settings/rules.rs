//! What each setting needs of a kernel, and of the other settings.

use super::{
    config::{Config, stages_that_fit},
    facts::Facts,
    misfit::{DEFAULT, Misfit, tiles},
    values::{AllReduce, Gather, LastWave, Reduction, Returns},
};
use mk_plan::target::{self, Target};
use mk_plan::{
    COPY_STAGE_BYTES, Consumers, Schedule, mma_consumers, mma_promotes, mma_shifts, mma_swaps,
    one_warpgroup_takes,
};

type Fit = Result<(), Misfit>;

/// A misfit whose help names these settings, each an alternative; none: the default.
fn misfit(why: impl Into<String>, help: impl Into<String>, instead: &[&str]) -> Fit {
    let instead = instead.iter().map(ToString::to_string).collect();
    Err(Misfit { why: why.into(), help: help.into(), instead })
}

/// A misfit of a tile: the nearest ones that fit are named.
fn misfit_of_tile(c: &Config, why: impl Into<String>) -> Fit {
    Err(Misfit { why: why.into(), help: String::new(), instead: tiles(c.block) })
}

pub(super) fn products(facts: &Facts) -> Fit {
    if facts.multiplies() {
        return Ok(());
    }
    misfit("it is about GEMMs, and there are none", DEFAULT, &[])
}

pub(super) fn gathers(facts: &Facts) -> Fit {
    if facts.gathers() { Ok(()) } else { misfit("nothing here is gathered", DEFAULT, &[]) }
}

pub(super) fn all_reduces(facts: &Facts) -> Fit {
    products(facts)?;
    if facts.product_sums().any(|(sum, _)| sum.all) {
        return Ok(());
    }
    misfit("no product here is summed by an `all_reduce`", DEFAULT, &[])
}

pub(super) fn sums_products(facts: &Facts) -> Fit {
    products(facts)?;
    if facts.product_sums().next().is_some() {
        return Ok(());
    }
    misfit("no product here is summed", DEFAULT, &[])
}

pub(super) fn combines(facts: &Facts) -> Fit {
    if facts.returns.is_some() && facts.ranks > 1 {
        return Ok(());
    }
    misfit("no rank adds up rows of others' experts", DEFAULT, &[])
}

pub(super) fn combine(c: &Config, _: &Facts) -> Fit {
    if c.combine == Returns::Rows || c.nodes <= 1 {
        return Ok(());
    }
    misfit("over nodes, sums of nodes go back", "", &["combine=rows"])
}

pub(super) fn at_least_one(name: &str, of: &str, n: u32) -> Fit {
    match n {
        0 => misfit(format!("0 {of}"), "use 1 or more", &[&format!("{name}=1")]),
        _ => Ok(()),
    }
}

pub(super) fn copy_stages(c: &Config, _: &Facts) -> Fit {
    at_least_one("copy_stages", "stages", c.copy_stages)?;
    let room = |t: &Target| t.smem_bytes.saturating_sub(t.smem_reserved_bytes);
    let most = target::by_name(&c.target).map_or(u32::MAX, |t| room(t) / COPY_STAGE_BYTES);
    if c.copy_stages <= most {
        return Ok(());
    }
    misfit(
        format!("{} stages of {COPY_STAGE_BYTES} bytes", c.copy_stages),
        format!("use 1 to {most}, for which shared memory has room"),
        &["copy_stages=1", &format!("copy_stages={most}")],
    )
}

pub(super) fn block(c: &Config, facts: &Facts) -> Fit {
    if !facts.multiplies() {
        return Ok(());
    }
    let [bm, bn, bk] = c.block;
    let known = match bm {
        64 => [64, 128, 256].contains(&bn),
        128 => [32, 64, 96, 128, 160, 192, 256].contains(&bn),
        256 => [32, 64, 96, 128, 160].contains(&bn),
        192 if bn == 192 => true,
        _ => swapped_rows(bn).is_some_and(|mut rows| rows.any(|m| m == bm)),
    };
    if !known || bk != 64 {
        return misfit_of_tile(c, format!("no GEMM has tiles of {bm} x {bn} x {bk}"));
    }
    if facts.narrow() && !mma_promotes([bm, bn]) {
        let why = format!(
            "sums of 8-bit operands take twice the registers that tiles of {bm} x {bn} leave"
        );
        return misfit_of_tile(c, why);
    }
    if facts.blocks() && bm == 256 {
        let why = "a warp has factors of 16 rows of a step, and tiles of 256 have 32".to_string();
        return misfit_of_tile(c, why);
    }
    if facts.blocks() && bn % 128 != 0 {
        let why = format!("tiles of {bn} columns cut blocks of 128 that have a factor");
        return misfit_of_tile(c, why);
    }
    let pairs = facts.narrow() && facts.gated();
    if pairs && [bm, bn] != [128, 256] {
        let why =
            format!("tiles of {bm} x {bn} cut blocks of 128 gates, or ups, that have a factor");
        return misfit_of_tile(c, why);
    }
    let halves = [facts.gated(), bm == 64].iter().filter(|h| **h).count();
    let made = bn >> halves;
    if facts.quantizes() && (made % 128 != 0 || mma_consumers([bm, bn]) == 3) {
        let why = format!("no consumer of tiles of {bm} x {bn} has whole blocks of 128 of a row");
        return misfit_of_tile(c, why);
    }
    if mma_swaps([bm, bn]) && !swaps(c, facts) {
        let why = format!(
            "only a product alone, of 16-bit results of which nothing is saved, has tiles of {bm} x {bn}"
        );
        let mut instead = tiles(c.block);
        instead.insert(0, "consumers=cooperative last_wave=none".into());
        return Err(Misfit { why, help: String::new(), instead });
    }
    if facts.ragged && (bm > 128 || bn % 64 != 0) {
        return misfit_of_tile(c, format!("ragged rows have no tiles of {bm} x {bn}"));
    }
    let split = bm == 64 || mma_swaps([bm, bn]) && bn != 256;
    if facts.gated() && (bn % 128 != 0 || split) {
        let why = format!("`swiglu` has no tiles of {bm} x {bn}, half gates and half ups");
        return misfit_of_tile(c, why);
    }
    if mma_swaps([bm, bn]) && !facts.plain() && bm * bn > 128 * 256 {
        let why = format!("tiles of {bm} x {bn} leave no registers for elementwise operations");
        return misfit_of_tile(c, why);
    }
    // Partial sums are f32.
    let odd = c.split_k > 1 || c.last_wave.is_some() || facts.products.iter().any(|p| p.odd_bits);
    if odd && bn % 64 != 0 && c.last_wave.is_none() {
        return misfit_of_tile(
            c,
            format!("results of other than 16 bits have no tiles of {bn} columns"),
        );
    }
    Ok(())
}

/// Rows of tiles of so many columns that multiply with their operands swapped ([`mma_swaps`]).
pub(super) fn swapped_rows(columns: u32) -> Option<impl Iterator<Item = u32>> {
    let most = match columns {
        64 | 128 => 240,
        192 => 176,
        256 => 160,
        _ => return None,
    };
    Some((16..=most).step_by(16).filter(move |m| mma_swaps([*m, columns])))
}

/// Whether such tiles have a kernel.
pub(super) fn swaps(c: &Config, facts: &Facts) -> bool {
    let odd = facts.products.iter().any(|p| p.odd_bits);
    let cooperative = c.consumers == Consumers::Cooperative && c.last_wave.is_none();
    shared_depth(facts).is_some() && !odd && !facts.ragged && cooperative
}

pub(super) fn stages(c: &Config, facts: &Facts) -> Fit {
    let (true, Some(n), Some(target)) = (facts.multiplies(), c.stages, target::by_name(&c.target))
    else {
        return Ok(());
    };
    let most = stages_that_fit(c.block, c.cluster, shifted(c, facts), target);
    if (2..=most).contains(&n) {
        return Ok(());
    }
    let [bm, bn, bk] = c.block;
    misfit(
        format!("{n} stages of tiles of {bm} x {bn} x {bk}"),
        format!("use 2 to {most}, for which shared memory has room"),
        &["stages=2", &format!("stages={most}")],
    )
}

pub(super) fn settle_block(c: &mut Config, facts: &Facts) {
    let cuts = facts.blocks() && !c.block[1].is_multiple_of(128);
    if facts.narrow() && (cuts || !mma_promotes([c.block[0], c.block[1]])) {
        c.block = [128, 128, 64];
    }
    if facts.narrow() && facts.gated() {
        c.block = [128, 256, 64];
    }
}

pub(super) fn consumers(c: &Config, facts: &Facts) -> Fit {
    let [bm, bn, _] = c.block;
    if c.consumers == Consumers::PingPong && facts.narrow() {
        let why =
            "while one warpgroup adds sums of 8-bit operands, the other multiplies the same tile";
        return misfit(why, "", &["consumers=cooperative"]);
    }
    if c.consumers == Consumers::Cooperative || one_warpgroup_takes([bm, bn]) {
        return Ok(());
    }
    misfit(
        format!("no warpgroup multiplies a tile of {bm} x {bn} by itself"),
        "",
        &["consumers=cooperative", "block=128x160x64", "block=128x128x64"],
    )
}

pub(super) fn settle_consumers(c: &mut Config, facts: &Facts) {
    if facts.narrow() || !one_warpgroup_takes([c.block[0], c.block[1]]) {
        c.consumers = Consumers::Cooperative;
    }
}

pub(super) fn k_slices(c: &Config, facts: &Facts) -> Fit {
    match c.k_slices {
        0 => misfit("rows in 0 slices", "use 1 or more", &["k_slices=1"]),
        n if n > 1 && !facts.gathers() => {
            misfit(format!("nothing here is gathered in {n} slices"), DEFAULT, &[])
        }
        n if n > 1 && c.gather != Gather::Sms => misfit(
            format!("a copy engine cannot send rows in {n} slices"),
            "",
            &["k_slices=1", "gather=sms"],
        ),
        n if n > 1 && (facts.scaled_gathers() || facts.blocks()) => {
            misfit(format!("factors do not come in {n} slices of K"), "", &["k_slices=1"])
        }
        _ => Ok(()),
    }
}

pub(super) fn settle_k_slices(c: &mut Config, facts: &Facts) {
    if c.gather != Gather::Sms || facts.scaled_gathers() || facts.blocks() {
        c.k_slices = Config::default().k_slices;
    }
}

pub(super) fn settle_chunk_bytes(c: &mut Config, _: &Facts) {
    if c.gather != Gather::Sms {
        c.chunk_bytes = Config::default().chunk_bytes;
    }
}

pub(super) fn gather(c: &Config, facts: &Facts) -> Fit {
    let Gather::CopyEngine { parts } = c.gather else { return Ok(()) };
    if parts == 0 {
        return misfit("shards in 0 parts", "use 1 or more", &["gather=copy_engine"]);
    }
    if let Some(g) = facts.gathers.iter().find(|g| g.scaled) {
        return misfit(
            format!("a copy engine cannot send `{}` with its factors", g.name),
            "",
            &["gather=sms"],
        );
    }
    match facts.gathers.iter().find(|g| !g.bulk || !g.fixed || g.made) {
        None => Ok(()),
        Some(g) => misfit(
            format!("a copy engine cannot send the rows of `{}`", g.name),
            "it takes a caller's rows of a multiple of 16 bytes, and as many in every launch: set `gather=sms`",
            &["gather=sms"],
        ),
    }
}

pub(super) fn reduction(c: &Config, facts: &Facts) -> Fit {
    let [bm, bn, _] = c.block;
    if mma_consumers([bm, bn]) == 3 && c.reduction != Reduction::DedicatedSms && facts.sums() {
        let why = format!("CTAs with tiles of {bm} x {bn} have no registers left to add sums");
        return misfit(why, "", &["reduction=dedicated_sms"]);
    }
    if c.reduction != Reduction::Ring {
        return Ok(());
    }
    let because = |what: &str| {
        let others = ["reduction=dedicated_sms", "reduction=after_last_wave"];
        misfit(format!("products cannot be added tile by tile here: {what}"), "", &others)
    };
    if facts.finishes_sums() {
        return because("the owner of a reduction does the elementwise operations that follow it");
    }
    if facts.ranks == 1 {
        return Ok(());
    }
    for (sum, product) in facts.product_sums() {
        if sum.all {
            return because("a ring is for a `reduce_scatter`, and this is an `all_reduce`");
        }
        if product.gathered {
            return because(
                "the local shard's rows, which a gather has first, would have to come last",
            );
        }
        if !sum.tma_rows {
            return because(
                "tiles go to the result by TMA, which takes rows of a multiple of 16 bytes",
            );
        }
    }
    if c.split_k > 1 { because("split-K parts are not added in a ring") } else { Ok(()) }
}

/// CTAs that multiply for several results, none of which another GEMM reads, have registers left to add sums on two
/// ranks alone (docs/decisions/choice-and-tuning.md).
pub(super) fn settle_reduction(c: &mut Config, facts: &Facts) {
    let [bm, bn, _] = c.block;
    let several = facts.products.iter().filter(|p| !p.read).count() > 1;
    let fits = facts.ranks <= 2
        && bm.saturating_mul(bn) <= 128 * 256
        && c.all_reduce == AllReduce::TwoShot;
    if c.reduction == Reduction::AfterLastWave && several && !fits {
        c.reduction = Reduction::DedicatedSms;
    }
}

pub(super) fn last_wave(c: &Config, facts: &Facts) -> Fit {
    let Some(LastWave { blocks, columns, parts }) = c.last_wave else { return Ok(()) };
    let [bm, bn, _] = c.block;
    if mma_consumers([bm, bn]) == 3 {
        let why = format!("last rows have no smaller tiles beside those of {bm} x {bn}");
        return misfit(why, "", &["last_wave=none"]);
    }
    if facts.quantizes() {
        let why = "results that are quantised have tiles of one width";
        return misfit(why, "", &["last_wave=none"]);
    }
    let step = if facts.gated() || facts.blocks() || bm == 64 { 128 } else { 64 };
    let most = if parts > 1 { bn } else { bn - 1 };
    if bn % 64 != 0 {
        return misfit_of_tile(
            c,
            format!("tiles of {bn} columns cannot share their stages with those of the last wave"),
        );
    }
    let fits = columns % step == 0 && (1..=most).contains(&columns);
    if blocks == 0 || parts == 0 || !fits {
        let (blocks_of, parts_of) = (blocks.max(1), parts.max(1));
        let with = |columns: u32| match parts_of {
            1 => format!("last_wave={blocks_of}x{columns}"),
            parts => format!("last_wave={blocks_of}x{columns}/{parts}"),
        };
        let why =
            format!("{blocks} blocks of last rows in tiles of {columns} columns and {parts} parts");
        let mut near = [64, 128, 192, 256];
        near.sort_by_key(|n: &u32| n.abs_diff(columns));
        let instead = near.map(with).into_iter().chain(["last_wave=none".into()]).collect();
        return Err(Misfit { why, help: String::new(), instead });
    }
    if !facts.products.iter().any(|p| p.result && !p.read && (parts == 1 || p.divisible)) {
        return misfit(
            format!(
                "no product here can have a last wave in {parts} parts: only one that is a result as it is can; and, \
                 in parts, one without an elementwise operation that is as deep on every rank"
            ),
            "",
            &[&format!("last_wave={blocks}x{columns}"), "last_wave=none"],
        );
    }
    Ok(())
}

/// Of other tiles than the last rows had: no wider ones.
pub(super) fn settle_last_wave(c: &mut Config, facts: &Facts) {
    let [height, width, _] = c.block;
    let two = mma_consumers([height, width]) == 2;
    let takes = width.is_multiple_of(64) && two && !facts.quantizes();
    c.last_wave = c.last_wave.filter(|w| takes && (w.parts > 1 || w.columns < width));
    if let Some(last) = &mut c.last_wave {
        last.columns = last.columns.min(width);
    }
}

pub(super) fn split_k(c: &Config, facts: &Facts) -> Fit {
    if c.split_k == 0 {
        return misfit("0 parts of K", "use 1 or more", &["split_k=1"]);
    }
    if c.split_k > 1 && !facts.product_sums().any(|(_, product)| product.divisible) {
        return misfit(
            format!(
                "no product here can be cut into {} parts: only one that is reduced, with no elementwise operation \
                 between, and as deep on every rank, can",
                c.split_k
            ),
            "",
            &["split_k=1"],
        );
    }
    Ok(())
}

pub(super) fn settle_split_k(c: &mut Config, _: &Facts) {
    if c.reduction == Reduction::Ring {
        c.split_k = 1;
    }
}

pub(super) fn cluster(c: &Config, facts: &Facts) -> Fit {
    let n = c.cluster;
    if !(1..=8).contains(&n) {
        let instead = ["cluster=1", "cluster=2", "cluster=8"];
        return misfit(format!("clusters of {n} CTAs"), "use 1 to 8", &instead);
    }
    if n == 1 {
        return Ok(());
    }
    let why_not = |why: &str| format!("no {n} CTAs share a tile: {why}");
    let because = |why: &str, instead: &[&str]| misfit(why_not(why), "", instead);
    let tile = |why: &str| {
        let mut instead = tiles(c.block);
        instead.insert(0, "cluster=1".into());
        Err(Misfit { why: why_not(why), help: String::new(), instead })
    };
    let Some(depth) = shared_depth(facts) else {
        return because(
            "only a product alone, of operands that TMA can read, which saves nothing, has such tiles",
            &["cluster=1"],
        );
    };
    let [bm, bn, bk] = c.block;
    if repacks(c, facts) {
        return tile("rows of its operand B are repacked first, but for other tiles");
    }
    if mma_consumers([bm, bn]) == 3 {
        return tile("three warpgroups leave no registers for the others' sums");
    }
    if c.consumers != Consumers::Cooperative
        || c.last_wave.is_some()
        || c.tile_scheduler != Schedule::Static
    {
        return because(
            "all CTAs of a kernel are in clusters, and work in step",
            &["consumers=cooperative last_wave=none tile_scheduler=static", "cluster=1"],
        );
    }
    let fits = target::by_name(&c.target)
        .is_none_or(|t| stages_that_fit(c.block, n, shifted(c, facts), t) >= 2);
    if bn % 64 != 0 || !fits {
        return tile("its sums do not fit beside two stages");
    }
    // The largest of them, beside all sums; of 8-bit operands beside those of a step.
    if bm * bn > 128 * 256 || facts.narrow() && bm * bn > 128 * 128 {
        return tile("no registers are left for the others' sums");
    }
    if bm * bn == 128 * 256 && n == 3 {
        return because("no registers are left for parts that differ", &["cluster=2", "cluster=4"]);
    }
    if bm * bn >= 128 * 256 && !facts.plain() {
        return tile("no registers are left for elementwise operations");
    }
    if facts.gated() && mma_swaps([bm, bn]) {
        return tile("gates and ups of tiles of so many rows lie in different sums");
    }
    let step = u64::from(bk) * if facts.narrow() { 2 } else { 1 };
    let steps = depth.div_ceil(step);
    if steps < u64::from(n) {
        let why = format!("there are {steps} steps of {step} along K");
        return because(&why, &[&format!("cluster={steps}"), "cluster=1"]);
    }
    Ok(())
}

pub(super) fn multicast(c: &Config, facts: &Facts) -> Fit {
    let Some(m) = c.multicast else { return Ok(()) };
    if !matches!((m.below, m.beside), (1, 2) | (2, 1) | (2, 2)) {
        return misfit(
            format!("{}x{} CTAs that load together", m.below, m.beside),
            "use 2x1, 1x2 or 2x2",
            &["multicast=2x1", "multicast=1x2", "multicast=2x2"],
        );
    }
    if facts.narrow() {
        return misfit(
            "CTAs that load 8-bit operands together take longer",
            "",
            &["multicast=none"],
        );
    }
    if shared_depth(facts).is_none() {
        return misfit(
            "CTAs load together in a product alone, of operands that TMA can read, which saves nothing",
            "",
            &["multicast=none"],
        );
    }
    if !facts.products.iter().all(|p| p.whole) {
        return misfit("CTAs load together what TMA takes", "", &["multicast=none"]);
    }
    if c.ctas_of_task() > 8 {
        return misfit(
            format!(
                "clusters of {} CTAs, parts of K (`cluster`) times the tiles that load together: at most 8 are",
                c.ctas_of_task()
            ),
            "",
            &["multicast=2x1", "cluster=2", "cluster=1"],
        );
    }
    if c.consumers != Consumers::Cooperative
        || c.last_wave.is_some()
        || c.tile_scheduler != Schedule::Static
    {
        return misfit(
            "all CTAs of a kernel are in clusters, and those that load together work in step",
            "",
            &["consumers=cooperative last_wave=none tile_scheduler=static", "multicast=none"],
        );
    }
    Ok(())
}

pub(super) fn settle_multicast(c: &mut Config, facts: &Facts) {
    if multicast(c, facts).is_err() {
        c.multicast = None;
    }
}

/// K of the GEMM whose tiles clusters may share.
pub(super) fn shared_depth(facts: &Facts) -> Option<u64> {
    match facts.products.as_slice() {
        [p] if p.alone && !facts.sums() && !facts.gathers() => p.depth,
        _ => None,
    }
}

/// Whether tiles shift rows of operand B that TMA cannot take: those with swapped operands do, others need them
/// repacked.
pub(super) fn shifted(c: &Config, facts: &Facts) -> bool {
    shared_depth(facts).is_some()
        && facts.products[0].shifts
        && mma_shifts([c.block[0], c.block[1]])
}

fn repacks(c: &Config, facts: &Facts) -> bool {
    facts.products.iter().any(|p| p.shifts) && !shifted(c, facts)
}

pub(super) fn settle_cluster(c: &mut Config, facts: &Facts) {
    if cluster(c, facts).is_err() {
        c.cluster = 1;
    }
}

/// Where the CTAs that multiply add up, too, or copy engines gather, no CTAs only communicate.
pub(super) fn settle_intra_comm_sms(c: &mut Config, facts: &Facts) {
    let adds = facts.sums() && c.reduction == Reduction::DedicatedSms;
    let copies = facts.gathers() && c.gather == Gather::Sms;
    if facts.multiplies() && !adds && !copies {
        c.intra_comm_sms = None;
    }
}
