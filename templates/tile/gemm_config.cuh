// What a GEMM tile is made of: block sizes, operand layout, staging; and where all of it lies in shared memory.
// How the consumer warpgroups share the work: all on each tile, each with its part of the tile's rows (or columns); or, two of them, on
// tiles of their own in turn, so that one multiplies while the other brings its results out.
enum class Consumers : u32 { Cooperative, PingPong };

// How C leaves: a TMA store from a staging panel, or ordinary stores of what lies there (any pitch, any alignment).
enum class StorePath : u32 { Tma, Direct };


// The k step: one 128-byte swizzle row, of 16-bit elements `kBlockK`, of 8-bit ones as many as bytes.
constexpr u32 kStepBytes = 128;
constexpr u32 kShiftRows = 8;     // rows of 16-bit elements, of whatever length, take a multiple of 16 bytes
constexpr u32 kShiftCols = 32;    // columns more of a shifted row: up to 7 of the row before, and up to 24 that keep banks apart
constexpr u32 kWarpFactorBytes = 16 * 4;  // of a warp's rows, of one step along K
constexpr u32 kScaleBlock = 128;  // elements that share a factor, along each dimension that has blocks
constexpr u32 kBlockK = kStepBytes / kElemBytes;
constexpr u32 kWarpgroupThreads = 128;
constexpr u32 kWarpgroupWarps = 4;

// Dynamic schedule: tiles that a loader is ahead of the slowest reader, the warps that multiply and the storer.
constexpr u32 kTileSlots = 4;
constexpr u32 tile_readers(u32 consumers) { return consumers * kWarpgroupWarps + 1; }
typedef RingCursor<kTileSlots> TileCursor;

// Everything a generated kernel chooses about its GEMM tiles.
struct GemmOptions {
  u32 block_m = 128;
  u32 block_n = 256;
  u32 a_rows = 0;      // rows of A that there are, where those are fewer, rounded up to a swizzle's eight; 0: block_m
  u32 a_ends = 0;      // rows of A of tiles that end with the tensor, rounded up to as many for each box; 0: as the others
  u32 ring_n = 0;      // columns that a stage has room for, where it also takes wider tiles; 0: block_n
  u32 stages = 4;
  Dtype dtype = Dtype::Bf16;
  Dtype b_dtype = Dtype::Bf16;  // 8-bit operands: B's; else it is A's
  bool promotes = false;        // 8-bit operands: each step's sums are added to f32 registers of their own
  bool scaled = false;          // rows or columns of the product have factors
  bool step_scaled = false;     // steps along K of its rows or columns have
  bool row_factors = false;     // those of some tiles of the ring
  Dtype out = Dtype::Bf16;
  ALayout a = ALayout::KMajor;
  BLayout b = BLayout::NMajor;
  bool shifted = false; // rows of B begin at any element, and stages have them as they lie
  u32 b_rank = 2;      // dimensions of B's map: with 3, the outermost chooses a matrix of a stack
  bool gated = false;  // B's columns are two halves, gate and up: C = silu(gate) * up has half as many
  bool reads = false;       // Direct: the elementwise chain reads operands, or results have eight bits
  bool chained = false;     // swapped: there is an elementwise chain
  bool quantizes = false;   // blocks of 128 results of a row are divided by a factor of their own
  u32 saves = 0;            // matrices that the elementwise chain writes on the way
  bool saves_gates = false; // the first two are gates and ups
  bool gate_bias = false;   // a vector is added to gates, and one to ups
  bool carried = false;     // a tile goes on with sums that the loader brings
  bool carry_last = false;  // and not before its own product has been through the elementwise chain
  bool b_evict_first = false;   // no other tile reads what a tile reads of B
  bool b_first = false;         // B is the caller's, and A is waited for: as much of B as fits is loaded before
  bool borrowed_stage = false;  // a tile's last stage takes panels that there is no staging for; its loop has none of fewer steps than stages
  bool clipped = false;         // Tma: where a tile's rows end inside a panel, the tensor's do
  bool only_tile = false;       // Tma: no CTA has a second tile
  bool short_rows = false;      // many tiles have fewer rows than there is room for, and some none
  bool ragged_depth = false;    // a tile's last step has fewer rows of both operands, and what is behind them is no value
  u32 cluster = 1;              // CTAs that share a tile, each with a part of its steps along k
  u32 below = 1;                // CTAs of a cluster whose tiles lie one below the other: they load B together
  u32 beside = 1;               // and side by side: they load A together
  StorePath store = StorePath::Tma;
  Consumers consumers = Consumers::Cooperative;
};

