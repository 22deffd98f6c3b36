//! Tiles of GEMMs: a lane loads, one to three warpgroups multiply, a lane sends the results.

mod carry;
mod checks;
mod operands;
mod targets;

use crate::emit::{
    EmitError, Result,
    chain::{Chain, half},
    context::Emitter,
    leaf::{AgentEmission, Group, LeafEmission, Prepared, RingEmission, Seat, Spills, Warpgroups},
    maps::View,
    types::Slice,
};
use checks::{check_places, depth, of_ragged_depth, of_three, shape};
use minijinja::{Value, context};
use mk_abi::DType;
use mk_dtype::HALF_BYTES;
use mk_plan::{
    ALayout, Access, Agent, BLayout, Consumers, EPILOGUE_OPERANDS, EpilogueOp, Expr, FamId, Family,
    Leaf, MMA_STEP_BYTES, MmaTile, Mode, Operand, Point, Space, Store, Var, carry_last, gated,
    mma_consumers, mma_exchange_bytes, mma_narrow, mma_panel_columns, mma_staging_bytes, mma_swaps,
    named_operands, quantized, saves_gates, scales_steps,
};
use operands::Factor;

pub(in crate::emit) const EMISSION: LeafEmission = LeafEmission {
    template: "mma_tile",
    texts: &[
        ("mma_tile", include_str!("../../../../templates/leaf/mma_tile.cu.j2")),
        ("schedule", include_str!("../../../../templates/leaf/schedule.cu.j2")),
        ("chain", include_str!("../../../../templates/leaf/chain.cu.j2")),
    ],
    warpgroups: Warpgroups { issuing_registers: 56, computing_registers: 224, computing: 2 },
    ring: Some(&RingEmission {
        comment: "The ring of stages that the role's GEMMs share.",
        config: "GemmConfig<GemmOptions{.block_m = @{ block_m }@, .block_n = @{ block_n }@, .stages = @{ stages }@@{ \", .b = BLayout::NMajor, .shifted = true\" if shifted else \"\" }@@{ \", .row_factors = true\" if row_factors else \"\" }@@{ \
            \", .cluster = %d\" | format(cluster) if cluster != 1 else \"\" }@@{ \", .below = %d, .beside = %d\" | \
            format(below, beside) if below * beside != 1 else \"\" }@@{ \", .store = StorePath::Direct\" if cluster \
            != 1 else \"\" }@@{ \", .consumers = Consumers::PingPong\" if ping_pong else \"\" }@}>",
        smem: "GemmSmem",
        asserts: &[
            "static_assert(@{ name }@Config::kStagingBytes == @{ staging }@, \"the leaf's contract promises other \
             panels\");",
        ],
        inner_edges: Some(
            "staging_full = staged, staging_free = drained, turn = kWithinAgent, tile_full = kWithinAgent, tile_empty \
             = kWithinAgent;",
        ),
        inits: &[(0, "smem.init_barriers();"), (64, "smem.init_staging_barriers();")],
        stalls: &[("full", 0), ("empty", 0), ("staged", 0), ("drained", 1)],
        values: ring,
    }),
    agents: &[
        AgentEmission {
            agent: Agent::Loader,
            seat: Seat::Lane(0),
            state: &[RING, TILES],
            function: "sm90_gemm_loader",
            arguments: "<@{ name }@Config, @{ ring }@Edges>(ctx, smem.of<@{ name }@Config>(), @{ name \
                }@Hooks{params}, ring, tiles);",
        },
        AgentEmission {
            agent: Agent::Consumers,
            seat: Seat::Computing,
            state: &[RING, STAGING, TILES],
            function: "sm90_gemm_consumer",
            arguments: "<@{ name }@Config, @{ ring }@Edges>(ctx, smem.of<@{ name }@Config>(), @{ name \
                }@Hooks{params}, warpgroup - 1, ring, staging, tiles);",
        },
        AgentEmission {
            agent: Agent::Storer,
            seat: Seat::Lane(1),
            state: &[RING, STAGING, TILES],
            function: "sm90_gemm_storer",
            arguments: "<@{ name }@Config, @{ ring }@Edges>(ctx, smem.of<@{ name }@Config>(), @{ name \
                }@Hooks{params}, ring, staging, tiles);",
        },
    ],
    // Several loops: 0 for most shapes, 4 to 8 for some, seen in the epilogue. Traced, where rows come in slices: 4 to
    // 84, none of it in the loop of wgmmas.
    spills: Spills { several_loops: 32, traced_inner_loop: 128, promoted: 64 },
    prepare,
};

