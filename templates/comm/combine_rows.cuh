// Weighted sums of rows that are each looked up: in fp32, in order, rounded once. A warp has a row of the result, of the few that a task has.
struct CombineTask {
  u32 task;  // linear index in the role
  u32 family;
};

// A vector's elements, widened, times a factor, and added.
template <Dtype kDtype>
MK_DEVICE void add_weighted(float* sum, Vec16 v, float factor) {
  const u32 (&words)[4] = v.x;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (kDtype == Dtype::F32) {
      sum[i] += __uint_as_float(words[i]) * factor;
    } else {
      sum[2 * i] += unpack_lo<kDtype>(words[i]) * factor;
      sum[2 * i + 1] += unpack_hi<kDtype>(words[i]) * factor;
    }
  }
}

// Contributions whose places and factors registers hold, and whose loads are in flight together.
constexpr u32 kHeldContributions = 8;

// One row. Of more contributions than registers hold, places are looked up anew for each vector.
template <Dtype kFrom, Dtype kTo, class Hooks>
MK_DEVICE void combine_row(const Hooks& hooks, const CombineTask& task, u32 row, u32 lane) {
  typedef ReduceStep<kFrom, kTo> Step;
  constexpr u32 kContributions = Hooks::kContributions;
  constexpr bool kHeld = kContributions <= kHeldContributions;
  constexpr u32 kAtOnce = kHeld ? kContributions : kHeldContributions;
  // Places of a row that a lane adds up together, so that its loads cover the latency of memory.
  constexpr u32 kSteps = Step::kLoads == 1 && Step::kStores == 1 ? 2 : 1, kStride = 32 * Step::kElements;
  u64 place[kAtOnce];
  float factor[kAtOnce];
  u32 there = ~0u;  // a bit for each that has a factor
  const u64 to = hooks.destination(task, row);
  u64 alignment = to, addend = 0;
  if constexpr (Hooks::kAdds) alignment |= addend = hooks.addend(task, row);
  const auto look = [&](u32 from) {
#pragma unroll
    for (u32 j = 0; j < kAtOnce; ++j) {
      if (from + j >= kContributions) break;
      if constexpr (Hooks::kMayLack) there = hooks.there(task, row, from + j) ? there | 1u << j : there & ~(1u << j);
      place[j] = (there >> j & 1) != 0 ? hooks.source(task, row, from + j) : 0;
      factor[j] = (there >> j & 1) != 0 ? load_element<Dtype::F32>(hooks.factor(task, row, from + j)) : 0.0f;
      alignment |= place[j];
    }
  };
  for (u32 from = 0; from < kContributions; from += kAtOnce) look(from);
  u32 done = 0;
  if (alignment % 16 == 0) {
    done = Hooks::kColumns / Step::kElements * Step::kElements;
#pragma unroll 1
    for (u32 column = lane * Step::kElements; column < done; column += kSteps * kStride) {
      float sum[kSteps][Step::kElements] = {};
#pragma unroll 1
      for (u32 from = 0; from < kContributions; from += kAtOnce) {
        if (!kHeld) look(from);
        Vec16 v[kSteps][kAtOnce][Step::kLoads];
#pragma unroll
        for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
          for (u32 j = 0; j < kAtOnce; ++j) {
#pragma unroll
            for (u32 l = 0; l < Step::kLoads; ++l) {
              if (from + j >= kContributions || column + s * kStride >= done || (there >> j & 1) == 0) continue;
              v[s][j][l] = ld_vec16(reinterpret_cast<const void*>(place[j] + (column + s * kStride) * element_bytes(kFrom) + l * 16));
            }
          }
        }
#pragma unroll
        for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
          for (u32 j = 0; j < kAtOnce; ++j) {
#pragma unroll
            for (u32 l = 0; l < Step::kLoads; ++l) {
              if (from + j < kContributions && (there >> j & 1) != 0) add_weighted<kFrom>(sum[s] + l * kVectorElements<kFrom>, v[s][j][l], factor[j]);
            }
          }
        }
      }
#pragma unroll
      for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
        for (u32 l = 0; l < Step::kStores; ++l) {
          if (column + s * kStride >= done) continue;
          const u64 behind = (column + s * kStride) * element_bytes(kTo) + l * 16, at = to + behind;
          // What is added has the result's type.
          if constexpr (Hooks::kAdds) add_weighted<kTo>(sum[s] + l * kVectorElements<kTo>, ld_vec16(reinterpret_cast<const void*>(addend + behind)), 1.0f);
          st_vec16(reinterpret_cast<void*>(at), round_vector<kTo>(sum[s] + l * kVectorElements<kTo>));
        }
      }
    }
  }
#pragma unroll 1
  for (u32 column = done + lane; column < Hooks::kColumns; column += 32) {
    float sum = 0.0f;
#pragma unroll 1
    for (u32 from = 0; from < kContributions; from += kAtOnce) {
      if (!kHeld) look(from);
#pragma unroll
      for (u32 j = 0; j < kAtOnce; ++j) {
        if (from + j < kContributions && (there >> j & 1) != 0) sum += load_element<kFrom>(place[j] + column * element_bytes(kFrom)) * factor[j];
      }
    }
    if constexpr (Hooks::kAdds) sum += load_element<kTo>(addend + column * element_bytes(kTo));
    store_element<kTo>(to + column * element_bytes(kTo), sum);
  }
}

// The first warp waits for what is looked up, then, by that, for all rows of the task; see `gather_rows`.
template <Dtype kFrom, Dtype kTo, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void combine_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    const CombineTask task = hooks.decode(t);
    if (thread < 32) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_decode(ctx, task);
      __syncwarp();
      if (!ctx.aborted()) hooks.before_load(ctx, task);
      __syncwarp();
    }
    named_barrier_sync<Edges::start, kBarrier, kThreads>();
    if (!ctx.aborted()) {
#pragma unroll 1
      for (u32 row = thread / 32; row < Hooks::kRows; row += kThreads / 32) {
        if (hooks.exists(task, row)) combine_row<kFrom, kTo>(hooks, task, row, thread % 32);
      }
    }
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