template <GemmOptions kOptions>
struct GemmConfig {
  static constexpr u32 kBlockM = kOptions.block_m;
  static constexpr u32 kBlockN = kOptions.block_n;
  static constexpr u32 kStages = kOptions.stages;
  static constexpr Dtype kDtype = kOptions.dtype;
  static constexpr Dtype kDtypeB = kOptions.b_dtype;
  static constexpr bool kBytes = element_bytes(kDtype) == 1;
  static constexpr bool kPromotes = kOptions.promotes;
  static constexpr bool kScaled = kOptions.scaled;
  static constexpr bool kStepScaled = kOptions.step_scaled;
  static constexpr u32 kBlockK = kStepBytes / element_bytes(kDtype);
  static constexpr Dtype kOut = kOptions.out;
  static constexpr ALayout kA = kOptions.a;
  static constexpr BLayout kB = kOptions.b;
  static constexpr bool kShifted = kOptions.shifted;
  static constexpr bool kGated = kOptions.gated;
  static constexpr bool kReads = kOptions.reads;
  static constexpr bool kChained = kOptions.chained;
  static constexpr bool kQuantizes = kOptions.quantizes;
  static constexpr u32 kSaves = kOptions.saves;
  static constexpr bool kSavesGates = kOptions.saves_gates;
  static constexpr bool kGateBias = kOptions.gate_bias;
  static constexpr bool kCarried = kOptions.carried;
  static constexpr bool kCarryLast = kOptions.carry_last;
  static constexpr u32 kBRank = kOptions.b_rank;
  static constexpr bool kBEvictFirst = kOptions.b_evict_first;
  static constexpr bool kBFirst = kOptions.b_first;
  static constexpr u32 kCluster = kOptions.cluster;
  static constexpr u32 kBelow = kOptions.below;
  static constexpr u32 kBeside = kOptions.beside;
  static constexpr u32 kTogether = kBelow * kBeside;
  static constexpr bool kLoadsTogether = kTogether > 1;
  static constexpr bool kClipped = kOptions.clipped;
  static constexpr bool kShortRows = kOptions.short_rows;
  static constexpr bool kRaggedDepth = kOptions.ragged_depth;
  static constexpr StorePath kStore = kOptions.store;
  static constexpr bool kPingPong = kOptions.consumers == Consumers::PingPong;

  // Rows that are no whole wgmmas: operands are swapped, so that columns of C fill the 64 rows of a wgmma, and rows come in steps of 16.
  // But 192 x 192: 64 rows for each of three warpgroups.
  static constexpr bool kThree = kBlockM == 192 && kBlockN == 192;
  static constexpr bool kSwapped = (kBlockM != 64 && kBlockM != 128 && kBlockM != 256 && !kThree) || (kBlockM == 64 && kBlockN == 64);
  // Two warpgroups, each with its rows of every tile; or, where those are too few or swapped, with its columns; or with tiles of its own.
  // Swapped, one has 64 columns and three 192.
  static constexpr u32 kConsumers = kThree || (kSwapped && kBlockN == 192) ? 3 : kSwapped && kBlockN == 64 ? 1 : 2;
  static constexpr u32 kConsumersPerTile = kPingPong ? 1 : kConsumers;
  static constexpr bool kSplitColumns = kBlockM == 64 || kSwapped;
  static constexpr u32 kRowsPerConsumer = kSplitColumns ? kBlockM : kBlockM / kConsumersPerTile;
  static constexpr u32 kColsPerConsumer = kSplitColumns ? kBlockN / kConsumers : kBlockN;
  static constexpr u32 kMmasPerStep = (kSwapped ? kColsPerConsumer : kRowsPerConsumer) / 64;  // wgmmas side by side in their M
  static constexpr u32 kMmaN = kSwapped ? kBlockM : kColsPerConsumer;
  // Swapped: from one of them to the next, columns of B. Gated: ups lie behind all gates.
  static constexpr u32 kMmaCols = kGated ? kBlockN / 2 : 64;
  static constexpr u32 kOutMmas = kSwapped && kGated ? kMmasPerStep / 2 : kMmasPerStep;  // those that results come from
  static constexpr u32 kAccumulators = kMmaN / 2;                       // registers of one wgmma
  // Staging panels of 64 rows, per consumer: four where consumers share 64 rows of 256 columns, as many as an f32 tile fills, so that none waits
  // until another has been read, and where three stages leave room for them. Of three consumers' beside four
  // stages one, otherwise all; swapped, one where four stages leave no more.
  static constexpr u32 kPanels = kThree ? (kStages > 3 ? 1 : 3) : kConsumers == 3 && kBlockM > 160 ? 1 : (kBlockM == 64 && (kBlockN > 128 || kOptions.ring_n > 128)) || (kSwapped && kBlockM > 128 && kBlockN == 256) ? 4 : 2;
  static constexpr u32 kThreads = (1 + kConsumers) * kWarpgroupThreads;