/// The same with three consumers, of at most 96 accumulators each.
const THREE: LeafEmission = LeafEmission {
    warpgroups: Warpgroups { issuing_registers: 56, computing_registers: 152, computing: 3 },
    ..EMISSION
};

/// The same with one, of at most 120 accumulators.
const ONE: LeafEmission = LeafEmission {
    warpgroups: Warpgroups { issuing_registers: 56, computing_registers: 224, computing: 1 },
    ..EMISSION
};

/// The same with 192 accumulators, and factors of their steps along K.
const PAIRS: LeafEmission = LeafEmission {
    warpgroups: Warpgroups { issuing_registers: 40, computing_registers: 232, computing: 2 },
    ..EMISSION
};

/// The record for tiles of so many rows and columns.
pub(in crate::emit) fn emission(tile: &MmaTile) -> &'static LeafEmission {
    let [rows, columns, depth] = tile.block;
    match mma_consumers([rows, columns]) {
        1 => &ONE,
        3 => &THREE,
        _ if mma_narrow(depth) && gated(&tile.epilogue) => &PAIRS,
        _ => &EMISSION,
    }
}

const RING: &str = "RingCursor<@{ ring }@Config::kStages> ring;";
const STAGING: &str = "GemmStaging<@{ ring }@Config::kPanels> staging;";
const TILES: &str = "TileCursor tiles;";

/// Rows of the boxes that few rows of operand A come in: `kPartRows`.
const PART_ROWS: u32 = 16;

/// A stage has room for the widest tiles.
fn ring(leaves: &[&Leaf]) -> Result<Value> {
    let columns = leaves.iter().map(|leaf| match leaf {
        Leaf::MmaTile(MmaTile { block, .. }) => Some(block[1]),
        _ => None,
    });
    let widest = columns.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
    let (
        Some(block_n),
        Some(Leaf::MmaTile(MmaTile {
            block, stages, shifted, consumers, cluster, multicast, ..
        })),
    ) = (widest, leaves.first())
    else {
        return Err(EmitError::internal("emit/arch/sm90/mma.rs", "the ring of another leaf"));
    };
    Ok(context! {
        stages,
        shifted,
        ping_pong => *consumers == Consumers::PingPong,
        cluster,
        below => multicast[0],
        beside => multicast[1],
        block_m => block[0],
        block_n,
        row_factors => leaves.iter().any(|leaf| matches!(leaf, Leaf::MmaTile(t) if scales_steps(&t.epilogue))),
        staging => mma_staging_bytes([block[0], block[1]], *stages)
            .max(mma_exchange_bytes([block[0], block[1]], *cluster)),
    })
}

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let run = g.families();
    let (mut families, mut ranks) = (Vec::new(), Vec::new());
    for s in &g.slices {
        let (value, rank) = family(e, *s, &run)?;
        families.push(value);
        ranks.push(rank);
    }
    let b_rank = ranks[0];
    if ranks.iter().any(|r| *r != b_rank) {
        let what = "tiles of one loop come through maps of as many dimensions";
        return EmitError::refuse(&g.name, what);
    }
    let only_tile = e.points.only_tile(&run)?;
    let borrowed_stage = !only_tile && e.points.borrowed_stage(&run)?;
    let shifted = run.iter().any(|id| operands::shifted(&e.plan.families[*id]));
    if shifted && !b_is_given(e, &run) {
        let what = "rows that are shifted are the caller's, and no task writes them";
        return Err(EmitError::unsupported(g.name.clone(), what));
    }
    let b_first = families.iter().any(waits_for_a) && b_is_given(e, &run);
    let clipped = e.points.ends_clipped(&run)?;
    let b_evict_first = e.points.evict_first(&run, f64::from(e.target.l2_bytes))?;
    let ragged_depth = ragged_depth(e, &run);
    let short_rows = !ragged_depth && run.iter().all(|id| e.plan.looks_up(&e.plan.families[*id]));
    let left_over = e.left_over(&g.slices)?;
    let choices = [
        (borrowed_stage, "borrowed stage"),
        (b_evict_first, "b evict-first"),
        (b_first, "b before a"),
        (clipped, "last rows clipped"),
        (only_tile, "one tile per CTA"),
        (short_rows, "short rows"),
        (ragged_depth, "ragged depth"),
        (shifted, "shifted b"),
        (left_over.is_some(), "a warp for tasks without rows"),
    ];
    let choices = choices.iter().filter(|(on, _)| *on).map(|(_, text)| text.to_string()).collect();
    let tile = context! {
        b_rank,
        shifted,
        borrowed_stage,
        b_evict_first,
        b_first,
        clipped,
        only_tile,
        short_rows,
        ragged_depth,
        ..tile(e, g)?
    };
    let (hooks, call) = (context! { tile, left_over }, context! {});
    Ok(Prepared { families, hooks, call, workers: g.ctas / g.cluster, choices })
}

