//! Which tiles the templates carry out.

use crate::emit::{EmitError, Result, chain::half, context::Emitter};
use mk_plan::{
    ALayout, Access, BLayout, Consumers, EPILOGUE_OPERANDS, EpilogueOp, Expr, FamId, Family, Leaf,
    MmaTile, Mode, Operand, Store, Var, mma_consumers, mma_narrow, mma_panel_columns, mma_promotes,
    mma_swaps, mma_three_by_rows, one_warpgroup_takes, quantized, scales_steps,
};

/// Rows of operands that are behind the last one are zeros where both lie row by row.
pub(super) fn of_ragged_depth(f: &Family) -> Result<()> {
    let Leaf::MmaTile(MmaTile { block, a_layout, b_layout, .. }) = &f.leaf else { return Ok(()) };
    let sides = [block[0], block[1]];
    let fits = (*a_layout, *b_layout) == (ALayout::Km, BLayout::Kn)
        && !mma_swaps(sides)
        && !mma_narrow(block[2]);
    if fits && f.inner.is_none() && f.leaf.cluster() == 1 {
        return Ok(());
    }
    let what = "a table says how deep tiles are of 16-bit operands `a=km b=kn`, each of one CTA";
    EmitError::refuse(&f.name, what)
}

/// Blocks that the agents multiply.
pub(super) fn shape(f: &Family, block: [u32; 3], gated: bool, consumers: Consumers) -> Result<()> {
    let halves = block[1].is_multiple_of(128);
    let sides = [block[0], block[1]];
    let swapped = mma_swaps(sides) && block[0].is_multiple_of(16) && block[0] < 256;
    let split = block[0] == 64 && !gated || swapped && (!gated || block[1] == 256);
    let parts = block[1].is_multiple_of(64 * mma_consumers(sides));
    let rows = [128, 256].contains(&block[0]) || split && parts || mma_three_by_rows(sides);
    let narrow = mma_narrow(block[2]);
    // A gate's half is a block of columns that has a factor.
    let pairs = !gated || sides == [128, 256];
    if narrow && (!pairs || consumers != Consumers::Cooperative || !mma_promotes(sides)) {
        let what = "tiles of 8-bit operands have two warpgroups side by side, leave them registers for two sets of \
            sums, and with a gate are of 128 rows and 256 columns";
        return EmitError::refuse(&f.name, what);
    }
    if block[0] == 256 && matches!(&f.leaf, Leaf::MmaTile(t) if scales_steps(&t.epilogue)) {
        let what = "tiles with factors of steps along K have at most 128 rows, 16 for each warp";
        return EmitError::refuse(&f.name, what);
    }
    if block[2] != 64 && !narrow || !rows || gated && !halves {
        let what = "tiles have 128 or 256 rows, or 192 and as many columns, or 64, or others in steps of 16, in \
            multiples of 128 columns, or 64 or 192, a depth of 64, and with a gate whole panels of 64 columns of each \
            half, where others than 128 and 256 rows have 256 columns";
        return EmitError::refuse(&f.name, what);
    }
    if consumers == Consumers::PingPong && !one_warpgroup_takes([block[0], block[1]]) {
        let what = "one warpgroup multiplies tiles of 128 rows and at most 160 columns by itself";
        return EmitError::refuse(&f.name, what);
    }
    Ok(())
}

/// Three warpgroups have tiles whose sums stay with them.
pub(super) fn of_three(f: &Family) -> Result<()> {
    let Leaf::MmaTile(MmaTile { block, cluster, epilogue, .. }) = &f.leaf else { return Ok(()) };
    let handed_on = *cluster > 1 || epilogue.contains(&EpilogueOp::Carry);
    if mma_consumers([block[0], block[1]]) == 3 && handed_on {
        let what =
            "tiles of three warpgroups go on with no sums, and no cluster shares their depth";
        return EmitError::refuse(&f.name, what);
    }
    // ptxas places accumulators among the registers that a thread begins with, 128 of 512 threads.
    if mma_consumers([block[0], block[1]]) == 3 && block[0] > 192 {
        let what = "three warpgroups multiply tiles of at most 192 rows";
        return EmitError::refuse(&f.name, what);
    }
    Ok(())
}

