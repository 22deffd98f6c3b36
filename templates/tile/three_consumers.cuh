// How results of three consumers leave: each stages a panel of its own, and all of them fill a tile's last stage with the others.

// Three consumers, whose tile's last stage takes panels of all: those that there is staging for come first, so that the others have read that
// stage by the time its own do.
template <class Config, class Edges, class Hooks>
MK_DEVICE void stage_tile_of_three(const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                                   const RingCursor<Config::kStages>& ring, GemmStaging<Config::kPanels>& staging,
                                   float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr u32 kPairs = Config::kPanelCols / 16;
  static_assert(Config::kMmasPerStep == 1 && Config::kPanels + Config::kBorrowedPanels == Config::kPanelsPerTile, "each panel has its place");
  RingCursor<Config::kPanels>& mine = staging.mine;
  if (lane_index() == 0) mbarrier_arrive<kNoEdge>(smem.stage_read());
  const u32 row = fragment_row<Config>(consumer, 0);
#pragma unroll
  for (u32 p = 0; p < Config::kPanelsPerTile; ++p) {
    u32 packed[kPairs][4];
#pragma unroll
    for (u32 j = 0; j < kPairs; ++j) {
      const u32 g = p * kPairs + j;
      finish_16_columns<Config>(hooks, tile, row, g * 16, &acc[0][g * 8], packed[j]);
    }
    if (p < Config::kPanels) {
      mbarrier_wait<Edges::staging_free>(smem.staging_free(consumer, mine.stage), mine.phase ^ 1);
      stage_panel<Config>(smem.panel(consumer, mine.stage), packed);
      hand_over_panels<Edges>(smem.staging_full(consumer, mine.stage));
      mine.advance();
    } else {
      if (p == Config::kPanels) mbarrier_wait<kNoEdge>(smem.stage_read(), staging.borrowed);
      stage_panel<Config>(smem.borrowed_panel(ring, consumer, p - Config::kPanels), packed);
    }
  }
  staging.borrowed ^= 1;
  hand_over_panels<Edges>(smem.borrowed_full(consumer));
}
