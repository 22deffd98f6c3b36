//! Settings that fit no matrix product, or not those of a kernel.

use super::{
    AllReduce, Config, Consumers, Gather, LowerError, Sums, Tail, gather,
    gemm::tma_rows,
    select::{Extra, Gemm, Kernel, Made, Reduce},
};
use crate::{
    ir::{
        Leaf, Operand, Plan, Points, Store, TableSet, mma_stage_bytes, mma_staging_bytes,
        one_warpgroup_takes,
    },
    target::{self, Target},
};
use mk_abi::DType;

/// Whether its gathered rows can travel as the settings say.
///
/// # Errors
/// [`LowerError::Config`] with what would fit.
pub(super) fn check_gather(kernel: &Kernel, config: &Config) -> Result<(), LowerError> {
    let Gather::Engine { parts } = config.gather else { return Ok(()) };
    let error = |what, help: &str| Err(LowerError::Config { what, help: help.into() });
    if parts == 0 {
        return error("shards in 0 parts".into(), "use 1 or more");
    }
    if config.k_slices > 1 {
        let what = format!("a copy engine cannot send rows in {} slices", config.k_slices);
        return error(what, "leave `k_slices` as it is by default, or gather by `sms`");
    }
    let mut gathered = kernel.sources.iter().filter(|s| s.gathered).peekable();
    if gathered.peek().is_none() {
        let what = "nothing here is gathered by a copy engine".into();
        return error(what, "leave `gather` as it is by default");
    }
    let refused = gathered.map(|s| &kernel.params[s.param]).find(|x| !gather::engine_takes(x));
    if let Some(x) = refused {
        let what = format!("a copy engine cannot send the rows of `{}`", x.name);
        let help =
            "it takes rows of a multiple of 16 bytes, and as many in every launch: gather by `sms`";
        return error(what, help);
    }
    Ok(())
}

/// Stages of a tile that fit shared memory beside what its results leave through.
pub(super) fn stages([m, n, k]: [u32; 3], target: &Target) -> u32 {
    let room = target.smem_bytes.saturating_sub(target.smem_reserved_bytes);
    room.saturating_sub(mma_staging_bytes([m, n])) / mma_stage_bytes([m, n, k]).max(1)
}

