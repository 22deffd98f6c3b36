// Adds rows of several sources, in a fixed order, in fp32, and writes the rounded sums to one or several places. Ordinary
// loads and stores by a part of the CTA; what a source's rows were written by does not matter after the acquire.
struct ReduceTask {
  u32 task;               // linear index in the role
  u32 family;
  u32 sources;
  u64 source_stride_bytes;  // from one source to the next
  u64 source_pitch_bytes;
  u64 row_bytes;          // even
  u32 rows;
  u32 destinations;
};

// Rows that one warp has in flight; times the sources, so that the loads cover the latency of HBM.
constexpr u32 kReduceUnroll = 2;
// Sources whose loads are in flight together.
constexpr u32 kReduceSources = 4;

// Eight 16-bit elements, widened and added.
template <Dtype kDtype>
MK_DEVICE void add_vector(float (&sum)[8], Vec16 v) {
  const u32 (&words)[4] = v.x;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    sum[2 * i] += unpack_lo<kDtype>(words[i]);
    sum[2 * i + 1] += unpack_hi<kDtype>(words[i]);
  }
}

template <Dtype kDtype>
MK_DEVICE Vec16 round_vector(const float (&sum)[8]) {
  return Vec16{{pack2<kDtype>(sum[0], sum[1]), pack2<kDtype>(sum[2], sum[3]), pack2<kDtype>(sum[4], sum[5]),
               pack2<kDtype>(sum[6], sum[7])}};
}

// Rows whose addresses and pitches are multiples of 16 bytes; a tail of less than 16 bytes goes element by element.
template <Dtype kDtype, u32 kThreads, class Hooks>
MK_DEVICE void reduce_rows_by_16(const Hooks& hooks, const ReduceTask& task, u32 thread) {
  constexpr u32 kWarps = kThreads / 32;
  const u64 source = hooks.source(task);
  const u64 whole = task.row_bytes / 16 * 16;
#pragma unroll 1
  for (u32 row = thread / 32; row < task.rows; row += kWarps * kReduceUnroll) {
#pragma unroll 1
    for (u64 at = thread % 32 * 16; at < whole; at += 32 * 16) {
      float sum[kReduceUnroll][8] = {};
#pragma unroll 1
      for (u32 s0 = 0; s0 < task.sources; s0 += kReduceSources) {
        Vec16 v[kReduceUnroll][kReduceSources];
#pragma unroll
        for (u32 i = 0; i < kReduceUnroll; ++i) {
#pragma unroll
          for (u32 s = 0; s < kReduceSources; ++s) {
            const u32 r = row + i * kWarps;
            if (r < task.rows && s0 + s < task.sources) {
              const u64 from = source + (s0 + s) * task.source_stride_bytes + r * task.source_pitch_bytes + at;
              v[i][s] = ld_vec16(reinterpret_cast<const void*>(from));
            }
          }
        }
#pragma unroll
        for (u32 i = 0; i < kReduceUnroll; ++i) {
#pragma unroll
          for (u32 s = 0; s < kReduceSources; ++s) {
            if (row + i * kWarps < task.rows && s0 + s < task.sources) add_vector<kDtype>(sum[i], v[i][s]);
          }
        }
      }
#pragma unroll
      for (u32 i = 0; i < kReduceUnroll; ++i) {
        const u32 r = row + i * kWarps;
        if (r >= task.rows) continue;
        const Vec16 rounded = round_vector<kDtype>(sum[i]);
#pragma unroll 1
        for (u32 d = 0; d < task.destinations; ++d) {
          st_vec16(reinterpret_cast<void*>(hooks.destination(task, d) + r * hooks.destination_pitch(task, d) + at), rounded);
        }
      }
    }
  }
}

// Elements `first_byte` and on of every row, one by one.
template <Dtype kDtype, u32 kThreads, class Hooks>
MK_DEVICE void reduce_elements(const Hooks& hooks, const ReduceTask& task, u32 thread, u64 first_byte) {
  constexpr u32 kWarps = kThreads / 32;
  const u64 source = hooks.source(task);
#pragma unroll 1
  for (u32 row = thread / 32; row < task.rows; row += kWarps) {
#pragma unroll 1
    for (u64 at = first_byte + thread % 32 * kElemBytes; at < task.row_bytes; at += 32 * kElemBytes) {
      float sum = 0.0f;
#pragma unroll 1
      for (u32 s = 0; s < task.sources; ++s) {
        const u64 from = source + s * task.source_stride_bytes + row * task.source_pitch_bytes + at;
        sum += widen<kDtype>(ld_u16(reinterpret_cast<const void*>(from)));
      }
#pragma unroll 1
      for (u32 d = 0; d < task.destinations; ++d) {
        const u64 to = hooks.destination(task, d) + row * hooks.destination_pitch(task, d) + at;
        st_u16(reinterpret_cast<void*>(to), narrow<kDtype>(sum));
      }
    }
  }
}

// Run by `kThreads` threads, numbered from 0 by `thread`; a multiple of 32. Thread 0 waits and posts for all, over the
// named barrier `kBarrier`, as in `copy_rows`.
template <Dtype kDtype, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void reduce_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    const ReduceTask task = hooks.decode(t);
    if (thread == 0) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_load(ctx, task);
    }
    named_barrier_sync<Edges::start, kBarrier, kThreads>();
    if (!ctx.aborted()) {
      u64 alignment = hooks.source(task) | task.source_stride_bytes | task.source_pitch_bytes;
      for (u32 d = 0; d < task.destinations; ++d) {
        alignment |= hooks.destination(task, d) | hooks.destination_pitch(task, d);
      }
      u64 done = 0;
      if (alignment % 16 == 0) {
        reduce_rows_by_16<kDtype, kThreads>(hooks, task, thread);
        done = task.row_bytes / 16 * 16;
      }
      reduce_elements<kDtype, kThreads>(hooks, task, thread, done);
    }
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread == 0) hooks.after_store(ctx, task);
  }
}
