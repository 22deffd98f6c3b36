// Rows in eight bits, with a factor for each 128 elements, and back. A warp takes a row; a lane has 8 elements at a time, 16 neighbouring
// lanes a block. Ordinary loads and stores; fp32.
struct QuantRows {
  u64 x, x_pitch_bytes;
  u64 out, out_pitch_bytes;
  u64 factors, factors_pitch_bytes;  // of the first row: fp32, a row of them for each block
  i32 rows;
  u32 columns;  // a multiple of 16
};

// A task of a role.
struct QuantTask {
  u32 task;  // linear index in the role
  u32 family;
  QuantRows rows;
};

// Vectors of a lane that are in flight together.
constexpr u32 kQuantSteps = 4;

// Run by `threads` threads, whole warps, of which this is the `thread`th.
template <Dtype kDtype, Dtype kNarrow>
MK_DEVICE void quantize_rows(const QuantRows& r, u32 thread, u32 threads) {
  const u32 lane = thread % 32, vectors = r.columns / 8;
#pragma unroll 1
  for (i32 row = thread / 32; row < r.rows; row += threads / 32) {
#pragma unroll 1
    for (u32 begin = 0; begin < vectors; begin += 32 * kQuantSteps) {
      const u32 first = begin + lane;  // all lanes go on together
      Vec16 v[kQuantSteps];
      // Behind the last vector the last once more: no branch stands between loads.
#pragma unroll
      for (u32 s = 0; s < kQuantSteps; ++s) {
        v[s] = ld_vec16(reinterpret_cast<const void*>(r.x + row * r.x_pitch_bytes + u64{min(first + s * 32, vectors - 1)} * 16));
      }
#pragma unroll
      for (u32 s = 0; s < kQuantSteps; ++s) {
        const u32 vector = first + s * 32;
        const bool there = vector < vectors;
        float x[8];
        u32 magnitude = 0;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
          x[i] = i % 2 == 0 ? unpack_lo<kDtype>(v[s].x[i / 2]) : unpack_hi<kDtype>(v[s].x[i / 2]);
          magnitude = max(magnitude, __float_as_uint(x[i]) & 0x7fffffffu);
        }
        magnitude = there ? magnitude : 0;
        // The same in all lanes of a block.
#pragma unroll
        for (u32 apart = 8; apart > 0; apart /= 2) magnitude = max(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, apart));
        if (!there) continue;
        const float factor = factor_of<kNarrow>(magnitude);
        const Divisor by(factor);
        u32 out[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
          const u32 lo = pack2_bytes<kNarrow>(by.quotient(x[4 * i]), by.quotient(x[4 * i + 1]));
          const u32 hi = pack2_bytes<kNarrow>(by.quotient(x[4 * i + 2]), by.quotient(x[4 * i + 3]));
          out[i] = lo | hi << 16;
        }
        st_u32x2(reinterpret_cast<void*>(r.out + row * r.out_pitch_bytes + u64{vector} * 8), out[0], out[1]);
        if (lane % 16 == 0) {
          st_u32(reinterpret_cast<void*>(r.factors + u64{vector / 16} * r.factors_pitch_bytes + row * u64{4}), __float_as_uint(factor));
        }
      }
    }
  }
}

// The same, the other way.
template <Dtype kDtype, Dtype kNarrow>
MK_DEVICE void dequantize_rows(const QuantRows& r, u32 thread, u32 threads) {
  const u32 lane = thread % 32, vectors = r.columns / 8;
#pragma unroll 1
  for (i32 row = thread / 32; row < r.rows; row += threads / 32) {
#pragma unroll 1
    for (u32 first = lane; first < vectors; first += 32 * kQuantSteps) {
      u32 x[kQuantSteps][2], factor[kQuantSteps];
#pragma unroll
      for (u32 s = 0; s < kQuantSteps; ++s) {
        const u32 vector = min(first + s * 32, vectors - 1);
        const u64 at = r.x + row * r.x_pitch_bytes + u64{vector} * 8;
        x[s][0] = ld_u32(reinterpret_cast<const void*>(at));
        x[s][1] = ld_u32(reinterpret_cast<const void*>(at + 4));
        factor[s] = ld_u32(reinterpret_cast<const void*>(r.factors + u64{vector / 16} * r.factors_pitch_bytes + row * u64{4}));
      }
#pragma unroll
      for (u32 s = 0; s < kQuantSteps; ++s) {
        if (first + s * 32 >= vectors) continue;
        Vec16 out;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          const u32 pair = x[s][i / 2] >> (i % 2 * 16);
          const float f = __uint_as_float(factor[s]);
          const float lo = widen_byte<kNarrow>(static_cast<u16>(pair & 0xff)), hi = widen_byte<kNarrow>(static_cast<u16>(pair >> 8 & 0xff));
          out.x[i] = pack2<kDtype>(lo * f, hi * f);
        }
        st_vec16(reinterpret_cast<void*>(r.out + row * r.out_pitch_bytes + u64{first + s * 32} * 16), out);
      }
    }
  }
}

// Run by `kThreads` threads, numbered from 0 by `thread`, over the named barrier `kBarrier`: as `copy_rows`.
template <Dtype kDtype, Dtype kNarrow, bool kBack, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void quant_tasks(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (Turns<Hooks> turns(ctx, hooks, 0, 1);; turns.advance()) {
    QuantTask task;
    if (!turns.begin(task, thread, [&](const QuantTask& next) {
          chaos_delay(ctx, Agent::Copier, next.task);
          hooks.before_load(ctx, next);
        }, [] { named_barrier_sync<Edges::start, kBarrier, kThreads>(); })) {
      break;
    }
    if (!ctx.aborted()) {
      if constexpr (kBack) {
        dequantize_rows<kDtype, kNarrow>(task.rows, thread, kThreads);
      } else {
        quantize_rows<kDtype, kNarrow>(task.rows, thread, kThreads);
      }
    }
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
