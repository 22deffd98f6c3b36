// What a tile of attention's gradients is made of. Two rows of matrices are held: queries and the results' gradients, or keys and
// values. Blocks of the other two move past. Gradients of what is held are summed in registers, in the order of the blocks.
// What is held, and whose gradients come out: of keys those of the values, too, or one of both.
enum class Holds : u32 { Queries, Keys };
enum class KeyGradients : u32 { Both, Keys, Values };

struct AttendGradOptions {
  u32 block_m = 128;   // rows held, 64 for each consumer
  u32 block_n = 64;    // rows of a step
  u32 dim = 128;       // elements of a head of queries and keys
  u32 stages = 2;      // blocks on their way or in use
  u32 scale_bits = 0;  // factor on q·k, positive, as the bits of an f32
  Dtype dtype = Dtype::Bf16;
  Mask mask = Mask::Full;
  u32 window = 0, cap_bits = 0, values = 0;  // as of AttendOptions
  KeyGradients made = KeyGradients::Both;
};
using AttendDqOptions = AttendGradOptions;
using AttendDkvOptions = AttendGradOptions;

// Of each query: the natural logarithm of the sum of exponentials, the row's o · do, and twice nothing.
constexpr u32 kStatsBytes = 4 * sizeof(float);

template <AttendGradOptions kOptions, Holds kHolds>
struct AttendGradConfig {
  static constexpr u32 kBlockM = kOptions.block_m;
  static constexpr u32 kBlockN = kOptions.block_n;
  static constexpr u32 kDim = kOptions.dim;
  static constexpr u32 kValueDim = kOptions.values != 0 ? kOptions.values : kOptions.dim;
  static constexpr bool kMakesKeys = kOptions.made != KeyGradients::Values, kMakesValues = kOptions.made != KeyGradients::Keys;
  static constexpr u32 kStages = kOptions.stages;
  static constexpr u32 kScaleBits = kOptions.scale_bits;
  static constexpr Dtype kDtype = kOptions.dtype;
  static constexpr bool kCausal = kOptions.mask == Mask::Causal;
  static constexpr bool kBounded = kOptions.mask == Mask::Bounds;
  static constexpr i32 kWindow = static_cast<i32>(kOptions.window);
  static constexpr u32 kCapBits = kOptions.cap_bits;
  static constexpr u32 kExponentBits = kCapBits != 0 ? kCapBits : kScaleBits;
  static constexpr bool kHoldsQueries = kHolds == Holds::Queries;

  static constexpr u32 kConsumerRows = 64;
  static constexpr u32 kConsumers = kBlockM / kConsumerRows;
  // Of each query, one is in a tile.
  static constexpr i32 kHeads = 1;
  static constexpr u32 kThreads = (1 + kConsumers) * kWarpgroupThreads;
  // Registers of a thread: of scores, of as many 16-bit weights, two to a register, and of a gradient.
  static constexpr u32 kScores = kBlockN / 2;
  static constexpr u32 kWeights = kBlockN / 4;
  static constexpr u32 kResults = kDim / 2, kValueResults = kValueDim / 2;

  // Boxes of the tensor maps: 64 elements of a head, 128-byte swizzle, kBlockM or kBlockN rows.
  static constexpr u32 kPanels = kDim / 64, kValuePanels = kValueDim / 64;
  static constexpr u32 kPanelRowBytes = 64 * kElemBytes;
  static constexpr u32 kHeldPanelBytes = kBlockM * kPanelRowBytes;
  static constexpr u32 kKvPanelBytes = kBlockN * kPanelRowBytes;
  // Of queries and keys, and of values and gradients of results.
  static constexpr u32 kFirstHeldBytes = kPanels * kHeldPanelBytes, kHeldBytes = (kPanels + kValuePanels) * kHeldPanelBytes;
  static constexpr u32 kFirstMovedBytes = kPanels * kKvPanelBytes, kMovedBytes = (kPanels + kValuePanels) * kKvPanelBytes;
  static constexpr u32 kHeldStatsBytes = kHoldsQueries ? kBlockM * kStatsBytes : 0;
  static constexpr u32 kMovedStatsBytes = kHoldsQueries ? 0 : kBlockN * kStatsBytes;

