// The agent that sends finished panels: one lane, overlapping the next tile's main loop; it makes the posts.

// Sends the borrowed panels of all consumers, as one group.
template <class Config, class Edges>
MK_DEVICE void send_borrowed_panels(const Context& ctx, const GemmSmem<Config>& smem, const GemmTile& tile,
                                const RingCursor<Config::kStages>& ring, u32 parity) {
#pragma unroll 1
  for (u32 consumer = 0; consumer < Config::kConsumers; ++consumer) {
    mbarrier_wait<Edges::staging_full>(smem.borrowed_full(consumer), parity);
#pragma unroll 1
    for (u32 p = 0; p + 1 <= Config::kBorrowedPanels && !ctx.aborted(); ++p) {
      send_panel_of<Config>(tile, consumer, Config::kBorrowsAll ? Config::kPanels + p : p, smem.borrowed_panel(ring, consumer, p));
    }
  }
  bulk_commit();
}

// Three consumers whose tile's last stage takes panels: one staged panel of each, then the borrowed ones. The stage goes back first.
template <class Config, class Edges>
MK_DEVICE void send_panels_of_three(const Context& ctx, const GemmSmem<Config>& smem, const GemmTile& tile,
                                    const RingCursor<Config::kStages>& ring, GemmStaging<Config::kPanels>& staging) {
  static_assert(Config::kPanels == 1, "staged panels before borrowed ones");
  RingCursor<Config::kPanels>& mine = staging.mine;
#pragma unroll 1
  for (u32 consumer = 0; consumer < Config::kConsumers; ++consumer) {
    mbarrier_wait<Edges::staging_full>(smem.staging_full(consumer, mine.stage), mine.phase);
    if (!ctx.aborted()) send_panel_of<Config>(tile, consumer, 0, smem.panel(consumer, mine.stage));
  }
  bulk_commit();
  send_borrowed_panels<Config, Edges>(ctx, smem, tile, ring, staging.borrowed);
  staging.borrowed ^= 1;
  bulk_wait_read<0>();
  mbarrier_arrive_many<Edges::empty>(smem.empty(ring.previous_stage()), Config::kConsumers * kWarpgroupWarps);
#pragma unroll 1
  for (u32 consumer = 0; consumer < Config::kConsumers; ++consumer) {
    mbarrier_arrive<Edges::staging_free>(smem.staging_free(consumer, mine.stage));
  }
  mine.advance();
}

// Sends the panels that consumers `from` to `to` have of a tile, as they fill; of several, panel by panel in turn. A panel goes back
// one store later, when its own store has read it; and so does the stage of the borrowed ones.
template <class Config, class Edges>
MK_DEVICE void send_panels(const Context& ctx, const GemmSmem<Config>& smem, const GemmTile& tile, u32 from, u32 to,
                           const RingCursor<Config::kStages>& ring, GemmStaging<Config::kPanels>& staging) {
  RingCursor<Config::kPanels>& mine = staging.mine;
  u32 reading = 0;  // barrier of the panel whose store was issued last
  bool borrowed = Config::kBorrowedPanels > 0;  // the stores issued last were those of the borrowed panels
  const auto give_back = [&] {
    if (borrowed) {
      mbarrier_arrive_many<Edges::empty>(smem.empty(ring.previous_stage()), Config::kConsumers * kWarpgroupWarps);
    } else if (reading != 0) {
      mbarrier_arrive<Edges::staging_free>(reading);
    }
  };
  if constexpr (Config::kBorrowedPanels > 0) {
    send_borrowed_panels<Config, Edges>(ctx, smem, tile, ring, staging.borrowed);
    staging.borrowed ^= 1;
  }
#pragma unroll 1
  for (u32 p = Config::kBorrowedPanels; p < Config::kPanelsPerTile; ++p) {
#pragma unroll 1
    for (u32 consumer = from; consumer < to; ++consumer) {
      mbarrier_wait<Edges::staging_full>(smem.staging_full(consumer, mine.stage), mine.phase);
      if (!ctx.aborted()) send_panel_of<Config>(tile, consumer, p, smem.panel(consumer, mine.stage));
      bulk_commit();
      bulk_wait_read<1>();
      give_back();
      borrowed = false;
      reading = smem.staging_free(consumer, mine.stage);
    }
    mine.advance();
  }
  bulk_wait_read<0>();
  give_back();
}

// Sends what these consumers have of a tile.
template <class Config, class Edges>
MK_DEVICE void send_parts(const Context& ctx, const GemmSmem<Config>& smem, const GemmTile& tile, u32 from, u32 to,
                          const RingCursor<Config::kStages>& ring, GemmStaging<Config::kPanels>& staging) {
  if constexpr (Config::kBorrowsAll) {
    send_panels_of_three<Config, Edges>(ctx, smem, tile, ring, staging);
  } else if constexpr (Config::kStore == StorePath::Tma && !Config::kOnlyTile) {
    send_panels<Config, Edges>(ctx, smem, tile, from, to, ring, staging);
  } else {
    // They have stored by themselves.
    RingCursor<Config::kPanels>& mine = staging.mine;
    for (u32 consumer = from; consumer < to; ++consumer) {
      mbarrier_wait<Edges::staging_full>(smem.staging_full(consumer, mine.stage), mine.phase);
      mbarrier_arrive<Edges::staging_free>(smem.staging_free(consumer, mine.stage));
    }
    mine.advance();
  }
}

// Run by one lane. Where all consumers work on each tile and no panels are borrowed, it serves one after the other, but of a last tile,
// behind which nothing is multiplied, all at once, as where panels are borrowed, or each has one: that goes back when the next consumer's
// store has been issued. Hooks: see README.md. `Hooks::kPostsStores` says that
// a signal follows each tile: then the tile's writes are waited for, otherwise only the reads of the panels.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_gemm_storer(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks,
                                RingCursor<Config::kStages>& ring, GemmStaging<Config::kPanels>& staging, TileCursor& slot) {
#pragma unroll 1
  for (ReaderTiles<GemmSmem<Config>, Edges, Hooks, false> tiles(smem, hooks, slot); tiles.more(); tiles.advance()) {
    GemmTile tile = hooks.decode(tiles.t);
    if constexpr (Config::kLoadsTogether) take_part<Config>(tile);
    chaos_delay(ctx, Agent::Storer, tiles.t);
    hooks.before_store(ctx, tile);
    ring.skip(tile.steps<Config>());
    if (Config::kPassesSteps && !tile.stores()) {
      // Consumers have nothing either.
    } else if constexpr (Config::kPingPong) {
      send_parts<Config, Edges>(ctx, smem, tile, staging.consumer(), staging.consumer() + 1, ring, staging);
      staging.pass();
    } else {
      // They use their panels in step.
      const RingCursor<Config::kPanels> start = staging.mine;
      const u32 together = Config::kBorrowedPanels == 0 && Config::kPanels > 1 && !tiles.last() ? 1 : Config::kConsumers;
#pragma unroll 1
      for (u32 consumer = 0; consumer < Config::kConsumers; consumer += together) {
        staging.mine = start;
        send_parts<Config, Edges>(ctx, smem, tile, consumer, consumer + together, ring, staging);
      }
    }
    if constexpr (Config::kStore == StorePath::Tma && Hooks::kPostsStores) bulk_wait_written<0>();
    hooks.after_store(ctx, tile);
  }
  // Every store has read its panel by now, so that shared memory may go; the end of the grid completes the writes.
}
