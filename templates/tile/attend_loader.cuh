// The agent that brings queries, keys and values: one lane, all tiles of its CTA. Within a chunk a block of
// values is asked for behind the keys of the block after it, in the order in which consumers want them.
// Rows from `first` on: boxes of 64 elements of as many rows as a box has.
template <u32 kPanels, u32 kPanelBytes>
MK_DEVICE void sm90_attend_issue(u32 dst, const AttendRows& rows, u32 bar, i32 first) {
  const i32 y = rows.y + (rows.along_z ? 0 : first), z = rows.z + (rows.along_z ? first : 0);
#pragma unroll
  for (u32 p = 0; p < kPanels; ++p) {
    tma_load_4d(dst + p * kPanelBytes, rows.map, bar, static_cast<i32>(p * 64), y, z, rows.w);
  }
}

// A block of keys or of values, when its stage is free; after an abort, nothing.
template <class Config, class Edges, u32 kPanels>
MK_DEVICE void sm90_attend_load(const Context& ctx, u32 dst, u32 full, u32 empty, const AttendRows& rows, i32 block,
                                RingCursor<Config::kStages>& at) {
  mbarrier_wait<Edges::kv_empty>(empty, at.phase ^ 1);
  if (ctx.aborted()) {
    mbarrier_arrive<Edges::kv_full>(full);
  } else {
    mbarrier_arrive_expect_tx<Edges::kv_full>(full, kPanels * Config::kKvPanelBytes);
    sm90_attend_issue<kPanels, Config::kKvPanelBytes>(dst, rows, full, block * static_cast<i32>(Config::kBlockN));
  }
  at.advance();
}

// Run by one lane. Hooks: see README.md. `Edges` names the plan's edges `q_full`, `q_empty`, `kv_full` and `kv_empty`.
//
// After an abort it issues no loads and only arrives.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_loader(const Context& ctx, const AttendSmem<Config>& smem, const Hooks& hooks,
                                  AttendCursor<Config::kStages>& at) {
  const auto load_k = [&](const AttendChunk& chunk, i32 block) {
    sm90_attend_load<Config, Edges, Config::kPanels>(ctx, smem.k(at.k.stage), smem.k_full(at.k.stage), smem.k_empty(at.k.stage), chunk.k, block, at.k);
  };
  const auto load_v = [&](const AttendRows& v, i32 block) {
    sm90_attend_load<Config, Edges, Config::kValuePanels>(ctx, smem.v(at.v.stage), smem.v_full(at.v.stage), smem.v_empty(at.v.stage), v, block, at.v);
  };
#pragma unroll 1
  for (LoaderTiles<AttendSmem<Config>, Edges, Hooks> tiles(ctx, smem, hooks, at.tiles); tiles.more(); tiles.advance()) {
    const AttendTile tile = hooks.decode(tiles.t);
    chaos_delay(ctx, Agent::Loader, tiles.t);
    hooks.before_load(ctx, tile);
    AttendSpan span{};
    if constexpr (Config::kBounded) span = attend_span(tile.bounds, tile.rows);
    mbarrier_wait<Edges::q_empty>(smem.q_empty(), at.q ^ 1);
    if constexpr (Config::kBounded) attend_put_span(smem.span(), span);
    if (ctx.aborted() || tile.rows <= 0) {
      mbarrier_arrive<Edges::q_full>(smem.q_full());
    } else {
      mbarrier_arrive_expect_tx<Edges::q_full>(smem.q_full(), Config::kQBoxBytes);
      sm90_attend_issue<Config::kPanels, Config::kQPanelBytes>(smem.q(), tile.q, smem.q_full(), 0);
    }
    at.q ^= 1;
#pragma unroll 1
    for (i32 c = 0; c < tile.chunks; ++c) {
      AttendChunk chunk = hooks.chunk(tile, c);
      // From shared memory again: a loader has few registers.
      if constexpr (Config::kBounded) chunk.narrow(attend_get_span(smem.span()));
      const i32 blocks = chunk.template blocks<Config>(tile);
      if (blocks > 0) hooks.before_chunk(ctx, tile, c);
#pragma unroll 1
      for (i32 block = 0; block < blocks; ++block) {
        load_k(chunk, block);
        if (block > 0) load_v(chunk.v, block - 1);
      }
      // The answer has the time of a block.
      if (c + 1 == tile.chunks) tiles.ask();
      // Before a wait for the next chunk.
      if (blocks > 0) load_v(chunk.v, blocks - 1);
    }
    if (tile.chunks <= 0) tiles.ask();
  }
}