  // Boxes of the operands' tensor maps: inner extent 64 elements, 128-byte swizzle, this many rows.
  static constexpr u32 kAPanels = kBlockM / 64;                         // M-major: panels of 64 rows of C, one box each
  static constexpr u32 kARows = kOptions.a_rows == 0 ? kBlockM : kOptions.a_rows;
  static constexpr u32 kAEnds = kOptions.a_ends;
  static constexpr u32 kABoxRows = (kA == ALayout::MMajor ? kBlockK : kARows) / kBeside;
  // N-major: panels of 64 columns, one box each; of 32, where those would end beside the tile.
  static constexpr u32 kBPanelCols = kBlockN % 64 == 0 ? 64 : 32;
  static constexpr u32 kBPanelRowBytes = kBPanelCols * kElemBytes;      // also the swizzle's span
  static constexpr u32 kBPanels = kBlockN / kBPanelCols;
  static constexpr u32 kBBoxRows = (kB == BLayout::NMajor ? kBlockK : kBlockN / (kGated ? 2 : 1)) / kBelow;
  // Box of C's tensor map: 64 rows of this many columns, swizzled over the row's bytes (128 or 64).
  static constexpr u32 kPanelRowBytes = kBlockN % 64 == 0 ? 128 : 64;
  static constexpr u32 kPanelCols = kPanelRowBytes / (kOut == Dtype::F32 ? 4 : kElemBytes);  // those of eight bits go past panels
  static constexpr u32 kOutCols = kGated ? kBlockN / 2 : kBlockN;             // columns of C
  static constexpr u32 kOutColsPerConsumer = kGated ? kColsPerConsumer / 2 : kColsPerConsumer;
  static constexpr u32 kPanelsDown = ceil_div(kBlockM, 64);  // swapped: the last may have fewer rows
  static constexpr u32 kPanelsPerTile = kOutMmas * (kSwapped ? kPanelsDown : kOutColsPerConsumer / kPanelCols);  // per consumer

  // Short tiles: rows of A come in boxes of so many, where not most of them are there; and a consumer without rows multiplies nothing.
  static constexpr u32 kPartRows = 16;
  static constexpr bool kLoadsParts = kShortRows && kA == ALayout::KMajor && kBeside == 1;
  static constexpr bool kPassesSteps = kShortRows && !kPingPong;

  // Shifted: every eighth row of B lies a multiple of 16 bytes behind the last, so that a box has those. It begins at the multiple before them.
  static constexpr u32 kShiftedRowBytes = (kBlockN + kShiftCols) * kElemBytes;
  static constexpr u32 kShiftedBoxBytes = kBlockK / kShiftRows * kShiftedRowBytes;