/// Whether that is so of some of a loop's tiles.
fn ragged_depth(e: &Emitter<'_>, run: &[FamId]) -> bool {
    run.iter().any(|id| checks::is_ragged(e, &e.plan.families[*id]))
}

/// Whether a family's loader waits before it loads.
fn waits_for_a(family: &Value) -> bool {
    let waits = family.get_attr("load_waits");
    waits.is_ok_and(|waits| waits.len().unwrap_or(0) > 0)
}

/// Whether the operands B of a loop are tensors of the caller that no task writes, so that no wait orders their loads,
/// and a CTA fills the stages of its part of a tile alone, step by step.
fn b_is_given(e: &Emitter<'_>, run: &[FamId]) -> bool {
    run.iter().all(|id| {
        let f = &e.plan.families[*id];
        let carried = f.leaf.epilogue().contains(&EpilogueOp::Carry);
        let alone = f.leaf.multicast() == [1, 1] && !carried;
        alone
            && f.inner.is_none()
            && !e.plan.looks_up(f)
            && f.accesses.iter().filter(|a| a.operand == Operand::B).all(|b| {
                let writes = |a: &Access| a.buffer == b.buffer && a.mode != Mode::Read;
                let given = e.plan.buffers[b.buffer].space == Space::In;
                given && !e.plan.families.values().any(|f| f.accesses.iter().any(writes))
            })
    })
}