/// Refuses tiles without a step along K, and CTAs without one of a tile that several share: consumers return the stage
/// of their last step.
pub(super) fn depth(e: &Emitter<'_>, id: FamId) -> Result<()> {
    let leaf = &e.plan.families[id].leaf;
    let cluster = leaf.shares_depth();
    if is_ragged(e, &e.plan.families[id]) {
        return Ok(());
    }
    if leaf.cluster() > 1 && e.runtime() {
        let what = "dimensions of tiles that a cluster shares are fixed";
        return EmitError::refuse(id.to_string(), what);
    }
    for rank in 0..e.plan.mesh.size() as usize {
        for task in e.points.tasks(id, rank, 1)? {
            if !e.points.steps(&task)?.is_some_and(|(each, times)| each >= 1 && times >= 1) {
                let what = format!("task {:?} of rank {rank} has no depth", task.domain());
                return EmitError::refuse(id.to_string(), what);
            }
            if e.points.steps(&task)?.is_some_and(|(each, _)| each < i64::from(cluster)) {
                let what = format!(
                    "task {:?} of rank {rank} has fewer steps than its cluster has CTAs",
                    task.domain()
                );
                return EmitError::refuse(id.to_string(), what);
            }
        }
    }
    Ok(())
}

/// Factors lie on this rank, results where their way of storing reaches.
pub(super) fn check_places(
    e: &Emitter<'_>,
    id: FamId,
    factors: [&Access; 2],
    targets: &[&Access],
) -> Result<()> {
    let f = &e.plan.families[id];
    let Leaf::MmaTile(MmaTile { block, store, .. }) = &f.leaf else { return Ok(()) };
    let own = Expr::Var(Var::RANK);
    let mut all = factors.into_iter().chain(targets.iter().copied());
    if all.any(|x| x.each.is_some()) || factors.iter().any(|x| x.rank != own) {
        return EmitError::refuse(&f.name, "operands must lie on the own rank");
    }
    if *store == Store::Direct && (targets.len() > 1 || targets[0].rank != own) {
        let what = "only TMA stores tiles to peers, or to several places";
        return EmitError::refuse(&f.name, what);
    }
    for c in targets {
        match store {
            Store::Tma => {
                e.check_starts(id, c)?;
                let [below, beside] = f.leaf.multicast();
                if half(e.plan, c).is_some() {
                    e.check_panels(id, c, mma_panel_columns(block[1]).min(64))?;
                }
                e.check_clipped(id, c, [block[0] * below, f.leaf.out_columns() * beside])?;
            }
            Store::Direct => e.check_lines(id, c)?,
        }
    }
    // Factors leave one by one.
    let epilogue = f.leaf.epilogue();
    let operands = epilogue.iter().filter(|op| op.operand().is_some()).count();
    let factors = quantized(epilogue).and(EPILOGUE_OPERANDS.get(operands.wrapping_sub(1)));
    let saves = |x: &&Access| {
        let written = EPILOGUE_OPERANDS.contains(&x.operand) && x.mode == Mode::Write;
        written && factors != Some(&x.operand)
    };
    f.accesses.iter().filter(saves).try_for_each(|x| e.check_lines(id, x))
}

/// Whether a table in memory says how deep tiles are.
pub(super) fn is_ragged(e: &Emitter<'_>, f: &Family) -> bool {
    let Leaf::MmaTile(MmaTile { a_layout, .. }) = &f.leaf else { return false };
    let deep = |a: &Access| {
        let depth = mk_plan::depth_dim(a, *a_layout);
        depth.is_some_and(|d| e.plan.names_stored(&a.region[d].1))
    };
    f.accesses.iter().any(|a| a.operand == Operand::A && deep(a))
}
