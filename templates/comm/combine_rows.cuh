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

// Contributions whose loads are in flight together.
constexpr u32 kContributionsTogether = 4;

// One row. Each lane holds the place and the factor of a contribution; those that are there follow each other. Of more contributions than lanes,
// places are looked up anew for each vector.
template <Dtype kFrom, Dtype kTo, class Hooks>
MK_DEVICE void combine_row(const Hooks& hooks, const CombineTask& task, u32 row, u32 lane) {
  typedef ReduceStep<kFrom, kTo> Step;
  constexpr u32 kLanes = 32;
  constexpr bool kHeld = Hooks::kContributions <= kLanes;
  // Places of a row that a lane adds up together, so that its loads cover the latency of memory.
  constexpr u32 kSteps = Step::kLoads == 1 && Step::kStores == 1 ? 4 : 1, kStride = kLanes * Step::kElements;
  const u64 to = hooks.destination(task, row);
  u64 place = 0, alignment = to, addend = 0;
  float factor = 0.0f;
  if constexpr (Hooks::kAdds) alignment |= addend = hooks.addend(task, row);
  // A bit for each contribution that is there. Entries of others are read, too, and make no address: one latency instead of two.
  const auto look = [&](u32 from) {
    const u32 j = min(from + lane, Hooks::kContributions - 1);
    const u64 at = hooks.source(task, row, j);
    const float by = load_element<Dtype::F32>(hooks.factor(task, row, j));
    bool there = from + lane < Hooks::kContributions;
    if constexpr (Hooks::kMayLack) there = hooks.there(task, row, j) && there;
    place = there ? at : 0;
    factor = there ? by : 0.0f;
    return __ballot_sync(~0u, there);
  };
  u32 held = 0;
  for (u32 from = 0; from < Hooks::kContributions; from += kLanes) {
    held = look(from);
    alignment |= place;
  }
  const bool aligned = __all_sync(~0u, alignment % 16 == 0);
  const u32 done = aligned ? Hooks::kColumns / Step::kElements * Step::kElements : 0;
#pragma unroll 1
  for (u32 begin = 0; begin < done; begin += kSteps * kStride) {
    const u32 column = begin + lane * Step::kElements;
    float sum[kSteps][Step::kElements] = {};
#pragma unroll 1
    for (u32 from = 0; from < Hooks::kContributions; from += kLanes) {
      u32 left = kHeld ? held : look(from);
#pragma unroll 1
      while (left != 0) {
        Vec16 v[kSteps][kContributionsTogether][Step::kLoads];
        float by[kContributionsTogether];
        bool there[kContributionsTogether];
#pragma unroll
        for (u32 j = 0; j < kContributionsTogether; ++j) {
          there[j] = left != 0;
          const u32 of = __ffs(left) - 1 & kLanes - 1;
          left &= left - 1;
          const u64 at = __shfl_sync(~0u, place, of);
          by[j] = __shfl_sync(~0u, factor, of);
#pragma unroll
          for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
            for (u32 l = 0; l < Step::kLoads; ++l) {
              if (!there[j] || column + s * kStride >= done) continue;
              v[s][j][l] = ld_vec16(reinterpret_cast<const void*>(at + (column + s * kStride) * element_bytes(kFrom) + l * 16));
            }
          }
        }
#pragma unroll
        for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
          for (u32 j = 0; j < kContributionsTogether; ++j) {
#pragma unroll
            for (u32 l = 0; l < Step::kLoads; ++l) {
              if (there[j]) add_weighted<kFrom>(sum[s] + l * kVectorElements<kFrom>, v[s][j][l], by[j]);
            }
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
#pragma unroll 1
  for (u32 begin = done; begin < Hooks::kColumns; begin += kLanes) {
    const u32 column = begin + lane;
    const bool inside = column < Hooks::kColumns;
    float sum = 0.0f;
#pragma unroll 1
    for (u32 from = 0; from < Hooks::kContributions; from += kLanes) {
#pragma unroll 1
      for (u32 left = kHeld ? held : look(from); left != 0; left &= left - 1) {
        const u64 at = __shfl_sync(~0u, place, __ffs(left) - 1);
        const float by = __shfl_sync(~0u, factor, __ffs(left) - 1);
        if (inside) sum += load_element<kFrom>(at + column * element_bytes(kFrom)) * by;
      }
    }
    if (!inside) continue;
    if constexpr (Hooks::kAdds) sum += load_element<kTo>(addend + column * element_bytes(kTo));
    store_element<kTo>(to + column * element_bytes(kTo), sum);
  }
}

// The first warp of a team waits for what is looked up, then, by that, for all rows of the task; see `gather_rows`. Teams take turns as in
// `reduce_rows`.
template <Dtype kFrom, Dtype kTo, u32 kTeams, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void combine_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
  const u32 team = thread / kThreads;  // below kTeams
  thread %= kThreads;
#pragma unroll 1
  for (u32 t = hooks.first() + team * hooks.stride(); t < hooks.end(); t += kTeams * hooks.stride()) {
    const CombineTask task = hooks.decode(t);
    if (thread < 32) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_decode(ctx, task);
      __syncwarp();
      if (!ctx.aborted()) hooks.before_load(ctx, task);
      __syncwarp();
    }
    team_sync<Edges::start, kBarrier, kTeams, kThreads>(team);
    if (!ctx.aborted()) {
#pragma unroll 1
      for (u32 row = thread / 32; row < Hooks::kRows; row += kThreads / 32) {
        if (hooks.exists(task, row)) combine_row<kFrom, kTo>(hooks, task, row, thread % 32);
      }
    }
    team_sync<Edges::done, kBarrier, kTeams, kThreads>(team);
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