/// The options of a loop's tiles, beyond the ring's.
fn tile(e: &Emitter<'_>, g: &Group) -> Result<Value> {
    let (id, f) = (g.slices[0].id, g.head(e));
    let Leaf::MmaTile(MmaTile {
        block,
        stages,
        a_layout,
        b_layout,
        store,
        consumers,
        cluster,
        multicast: [below, beside],
        epilogue,
        ..
    }) = &f.leaf
    else {
        return Err(EmitError::internal("emit/arch/sm90/mma.rs", format!("{id} is no product")));
    };
    let [dtype, b_dtype] =
        [e.one_dtype(id, |o| o == Operand::A)?, e.one_dtype(id, |o| o == Operand::B)?];
    let narrow = mma_narrow(block[2]);
    let out = e.one_dtype(id, |o| o == Operand::C)?;
    let out_bytes = e.one_type(id, |o| o == Operand::C)?.size_bytes() as u32;
    let kept = epilogue.iter().any(|op| matches!(op, EpilogueOp::Save | EpilogueOp::Carry));
    let as_it_is =
        *a_layout == ALayout::Mk && out_bytes == HALF_BYTES && !kept && !saves_gates(epilogue);
    if mma_swaps([block[0], block[1]]) && !(as_it_is && *consumers == Consumers::Cooperative) {
        let what = "operands are swapped for 16-bit results of which nothing is saved";
        return EmitError::refuse(&f.name, what);
    }
    let saves_f32 = f.accesses.iter().any(|a| {
        EPILOGUE_OPERANDS.contains(&a.operand)
            && a.mode == Mode::Write
            && e.plan.buffers[a.buffer].dtype == DType::F32
    });
    if (out == "F32" || saves_f32) && block[1] % 64 != 0 {
        let what = "tiles store f32 in whole panels of 64 columns";
        return EmitError::refuse(&f.name, what);
    }
    // Parts of whole swizzles.
    let a_rows = match *beside {
        1 => operands::loaded_rows(e, &g.families(), *a_layout, block[0])?,
        _ => block[0],
    };
    let a_ends = operands::end_rows(e, &g.families(), *block, [*below, *beside])?;
    let saves = epilogue.iter().filter(|op| **op == EpilogueOp::Save).count();
    let reads = epilogue.iter().any(|op| op.operand() == Some(Mode::Read));
    let bytes = out_bytes < HALF_BYTES;
    Ok(context! {
        block_m => block[0],
        block_n => block[1],
        a_rows,
        a_ends => a_ends.filter(|rows| *rows < a_rows),
        stages,
        dtype,
        b_dtype => narrow.then_some(b_dtype),
        promotes => narrow,
        quantizes => quantized(epilogue).is_some(),
        scaled => epilogue.iter().any(|op| op.scales() && !op.scales_steps()),
        step_scaled => scales_steps(epilogue),
        // Elements along K of a step, as the library has them.
        step => if narrow { "kStepBytes" } else { "kBlockK" },
        out,
        a => if *a_layout == ALayout::Mk { "KMajor" } else { "MMajor" },
        b => if *b_layout == BLayout::Kn { "NMajor" } else { "KMajor" },
        gated => if gated(epilogue) { "true" } else { "false" },
        reads => *store == Store::Direct && (bytes || reads),
        chained => mma_swaps([block[0], block[1]]) && epilogue.iter().any(|op| !matches!(op, EpilogueOp::Widen | EpilogueOp::Swiglu)),
        // Gates and ups are two.
        saves => saves + usize::from(saves_gates(epilogue)),
        saves_gates => saves_gates(epilogue),
        gate_bias => mk_plan::gate_bias(epilogue).is_some(),
        carried => epilogue.contains(&EpilogueOp::Carry),
        carry_last => carry_last(epilogue),
        store => if *store == Store::Tma { "Tma" } else { "Direct" },
        ping_pong => *consumers == Consumers::PingPong,
        cluster,
        below,
        beside,
    })
}

