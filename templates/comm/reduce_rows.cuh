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
};

// Rows that one warp has in flight; times the sources, so that the loads cover the latency of HBM.
constexpr u32 kReduceUnroll = 4;
// Sources whose loads are in flight together.
constexpr u32 kReduceSources = 4;

// Where a task's sums go: looked up once, because the hooks decode the task for it.
template <u32 kCount>
struct ReduceTargets {
  u64 base[kCount];
  u64 pitch_bytes[kCount];

  template <class Hooks>
  MK_DEVICE ReduceTargets(const Hooks& hooks, const ReduceTask& task) {
#pragma unroll
    for (u32 d = 0; d < kCount; ++d) {
      base[d] = hooks.destination(task, d);
      pitch_bytes[d] = hooks.destination_pitch(task, d);
    }
  }
  MK_DEVICE u64 at(u32 d, u32 row, u64 byte) const { return base[d] + row * pitch_bytes[d] + byte; }
};

// Elements of 16 bytes.
template <Dtype kDtype>
constexpr u32 kVectorElements = 16 / element_bytes(kDtype);

// A vector's elements, widened and added.
template <Dtype kDtype>
MK_DEVICE void add_vector(float (&sum)[kVectorElements<kDtype>], Vec16 v) {
  const u32 (&words)[4] = v.x;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (kDtype == Dtype::F32) {
      sum[i] += __uint_as_float(words[i]);
    } else {
      sum[2 * i] += unpack_lo<kDtype>(words[i]);
      sum[2 * i + 1] += unpack_hi<kDtype>(words[i]);
    }
  }
}

template <Dtype kDtype>
MK_DEVICE Vec16 round_vector(const float (&sum)[kVectorElements<kDtype>]) {
  Vec16 v;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (kDtype == Dtype::F32) {
      v.x[i] = __float_as_uint(sum[i]);
    } else {
      v.x[i] = pack2<kDtype>(sum[2 * i], sum[2 * i + 1]);
    }
  }
  return v;
}

// One element, widened; and rounded.
template <Dtype kDtype>
MK_DEVICE float load_element(u64 address) {
  const void* p = reinterpret_cast<const void*>(address);
  if constexpr (kDtype == Dtype::F32) return __uint_as_float(ld_u32(p));
  else return widen<kDtype>(ld_u16(p));
}
template <Dtype kDtype>
MK_DEVICE void store_element(u64 address, float x) {
  void* p = reinterpret_cast<void*>(address);
  if constexpr (kDtype == Dtype::F32) st_u32(p, __float_as_uint(x));
  else st_u16(p, narrow<kDtype>(x));
}

// Rows whose addresses and pitches are multiples of 16 bytes; a tail of less than 16 bytes goes element by element.
template <Dtype kDtype, u32 kThreads, class Hooks>
MK_DEVICE void reduce_rows_by_16(const ReduceTask& task, u64 source, const ReduceTargets<Hooks::kDestinations>& targets,
                                 u32 thread) {
  constexpr u32 kWarps = kThreads / 32;
  const u64 whole = task.row_bytes / 16 * 16;
#pragma unroll 1
  for (u32 row = thread / 32; row < task.rows; row += kWarps * kReduceUnroll) {
#pragma unroll 1
    for (u64 at = thread % 32 * 16; at < whole; at += 32 * 16) {
      float sum[kReduceUnroll][kVectorElements<kDtype>] = {};
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
#pragma unroll
        for (u32 d = 0; d < Hooks::kDestinations; ++d) {
          st_vec16(reinterpret_cast<void*>(targets.at(d, r, at)), rounded);
        }
      }
    }
  }
}

// Elements `first_byte` and on of every row, one by one.
template <Dtype kDtype, u32 kThreads, class Hooks>
MK_DEVICE void reduce_elements(const ReduceTask& task, u64 source, const ReduceTargets<Hooks::kDestinations>& targets,
                               u32 thread, u64 first_byte) {
  constexpr u32 kWarps = kThreads / 32, kBytes = element_bytes(kDtype);
#pragma unroll 1
  for (u32 row = thread / 32; row < task.rows; row += kWarps) {
#pragma unroll 1
    for (u64 at = first_byte + thread % 32 * kBytes; at < task.row_bytes; at += 32 * kBytes) {
      float sum = 0.0f;
#pragma unroll 1
      for (u32 s = 0; s < task.sources; ++s) {
        sum += load_element<kDtype>(source + s * task.source_stride_bytes + row * task.source_pitch_bytes + at);
      }
#pragma unroll
      for (u32 d = 0; d < Hooks::kDestinations; ++d) store_element<kDtype>(targets.at(d, row, at), sum);
    }
  }
}

// Run by `kThreads` threads, numbered from 0 by `thread`; a multiple of 32. The first warp waits and posts for all, over
// the named barrier `kBarrier`, as in `copy_rows`.
template <Dtype kDtype, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void reduce_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    const ReduceTask task = hooks.decode(t);
    if (thread < 32) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_load(ctx, task);
      __syncwarp();
    }
    named_barrier_sync<Edges::start, kBarrier, kThreads>();
    if (!ctx.aborted()) {
      const u64 source = hooks.source(task);
      const ReduceTargets<Hooks::kDestinations> targets(hooks, task);
      u64 alignment = source | task.source_stride_bytes | task.source_pitch_bytes;
#pragma unroll
      for (u32 d = 0; d < Hooks::kDestinations; ++d) alignment |= targets.base[d] | targets.pitch_bytes[d];
      u64 done = 0;
      if (alignment % 16 == 0) {
        reduce_rows_by_16<kDtype, kThreads, Hooks>(task, source, targets, thread);
        done = task.row_bytes / 16 * 16;
      }
      if (done < task.row_bytes) reduce_elements<kDtype, kThreads, Hooks>(task, source, targets, thread, done);
    }
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) hooks.after_store(ctx, task);
  }
}
