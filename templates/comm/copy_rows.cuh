// Copies [rows, row_bytes] between tensors of any pitch, with ordinary loads and stores by a whole CTA (or a part).
// For what TMA cannot address: rows or pitches that are not multiples of 16 bytes.
struct RowsTask {
  u32 task;               // linear index in the role
  u32 family;
  u64 source;             // address of the first row
  u64 source_pitch_bytes;
  u64 destination_pitch_bytes;
  u64 row_bytes;          // even
  u32 rows;
  u32 destinations;
};

// Loads in flight per thread before the first store.
constexpr u32 kRowsUnroll = 4;

template <u32 kBytes>
struct RowVector;
template <>
struct RowVector<16> {
  typedef Vec16 Type;
  MK_DEVICE static Type load(u64 p) { return ld_vec16(reinterpret_cast<const void*>(p)); }
  MK_DEVICE static void store(u64 p, Type v) { st_vec16(reinterpret_cast<void*>(p), v); }
};
template <>
struct RowVector<4> {
  typedef u32 Type;
  MK_DEVICE static Type load(u64 p) { return ld_u32(reinterpret_cast<const void*>(p)); }
  MK_DEVICE static void store(u64 p, Type v) { st_u32(reinterpret_cast<void*>(p), v); }
};
template <>
struct RowVector<2> {
  typedef u16 Type;
  MK_DEVICE static Type load(u64 p) { return ld_u16(reinterpret_cast<const void*>(p)); }
  MK_DEVICE static void store(u64 p, Type v) { st_u16(reinterpret_cast<void*>(p), v); }
};

// One warp per row, so that no thread divides by the row length.
template <u32 kBytes, u32 kThreads, class Hooks>
MK_DEVICE void copy_rows_by(const Hooks& hooks, const RowsTask& task, u32 thread) {
  typedef RowVector<kBytes> Vector;
  constexpr u32 kWarps = kThreads / 32;
  constexpr u64 kStep = 32 * kBytes;
#pragma unroll 1
  for (u32 row = thread / 32; row < task.rows; row += kWarps) {
    const u64 from = task.source + row * task.source_pitch_bytes;
#pragma unroll 1
    for (u64 base = thread % 32 * kBytes; base < task.row_bytes; base += kStep * kRowsUnroll) {
      typename Vector::Type v[kRowsUnroll];
#pragma unroll
      for (u32 i = 0; i < kRowsUnroll; ++i) {
        if (base + i * kStep < task.row_bytes) v[i] = Vector::load(from + base + i * kStep);
      }
#pragma unroll 1
      for (u32 d = 0; d < task.destinations; ++d) {
        const u64 to = hooks.destination(task, d) + row * task.destination_pitch_bytes;
#pragma unroll
        for (u32 i = 0; i < kRowsUnroll; ++i) {
          if (base + i * kStep < task.row_bytes) Vector::store(to + base + i * kStep, v[i]);
        }
      }
    }
  }
}

// Run by `kThreads` threads, numbered from 0 by `thread`; a multiple of 32. The first warp waits and posts for all, each
// lane for its share of the words, over the named barrier `kBarrier`: `Edges::start` orders its acquires before everybody's
// loads, `Edges::done` everybody's stores before its releases.
template <u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void copy_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    const RowsTask task = hooks.decode(t);
    if (thread < 32) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_load(ctx, task);
      hooks.before_store(ctx, task);
      __syncwarp();
    }
    named_barrier_sync<Edges::start, kBarrier, kThreads>();
    if (!ctx.aborted()) {
      u64 alignment = task.source | task.source_pitch_bytes | task.destination_pitch_bytes | task.row_bytes;
      for (u32 d = 0; d < task.destinations; ++d) alignment |= hooks.destination(task, d);
      if (alignment % 16 == 0) {
        copy_rows_by<16, kThreads>(hooks, task, thread);
      } else if (alignment % 4 == 0) {
        copy_rows_by<4, kThreads>(hooks, task, thread);
      } else {
        copy_rows_by<2, kThreads>(hooks, task, thread);
      }
    }
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