/// Template values of one family of a loop's: its `decode`, waits, posts and epilogue; and the number of dimensions of
/// B's map.
fn family(e: &mut Emitter<'_>, s: Slice, run: &[FamId]) -> Result<(Value, usize)> {
    let f = &e.plan.families[s.id];
    let Leaf::MmaTile(MmaTile {
        block,
        store,
        epilogue,
        a_layout,
        b_layout,
        consumers,
        multicast,
        ..
    }) = &f.leaf
    else {
        return Err(EmitError::internal(
            "emit/arch/sm90/mma.rs",
            format!("{} is no product", s.id),
        ));
    };
    let (a, b) = (e.access(f, Operand::A)?, e.access(f, Operand::B)?);
    let gated = gated(epilogue);
    shape(f, *block, gated, *consumers)?;
    if scales_steps(epilogue) && !block[1].is_multiple_of(MMA_STEP_BYTES) {
        let what = "a tile's columns are whole blocks of 128 that have a factor";
        return EmitError::refuse(&f.name, what);
    }
    if quantized(epilogue).is_some()
        && (block[0] == 64 && block[1] % 256 != 0 || mma_consumers([block[0], block[1]]) == 3)
    {
        let what = "a consumer has whole blocks of 128 columns of what it quantises";
        return EmitError::refuse(&f.name, what);
    }
    of_three(f)?;
    let ragged = checks::is_ragged(e, f);
    if ragged {
        of_ragged_depth(f)?;
    }
    if b.region.len() < if gated { 3 } else { 2 } || a.region.len() < 2 {
        return EmitError::refuse(&f.name, "operands are matrices");
    }
    let targets = targets::targets(e, s.id)?;
    let c = targets[0];
    depth(e, s.id)?;
    e.check_starts(s.id, a)?;
    e.check_starts(s.id, b)?;
    let [below, beside] = *multicast;
    let loaded_rows = match beside {
        1 => operands::loaded_rows(e, run, *a_layout, block[0])?,
        _ => block[0],
    };
    let mut left = operands::left(e, s.id, *a_layout, *block, loaded_rows)?;
    let mut right = operands::right(e, s.id, *b_layout, gated, *block)?;
    // Each CTA of a cluster loads a part of the box's rows.
    for (factor, parts) in [(&mut left, beside), (&mut right, below)] {
        let rows = factor.box_dims.len().saturating_sub(2);
        factor.box_dims[rows] /= parts;
    }
    if *multicast != [1, 1] && right.view.rank() != 2 {
        let what = "CTAs that load together multiply by one matrix";
        return EmitError::refuse(&f.name, what);
    }
    check_places(e, s.id, [a, b], &targets)?;
    let last = |x: &Access| x.region[x.region.len() - 1].clone();
    let halves = targets.iter().any(|c| half(e.plan, c).is_some());
    if halves && (targets.len() > 1 || half(e.plan, c) != Some(0)) {
        let what = "a tile goes to one place, the first half of `[m, 2, n]`";
        return EmitError::refuse(&f.name, what);
    }
    let rows = |x: &Access| x.region[x.region.len() - if halves { 3 } else { 2 }].clone();
    let row = |x: &Access| if halves { rows(x).0 } else { e.row(x) };
    let say = |x: &Expr| e.c(f, None, x);
    let Chain { first, saved, mut rest } = e.chain(s.id, epilogue, c)?;
    let named =
        |value: &Value, name: &str| value.get_attr("op").is_ok_and(|op| op.as_str() == Some(name));
    let called = |name: &str| first.iter().filter(|v| named(v, name)).cloned().collect::<Vec<_>>();
    let (row_scales, column_scales) = (called("scale_rows"), called("scale_columns"));
    let (step_rows, step_columns) = (called("scale_steps"), called("scale_blocks"));
    let gate_bias = called("bias");
    let factors: Vec<_> = rest.iter().filter(|v| named(v, "quantize")).cloned().collect();
    rest.truncate(rest.len() - factors.len());
    if !gate_bias.is_empty() && mma_swaps([block[0], block[1]]) {
        let what = "vectors of gates and ups are added where both are in one thread's registers";
        return Err(EmitError::unsupported(f.name.clone(), what));
    }
    // From the factors of gates to those of ups, in lines.
    let step_ups = if gated { step_ups(e, f)? } else { "0".into() };
    let steps = steps_along_k(f, a, *a_layout, block[2])?;
    let (all_steps, inner) = match &f.inner {
        None => (steps, None),
        Some((name, extent)) => {
            let inner = inner(e, f, name, [a, b], &left, &right)?;
            (extent.clone() * steps, Some(inner))
        }
    };
    let say_all = |of: &dyn Fn(&Access) -> String| {
        targets::choose(e, f, &targets, targets.iter().map(|c| of(c)).collect())
    };
    let tables = e.table_waits(s.id)?;
    // Where a launch decides how many rows there are, tiles without any make one step, over nothing.
    let k_blocks = match e.runtime() || e.plan.looks_up(f) {
        // So do those without depth.
        _ if ragged => format!("max_i(1, {})", say(&all_steps)),
        true => format!("({}) > 0 ? {} : 1", say(&rows(c).1), say(&all_steps)),
        false => say(&all_steps),
    };
    let value = context! {
        a_row => say(&left.across),
        a_k => say(&left.k),
        b_k => say(&right.k),
        b_col => say(&right.across),
        b_up => say(&right.up),
        scalars => e.scalars(f, right.outer.iter().map(|x| ("b_outer", x))),
        k_blocks,
        shifted => operands::shifted(f).then(|| {
            let rows = say(&e.extent(b.buffer, 0));
            context! {
                data => e.base(b.buffer, "params.header.rank"),
                pitch => say(&e.pitch(b.buffer)),
                rows,
            }
        }),
        depth => ragged.then(|| say(&a.region[a.region.len() - 2].1)),
        inner,
        c_row => say_all(&|c| say(&row(c)))?,
        e_row => say(&e.extras_row(f)?),
        v_row => e.vector_row(f).map(|row| say(&row)),
        s_row => epilogue.iter().any(|op| op.scales_rows()).then(|| say(&e.first_factor(f, true))),
        s_col => (!step_columns.is_empty()).then(|| say(&e.first_factor(f, false))),
        gated,
        saved,
        c_col => say(&last(c).0),
        rows => say(&rows(c).1),
        cols => say(&last(c).1),
        c_data => e.base(c.buffer, "params.header.rank"),
        c_pitch => match halves {
            true => format!("2 * {}", e.own_pitch_bytes(c.buffer)),
            false => e.own_pitch_bytes(c.buffer),
        },
        direct => *store == Store::Direct,
        table_waits => e.waits_of(f, &tables)?,
        load_waits => e.waits_without(f, Agent::Loader, Point::Start, &tables)?,
        store_waits => e.waits(f, Agent::Storer, Point::Start)?,
        posts => e.posts(f),
        extras => rest,
        gate_bias,
        row_scales,
        column_scales,
        step_rows,
        step_columns,
        step_ups,
        factors,
        ..e.slice(s)
    };
    let wide = if e.plan.buffers[c.buffer].dtype == DType::F32 { 32 } else { 64 };
    let panel_cols = mma_panel_columns(block[1]).min(wide);
    let (c_map, line_map) = match store {
        Store::Tma => {
            // Swapped, the last panel of a tile may have fewer rows.
            let least = if mma_swaps([block[0], block[1]]) { (block[0] - 1) % 64 + 1 } else { 1 };
            let whole = c_maps(e, f, &targets, [64, panel_cols])?;
            (whole, c_maps(e, f, &targets, [least, panel_cols])?)
        }
        Store::Direct => ("&params.maps[0]".into(), "&params.maps[0]".into()),
    };
    let a_map = e.maps.index(e.plan, a.buffer, &left.view, &left.box_dims)?;
    let b_map = match operands::shifted(f) {
        true => operands::shifted_map(e, f, b.buffer, block[1])?,
        false => e.maps.index(e.plan, b.buffer, &right.view, &right.box_dims)?,
    };
    let a_ends_map = match operands::end_rows(e, run, *block, *multicast)? {
        Some(rows) if rows < loaded_rows => {
            Some(e.maps.index(e.plan, a.buffer, &left.view, &[rows / beside, block[2]])?)
        }
        _ => None,
    };
    let carry = match epilogue.contains(&EpilogueOp::Carry) {
        true => Some(carry::carry(e, s.id, c, &[64, panel_cols])?),
        false => None,
    };
    // Few rows of a block come in boxes of their own.
    let a_part_map = match e.plan.looks_up(f) && *a_layout == ALayout::Mk && beside == 1 {
        true => Some(e.maps.index(e.plan, a.buffer, &left.view, &[PART_ROWS, block[2]])?),
        false => None,
    };
    let maps = context! { a_map, a_ends_map, a_part_map, b_map, c_map, line_map, carry };
    Ok((context! { ..value, ..maps }, right.view.rank()))
}

