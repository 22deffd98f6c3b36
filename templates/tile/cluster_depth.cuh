// Tiles that the CTAs of a cluster share: each multiplies a part of the steps along k, shows the others its sums, and finishes a part of
// the elements.
// This CTA's part of the steps: at least one.
template <class Config>
MK_DEVICE void take_part_of_depth(GemmTile& tile) {
  if constexpr (Config::kCluster > 1) {
    const u32 rank = cluster_rank();
    const u32 from = tile.k_blocks * rank / Config::kCluster, to = tile.k_blocks * (rank + 1) / Config::kCluster;
    tile.a_k += static_cast<i32>(from * kBlockK);
    tile.b_k += static_cast<i32>(from * kBlockK);
    tile.k_blocks = to - from;
  }
}

// Behind a tile's loads, by the loader: nothing may be loaded over sums that others read, and no CTA ends before they have.
template <class Config>
MK_DEVICE void wait_until_read(const GemmSmem<Config>& smem, u32& tiles) {
  if constexpr (Config::kCluster > 1) {
    mbarrier_wait_cluster(smem.exchange_read(), tiles & 1);
    ++tiles;
  }
}

