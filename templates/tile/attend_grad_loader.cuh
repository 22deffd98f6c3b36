// The agents beside those that compute gradients: one lane brings what is held and the blocks that move, another makes posts.
// Statistics of queries, from row `first` on: boxes of as many rows, unswizzled.
MK_DEVICE void sm90_attend_grad_issue_stats(u32 dst, const AttendRows* rows, u32 bar, i32 first) {
  tma_load_4d(dst, rows->map, bar, 0, rows->y + (rows->along_z ? 0 : first), rows->z + (rows->along_z ? first : 0), rows->w);
}

// Run by one lane. Hooks: see README.md. `Edges` names the plan's edges `q_full`, `q_empty`, `kv_full` and `kv_empty`.
//
// After an abort it issues no loads and only arrives.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_grad_loader(const Context& ctx, const AttendGradSmem<Config>& smem, const Hooks& hooks,
                                       AttendGradCursor<Config::kStages>& at) {
  using Named = AttendGradEdges<Config, Edges>;
#pragma unroll 1
  for (LoaderTiles<AttendGradSmem<Config>, Edges, Hooks> tiles(ctx, smem, hooks, at.tiles); tiles.more(); tiles.advance()) {
    const auto tile = hooks.decode(tiles.t);
    chaos_delay(ctx, Agent::Loader, tiles.t);
    hooks.before_load(ctx, tile);
    AttendSpan span{};
    if constexpr (Config::kBounded) span = attend_span(tile.bounds, tile.rows);
    mbarrier_wait<Named::held_empty>(smem.held_empty(), at.held ^ 1);
    if constexpr (Config::kBounded) attend_put_span(smem.span(), span);
    if (ctx.aborted() || tile.rows <= 0) {
      mbarrier_arrive<Named::held_full>(smem.held_full());
    } else {
      mbarrier_arrive_expect_tx<Named::held_full>(smem.held_full(), Config::kHeldBytes + Config::kHeldStatsBytes);
      sm90_attend_issue<Config::kPanels, Config::kHeldPanelBytes>(smem.template held<0>(), attend_grad_rows(tile, false), smem.held_full(), 0);
      sm90_attend_issue<Config::kValuePanels, Config::kHeldPanelBytes>(smem.template held<1>(), attend_grad_rows(tile, true), smem.held_full(), 0);
      if constexpr (Config::kHoldsQueries) {
        sm90_attend_grad_issue_stats(smem.held_stats(), attend_grad_stats(tile), smem.held_full(), 0);
      }
    }
    at.held ^= 1;
    bool asked = false;
#pragma unroll 1
    for (i32 c = 0; c < tile.chunks; ++c) {
      auto chunk = hooks.chunk(tile, c);
      // From shared memory again: a loader has few registers.
      if constexpr (Config::kBounded) chunk.narrow(attend_get_span(smem.span()));
      const i32 blocks = chunk.template blocks<Config>(tile);
      if (blocks > 0) hooks.before_chunk(ctx, tile, c);
#pragma unroll 1
      for (i32 block = 0; block < blocks; ++block) {
        // The answer has the time of a block.
        if (c + 1 == tile.chunks && block + 1 == blocks) {
          tiles.ask();
          asked = true;
        }
        const u32 full = smem.moved_full(at.moved.stage);
        mbarrier_wait<Named::moved_empty>(smem.moved_empty(at.moved.stage), at.moved.phase ^ 1);
        if (ctx.aborted()) {
          mbarrier_arrive<Named::moved_full>(full);
        } else {
          const i32 first = block * static_cast<i32>(Config::kBlockN);
          mbarrier_arrive_expect_tx<Named::moved_full>(full, Config::kMovedBytes + Config::kMovedStatsBytes);
          sm90_attend_issue<Config::kPanels, Config::kKvPanelBytes>(smem.template moved<0>(at.moved.stage), attend_grad_rows(chunk, false), full, first);
          if constexpr (!Config::kHoldsQueries) {
            sm90_attend_grad_issue_stats(smem.moved_stats(at.moved.stage), attend_grad_stats(chunk), full, first);
          }
          sm90_attend_issue<Config::kValuePanels, Config::kKvPanelBytes>(smem.template moved<1>(at.moved.stage), attend_grad_rows(chunk, true), full, first);
        }
        at.moved.advance();
      }
    }
    if (!asked) tiles.ask();
  }
}

// Makes a tile's posts: one lane. Consumers store by themselves, and tell it when they have. `Edges` names `staged` and `drained`.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_grad_storer(const Context& ctx, const AttendGradSmem<Config>& smem, const Hooks& hooks,
                                       AttendGradCursor<Config::kStages>& at) {
#pragma unroll 1
  for (ReaderTiles<AttendGradSmem<Config>, Edges, Hooks, false> tiles(smem, hooks, at.tiles); tiles.more(); tiles.advance()) {
    const auto tile = hooks.decode(tiles.t);
    chaos_delay(ctx, Agent::Storer, tiles.t);
    mbarrier_wait<Edges::staged>(smem.staged(), at.held);
    hooks.after_store(ctx, tile);
    mbarrier_arrive<Edges::drained>(smem.drained());
    at.held ^= 1;
  }
}

template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_dq_loader(const Context& ctx, const AttendGradSmem<Config>& smem, const Hooks& hooks, AttendGradCursor<Config::kStages>& at) {
  sm90_attend_grad_loader<Config, Edges>(ctx, smem, hooks, at);
}
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_dq_storer(const Context& ctx, const AttendGradSmem<Config>& smem, const Hooks& hooks, AttendGradCursor<Config::kStages>& at) {
  sm90_attend_grad_storer<Config, Edges>(ctx, smem, hooks, at);
}
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_dkv_loader(const Context& ctx, const AttendGradSmem<Config>& smem, const Hooks& hooks, AttendGradCursor<Config::kStages>& at) {
  sm90_attend_grad_loader<Config, Edges>(ctx, smem, hooks, at);
}
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_dkv_storer(const Context& ctx, const AttendGradSmem<Config>& smem, const Hooks& hooks, AttendGradCursor<Config::kStages>& at) {
  sm90_attend_grad_storer<Config, Edges>(ctx, smem, hooks, at);
}