/// Blocks of columns of each half of operand B, whose factors lie below each other.
fn step_ups(e: &Emitter<'_>, f: &Family) -> Result<String> {
    let mut named = named_operands(f.leaf.epilogue());
    let Some((_, operand)) = named.find(|(op, _)| *op == EpilogueOp::ScaleBlocks) else {
        return Ok("0".into());
    };
    let x = e.access(f, operand)?;
    let blocks = x.region.len().checked_sub(2).map(|d| e.extent(x.buffer, d));
    let number = blocks.and_then(|blocks| e.number(&blocks)).ok_or_else(|| {
        EmitError::unsupported(f.name.clone(), "factors of gates and ups are of fixed sizes")
    })?;
    Ok(number.to_string())
}

/// The maps that boxes of results leave by, as C.
fn c_maps(e: &mut Emitter<'_>, f: &Family, targets: &[&Access], boxes: [u32; 2]) -> Result<String> {
    let mut texts = Vec::new();
    for c in targets {
        // Rows of both halves.
        let view = match half(e.plan, c) {
            Some(_) => View::cut([1]),
            None => View::rows(c.region.len()),
        };
        texts.push(if c.rank == Expr::Var(Var::RANK) {
            format!("&params.maps[kMap{}]", e.maps.index(e.plan, c.buffer, &view, &boxes)?)
        } else {
            let rank = e.c(f, None, &c.rank);
            let map = e.maps.of_ranks(e.plan, c.buffer, &view, &boxes)?;
            format!("&params.maps[kMap{map} + {rank}]")
        });
    }
    targets::choose(e, f, targets, texts)
}

