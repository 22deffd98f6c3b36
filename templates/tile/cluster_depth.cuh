// A cluster's CTAs are those of one part of the depth after the other: tiles that load together, below each other first.
template <class Config>
MK_DEVICE u32 depth_rank() { return cluster_rank() / Config::kTogether; }
template <class Config>
MK_DEVICE u32 place_rank() { return cluster_rank() % Config::kTogether; }
// The CTA that has part `part` of this CTA's tile.
template <class Config>
MK_DEVICE u32 cta_of_part(u32 part) { return part * Config::kTogether + place_rank<Config>(); }

// The part that a CTA of a cluster has of a task: of the steps along k, and of the tiles.
template <class Config>
MK_DEVICE void take_part(GemmTile& tile) {
  if constexpr (Config::kCluster > 1) {
    const u32 rank = depth_rank<Config>();
    const u32 from = tile.k_blocks * rank / Config::kCluster, to = tile.k_blocks * (rank + 1) / Config::kCluster;
    tile.a_k += static_cast<i32>(from * Config::kBlockK);
    tile.b_k += static_cast<i32>(from * Config::kBlockK);
    tile.k_blocks = to - from;
  }
  if constexpr (Config::kLoadsTogether) {
    const i32 down = static_cast<i32>(place_rank<Config>() % Config::kBelow * Config::kBlockM);
    // Of gates and ups, as many columns each as there are of results.
    const i32 right = static_cast<i32>(place_rank<Config>() / Config::kBelow * Config::kOutCols);
    tile.a_row += down;
    tile.c_row += down;
    tile.e_row += down;
    tile.valid_rows -= down;
    tile.b_col += right;
    tile.c_col += right;
    tile.valid_cols -= right;
  }
}

// The CTAs of a cluster that load B with this one, and A, as masks.
template <class Config>
MK_DEVICE u16 mates_below() {
  return static_cast<u16>(((1u << Config::kBelow) - 1) << cluster_rank() / Config::kBelow * Config::kBelow);
}
template <class Config>
MK_DEVICE u16 mates_beside() {
  u32 mask = 0;
#pragma unroll
  for (u32 j = 0; j < Config::kBeside; ++j) mask |= 1u << j * Config::kBelow;
  return static_cast<u16>(mask << (depth_rank<Config>() * Config::kTogether + place_rank<Config>() % Config::kBelow));
}
