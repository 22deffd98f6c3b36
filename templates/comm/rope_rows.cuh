// Heads of rows, turned by the angles of their row. A warp takes a row; a lane turns 8 pairs at a time, 16 bytes of each half of a head.
// Ordinary loads and stores; fp32.
struct RopeRows {
  u64 x, x_pitch_bytes;
  u64 angles, angles_pitch_bytes;  // of a row, fp32: cosines, then sines
  u64 out, out_pitch_bytes;
  i32 rows;
  u32 columns, head;  // whole heads, each a multiple of 16
};

// A task of a role.
struct RopeTask {
  u32 task;  // linear index in the role
  u32 family;
  RopeRows rows;
};

// Pairs of vectors of a lane that are in flight together.
constexpr u32 kRopeSteps = 2;

// Eight pairs: both halves of a head, and the cosines and sines of their angles.
struct RopeVectors {
  Vec16 first, second, cosines[2], sines[2];

  MK_DEVICE RopeVectors() {}
  MK_DEVICE static u64 place(const RopeRows& r, u32 pair) { return u64{pair / (r.head / 16)} * r.head * 2 + u64{pair % (r.head / 16)} * 16; }
  MK_DEVICE void load(const RopeRows& r, u32 row, u32 pair) {
    const u64 at = r.x + row * r.x_pitch_bytes + place(r, pair), half_bytes = u64{r.head};
    first = ld_vec16(reinterpret_cast<const void*>(at));
    second = ld_vec16(reinterpret_cast<const void*>(at + half_bytes));
    const u64 of = r.angles + row * r.angles_pitch_bytes + u64{pair % (r.head / 16)} * 32;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      cosines[i] = ld_vec16(reinterpret_cast<const void*>(of + i * 16));
      sines[i] = ld_vec16(reinterpret_cast<const void*>(of + u64{r.head} * 2 + i * 16));
    }
  }
  MK_DEVICE float cosine(u32 i) const { return __uint_as_float(cosines[i / 4].x[i % 4]); }
  MK_DEVICE float sine(u32 i) const { return __uint_as_float(sines[i / 4].x[i % 4]); }
};

// Run by `threads` threads, whole warps, of which this is the `thread`th.
template <Dtype kDtype, bool kBack>
MK_DEVICE void rope_rows(const Context& ctx, const RopeRows& r, u32 thread, u32 threads) {
  if (ctx.aborted()) return;
  const u32 lane = thread % 32, pairs = r.columns / 16;
#pragma unroll 1
  for (i32 row = thread / 32; row < r.rows; row += threads / 32) {
#pragma unroll 1
    for (u32 begin = lane; begin < pairs; begin += 32 * kRopeSteps) {
      RopeVectors v[kRopeSteps];
      // Behind the last pair the last once more: no branch stands between loads.
#pragma unroll
      for (u32 s = 0; s < kRopeSteps; ++s) v[s].load(r, row, min(begin + s * 32, pairs - 1));
#pragma unroll
      for (u32 s = 0; s < kRopeSteps; ++s) {
        if (begin + s * 32 >= pairs) continue;
        Vec16 first, second;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          float x[2], y[2];
#pragma unroll
          for (u32 j = 0; j < 2; ++j) {
            const float a = j == 0 ? unpack_lo<kDtype>(v[s].first.x[i]) : unpack_hi<kDtype>(v[s].first.x[i]);
            const float b = j == 0 ? unpack_lo<kDtype>(v[s].second.x[i]) : unpack_hi<kDtype>(v[s].second.x[i]);
            const float c = v[s].cosine(2 * i + j), d = kBack ? -v[s].sine(2 * i + j) : v[s].sine(2 * i + j);
            x[j] = a * c - b * d;
            y[j] = b * c + a * d;
          }
          first.x[i] = pack2<kDtype>(x[0], x[1]);
          second.x[i] = pack2<kDtype>(y[0], y[1]);
        }
        const u64 at = r.out + row * r.out_pitch_bytes + RopeVectors::place(r, begin + s * 32);
        st_vec16(reinterpret_cast<void*>(at), first);
        st_vec16(reinterpret_cast<void*>(at + u64{r.head}), second);
      }
    }
  }
}

// Run by `kThreads` threads, numbered from 0 by `thread`, over the named barrier `kBarrier`: as `copy_rows`.
template <Dtype kDtype, bool kBack, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void rope_tasks(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (Turns<Hooks> turns(ctx, hooks, 0, 1);; turns.advance()) {
    RopeTask task;
    if (!turns.begin(task, thread, [&](const RopeTask& next) {
          chaos_delay(ctx, Agent::Copier, next.task);
          hooks.before_load(ctx, next);
        }, [] { named_barrier_sync<Edges::start, kBarrier, kThreads>(); })) {
      break;
    }
    rope_rows<kDtype, kBack>(ctx, task.rows, thread, kThreads);
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
