// Copies to one or several places, by two lanes: TMA reads each byte once, TMA writes it to every destination. Contiguous memory
// or parts of rows, at either end. All sizes are multiples of 16 bytes.
template <u32 kStages_, u32 kPieceBytes_ = 16384>
struct CopyConfig {
  static constexpr u32 kStages = kStages_;
  static constexpr u32 kPieceBytes = kPieceBytes_;
  // Pieces on their way to their destinations before the oldest one's slot goes back.
  static constexpr u32 kLag = kStages > 5 ? 4 : kStages - 2;
  static_assert(kPieceBytes % 128 == 0 && kStages >= 3, "whole lines; one piece arriving, one leaving, one in hand");
};

template <class Config>
struct CopySmem {
  static constexpr u32 kFull = Config::kStages * Config::kPieceBytes;
  static constexpr u32 kEmpty = kFull + Config::kStages * kMbarrierBytes;
  static constexpr u32 kState = (kEmpty + Config::kStages * kMbarrierBytes + 15) / 16 * 16;
  static constexpr u32 kMoves = kState + sizeof(CtaState);
  static constexpr u32 kBytes = kMoves + Config::kStages * sizeof(u32);
  static_assert(kBytes <= 227 * 1024, "sm_90 gives a block 227 KiB");

  u32 base;

  MK_DEVICE u32 piece(u32 stage) const { return base + stage * Config::kPieceBytes; }
  MK_DEVICE u32 full(u32 stage) const { return base + kFull + stage * kMbarrierBytes; }
  MK_DEVICE u32 empty(u32 stage) const { return base + kEmpty + stage * kMbarrierBytes; }
  MK_DEVICE u32 state() const { return base + kState; }
  // Whether a stage's task moves anything, where that is asked.
  MK_DEVICE u32 moves(u32 stage) const { return base + kMoves + stage * sizeof(u32); }

  MK_DEVICE void init_barriers() const {
    for (u32 s = 0; s < Config::kStages; ++s) {
      mbarrier_init(full(s), 1);
      mbarrier_init(empty(s), 1);
    }
    fence_mbarrier_init();
  }
};

// One copy. Where it goes is asked of the hooks, destination by destination.
struct CopyTask {
  u32 task;            // linear index in the role
  u32 family;
  u64 source;          // address
  u64 bytes;           // 0 is a task that only waits and posts
  u32 destinations;
  u32 row_bytes;       // 0: contiguous at both ends; else rows of so many bytes, at most a stage's
  u64 source_pitch;    // bytes from row to row
  u64 destination_pitch;
  // Rows that TMA brings in boxes of a stage's worth, by a map [w, z, y, x] of which z counts rows; else none.
  const TensorMap* map = nullptr;
  i32 y = 0, z = 0, w = 0;
};

// What a stage takes of a task: as much as fits, or as many whole rows (of a map: a box).
template <class Config>
MK_DEVICE u32 full_piece_bytes(const CopyTask& task) {
  return task.row_bytes == 0 ? Config::kPieceBytes : Config::kPieceBytes / task.row_bytes * task.row_bytes;
}

MK_DEVICE u32 piece_bytes(u64 total, u64 offset, u32 piece) {
  const u64 left = total - offset;
  return left < piece ? static_cast<u32>(left) : piece;
}

// Whether tables say of some tasks whether they move anything.
template <class Hooks>
constexpr bool kAsks = requires(const Hooks& hooks, const CopyTask& task) { hooks.moves(task); };

// Reads. After an abort it only arrives: the source may be a dead peer's memory. Where tables say whether a task moves anything, it asks, behind
// its waits, and tells the storer, who does not: of a task that moves nothing one stage is handed over, without data.
template <class Config, class Edges, class Hooks>
MK_DEVICE void bulk_copy_loader(const Context& ctx, const CopySmem<Config>& smem, const Hooks& hooks,
                                RingCursor<Config::kStages>& ring) {
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    const CopyTask task = hooks.decode(t);
    chaos_delay(ctx, Agent::Loader, t);
    hooks.before_load(ctx, task);
    const u32 piece = full_piece_bytes<Config>(task);
    u64 source = task.source;
    bool moves = true;
    if constexpr (kAsks<Hooks>) moves = hooks.moves(task);
    const u64 end = moves || task.bytes < piece ? task.bytes : piece;
#pragma unroll 1
    for (u64 offset = 0; offset < end; offset += piece) {
      mbarrier_wait<Edges::empty>(smem.empty(ring.stage), ring.phase ^ 1);
      if constexpr (kAsks<Hooks>) st_shared(smem.moves(ring.stage), moves);
      if (ctx.aborted() || !moves) {
        mbarrier_arrive<Edges::full>(smem.full(ring.stage));
      } else {
        // A box counts whole, also where it sticks out of the task or of the tensor: the storer takes the task's part.
        const u32 bytes = task.map != nullptr ? piece : piece_bytes(task.bytes, offset, piece);
        mbarrier_arrive_expect_tx<Edges::full>(smem.full(ring.stage), bytes);
        if (task.map != nullptr) {
          tma_load_4d(smem.piece(ring.stage), task.map, smem.full(ring.stage), 0, task.y,
                      task.z + static_cast<i32>(offset / task.row_bytes), task.w);
        } else if (task.row_bytes == 0) {
          bulk_load(smem.piece(ring.stage), reinterpret_cast<const void*>(source), bytes, smem.full(ring.stage));
          source += bytes;
        } else {
#pragma unroll 1
          for (u32 at = 0; at < bytes; at += task.row_bytes) {
            bulk_load(smem.piece(ring.stage) + at, reinterpret_cast<const void*>(source), task.row_bytes,
                      smem.full(ring.stage));
            source += task.source_pitch;
          }
        }
      }
      ring.advance();
    }
  }
}

