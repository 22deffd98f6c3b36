// What a tile of attention is made of: a block of queries of one head, blocks of its keys and values; and where all of it lies in
// shared memory.
// Which keys a query sees: all; those whose position is not beyond its own; or those between two positions that memory has of each
// row of a tile, of queries or of keys.
enum class Mask : u32 { Full, Causal, Bounds };

// Everything a generated kernel chooses about its tiles of attention.
struct AttendOptions {
  u32 block_m = 128;   // queries of a tile, 64 for each consumer
  u32 block_n = 128;   // keys of a step
  u32 dim = 128;       // elements of a head of queries and keys
  u32 stages = 2;      // blocks of keys, and of values, on their way or in use
  u32 scale_bits = 0;  // factor on q·k, positive, as the bits of an f32
  Dtype dtype = Dtype::Bf16;
  Mask mask = Mask::Full;
  u32 window = 0;    // of a causal mask, keys that a query sees, its own the last of them; 0: all
  u32 cap_bits = 0;  // what scores stay below, as the bits of an f32; 0: nothing
  bool parts = false;  // whether tiles store what a part of the keys gave
  bool sinks = false;  // whether sums have the exponential of their head's sink, too
  u32 values = 0;      // elements of a head of values and results; 0: as many
  u32 heads = 1;       // of each query, that are rows beside each other
};

template <AttendOptions kOptions>
struct AttendConfig {
  static constexpr u32 kBlockM = kOptions.block_m;
  static constexpr u32 kBlockN = kOptions.block_n;
  static constexpr u32 kDim = kOptions.dim;
  static constexpr u32 kValueDim = kOptions.values != 0 ? kOptions.values : kOptions.dim;
  static constexpr u32 kStages = kOptions.stages;
  static constexpr u32 kScaleBits = kOptions.scale_bits;
  static constexpr Dtype kDtype = kOptions.dtype;
  static constexpr bool kCausal = kOptions.mask == Mask::Causal;
  static constexpr bool kBounded = kOptions.mask == Mask::Bounds;
  static constexpr i32 kWindow = static_cast<i32>(kOptions.window);
  static constexpr u32 kCapBits = kOptions.cap_bits;
  static constexpr bool kSinks = kOptions.sinks, kParts = kOptions.parts;
  static constexpr i32 kHeads = static_cast<i32>(kOptions.heads);
  // Factor on what the exponentials are of: scores, or hyperbolic tangents.
  static constexpr u32 kExponentBits = kCapBits != 0 ? kCapBits : kScaleBits;

  static constexpr u32 kConsumerRows = 64;
  static constexpr u32 kConsumers = kBlockM / kConsumerRows;
  static constexpr u32 kThreads = (1 + kConsumers) * kWarpgroupThreads;
  // Registers of a thread: of scores, of the same as 16-bit weights, two to a register, and of results.
  static constexpr u32 kScores = kBlockN / 2;
  static constexpr u32 kWeights = kBlockN / 4;
  static constexpr u32 kResults = kValueDim / 2;

  // Boxes of the tensor maps: 64 elements of a head, 128-byte swizzle, kBlockM queries or kBlockN keys.
  static constexpr u32 kPanels = kDim / 64, kValuePanels = kValueDim / 64;
  static constexpr u32 kPanelRowBytes = 64 * kElemBytes;
  static constexpr u32 kQPanelBytes = kBlockM * kPanelRowBytes;
  static constexpr u32 kKvPanelBytes = kBlockN * kPanelRowBytes;
  static constexpr u32 kQBytes = kPanels * kQPanelBytes;
  // What comes of queries, with all heads of each.
  static constexpr u32 kQBoxBytes = kPanels * (kBlockM - kBlockM % kOptions.heads) * kPanelRowBytes;
  static constexpr u32 kKBytes = kPanels * kKvPanelBytes;
  static constexpr u32 kVBytes = kValuePanels * kKvPanelBytes;

  static_assert(kBlockM == 128 || kBlockM == 192, "two or three consumers");
  static_assert(kCausal || kWindow == 0, "a window ends at a query's own position");
  static_assert(kBlockN % 16 == 0 && kBlockN >= 48 && kBlockN <= 192, "what wgmma takes, and registers hold");
  static_assert(kDim % 64 == 0 && kValueDim % 64 == 0 && kValueDim <= 256, "whole panels, and accumulators that fit");
  static_assert(kStages >= 2, "a block that comes while one is in use");
};

// Positions of the other side: those that rows of a tile meet, the last one excluded.
struct AttendSpan {
  i32 from, end;

  // Of so many rows from a position on, those before the span, and those in it: whatever memory says, no others.
  MK_DEVICE i32 skipped(i32 position, i32 rows) const { return max(min(from - position, rows), 0); }
  MK_DEVICE i32 met(i32 position, i32 rows) const { return max(min(end - position, rows), 0) - skipped(position, rows); }
};
constexpr u32 kSpanBytes = sizeof(AttendSpan), kBoundsBytes = 2 * sizeof(i32);