  static constexpr u32 kABytes = kBlockM * kStepBytes;
  static constexpr u32 kALoadedBytes = kARows * kStepBytes;
  // The layouts, the way of storing and the gate do not change what lies where: tiles that differ in them share a ring. So
  // do narrower ones, which leave a part of each stage empty.
  static constexpr u32 kRingN = kOptions.ring_n == 0 ? kBlockN : kOptions.ring_n;
  static constexpr u32 kBBytes = (kRingN + (kShifted ? kShiftCols : 0)) * kStepBytes;
  static constexpr u32 kBLoadedBytes = (kBlockN + (kShifted ? kShiftCols : 0)) * kStepBytes;
  static constexpr u32 kStageBytes = kABytes + kBBytes;
  static constexpr u32 kPanelBytes = 64 * kPanelRowBytes;
  // A unit of a cluster's exchange: a wgmma's sums of 16 of its N, or of 8 of gates and as many of ups; 32 bytes of each thread.
  static constexpr u32 kUnitsAcross = kMmaN / 16;
  static constexpr u32 kUnits = kMmasPerStep * kUnitsAcross;           // per consumer
  static constexpr u32 kMostUnits = ceil_div(kUnits, kCluster);        // that one CTA finishes
  static constexpr u32 kUnitCols = kGated ? 8 : 16;                    // of results
  static constexpr u32 kVectorBytes = kConsumers * kWarpgroupThreads * 16;
  static constexpr u32 kExchangeBytes = (kCluster - 1) * kMostUnits * 2 * kVectorBytes;
  static constexpr u32 kPanelsBytes = kConsumers * kPanels * kPanelBytes;
  static constexpr u32 kStagingBytes = kPanelsBytes < kExchangeBytes ? kExchangeBytes : kPanelsBytes;
  // Factors of each warp's 16 rows, of this step along K and of the next one.
  static constexpr u32 kRowFactorBytes = kOptions.row_factors ? 2 * 2 * kWarpgroupWarps * kWarpFactorBytes : 0;
  // A tile with a borrowed stage begins with panels in its last stage, where the consumer's own rows of A were: a warp's rows of a panel are those
  // of A that only its own part of the wgmmas reads; or, swapped, its own columns of B, of which a warp's lie where its columns of a panel do. The storer hands that stage back, without which the loop's next tile does not end.
  static constexpr u32 kStagePanels = kSwapped ? kOutMmas : kRowsPerConsumer / 64;
  static constexpr u32 kUnstaged = kOptions.borrowed_stage ? kPanelsPerTile - kPanels : 0;
  // Three consumers fill all of that stage, when all have read it, whatever the layout of A: no panel is filled twice.
  static constexpr bool kBorrowsAll = kThree && kOptions.borrowed_stage;
  static constexpr u32 kBorrowedPanels = kBorrowsAll || kUnstaged < kStagePanels ? kUnstaged : kStagePanels;

  // A CTA's only tile has all of its panels at once: those that there is no staging for are where the consumer's own rows of A were, or,
  // swapped, its own columns of B.
  static constexpr u32 kOnlyUnstaged = kPanelsPerTile > kPanels ? kPanelsPerTile - kPanels : 0;
  static constexpr bool kOnlyTile = kOptions.only_tile && kOptions.store == StorePath::Tma && !kPingPong && !kCarried &&
                                    (kOnlyUnstaged == 0 || (kPanelRowBytes == 128 && kA == ALayout::KMajor && (kSwapped || !kSplitColumns))) &&
                                    kOnlyUnstaged <= kStages * kStagePanels;

  // A sum that a tile goes on with comes in parts, one for each consumer, each in as many stages as its panels take.
  static constexpr u32 kMostCarryPanels = kStageBytes / kPanelBytes;
  static constexpr u32 kCarryStages = (kPanelsPerTile + kMostCarryPanels - 1) / kMostCarryPanels;
  static constexpr u32 kCarryPanels = (kPanelsPerTile + kCarryStages - 1) / kCarryStages;
  static constexpr u32 kCarrySteps = kCarried ? kConsumersPerTile * kCarryStages : 0;

  // The step along k before which `part` comes of so many sums: in the second half, since the loader waits for them in the middle, the
  // consumers' apart, so that one adds while the other multiplies; or behind all.
  MK_DEVICE static constexpr u32 carry_step(u32 part, u32 k_blocks, u32 sums) {
    if (kCarryLast) return k_blocks;
    const u32 from = k_blocks / 2, source = part / kConsumersPerTile, left = k_blocks - from;
    // No part before the one that comes first.
    const u32 between = left / (sums + 1), apart = between < 2 ? between : 2;
    const u32 step = from + (source + 1) * left / (sums + 1) + part % kConsumersPerTile * apart;
    const u32 last = k_blocks > 1 ? k_blocks - 1 : 1;
    return step < 1 ? 1 : step < last ? step : last;
  }
  MK_DEVICE static constexpr bool carry_steps_ascend() {
    for (u32 k_blocks = 1; k_blocks <= 12; ++k_blocks) {
      for (u32 sums = 1; sums <= 15; ++sums) {
        for (u32 part = 1; part < sums * kConsumersPerTile; ++part) {
          if (carry_step(part, k_blocks, sums) < carry_step(part - 1, k_blocks, sums)) return false;
        }
      }
    }
    return true;
  }