// Writes, one bulk group per piece. A post follows only finished writes, but nobody stands still for them: a task's posts are
// held back until pieces of the next task are on their way behind it. Unless the storer would have to wait for those: what it
// waits for may depend on what it holds back. (Peers' entries do not.)
template <class Config, class Edges, class Hooks>
MK_DEVICE void bulk_copy_storer(const Context& ctx, const CopySmem<Config>& smem, const Hooks& hooks,
                                RingCursor<Config::kStages>& ring) {
  RingCursor<Config::kStages> reading = ring;
  // Of nothing to begin with: where it had no value, ptxas (CUDA 13.0) took the loop's task for it, and posted for that one.
  CopyTask held = CopyTask{};
  bool holds = false;
  u32 behind = 0;     // pieces sent since the task that is held back
  u32 in_flight = 0;  // slots that have not gone back
  const auto settle = [&] {
    if (!holds) return;
    // The groups of the task, not those behind it.
    switch (behind) {
      case 0: bulk_wait_written<0>(); break;
      case 1: bulk_wait_written<1>(); break;
      case 2: bulk_wait_written<2>(); break;
      case 3: bulk_wait_written<3>(); break;
      default: bulk_wait_written<4>(); break;
    }
    hooks.after_store(ctx, held);
    holds = false;
  };
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    const CopyTask task = hooks.decode(t);
    chaos_delay(ctx, Agent::Storer, t);
    if constexpr (Hooks::kStoreWaits) settle();
    hooks.before_store(ctx, task);
    const u32 piece = full_piece_bytes<Config>(task);
    bool moves = true;
#pragma unroll 1
    for (u64 offset = 0; offset < task.bytes && moves; offset += piece) {
      if (holds && !mbarrier_test_wait(smem.full(ring.stage), ring.phase)) settle();
      mbarrier_wait<Edges::full>(smem.full(ring.stage), ring.phase);
      if constexpr (kAsks<Hooks>) moves = ld_shared(smem.moves(ring.stage)) != 0;
      if (!ctx.aborted() && moves) {
        const u32 bytes = piece_bytes(task.bytes, offset, piece);
        const bool rows = task.destination_pitch != task.row_bytes;
        const u64 at = rows ? offset / task.row_bytes * task.destination_pitch : offset;
#pragma unroll 1
        for (u32 d = 0; d < task.destinations; ++d) {
          u64 to = hooks.destination(task, d) + at;
          if (!rows) {
            bulk_store(reinterpret_cast<void*>(to), smem.piece(ring.stage), bytes);
            continue;
          }
#pragma unroll 1
          for (u32 done = 0; done < bytes; done += task.row_bytes) {
            bulk_store(reinterpret_cast<void*>(to), smem.piece(ring.stage) + done, task.row_bytes);
            to += task.destination_pitch;
          }
        }
      }
      bulk_commit();
      ring.advance();
      if (in_flight == Config::kLag) {
        bulk_wait_read<Config::kLag>();
        mbarrier_arrive<Edges::empty>(smem.empty(reading.stage));
        reading.advance();
      } else {
        ++in_flight;
      }
      if (holds && ++behind == Config::kLag) settle();
    }
    settle();
    if constexpr (Hooks::kPostsStores) {
      held = task;
      holds = true;
      behind = 0;
    }
  }
  bulk_wait_read<0>();
#pragma unroll 1
  for (; in_flight > 0; --in_flight) {
    mbarrier_arrive<Edges::empty>(smem.empty(reading.stage));
    reading.advance();
  }
  settle();
  // Every store has read its slot by now; the end of the grid completes the writes.
}
