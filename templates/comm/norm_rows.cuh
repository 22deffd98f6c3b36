// Root mean square normalisation of rows, and its gradient. A warp takes a row, neighbouring lanes neighbouring 16 bytes, and reads it
// twice: for its sums, and, from L2, for its result. Ordinary loads and stores; sums in fp32.
struct NormRows {
  u64 x, x_pitch_bytes;
  u64 d, d_pitch_bytes;  // gradients of the result
  u64 weight;            // one row
  u64 out, out_pitch_bytes;
  i32 rows;
  u32 columns;           // a multiple of 8
};

// A task of a role.
struct NormTask {
  u32 task;  // linear index in the role
  u32 family;
  NormRows rows;
};

// Vectors of a lane that are in flight together.
constexpr u32 kNormSteps = 4;

// What a lane has of a row at one place: the row, its gradients, the weight.
template <Dtype kDtype, bool kGrad, bool kWeight>
struct NormVectors {
  Vec16 x, d, w;

  MK_DEVICE NormVectors() {}
  MK_DEVICE void load(const NormRows& r, u32 row, u32 vector) {
    x = ld_vec16(reinterpret_cast<const void*>(r.x + row * r.x_pitch_bytes + u64{vector} * 16));
    if constexpr (kGrad) d = ld_vec16(reinterpret_cast<const void*>(r.d + row * r.d_pitch_bytes + u64{vector} * 16));
    if constexpr (kWeight) w = ld_vec16(reinterpret_cast<const void*>(r.weight + u64{vector} * 16));
  }
  MK_DEVICE static float at(const Vec16& v, u32 i) { return i % 2 == 0 ? unpack_lo<kDtype>(v.x[i / 2]) : unpack_hi<kDtype>(v.x[i / 2]); }
  MK_DEVICE float row(u32 i) const { return at(x, i); }
  // What the reciprocal root multiplies.
  MK_DEVICE float from(u32 i) const {
    float y = kGrad ? at(d, i) : at(x, i);
    if constexpr (kWeight) y *= at(w, i);
    return y;
  }
};

// Run by `threads` threads, whole warps, of which this is the `thread`th.
template <Dtype kDtype, bool kGrad, bool kWeight>
MK_DEVICE void norm_rows(const Context& ctx, const NormRows& r, float eps, u32 thread, u32 threads) {
  typedef NormVectors<kDtype, kGrad, kWeight> Vectors;
  if (ctx.aborted()) return;
  const u32 lane = thread % 32, vectors = r.columns / 8;
#pragma unroll 1
  for (i32 row = thread / 32; row < r.rows; row += threads / 32) {
    float squares = 0.0f, along = 0.0f;
#pragma unroll 1
    for (u32 first = lane; first < vectors; first += 32 * kNormSteps) {
      Vectors v[kNormSteps];
      // Behind the last vector the last once more: no branch stands between loads.
#pragma unroll
      for (u32 s = 0; s < kNormSteps; ++s) v[s].load(r, row, min(first + s * 32, vectors - 1));
#pragma unroll
      for (u32 s = 0; s < kNormSteps; ++s) {
        if (first + s * 32 < vectors) {
#pragma unroll
          for (u32 i = 0; i < 8; ++i) {
            squares += v[s].row(i) * v[s].row(i);
            if constexpr (kGrad) along += v[s].from(i) * v[s].row(i);
          }
        }
      }
    }
    // The same sum in every lane.
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) {
      squares += __shfl_xor_sync(0xffffffffu, squares, apart);
      if constexpr (kGrad) along += __shfl_xor_sync(0xffffffffu, along, apart);
    }
    const float n = static_cast<float>(r.columns);
    const float root = rsqrtf(squares / n + eps);
    const float back = kGrad ? root * root * root * (along / n) : 0.0f;
#pragma unroll 1
    for (u32 first = lane; first < vectors; first += 32 * kNormSteps) {
      Vectors v[kNormSteps];
#pragma unroll
      for (u32 s = 0; s < kNormSteps; ++s) v[s].load(r, row, min(first + s * 32, vectors - 1));
#pragma unroll
      for (u32 s = 0; s < kNormSteps; ++s) {
        if (first + s * 32 < vectors) {
          Vec16 out;
#pragma unroll
          for (u32 i = 0; i < 4; ++i) {
            float y[2];
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
              y[j] = root * v[s].from(2 * i + j);
              if constexpr (kGrad) y[j] -= back * v[s].row(2 * i + j);
            }
            out.x[i] = pack2<kDtype>(y[0], y[1]);
          }
          st_vec16(reinterpret_cast<void*>(r.out + row * r.out_pitch_bytes + u64{first + s * 32} * 16), out);
        }
      }
    }
  }
}

// Run by `kThreads` threads, numbered from 0 by `thread`, over the named barrier `kBarrier`: as `copy_rows`.
template <Dtype kDtype, bool kGrad, bool kWeight, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void norm_tasks(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (Turns<Hooks> turns(ctx, hooks, 0, 1);; turns.advance()) {
    NormTask task;
    if (!turns.begin(task, thread, [&](const NormTask& next) {
          chaos_delay(ctx, Agent::Copier, next.task);
          hooks.before_load(ctx, next);
        }, [] { named_barrier_sync<Edges::start, kBarrier, kThreads>(); })) {
      break;
    }
    norm_rows<kDtype, kGrad, kWeight>(ctx, task.rows, hooks.eps(), thread, kThreads);
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