  // This consumer's first row and column of the tile.
  MK_DEVICE static u32 first_row(u32 consumer) { return kSplitColumns || kPingPong ? 0 : consumer * kRowsPerConsumer; }
  MK_DEVICE static u32 first_col(u32 consumer) { return kSplitColumns ? consumer * kOutColsPerConsumer : 0; }

  static_assert(!kSwapped || (kBlockM % 16 == 0 && kBlockM >= 16 && kBlockM < 256), "rows that are columns of a wgmma");
  static_assert(!kSwapped || (kA == ALayout::KMajor && element_bytes(kOut) == 2 && !kCarried && kSaves == 0), "16-bit results, and nothing saved");
  static_assert(!kShifted || (kSwapped && kB == BLayout::NMajor && !kGated && kBRank == 2 && !kLoadsTogether && kBlockM <= 144 && kBlockN <= 192),
                "columns of B that fill the rows of a wgmma, from registers");
  static_assert(!kShifted || !kOptions.borrowed_stage, "a stage's rows belong to all consumers");
  static_assert(kRingN == kBlockN || (kRingN > kBlockN && kRingN % 64 == 0 && kBlockN % 64 == 0), "a ring is as wide as its widest tiles");
  static_assert(kBlockN % 32 == 0 && kBlockN >= 32 && kBlockN <= 256, "what wgmma and the panels take");
  static_assert(!kSplitColumns || (kBlockN % (64 * kConsumers) == 0 && (!kGated || kSwapped)), "each consumer has whole panels, and gates lie beside their ups");
  static_assert(!kSwapped || !kGated || (kBlockN == 256 && kCluster == 1), "swapped, each consumer has a panel of gates, and one of ups");
  // Promoted, a step's sums are of so many columns at a time, so that they have registers beside the tile's.
  static constexpr u32 kPartCols = kPromotes && (kMmasPerStep + 1) * kAccumulators > 192 ? kMmaN / 2 : kMmaN;
  static_assert(kPromotes ? kMmasPerStep * kAccumulators + kPartCols / 2 <= 192 : kMmasPerStep * kAccumulators <= 160, "accumulators would spill");
  static_assert(!kBytes || (kA == ALayout::KMajor && kB == BLayout::KMajor && !kSwapped && (!kGated || (kBlockM == 128 && kBlockN == 256)) && element_bytes(kDtypeB) == 1), "8-bit operands lie along k");
  static_assert(!kStepScaled || (kPromotes && kScaleBlock % kPartCols == 0), "a step's sums are of one block of columns");
  static_assert(!kStepScaled || (kMmasPerStep == 1 && kOptions.row_factors), "a warp has factors of 16 rows");
  static_assert(!kPromotes || (kBytes && !kThree), "sums of 8-bit operands, of two consumers");
  static_assert(!kPingPong || kBlockM == 128, "tiles that one warpgroup multiplies");
  static_assert(kConsumers != 3 || (kCluster == 1 && !kCarried), "sums that are handed on belong to one of two warpgroups");
  static_assert(!kBorrowsAll || kConsumers * kBorrowedPanels * kPanelBytes <= kStageBytes, "one stage has room for all of them");
  static_assert(!kGated || kBlockN % 128 == 0, "whole panels of gate, and of up");
  static_assert(!kGateBias || (kGated && !kSwapped && kCluster == 1), "gates and ups of a column are one thread's");
  static_assert(!kCarried || (!kGated && kStore == StorePath::Tma && kMostCarryPanels > 0), "sums come in panels, as results leave");
  static_assert(!kCarryLast || !kOptions.borrowed_stage, "the last stage belongs to one consumer");
  static_assert(kCluster == 1 || (kStore == StorePath::Direct && !kPingPong && kSaves == 0), "who shares a tile stores it, and saves nothing");
  static_assert(!kLoadsTogether || (!kOptions.borrowed_stage && !kPingPong && !kCarried && kBRank == 2), "stages go back to several loaders");
  static_assert(kABoxRows % 8 == 0 && kBBoxRows % 8 == 0, "whole swizzles of a part");
  static_assert(!kOnlyTile || !kOptions.borrowed_stage, "all panels are there at once");
  static_assert(kARows <= kBlockM && kARows % 8 == 0 && (kARows == kBlockM || kA == ALayout::KMajor), "whole swizzles of rows");
  static_assert(kAEnds < kARows && kAEnds % (8 * kBeside) == 0 && (kAEnds == 0 || kA == ALayout::KMajor), "whole swizzles of fewer rows");
  static_assert(kBRank == 2 || kBRank == 3, "a matrix, or a stack of them");
  static_assert(!kOptions.borrowed_stage || kThree || (!kPingPong && kA == ALayout::KMajor && (kSwapped ? kB == BLayout::NMajor : !kSplitColumns)), "what nobody else reads");
  static_assert(!kOptions.borrowed_stage || (kStore == StorePath::Tma && kPanelRowBytes == kStepBytes), "panels as wide as they are");
  static_assert(!kOptions.borrowed_stage || kPanelsPerTile > kPanels, "panels that there is no staging for");
  static_assert(kOut != Dtype::F32 || kPanelRowBytes == 128, "f32 panels are 32 columns wide");
  static_assert(kStages >= 2 && (kPanels >= 2 || kConsumers == 3), "a ring, and a panel to fill while one is read");
  static_assert(kABoxRows <= 256 && kBBoxRows <= 256, "what a tensor map's box takes");
};