// Shared memory of a CTA that attends. `base` is 1024-byte aligned, as the swizzle wants.
template <class Config>
struct AttendSmem {
  static constexpr u32 kK = Config::kQBytes;
  static constexpr u32 kV = kK + Config::kStages * Config::kKBytes;
  static constexpr u32 kQFull = kV + Config::kStages * Config::kVBytes;
  static constexpr u32 kQEmpty = kQFull + kMbarrierBytes;
  static constexpr u32 kKFull = kQEmpty + kMbarrierBytes;
  static constexpr u32 kKEmpty = kKFull + Config::kStages * kMbarrierBytes;
  static constexpr u32 kVFull = kKEmpty + Config::kStages * kMbarrierBytes;
  static constexpr u32 kVEmpty = kVFull + Config::kStages * kMbarrierBytes;
  static constexpr u32 kStaged = kVEmpty + Config::kStages * kMbarrierBytes;
  static constexpr u32 kDrained = kStaged + kMbarrierBytes;
  static constexpr u32 kTileFull = kDrained + kMbarrierBytes;
  static constexpr u32 kTileEmpty = kTileFull + kTileSlots * kMbarrierBytes;
  static constexpr u32 kTileIndex = kTileEmpty + kTileSlots * kMbarrierBytes;
  static constexpr u32 kSpan = kTileIndex + kTileSlots * sizeof(u64);
  static constexpr u32 kBytes = kSpan + (Config::kBounded ? kSpanBytes + Config::kBlockM * kBoundsBytes : 0);
  static_assert(kBytes <= 227 * 1024, "sm_90 gives a block 227 KiB");

  u32 base;

  // The same memory and barriers for tiles that differ in what is computed only.
  template <class Other>
  MK_DEVICE AttendSmem<Other> of() const {
    static_assert(AttendSmem<Other>::kV == kV && AttendSmem<Other>::kBytes == kBytes, "tiles of one ring agree on where all of it lies");
    return AttendSmem<Other>{base};
  }

  MK_DEVICE u32 q() const { return base; }
  MK_DEVICE u32 k(u32 stage) const { return base + kK + stage * Config::kKBytes; }
  MK_DEVICE u32 v(u32 stage) const { return base + kV + stage * Config::kVBytes; }
  MK_DEVICE u32 q_full() const { return base + kQFull; }
  MK_DEVICE u32 q_empty() const { return base + kQEmpty; }
  MK_DEVICE u32 k_full(u32 stage) const { return base + kKFull + stage * kMbarrierBytes; }
  MK_DEVICE u32 k_empty(u32 stage) const { return base + kKEmpty + stage * kMbarrierBytes; }
  MK_DEVICE u32 v_full(u32 stage) const { return base + kVFull + stage * kMbarrierBytes; }
  MK_DEVICE u32 v_empty(u32 stage) const { return base + kVEmpty + stage * kMbarrierBytes; }

  // The results of a tile are in global memory, and the storer has said so to others.
  MK_DEVICE u32 staged() const { return base + kStaged; }
  MK_DEVICE u32 drained() const { return base + kDrained; }
  // Dynamic schedule: which tile the loader has taken, and whether it, or everybody else, has said so.
  MK_DEVICE u32 tile_index(u32 slot) const { return base + kTileIndex + slot * sizeof(u64); }
  MK_DEVICE u32 tile_full(u32 slot) const { return base + kTileFull + slot * kMbarrierBytes; }
  MK_DEVICE u32 tile_empty(u32 slot) const { return base + kTileEmpty + slot * kMbarrierBytes; }

  // Where what a tile meets begins and ends, where memory has bounds of its rows.
  MK_DEVICE u32 span() const { return base + kSpan; }

  // One thread, before `launch_begin_sync`. Consumers arrive once per warp: each warp knows of its own wgmmas only.
  MK_DEVICE void init_barriers() const {
    constexpr u32 kWarps = Config::kConsumers * kWarpgroupWarps;
    mbarrier_init(q_full(), 1);
    mbarrier_init(q_empty(), kWarps);
    mbarrier_init(staged(), kWarps);
    mbarrier_init(drained(), 1);
    for (u32 s = 0; s < Config::kStages; ++s) {
      mbarrier_init(k_full(s), 1);
      mbarrier_init(k_empty(s), kWarps);
      mbarrier_init(v_full(s), 1);
      mbarrier_init(v_empty(s), kWarps);
    }
    for (u32 s = 0; s < kTileSlots; ++s) {
      mbarrier_init(tile_full(s), 1);
      mbarrier_init(tile_empty(s), kWarps + 1);
    }
    fence_mbarrier_init();
  }
};

// An agent's place in the rings of blocks, and the parity of its tile. Goes on from one loop of a role to the next.
template <u32 kStages>
struct AttendCursor {
  RingCursor<kStages> k, v;
  u32 q = 0;
  TileCursor tiles;
};