/// Steps along k of one iteration.
fn steps_along_k(f: &Family, a: &Access, layout: ALayout, step: u32) -> Result<Expr> {
    let depth = mk_plan::depth_dim(a, layout).ok_or_else(|| {
        EmitError::internal(
            "emit/arch/sm90/mma.rs",
            format!("{:?} has no dimension along k", f.name),
        )
    })?;
    Ok(a.region[depth].1.clone().ceil_div(step as i32))
}

/// The coordinates of both factors, which change from one iteration of the inner loop to the next. Each iteration has
/// the same whole steps along k.
fn inner(
    e: &Emitter<'_>,
    f: &Family,
    name: &str,
    factors: [&Access; 2],
    left: &Factor,
    right: &Factor,
) -> Result<Value> {
    let Leaf::MmaTile(MmaTile { block, a_layout, .. }) = &f.leaf else {
        return Err(EmitError::internal("emit/arch/sm90/mma.rs", "an inner loop of no product"));
    };
    let step = block[2].max(1) as i32;
    let depth = mk_plan::depth_dim(factors[0], *a_layout).map(|d| &factors[0].region[d].1);
    let steps = match depth {
        Some(Expr::Const(depth)) if *depth > 0 && depth % step == 0 => depth / step,
        _ => 0,
    };
    let both = factors.iter().all(|a| a.at == Point::Inner);
    let counted = matches!(f.inner, Some((_, Expr::Const(_))));
    let moves = [&right.across, &right.up].iter().any(|x| x.mentions(Var::INNER));
    if steps == 0 || !both || moves || e.runtime() && !counted {
        let what = "an inner loop walks both operands along k, in equal parts of whole steps, and needs dimensions \
            that no launch decides";
        return EmitError::refuse(&f.name, what);
    }
    let say = |x: &Expr| e.c(f, None, x);
    Ok(context! {
        name,
        steps,
        a_row => say(&left.across),
        a_k => say(&left.k),
        b_k => say(&right.k),
        waits => e.waits(f, Agent::Loader, Point::Inner)?,
    })
}