  static_assert(kBlockM == 128 || kBlockM == 192, "two or three consumers");
  static_assert(kBlockN % 16 == 0 && kBlockN >= 32 && kBlockN <= 128, "what wgmma takes, and registers hold");
  static_assert(kDim % 64 == 0 && kValueDim % 64 == 0 && kDim <= 256 && kValueDim <= 256, "whole panels");
  static_assert(kHoldsQueries || kDim <= 128 || !kMakesKeys || !kMakesValues, "accumulators that fit");
  static_assert(kStages >= 2, "a block that comes while one is in use");
};
template <AttendGradOptions kOptions>
using AttendDqConfig = AttendGradConfig<kOptions, Holds::Queries>;
template <AttendGradOptions kOptions>
using AttendDkvConfig = AttendGradConfig<kOptions, Holds::Keys>;

// Shared memory of a CTA that computes gradients. `base` is 1024-byte aligned, as the swizzle wants.
template <class Config>
struct AttendGradSmem {
  static constexpr u32 kMoved = Config::kHeldBytes;
  static constexpr u32 kHeldStats = kMoved + Config::kStages * Config::kMovedBytes;
  static constexpr u32 kMovedStats = kHeldStats + Config::kHeldStatsBytes;
  static constexpr u32 kHeldFull = kMovedStats + Config::kStages * Config::kMovedStatsBytes;
  static constexpr u32 kHeldEmpty = kHeldFull + kMbarrierBytes;
  static constexpr u32 kMovedFull = kHeldEmpty + kMbarrierBytes;
  static constexpr u32 kMovedEmpty = kMovedFull + Config::kStages * kMbarrierBytes;
  static constexpr u32 kStaged = kMovedEmpty + Config::kStages * kMbarrierBytes;
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
  MK_DEVICE AttendGradSmem<Other> of() const {
    static_assert(AttendGradSmem<Other>::kHeldStats == kHeldStats && AttendGradSmem<Other>::kBytes == kBytes,
                  "tiles of one ring agree on where all of it lies");
    return AttendGradSmem<Other>{base};
  }

  // The first and the second of the matrices.
  template <u32 kMatrix>
  MK_DEVICE u32 held() const { return base + kMatrix * Config::kFirstHeldBytes; }
  template <u32 kMatrix>
  MK_DEVICE u32 moved(u32 stage) const { return base + kMoved + stage * Config::kMovedBytes + kMatrix * Config::kFirstMovedBytes; }
  MK_DEVICE u32 held_stats() const { return base + kHeldStats; }
  MK_DEVICE u32 moved_stats(u32 stage) const { return base + kMovedStats + stage * Config::kMovedStatsBytes; }
  MK_DEVICE u32 held_full() const { return base + kHeldFull; }
  MK_DEVICE u32 held_empty() const { return base + kHeldEmpty; }
  MK_DEVICE u32 moved_full(u32 stage) const { return base + kMovedFull + stage * kMbarrierBytes; }
  MK_DEVICE u32 moved_empty(u32 stage) const { return base + kMovedEmpty + stage * kMbarrierBytes; }

  // The gradients of a tile are in global memory, and the storer has said so to others.
  MK_DEVICE u32 staged() const { return base + kStaged; }
  MK_DEVICE u32 drained() const { return base + kDrained; }
  // Dynamic schedule: which tile the loader has taken, and whether it, or everybody else, has said so.
  MK_DEVICE u32 tile_index(u32 slot) const { return base + kTileIndex + slot * sizeof(u64); }
  MK_DEVICE u32 tile_full(u32 slot) const { return base + kTileFull + slot * kMbarrierBytes; }
  MK_DEVICE u32 tile_empty(u32 slot) const { return base + kTileEmpty + slot * kMbarrierBytes; }

  // As of AttendSmem.
  MK_DEVICE u32 span() const { return base + kSpan; }

  // One thread, before `launch_begin_sync`. Consumers arrive once per warp: each warp knows of its own wgmmas only.
  MK_DEVICE void init_barriers() const {
    constexpr u32 kWarps = Config::kConsumers * kWarpgroupWarps;
    mbarrier_init(held_full(), 1);
    mbarrier_init(held_empty(), kWarps);
    mbarrier_init(staged(), kWarps);
    mbarrier_init(drained(), 1);
    for (u32 s = 0; s < Config::kStages; ++s) {
      mbarrier_init(moved_full(s), 1);
      mbarrier_init(moved_empty(s), kWarps);
    }
    for (u32 s = 0; s < kTileSlots; ++s) {
      mbarrier_init(tile_full(s), 1);
      mbarrier_init(tile_empty(s), kWarps + 1);
    }
    fence_mbarrier_init();
  }
};
template <class Config>
using AttendDqSmem = AttendGradSmem<Config>;
template <class Config>
using AttendDkvSmem = AttendGradSmem<Config>;