// Loader and consumers take stages in one order.
template <class Config>
constexpr bool kCarriesInOrder = !Config::kCarried || Config::carry_steps_ascend();

// Shared memory of a CTA that runs GEMM tiles. `base` is 1024-byte aligned, as the swizzle wants.
template <class Config>
struct GemmSmem {
  static constexpr u32 kStaging = Config::kStages * Config::kStageBytes;
  static constexpr u32 kRowFactors = kStaging + Config::kStagingBytes;
  static constexpr u32 kFull = kRowFactors + Config::kRowFactorBytes;
  static constexpr u32 kEmpty = kFull + Config::kStages * kMbarrierBytes;
  static constexpr u32 kStagingFull = kEmpty + Config::kStages * kMbarrierBytes;
  static constexpr u32 kStagingFree = kStagingFull + Config::kConsumers * Config::kPanels * kMbarrierBytes;
  static constexpr u32 kTurn = kStagingFree + Config::kConsumers * Config::kPanels * kMbarrierBytes;
  static constexpr u32 kBorrowedFull = kTurn + Config::kConsumers * kMbarrierBytes;
  static constexpr u32 kTileFull = kBorrowedFull + Config::kConsumers * kMbarrierBytes;
  static constexpr u32 kTileEmpty = kTileFull + kTileSlots * kMbarrierBytes;
  static constexpr u32 kTileIndex = kTileEmpty + kTileSlots * kMbarrierBytes;
  static constexpr u32 kExchange = kTileIndex + kTileSlots * sizeof(u64);
  static constexpr u32 kStageRead = kExchange + (Config::kCluster > 1 ? 2 * kMbarrierBytes : 0);
  static constexpr u32 kState = (kStageRead + (Config::kThree ? kMbarrierBytes : 0) + 15) / 16 * 16;
  static constexpr u32 kBytes = kState + sizeof(CtaState);
  static_assert(kBytes <= 227 * 1024, "sm_90 gives a block 227 KiB");

  u32 base;

  // The same memory and barriers for other tiles of the ring.
  template <class Other>
  MK_DEVICE GemmSmem<Other> of() const {
    static_assert(GemmSmem<Other>::kFull == kFull && GemmSmem<Other>::kBytes == kBytes, "tiles of one ring agree on where all of it lies");
    return GemmSmem<Other>{base};
  }

