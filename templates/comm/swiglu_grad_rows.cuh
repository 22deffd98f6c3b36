// Gradients of gated rows with weights, in fp32, rounded once. A warp has a row of the few that a task has; its lanes add up columns, then each
// other's sums, in the same order whoever runs it.
struct SwigluGradTask {
  u32 task;  // linear index in the role
  u32 family;
};

// Where a row's operands are.
struct SwigluGradRow {
  u64 gradients, gates, ups;
  u64 of_gates, of_ups;  // gradients of both
  u64 weighted;          // the activation's result times the weight
};

// Vectors of a lane that are in flight together, of each operand.
constexpr u32 kSwigluGradSteps = 2;

// What one column makes.
struct SwigluGradColumn {
  float of_gate, of_up, weighted;
};
// Adds to `sum` the column's part of the weight's gradient.
MK_DEVICE SwigluGradColumn swiglu_grad_column(float d, float gate, float up, float weight, float& sum) {
  const float activated = silu(gate) * up, weighed = weight * d;
  sum = fmaf(d, activated, sum);
  return SwigluGradColumn{silu_grad(weighed, gate) * up, mul_silu(weighed, gate), weight * activated};
}

template <Dtype kDtype, u32 kColumns>
MK_DEVICE float swiglu_grad_row(const SwigluGradRow& row, float weight, u32 lane) {
  const bool aligned = (row.gradients | row.gates | row.ups | row.of_gates | row.of_ups | row.weighted) % 16 == 0;
  const u32 vectors = aligned ? kColumns / 8 : 0;
  const auto load = [](u64 from, u32 vector) { return ld_vec16(reinterpret_cast<const void*>(from + vector * u64{16})); };
  const auto store = [](u64 to, u32 vector, const Vec16& v) { st_vec16(reinterpret_cast<void*>(to + vector * u64{16}), v); };
  float sum = 0.0f;
#pragma unroll 1
  for (u32 first = lane; first < vectors; first += 32 * kSwigluGradSteps) {
    Vec16 d[kSwigluGradSteps], gate[kSwigluGradSteps], up[kSwigluGradSteps];
    // Behind the last vector the last once more: no branch stands between loads.
#pragma unroll
    for (u32 s = 0; s < kSwigluGradSteps; ++s) {
      const u32 vector = min(first + s * 32, vectors - 1);
      d[s] = load(row.gradients, vector);
      gate[s] = load(row.gates, vector);
      up[s] = load(row.ups, vector);
    }
#pragma unroll
    for (u32 s = 0; s < kSwigluGradSteps; ++s) {
      if (first + s * 32 >= vectors) continue;
      Vec16 of_gates, of_ups, weighted;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const SwigluGradColumn lo = swiglu_grad_column(
            unpack_lo<kDtype>(d[s].x[i]), unpack_lo<kDtype>(gate[s].x[i]), unpack_lo<kDtype>(up[s].x[i]), weight, sum);
        const SwigluGradColumn hi = swiglu_grad_column(
            unpack_hi<kDtype>(d[s].x[i]), unpack_hi<kDtype>(gate[s].x[i]), unpack_hi<kDtype>(up[s].x[i]), weight, sum);
        of_gates.x[i] = pack2<kDtype>(lo.of_gate, hi.of_gate);
        of_ups.x[i] = pack2<kDtype>(lo.of_up, hi.of_up);
        weighted.x[i] = pack2<kDtype>(lo.weighted, hi.weighted);
      }
      store(row.of_gates, first + s * 32, of_gates);
      store(row.of_ups, first + s * 32, of_ups);
      store(row.weighted, first + s * 32, weighted);
    }
  }
#pragma unroll 1
  for (u32 column = vectors * 8 + lane; column < kColumns; column += 32) {
    const u64 at = column * u64{2};
    const SwigluGradColumn made = swiglu_grad_column(
        load_element<kDtype>(row.gradients + at), load_element<kDtype>(row.gates + at), load_element<kDtype>(row.ups + at), weight, sum);
    store_element<kDtype>(row.of_gates + at, made.of_gate);
    store_element<kDtype>(row.of_ups + at, made.of_up);
    store_element<kDtype>(row.weighted + at, made.weighted);
  }
#pragma unroll
  for (u32 apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  return sum;
}

// The first warp waits for what is looked up, then, by that, for all rows of the task; see `gather_rows`.
template <Dtype kDtype, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void swiglu_grad_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
  constexpr u32 kWarps = kThreads / 32;
  const u32 lane = thread % 32;
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    const SwigluGradTask task = hooks.decode(t);
    if (thread < 32) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_decode(ctx, task);
      __syncwarp();
      if (!ctx.aborted()) hooks.before_load(ctx, task);
      __syncwarp();
    }
    named_barrier_sync<Edges::start, kBarrier, kThreads>();
    // Whole warps, or none of their lanes.
    if (__ballot_sync(0xffffffffu, ctx.aborted()) == 0) {
#pragma unroll 1
      for (u32 first = thread / 32; first < Hooks::kRows; first += 32 * kWarps) {
        // Lanes look weights up in parallel: each look-up takes several dependent trips to memory.
        const u32 mine = first + lane * kWarps;
        const bool there = mine < Hooks::kRows && hooks.exists(task, mine);
        const float weight = there ? load_element<Dtype::F32>(hooks.weight(task, mine)) : 0.0f;
        float sum = 0.0f;
#pragma unroll 1
        for (u32 some = __ballot_sync(0xffffffffu, there); some != 0; some &= some - 1) {
          const u32 l = __ffs(some) - 1;
          const float of_row = swiglu_grad_row<kDtype, Hooks::kColumns>(
              hooks.row(task, first + l * kWarps), __shfl_sync(0xffffffffu, weight, l), lane);
          if (lane == l) sum = of_row;
        }
        if (there) store_element<Dtype::F32>(hooks.of_weight(task, mine), sum);
      }
    }
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