// An agent's place in the ring of blocks, and the parity of its tile. Goes on from one loop of a role to the next.
template <u32 kStages>
struct AttendGradCursor {
  RingCursor<kStages> moved;
  u32 held = 0;
  TileCursor tiles;
};
template <u32 kStages>
using AttendDqCursor = AttendGradCursor<kStages>;
template <u32 kStages>
using AttendDkvCursor = AttendGradCursor<kStages>;

// The plan's names of edges: keys and values come in a ring where queries are held, and the other way round.
template <class Config, class Edges>
struct AttendGradEdges : Edges {
  static constexpr u32 held_full = Config::kHoldsQueries ? Edges::q_full : Edges::kv_full;
  static constexpr u32 held_empty = Config::kHoldsQueries ? Edges::q_empty : Edges::kv_empty;
  static constexpr u32 moved_full = Config::kHoldsQueries ? Edges::kv_full : Edges::q_full;
  static constexpr u32 moved_empty = Config::kHoldsQueries ? Edges::kv_empty : Edges::q_empty;
};

// What one task is: the plan's index expressions, evaluated. Gradients of queries; keys and values come in parts (`AttendChunk`).
struct AttendDqTile {
  u32 task;
  u32 family;
  AttendRows q, d_o, stats;
  i32 rows;      // queries that there are
  i32 position;  // of the first query, where a mask asks
  i32 chunks;    // parts that the keys come in
  u64 dq, dq_pitch_bytes;
  u64 bounds;  // two i32 of each row, where they mask
};

// Gradients of keys and of values; either may be missing.
struct AttendDkvTile {
  u32 task;
  u32 family;
  AttendRows k, v;
  i32 rows;      // keys that there are
  i32 position;  // of the first key, where a mask asks
  i32 chunks;    // parts that the queries come in: of a group, head by head
  u64 dk, dk_pitch_bytes, dv, dv_pitch_bytes;
  u64 bounds;  // two i32 of each row, where they mask
};

// Queries of one head that see keys of the tile, and what belongs to them.
struct AttendDkvChunk {
  AttendRows q, d_o, stats;
  i32 rows = 0;  // queries that there are
  i32 position;  // of the first query, where a mask asks

  // Leaves out the queries before the first, and behind the last, that see some key.
  MK_DEVICE void narrow(const AttendSpan& span) {
    const i32 skipped = span.skipped(position, rows);
    rows = span.met(position, rows);
    position += skipped;
    q.advance(skipped);
    d_o.advance(skipped);
    stats.advance(skipped);
  }

  template <class Config>
  MK_DEVICE i32 blocks(const AttendDkvTile& tile) const {
    const i32 seen = tile.rows > 0 ? max(rows, 0) : 0;
    return (seen + static_cast<i32>(Config::kBlockN) - 1) / static_cast<i32>(Config::kBlockN);
  }
};

// The two matrices that a loader brings for a tile, and for a part; and statistics, where there are any.
MK_DEVICE const AttendRows& attend_grad_rows(const AttendDqTile& t, bool second) { return second ? t.d_o : t.q; }
MK_DEVICE const AttendRows& attend_grad_rows(const AttendDkvTile& t, bool second) { return second ? t.v : t.k; }
MK_DEVICE const AttendRows& attend_grad_rows(const AttendChunk& c, bool second) { return second ? c.v : c.k; }
MK_DEVICE const AttendRows& attend_grad_rows(const AttendDkvChunk& c, bool second) { return second ? c.d_o : c.q; }
MK_DEVICE const AttendRows* attend_grad_stats(const AttendDqTile& t) { return &t.stats; }
MK_DEVICE const AttendRows* attend_grad_stats(const AttendDkvChunk& c) { return &c.stats; }
MK_DEVICE const AttendRows* attend_grad_stats(const AttendDkvTile&) { return nullptr; }
MK_DEVICE const AttendRows* attend_grad_stats(const AttendChunk&) { return nullptr; }