// Rows of a head, as a map of four dimensions has them: elements, two dimensions of which rows lie along one, and an outermost. The first
// row's coordinates behind its elements.
struct AttendRows {
  const TensorMap* map;
  i32 y, z, w;
  bool along_z;

  MK_DEVICE void advance(i32 rows) {
    if (along_z) {
      z += rows;
    } else {
      y += rows;
    }
  }
};

// What one task is: the plan's index expressions, evaluated.
struct AttendTile {
  u32 task;
  u32 family;
  AttendRows q;
  i32 rows;              // that there are: queries, or heads of queries
  i32 position;          // of the first query, where a mask asks
  i32 chunks;            // parts that the keys come in
  u64 o, o_pitch_bytes;  // the first query's results; from one query's to the next
  u64 lse;               // the first query's, behind which the next follow; or 0. Of parts, the maximum and the sum
  u64 stat_pitch_bytes;  // of parts, from one query's to the next
  u64 bounds;            // two i32 of each row, where they mask
  u64 sink;              // the head's, f32, where there are sinks
};

// A part of the keys, and the values that belong to them.
struct AttendChunk {
  AttendRows k, v;
  i32 rows = 0;  // keys that there are
  i32 position;  // of the first key, where a mask asks

  // Leaves out the keys before the first, and behind the last, that some query sees.
  MK_DEVICE void narrow(const AttendSpan& span) {
    const i32 skipped = span.skipped(position, rows);
    rows = span.met(position, rows);
    position += skipped;
    k.advance(skipped);
    v.advance(skipped);
  }

  // Blocks of keys that some query of the tile sees.
  template <class Config, class Tile>
  MK_DEVICE i32 blocks(const Tile& tile) const {
    i32 seen = tile.rows > 0 ? rows : 0;
    if constexpr (Config::kCausal) seen = min(seen, tile.position + tile.rows / Config::kHeads - position);
    return (max(seen, 0) + static_cast<i32>(Config::kBlockN) - 1) / static_cast<i32>(Config::kBlockN);
  }
};

// What a tile's rows meet: bounds ascend from row to row. One lane reads it, and hands it to all, so that they go through the same
// blocks, also behind an abort, when another CTA may be writing it.
MK_DEVICE AttendSpan attend_span(u64 bounds, i32 rows) {
  if (rows <= 0) return AttendSpan{0, 0};
  const u32 from = ld_u32(reinterpret_cast<const void*>(bounds)), end = ld_u32(reinterpret_cast<const void*>(bounds + (rows - 1) * 8ull + 4));
  return AttendSpan{static_cast<i32>(from), static_cast<i32>(end)};
}
MK_DEVICE void attend_put_span(u32 at, const AttendSpan& span) {
  st_shared(at, static_cast<u32>(span.from));
  st_shared(at + 4, static_cast<u32>(span.end));
}
MK_DEVICE AttendSpan attend_get_span(u32 at) { return AttendSpan{static_cast<i32>(ld_shared(at)), static_cast<i32>(ld_shared(at + 4))}; }

// The bounds of this thread's two rows of a tile, as wgmma leaves them. They are in shared memory, where its warp has put them:
// registers are few.
struct AttendBounds {
  i32 from[2], end[2];

  // Whether both rows meet all of so many positions from one on.
  MK_DEVICE bool all(i32 position, i32 n) const {
    return max(from[0], from[1]) <= position && min(end[0], end[1]) >= position + n;
  }
};
// Bytes from one of a thread's rows to the other.
constexpr u32 kBoundsStep = 8 * kBoundsBytes;
template <class Config>
MK_DEVICE u32 attend_own_bounds(u32 all, u32 consumer) {
  return all + (consumer * Config::kConsumerRows + warp_index() % kWarpgroupWarps * 16 + lane_index() / 4) * kBoundsBytes;
}
// Rows that there are not have the bounds of the last one; a tile of none meets nothing.
template <class Config>
MK_DEVICE void attend_put_bounds(u32 all, u64 bounds, i32 rows, u32 consumer) {
  const u32 own = attend_own_bounds<Config>(all, consumer);
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    const i32 row = static_cast<i32>((own - all) / kBoundsBytes + r * 8);
    const u64 at = bounds + max(min(row, rows - 1), 0) * u64{kBoundsBytes};
    if (lane_index() % 4 != 0 || rows <= 0) continue;
    st_shared(own + r * kBoundsStep, ld_u32(reinterpret_cast<const void*>(at)));
    st_shared(own + r * kBoundsStep + 4, ld_u32(reinterpret_cast<const void*>(at + 4)));
  }
  __syncwarp();
}
template <class Config>
MK_DEVICE AttendBounds attend_get_bounds(u32 all, u32 consumer) {
  const u32 own = attend_own_bounds<Config>(all, consumer);
  AttendBounds b;
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    b.from[r] = static_cast<i32>(ld_shared(own + r * kBoundsStep));
    b.end[r] = static_cast<i32>(ld_shared(own + r * kBoundsStep + 4));
  }
  return b;
}