/// Whether a kernel's products can be lowered with these settings.
///
/// # Errors
/// [`LowerError::Config`] with what would fit.
pub(super) fn check(kernel: &Kernel, config: &Config) -> Result<(), LowerError> {
    let [bm, bn, bk] = config.block;
    let known = match bm {
        64 => [128, 256].contains(&bn),
        128 => [32, 64, 96, 128, 160, 192, 256].contains(&bn),
        256 => [32, 64, 96, 128, 160].contains(&bn),
        _ => false,
    };
    let error = |what, help: &str| Err(LowerError::Config { what, help: help.into() });
    if !known || bk != 64 {
        let what = format!("no matrix product has tiles of {bm} x {bn} x {bk}");
        let help = "use 128 rows and 32, 64, 96, 128, 160, 192 or 256 columns, or 256 rows and at most 160, or 64 rows and 128 or 256; a depth of 64";
        return error(what, help);
    }
    let most = target::by_name(&config.target).map_or(u32::MAX, |t| stages(config.block, t));
    if !(2..=most).contains(&config.gemm_stages) && !kernel.gemms.is_empty() {
        let what = format!("{} stages of tiles of {bm} x {bn} x {bk}", config.gemm_stages);
        let help = format!("use 2 to {most}, for which shared memory has room");
        return Err(LowerError::Config { what, help });
    }
    if config.consumers == Consumers::PingPong && !one_warpgroup_takes([bm, bn]) {
        let what = format!("no warpgroup multiplies a tile of {bm} x {bn} by itself");
        let help =
            "use 128 rows and at most 160 columns for ping-pong, or leave `consumers` cooperative";
        return error(what, help);
    }
    if kernel.gemms.iter().any(Gemm::gated) && (bn % 128 != 0 || bm == 64) {
        let what = format!("`swiglu` has no tiles of {bm} x {bn}, half gates and half ups");
        return error(what, "use 128 or 256 columns, and 128 rows or more");
    }
    if config.k_slices == 0 {
        return error("rows in 0 slices".into(), "use 1 or more");
    }
    if config.k_slices > 1 && !kernel.sources.iter().any(|s| s.gathered) {
        let what = format!("nothing here is gathered in {} slices", config.k_slices);
        return error(what, "leave `k_slices` as it is by default");
    }
    if config.split_k == 0 {
        return error("0 parts of the inner dimension".into(), "use 1 or more");
    }
    let splits = config.split_k > 1;
    let world = config.ranks as i32;
    let cut = |n| kernel.reduce_of(n).is_some() && kernel.can_cut(n, world);
    if splits && !(0..kernel.gemms.len()).any(cut) {
        let what = format!("no product here can be cut into {} parts", config.split_k);
        let help = "only one that is reduced, with no elementwise operation between, and as deep on every rank, can";
        return error(what, help);
    }
    let all_reduced = kernel.results.iter().any(|r| r.reduce == Some(Reduce::All));
    if config.all_reduce != AllReduce::TwoPhase && !all_reduced {
        let what = "nothing here is summed by an `all_reduce` after a product".into();
        return error(what, "leave `all_reduce` as it is by default");
    }
    if config.sums != Sums::Beside && kernel.results.iter().all(|r| r.reduce.is_none()) {
        let what = "nothing here is summed after a product".into();
        return error(what, "leave `sums` as it is by default");
    }
    if config.sums == Sums::Ring && kernel.results.iter().any(|r| !r.epilogue.is_empty()) {
        let what = "what follows the sum is done by who adds up, not tile by tile".into();
        return error(what, "add up `beside` or `after` the product");
    }
    if config.sums == Sums::Ring && config.ranks > 1 {
        let what = || "products cannot be added tile by tile here".to_string();
        for (n, g) in kernel.gemms.iter().enumerate() {
            let Some((r, how)) = kernel.reduce_of(n) else { continue };
            if how == Reduce::All {
                return error(
                    what(),
                    "that is for a `reduce_scatter`: an `all_reduce` adds up `beside` or `after` the product",
                );
            }
            if matches!(g.left, Made::Source(s) if kernel.sources[s].gathered) {
                let help = "the own rows, which a gather has first, would have to come last: add up `beside` or `after` the product";
                return error(what(), help);
            }
            let out = &kernel.results[r].out;
            if !tma_rows(out, world) {
                return error(
                    what(),
                    "tiles go to the result by TMA, which takes rows of a multiple of 16 bytes: add up `beside` or `after` the product",
                );
            }
        }
        if splits {
            return error(what(), "products in parts of k add up `beside` or `after`");
        }
    }
    let gated = kernel.gemms.iter().any(Gemm::gated);
    let step = if gated || bm == 64 { 128 } else { 64 };
    let result = |n| kernel.result_of(Made::Gemm(n)).is_some() && !kernel.readers(n);
    if let Some(Tail { blocks, columns, parts }) = config.tail {
        let most = if parts > 1 { bn } else { bn - 1 };
        let fits = columns % step == 0 && (1..=most).contains(&columns);
        if bn % 64 != 0 {
            let what =
                format!("tiles of {bn} columns cannot share their stages with those of a tail");
            return error(what, "use tiles of 128, 192 or 256 columns");
        }
        if blocks == 0 || parts == 0 || !fits {
            let what = format!(
                "a tail of {blocks} blocks of rows in tiles of {columns} columns and {parts} parts"
            );
            let help = "use at least one block, and 64, 128, 192 or 256 columns (with `swiglu`, or tiles of 64 rows, 128 or 256); in one part, less columns than the other tiles have, else at most as many";
            return error(what, help);
        }
        if !(0..kernel.gemms.len()).any(|n| result(n) && (parts == 1 || kernel.can_cut(n, world))) {
            let what = format!("no product here can have a tail in {parts} parts");
            let help = "only one that is a result as it is can; and, in parts, one without an elementwise operation that is as deep on every rank";
            return error(what, help);
        }
    }
    let of_f32 = |g: &Gemm| {
        let mut saved = g.extras.iter().filter_map(|x| match x {
            Extra::Result(r) => Some(&kernel.results[*r].out),
            Extra::Param(_) => None,
        });
        g.out.dtype == DType::F32 || saved.any(|t| t.dtype == DType::F32)
    };
    let f32 = splits || config.tail.is_some() || kernel.gemms.iter().any(of_f32);
    if f32 && bn % 64 != 0 {
        let what = format!("f32 results have no tiles of {bn} columns");
        return error(what, "use a multiple of 64 columns");
    }
    Ok(())
}

/// Whether tiles of odd widths end where their rows do: rows that end elsewhere leave one by one, in whole panels of 64 columns.
///
/// # Errors
/// [`LowerError::Config`] with what would fit.
pub(super) fn check_ends(plan: &Plan) -> Result<(), LowerError> {
    let tables = TableSet::new(plan, |_, _| Vec::new());
    let points = Points::new(plan, &tables);
    for (id, f) in plan.families.iter() {
        let columns = f.leaf.out_columns();
        let Leaf::MmaTile { block, store: Store::Tma, .. } = f.leaf else { continue };
        if columns.is_multiple_of(64) {
            continue;
        }
        for c in f.accesses.iter().filter(|a| a.operand == Operand::C) {
            // Without a value there, the plan is refused elsewhere, with the place.
            if let Ok(Some(_)) = points.clipped(id, c, [block[0], columns]) {
                let what = format!("rows end inside tiles of {} x {}", block[0], block[1]);
                let help = "use a multiple of 64 columns where ranks have rows that are no multiple of a tile's, or rows come with each launch".into();
                return Err(LowerError::Config { what, help });
            }
        }
    }
    Ok(())
}
