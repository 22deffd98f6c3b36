// Copies [rows, row_bytes] between tensors of any pitch, with ordinary loads and stores by a whole CTA (or a part).
// For what TMA cannot address: rows or pitches that are not multiples of 16 bytes.
struct RowsTask {
  u32 task;               // linear index in the role
  u32 family;
  u64 source;             // address of the first row
  u64 source_pitch_bytes;
  u64 destination_pitch_bytes;
  u64 row_bytes;          // a multiple of `kLeast`
  u32 rows;
  u32 destinations;
  u32 given;  // of a rank's own number of rows: how many are there; for the others each word is `fill`
  u32 fill;
};

// Loads in flight per thread before the first store.
constexpr u32 kRowsUnroll = 8;
constexpr u32 kFewUnroll = 4;      // of ids and gates, few, and over nodes: eight spill beside experts of eight bits
constexpr u32 kShiftedUnroll = 2;  // of five words each: six of them spill beside a GEMM

// A thread's way through rows that several threads share, without dividing by a row's length. A warp takes neighbouring vectors of a
// row; of short rows of 16-byte vectors it takes 2 or 4 side by side, 16 or 8 vectors of each at a time, so that no lane idles at 128
// bytes and their multiples.
struct RowWalk {
  u32 row, vector;  // past the last row at the end
  u32 begin, end;   // of the vectors
  u32 stride, apart;  // from one step to the next: vectors, and rows where a row ends

  // Thread `thread` of `threads`; rows of `vectors` of `kBytes`.
  template <u32 kBytes>
  MK_DEVICE static RowWalk of(u32 thread, u32 threads, u32 rows, u32 vectors) {
    const u32 bits = kBytes < 16 || vectors >= 128 || vectors % 32 == 0 ? 5 : vectors % 16 == 0 ? 4 : 3;
    const u32 stride = 1u << bits, begin = thread % stride;
    return RowWalk{begin < vectors ? thread >> bits : rows, begin, begin, vectors, stride, threads >> bits};
  }
  // The places to come are computed anew: what was computed for loads needs no registers until the stores.
  MK_DEVICE void forget() { asm volatile("" : "+r"(row), "+r"(vector)); }
  MK_DEVICE void advance() {
    vector += stride;
    if (vector >= end) {
      vector = begin;
      row += apart;
    }
  }
};

template <u32 kBytes>
struct RowVector;
template <>
struct RowVector<16> {
  typedef Vec16 Type;
  MK_DEVICE static Type load(u64 p) { return ld_vec16(reinterpret_cast<const void*>(p)); }
  MK_DEVICE static Type of(u32 word) { return Type{{word, word, word, word}}; }
  MK_DEVICE static void store(u64 p, Type v) { st_vec16(reinterpret_cast<void*>(p), v); }
};
template <>
struct RowVector<4> {
  typedef u32 Type;
  MK_DEVICE static Type load(u64 p) { return ld_u32(reinterpret_cast<const void*>(p)); }
  MK_DEVICE static Type of(u32 word) { return word; }
  MK_DEVICE static void store(u64 p, Type v) { st_u32(reinterpret_cast<void*>(p), v); }
};
template <>
struct RowVector<1> {
  typedef u16 Type;
  MK_DEVICE static Type load(u64 p) { return ld_u8(reinterpret_cast<const void*>(p)); }
  MK_DEVICE static Type of(u32 word) { return static_cast<Type>(word); }
  MK_DEVICE static void store(u64 p, Type v) { st_u8(reinterpret_cast<void*>(p), v); }
};
template <>
struct RowVector<2> {
  typedef u16 Type;
  MK_DEVICE static Type load(u64 p) { return ld_u16(reinterpret_cast<const void*>(p)); }
  MK_DEVICE static Type of(u32 word) { return static_cast<Type>(word); }
  MK_DEVICE static void store(u64 p, Type v) { st_u16(reinterpret_cast<void*>(p), v); }
};

