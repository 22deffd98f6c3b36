//! Tiles of GEMMs: who multiplies them, and what of shared memory they take.

use mk_dtype::{DType, F32_BYTES, HALF_BYTES};

/// Bytes along K of a stage's rows: what a swizzle spans.
pub const MMA_STEP_BYTES: u32 = 128;

/// Elements along K of a step of operands of a type.
pub fn mma_step(dtype: DType) -> u32 {
    MMA_STEP_BYTES / dtype.size_bytes() as u32
}

/// Whether a tile of so much along K has operands of eight bits.
pub fn mma_narrow(k: u32) -> bool {
    k == MMA_STEP_BYTES
}

/// Bytes of one stage of a GEMM's tile of so many rows, columns and elements along k.
pub fn mma_stage_bytes([m, n, k]: [u32; 3]) -> u32 {
    let element = if mma_narrow(k) { 1 } else { HALF_BYTES };
    m.saturating_add(n).saturating_mul(k).saturating_mul(element)
}

/// Columns more in each row of a stage whose operand B is not aligned: rows come from the multiple of 16 bytes before
/// them, up to 48 bytes further right than others, so that the lanes that read eight of them meet in no bank.
pub const MMA_SHIFT_COLUMNS: u32 = 32;

/// Whether tiles of so many rows and columns take an operand B whose rows begin at any element: its columns fill the
/// rows of a wgmma and come from registers, and a box of them is one of TMA's.
pub fn mma_shifts([m, n]: [u32; 2]) -> bool {
    mma_swaps([m, n]) && m <= 144 && n <= 192
}

/// Bytes of one stage where rows of operand B begin at any element.
pub fn mma_shifted_stage_bytes([m, n, k]: [u32; 3]) -> u32 {
    mma_stage_bytes([m, n.saturating_add(MMA_SHIFT_COLUMNS), k])
}

/// Whether a consumer has registers for a tile of so many rows and columns of 8-bit operands: its sums, and those of a
/// step of 64 rows, or of half their columns.
pub fn mma_promotes([m, n]: [u32; 2]) -> bool {
    let (times, columns) = if m == 64 { (1, n / 2) } else { (m / 128, n) };
    let part = if (times + 1) * columns > 384 { columns / 2 } else { columns };
    matches!(m, 64 | 128 | 256) && !mma_swaps([m, n]) && times * columns + part <= 384
}

/// Bytes of shared memory for the factors of a tile's rows, where each step along K has its own: 16 for each warp of
/// two consumers, of one step and of the next.
pub const MMA_ROW_FACTOR_BYTES: u32 = 2 * 8 * 16 * F32_BYTES;

/// The step along k at which part `part` of so many begins, of the steps that a cluster shares.
pub fn cluster_part(steps: i64, part: i64, parts: i64) -> i64 {
    steps * part / parts.max(1)
}

/// Bytes that come to a CTA from the others of a cluster that shares tiles: f32 sums of what it finishes, in units of
/// 16 columns and 64 rows of each warpgroup.
pub fn mma_exchange_bytes([m, n]: [u32; 2], cluster: u32) -> u32 {
    const UNIT_BYTES: u32 = 64 * 16 * F32_BYTES;
    let consumers = mma_consumers([m, n]);
    let units = (m * n / (64 * 16) / consumers).div_ceil(cluster.max(1));
    cluster.saturating_sub(1).saturating_mul(units).saturating_mul(consumers * UNIT_BYTES)
}

/// Consumer warpgroups of a GEMM's tile of so many rows and columns: two; or three that have 64 rows each; or, with
/// operands swapped, one or three that have 64 columns each.
pub fn mma_consumers([m, n]: [u32; 2]) -> u32 {
    match (mma_swaps([m, n]), n) {
        (true, 64) => 1,
        (true, 192) => 3,
        _ if mma_three_by_rows([m, n]) => 3,
        _ => 2,
    }
}

/// Whether each of three warpgroups has 64 rows of such a tile.
pub fn mma_three_by_rows(block: [u32; 2]) -> bool {
    block == [192, 192]
}

/// Whether a GEMM's tile of so many rows and columns multiplies with its operands swapped: columns of the result
/// fill the 64 rows of a wgmma, and rows come in steps of 16.
pub fn mma_swaps([m, n]: [u32; 2]) -> bool {
    let few = m == 64 && n == 64;
    few || ![64, 128, 256].contains(&m) && !mma_three_by_rows([m, n])
}

/// Whether one warpgroup has registers for a tile of so many rows and columns.
pub fn one_warpgroup_takes([m, n]: [u32; 2]) -> bool {
    m == 128 && n <= 160
}

/// Columns of a panel in which an operand B that lies row by row, or a result of 16 bits, is in shared memory: what a
/// swizzle of 128 bytes spans, or half of it, where tiles are no multiple of that.
pub fn mma_panel_columns(n: u32) -> u32 {
    if n.is_multiple_of(64) { 64 } else { 32 }
}

/// Panels of 64 rows that each consumer warpgroup has for its results: two, or four where they share 64 rows, and where
/// three stages leave room for so many. Of three warpgroups one beside four stages, otherwise all that a tile of 16-bit
/// results fills; with operands swapped, one where four stages leave no more.
pub fn mma_staging_panels([m, n]: [u32; 2], stages: u32) -> u32 {
    let beside_three = mma_swaps([m, n]) && m > 128 && n == 256;
    match mma_consumers([m, n]) {
        2 if m == 64 && n > 128 || beside_three => 4,
        3 if mma_three_by_rows([m, n]) && stages <= 3 => 3,
        3 if mma_three_by_rows([m, n]) || m > 160 => 1,
        _ => 2,
    }
}

/// Bytes of those panels.
pub fn mma_staging_bytes([m, n]: [u32; 2], stages: u32) -> u32 {
    let panel = 64 * mma_panel_columns(n) * HALF_BYTES;
    mma_consumers([m, n]) * mma_staging_panels([m, n], stages) * panel
}

/// Panels that each of the warpgroups that share a tile fills with its part of so many columns of results.
pub fn mma_panels([m, n, _]: [u32; 3], columns: u32, f32: bool) -> u32 {
    let wide = if f32 { 32 } else { mma_panel_columns(n) };
    m.div_ceil(64) * columns / wide / mma_consumers([m, n])
}
