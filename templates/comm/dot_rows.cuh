// Products of rows that are each looked up with a row of the own rank: an element for each, in fp32. A warp has a row of the own rank, of the few
// that a task has; its lanes add up columns, then each other's sums, in the same order whoever runs it. Or elements alone, each looked up.
struct DotTask {
  u32 task;  // linear index in the role
  u32 family;
};

// The sum of products of a vector's elements.
template <Dtype kDtype>
MK_DEVICE float dot_vector(float sum, Vec16 a, Vec16 b) {
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    sum = fmaf(unpack_lo<kDtype>(a.x[i]), unpack_lo<kDtype>(b.x[i]), sum);
    sum = fmaf(unpack_hi<kDtype>(a.x[i]), unpack_hi<kDtype>(b.x[i]), sum);
  }
  return sum;
}

// Rows whose places registers hold, and whose loads are in flight together.
constexpr u32 kHeldProducts = 8;

template <Dtype kDtype, class Hooks>
MK_DEVICE void dot_row(const Hooks& hooks, const DotTask& task, u32 row, u32 lane) {
  constexpr u32 kAtOnce = Hooks::kProducts < kHeldProducts ? Hooks::kProducts : kHeldProducts;
  const u64 own = hooks.factor(task, row);
#pragma unroll 1
  for (u32 from = 0; from < Hooks::kProducts; from += kAtOnce) {
    u64 place[kAtOnce];
    float sum[kAtOnce] = {};
    u64 alignment = own;
    u32 there = 0;  // a bit for each row
#pragma unroll
    for (u32 j = 0; j < kAtOnce; ++j) {
      const bool is = from + j < Hooks::kProducts && hooks.there(task, row, from + j);
      there |= is ? 1u << j : 0;
      place[j] = is ? hooks.source(task, row, from + j) : 0;
      alignment |= place[j];
    }
    const u32 done = alignment % 16 == 0 ? Hooks::kColumns / 8 * 8 : 0;
#pragma unroll 1
    for (u32 column = lane * 8; column < done; column += 32 * 8) {
      const Vec16 of_row = ld_vec16(reinterpret_cast<const void*>(own + column * 2));
      Vec16 v[kAtOnce];
#pragma unroll
      for (u32 j = 0; j < kAtOnce; ++j) {
        if ((there >> j & 1) != 0) v[j] = ld_vec16(reinterpret_cast<const void*>(place[j] + column * 2));
      }
#pragma unroll
      for (u32 j = 0; j < kAtOnce; ++j) {
        if ((there >> j & 1) != 0) sum[j] = dot_vector<kDtype>(sum[j], v[j], of_row);
      }
    }
#pragma unroll 1
    for (u32 column = done + lane; column < Hooks::kColumns; column += 32) {
      const float of_row = load_element<kDtype>(own + column * 2);
#pragma unroll
      for (u32 j = 0; j < kAtOnce; ++j) {
        if ((there >> j & 1) != 0) sum[j] = fmaf(load_element<kDtype>(place[j] + column * 2), of_row, sum[j]);
      }
    }
#pragma unroll
    for (u32 j = 0; j < kAtOnce; ++j) {
#pragma unroll
      for (u32 apart = 16; apart > 0; apart /= 2) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], apart);
      if (from + j < Hooks::kProducts && lane == j) store_element<Dtype::F32>(hooks.destination(task, row, from + j), sum[j]);
    }
  }
}

// Elements that stand for products: a lane for each, so that all loads are in flight together.
template <u32 kThreads, class Hooks>
MK_DEVICE void pick_elements(const Hooks& hooks, const DotTask& task, u32 thread) {
#pragma unroll 1
  for (u32 i = thread; i < Hooks::kRows * Hooks::kProducts; i += kThreads) {
    const u32 row = i / Hooks::kProducts, product = i % Hooks::kProducts;
    if (!hooks.exists(task, row)) continue;
    const bool there = hooks.there(task, row, product);
    const float x = there ? load_element<Dtype::F32>(hooks.source(task, row, product)) : 0.0f;
    store_element<Dtype::F32>(hooks.destination(task, row, product), x);
  }
}

// The first warp waits for what is looked up, then, by that, for all rows of the task; see `gather_rows`.
template <Dtype kDtype, u32 kThreads, u32 kBarrier, class Edges, bool kPlain = false, class Hooks>
MK_DEVICE void dot_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    const DotTask task = hooks.decode(t);
    if (thread < 32) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_decode(ctx, task);
      __syncwarp();
      if (!ctx.aborted()) hooks.before_load(ctx, task);
      __syncwarp();
    }
    named_barrier_sync<Edges::start, kBarrier, kThreads>();
    if (!ctx.aborted()) {
      if constexpr (kPlain) {
        pick_elements<kThreads>(hooks, task, thread);
      } else {
#pragma unroll 1
        for (u32 row = thread / 32; row < Hooks::kRows; row += kThreads / 32) {
          if (hooks.exists(task, row)) dot_row<kDtype>(hooks, task, row, thread % 32);
        }
      }
    }
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