  MK_DEVICE u32 a(u32 stage) const { return base + stage * Config::kStageBytes; }
  MK_DEVICE u32 b(u32 stage) const { return base + stage * Config::kStageBytes + Config::kABytes; }
  MK_DEVICE u32 panel(u32 consumer, u32 slot) const {
    return base + kStaging + (consumer * Config::kPanels + slot) * Config::kPanelBytes;
  }
  // A consumer's borrowed panel, when `ring` has left the tile behind.
  MK_DEVICE u32 borrowed_panel(const RingCursor<Config::kStages>& ring, u32 consumer, u32 slot) const {
    if constexpr (Config::kSwapped) {
      return b(ring.previous_stage()) + Config::first_col(consumer) * kStepBytes + slot * Config::kPanelBytes;
    }
    if constexpr (Config::kBorrowsAll) return a(ring.previous_stage()) + (consumer * Config::kBorrowedPanels + slot) * Config::kPanelBytes;
    return a(ring.previous_stage()) + Config::first_row(consumer) * kStepBytes + slot * Config::kPanelBytes;
  }
  // Panel `i` that a stage has of what a consumer goes on with.
  MK_DEVICE u32 carry_panel(u32 stage, u32 i) const { return a(stage) + i * Config::kPanelBytes; }
  // Factors of the rows of a thread's warp: of even steps along K, then of odd ones.
  MK_DEVICE u32 row_factors(u32 thread) const {
    return base + kRowFactors + (thread - kWarpgroupThreads) / 32 * 2 * kWarpFactorBytes;
  }
  MK_DEVICE u32 full(u32 stage) const { return base + kFull + stage * kMbarrierBytes; }
  MK_DEVICE u32 empty(u32 stage) const { return base + kEmpty + stage * kMbarrierBytes; }
  MK_DEVICE u32 staging_full(u32 consumer, u32 slot) const {
    return base + kStagingFull + (consumer * Config::kPanels + slot) * kMbarrierBytes;
  }
  MK_DEVICE u32 staging_free(u32 consumer, u32 slot) const {
    return base + kStagingFree + (consumer * Config::kPanels + slot) * kMbarrierBytes;
  }
  // A consumer's borrowed panels.
  MK_DEVICE u32 borrowed_full(u32 consumer) const { return base + kBorrowedFull + consumer * kMbarrierBytes; }
  // Three consumers: all have read a tile's last stage.
  MK_DEVICE u32 stage_read() const { return base + kStageRead; }
  // Dynamic schedule: which tile the loader has taken, and whether it, or everybody else, has said so.
  MK_DEVICE u32 tile_index(u32 slot) const { return base + kTileIndex + slot * sizeof(u64); }
  MK_DEVICE u32 tile_full(u32 slot) const { return base + kTileFull + slot * kMbarrierBytes; }
  MK_DEVICE u32 tile_empty(u32 slot) const { return base + kTileEmpty + slot * kMbarrierBytes; }
  // Ping-pong: this consumer may multiply.
  MK_DEVICE u32 turn(u32 consumer) const { return base + kTurn + consumer * kMbarrierBytes; }
  // Panel `p` of a consumer's only tile.
  MK_DEVICE u32 only_panel(u32 consumer, u32 p) const {
    if (p < Config::kPanels) return panel(consumer, p);
    const u32 i = p - Config::kPanels;
    if constexpr (Config::kSwapped) {
      return b(i / Config::kStagePanels) + Config::first_col(consumer) * kStepBytes + i % Config::kStagePanels * Config::kPanelBytes;
    }
    return a(i / Config::kStagePanels) + Config::first_row(consumer) * kStepBytes + i % Config::kStagePanels * Config::kPanelBytes;
  }
  // Clusters: the others' sums are there; and all, this CTA too, have read theirs.
  MK_DEVICE u32 exchange_full() const { return base + kExchange; }
  MK_DEVICE u32 exchange_read() const { return base + kExchange + kMbarrierBytes; }
  // Where this thread's sums come from CTA `slot` of the others: vector `v` of the CTA's unit `i`.
  MK_DEVICE u32 sums(u32 slot, u32 i, u32 v) const {
    const u32 vector = (slot * Config::kMostUnits + i) * 2 + v;
    return base + kStaging + vector * Config::kVectorBytes + (threadIdx.x - kWarpgroupThreads) * 16;
  }
  MK_DEVICE u32 state() const { return base + kState; }

  // One thread each, before `launch_begin_sync`. Consumers arrive once per warp: each warp knows of its own wgmmas only.
  MK_DEVICE void init_barriers() const {
    for (u32 s = 0; s < Config::kStages; ++s) {
      mbarrier_init(full(s), 1);
      mbarrier_init(empty(s), (Config::kBelow + Config::kBeside - 1) * Config::kConsumersPerTile * kWarpgroupWarps);
    }
    fence_mbarrier_init();
  }
  MK_DEVICE void init_staging_barriers() const {
    for (u32 c = 0; c < Config::kConsumers; ++c) {
      mbarrier_init(turn(c), kWarpgroupWarps);
      mbarrier_init(borrowed_full(c), kWarpgroupWarps);
      for (u32 p = 0; p < Config::kPanels; ++p) {
        mbarrier_init(staging_full(c, p), kWarpgroupWarps);
        mbarrier_init(staging_free(c, p), 1);
      }
    }
    if constexpr (Config::kCluster > 1) {
      mbarrier_init(exchange_full(), 1);
      mbarrier_init(exchange_read(), Config::kCluster * Config::kConsumers * kWarpgroupWarps);
    }
    if constexpr (Config::kThree) mbarrier_init(stage_read(), Config::kConsumers * kWarpgroupWarps);
    for (u32 s = 0; s < kTileSlots; ++s) {
      mbarrier_init(tile_full(s), 1);
      mbarrier_init(tile_empty(s), tile_readers(Config::kConsumers));
    }
    fence_mbarrier_init();
  }
};