// 16 bytes that begin at any element of two: the words that they are in, shifted when all have come.
struct ShiftedVector {
  struct Type {
    u32 words[5];
    bool apart;
  };
  MK_DEVICE static Type load(u64 p) {
    Type v;
    v.apart = p % 4 != 0;
    const u32* const from = reinterpret_cast<const u32*>(p - p % 4);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) v.words[i] = ld_u32(from + i);
    // Nothing behind the last element.
    v.words[4] = v.apart ? ld_u16(from + 4) : 0;
    return v;
  }
  MK_DEVICE static Type of(u32 word) { return Type{{word, word, word, word, word}, false}; }
  MK_DEVICE static void store(u64 p, const Type& v) {
    Vec16 out;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) out.x[i] = v.apart ? __funnelshift_r(v.words[i], v.words[i + 1], 16) : v.words[i];
    st_vec16(reinterpret_cast<void*>(p), out);
  }
};

template <u32 kBytes, u32 kThreads, bool kOwnRows, u32 kUnroll = kRowsUnroll,
          class Vector = RowVector<kBytes>, class Hooks>
MK_DEVICE void copy_rows_by(const Hooks& hooks, const RowsTask& task, u32 thread, u64 behind = 0) {
  RowWalk at = RowWalk::of<kBytes>(thread, kThreads, task.rows, static_cast<u32>(task.row_bytes / kBytes));
#pragma unroll 1
  while (at.row < task.rows) {
    typename Vector::Type v[kUnroll];
    RowWalk from = at;
#pragma unroll
    for (u32 i = 0; i < kUnroll; ++i) {
      const u64 place = task.source + from.row * task.source_pitch_bytes + u64{from.vector} * kBytes;
      if constexpr (kOwnRows) {
        v[i] = from.row < task.given ? Vector::load(place) : Vector::of(task.fill);
      } else if (from.row < task.rows) {
        v[i] = Vector::load(place);
      }
      from.advance();
    }
#pragma unroll 1
    for (u32 d = 0; d < task.destinations; ++d) {
      const u64 first = hooks.destination(task, d) + behind;
      RowWalk to = at;
#pragma unroll
      for (u32 i = 0; i < kUnroll; ++i) {
        if (to.row < task.rows) Vector::store(first + to.row * task.destination_pitch_bytes + u64{to.vector} * kBytes, v[i]);
        to.advance();
      }
    }
    at = from;
  }
}

// Rows that begin at any element of two bytes, to rows that begin at multiples of 16: whole vectors, and what is left of each row.
template <u32 kThreads, class Hooks>
MK_DEVICE void copy_shifted_rows(const Hooks& hooks, const RowsTask& task, u32 thread) {
  RowsTask part = task;
  part.row_bytes = task.row_bytes / 16 * 16;
  copy_rows_by<16, kThreads, false, kShiftedUnroll, ShiftedVector>(hooks, part, thread);
  part.source += part.row_bytes;
  part.row_bytes = task.row_bytes % 16;
  if (part.row_bytes > 0) copy_rows_by<2, kThreads, false>(hooks, part, thread, task.row_bytes - part.row_bytes);
}

// The tasks of a worker, number `worker` of `workers` in this CTA. With a static schedule every so many of the role's; with a dynamic one
// one to begin with, and then the next that nobody has taken. `begin` decodes the next task for every thread; before its barrier the first
// warp, by `wait`, waits for what the task needs.
template <class Hooks, bool kDynamic = Hooks::kDynamic>
struct Turns {
  const Hooks& hooks;
  u32 t, step;
  MK_DEVICE Turns(const Context&, const Hooks& hooks, u32 worker, u32 workers)
      : hooks(hooks), t(hooks.first() + worker * hooks.stride()), step(workers * hooks.stride()) {}
  template <class Task, class Wait, class Sync>
  MK_DEVICE bool begin(Task& task, u32 thread, Wait wait, Sync sync) {
    if (t >= hooks.end()) return false;
    task = hooks.decode(t);
    if (thread < 32) {
      wait(task);
      __syncwarp();
    }
    sync();
    return true;
  }
  MK_DEVICE void advance() { t += step; }
};