// Which panels a consumer fills next, as it and the storer count them; and, ping-pong, how many of the CTA's tiles
// came before, of which every other is the second consumer's.
template <u32 kPanels>
struct GemmStaging {
  RingCursor<kPanels> mine;
  RingCursor<kPanels> others;
  u32 tile = 0;
  u32 borrowed = 0;  // parity of this use of the borrowed panels, or of the barrier that all have read their stage

  // Whose tile comes next.
  MK_DEVICE u32 consumer() const { return tile % 2; }
  // To the next tile, which is the other consumer's.
  MK_DEVICE void pass() {
    const RingCursor<kPanels> next = others;
    others = mine;
    mine = next;
    ++tile;
  }
};

// One tile of C = A * B, as the plan's index expressions give it to every agent. Coordinates are in elements of the
// tensor that the map describes.
struct GemmTile {
  u32 task;                // linear index in the role, for fault records
  u32 family;              // which of the role's families
  const TensorMap* a;      // [rows, K] or [K, rows], see ALayout
  const TensorMap* a_ends; // the same in boxes of fewer rows, where kAEnds is not 0
  const TensorMap* a_part; // short tiles: the same with boxes of kPartRows rows
  const TensorMap* b;      // [N, K] or [K, N], see BLayout
  const TensorMap* c;      // [rows, N]; unused on the direct path
  const TensorMap* c_line; // the same with boxes of one row; swapped, of the rows of a tile's last panel
  i32 a_row, a_k;          // A's first M and K coordinate
  i32 b_col, b_k;          // B's first N and K coordinate
  i32 b_up;                // gated: from a gate's column of B to that of its up
  u64 b_data;              // shifted: address of B[0, 0]
  i32 b_pitch;             // shifted: elements from a row of B to the next
  i32 b_outer;             // with b_rank 3, the matrix of the stack
  i32 c_row, c_col;        // C's first row and column
  i32 e_row;               // first row of the epilogue's matrix operands
  i32 v_row;               // the one of several vectors that is added
  i32 s_row, s_col;        // first factor of rows, and of columns
  u32 k_blocks;            // steps of kStepBytes, at least 1
  i32 depth;               // ragged, which may be 0, and shifted: elements along K
  i32 valid_rows;          // of this tile, may be <= 0 or more than the block
  i32 valid_cols;
  u64 c_data;              // direct path: address of C[0, 0]
  u64 c_pitch_bytes;       // direct path
  const TensorMap* carry;  // what the tile goes on with: [rows, N], in C's boxes
  u32 carried;             // how many sums that is

  // The step along k before which `part` comes of the sums.
  template <class Config>
  MK_DEVICE u32 carry_step(u32 part) const {
    return Config::carry_step(part, k_blocks, carried);
  }
  // How many parts.
  template <class Config>
  MK_DEVICE u32 carry_parts() const {
    return carried * Config::kConsumersPerTile;
  }

  // Stages that the tile takes, in turn.
  template <class Config>
  MK_DEVICE u32 steps() const {
    if constexpr (Config::kCarried) return k_blocks + carried * Config::kCarrySteps;
    return k_blocks;
  }
  // Whether any element of it exists.
  MK_DEVICE bool stores() const { return valid_rows > 0 && valid_cols > 0; }
  // Boxes that A's rows come in, in parts; 0: in one.
  template <class Config>
  MK_DEVICE u32 a_parts() const {
    if (!Config::kLoadsParts || valid_rows > static_cast<i32>(Config::kBlockM / 2)) return 0;
    return (static_cast<u32>(valid_rows) + Config::kPartRows - 1) / Config::kPartRows;
  }
};