template <class Hooks>
struct Turns<Hooks, true> {
  const Context& ctx;
  const Hooks& hooks;
  u32 slot;  // shared address of what the first warp tells the others
  u32 next;  // of the first lane
  MK_DEVICE Turns(const Context& ctx, const Hooks& hooks, u32 worker, u32)
      : ctx(ctx), hooks(hooks), slot(ctx.taken(worker)), next(hooks.first() + worker * hooks.stride()) {}
  template <class Task, class Wait, class Sync>
  MK_DEVICE bool begin(Task& task, u32 thread, Wait wait, Sync sync) {
    if (thread < 32) {
      const u32 t = __shfl_sync(0xffffffffu, next, 0);
      if (lane_index() == 0) st_shared(slot, t);
      if (t < hooks.end()) {
        task = hooks.decode(t);
        wait(task);
        // Behind the wait, so that a worker that stands still has no second one; the answer has the time of a task.
        if (lane_index() == 0) next = take_task(ctx, hooks);
      }
      __syncwarp();
    }
    sync();
    const u32 t = ld_shared(slot);
    const bool more = t < hooks.end();
    // Nobody overwrites what the others have not read: they meet again behind a task, and here where there is none.
    if (!more) sync();
    else if (thread >= 32) task = hooks.decode(t);
    return more;
  }
  MK_DEVICE void advance() {}
};

// Orders the threads of one team; teams have barriers of their own.
template <u32 kEdge, u32 kBarrier, u32 kTeams, u32 kThreads>
MK_DEVICE void team_sync(u32 team) {
  static_assert(kTeams <= 2, "a barrier's id is an immediate");
  if (kTeams == 1 || team == 0) {
    named_barrier_sync<kEdge, kBarrier, kThreads>();
  } else {
    named_barrier_sync<kEdge, kBarrier + 1, kThreads>();
  }
}

// Run by `kThreads` threads, numbered from 0 by `thread`; a multiple of 32. The first warp waits and posts for all, each
// lane for its share of the words, over the named barrier `kBarrier`: `Edges::start` orders its acquires before everybody's
// loads, `Edges::done` everybody's stores before its releases. `kLeast`: bytes of the smallest elements. `kOwnRows`: whether tasks say how
// many rows are there.
template <u32 kThreads, u32 kBarrier, class Edges, u32 kLeast = 2, bool kOwnRows = false,
          u32 kUnroll = kOwnRows ? kFewUnroll : kRowsUnroll, class Hooks>
MK_DEVICE void copy_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (Turns<Hooks> turns(ctx, hooks, 0, 1);; turns.advance()) {
    RowsTask task;
    if (!turns.begin(task, thread, [&](const RowsTask& next) {
          chaos_delay(ctx, Agent::Copier, next.task);
          hooks.before_load(ctx, next);
          hooks.before_store(ctx, next);
        }, [] { named_barrier_sync<Edges::start, kBarrier, kThreads>(); })) {
      break;
    }
    if (!ctx.aborted()) {
      u64 to = task.destination_pitch_bytes;
      for (u32 d = 0; d < task.destinations; ++d) to |= hooks.destination(task, d);
      const u64 alignment = to | task.source | task.source_pitch_bytes | task.row_bytes;
      if (alignment % 16 == 0) {
        copy_rows_by<16, kThreads, kOwnRows, kUnroll>(hooks, task, thread);
      } else if (!kOwnRows && kLeast == 2 && to % 16 == 0) {
        copy_shifted_rows<kThreads>(hooks, task, thread);
      } else if (alignment % 4 == 0) {
        copy_rows_by<4, kThreads, kOwnRows, kUnroll>(hooks, task, thread);
      } else {
        copy_rows_by<kLeast, kThreads, kOwnRows, kUnroll>(hooks, task, thread);
      }
    }
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
