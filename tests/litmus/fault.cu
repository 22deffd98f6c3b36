// Fault records: a CTA writes a record in pinned host memory as record_fault does, the host reads it while the kernel
// runs, checks every field, and frees it by setting `state` to 0.
struct Recording {
  bool state_first = false;    // complete before it is written
  bool relaxed_state = false;  // st.relaxed for st.release
};

// As record_fault, broken.
template <Recording kCase>
MK_DEVICE void record_broken(const Context& ctx, const Fault& fault, Rng& rng) {
  FaultRecord* record = reinterpret_cast<FaultRecord*>(ctx.header.fault);
  if (kCase.state_first) {
    st_relaxed_sys(&record->state, 2);
    delay(rng);
  }
  volatile FaultRecord* out = record;
  out->kind = static_cast<u32>(fault.kind);
  out->rank = ctx.header.rank;
  out->cta = blockIdx.x;
  out->edge = fault.edge;
  out->epoch = ctx.epoch();
  out->expected = fault.expected;
  out->seen = fault.seen;
  out->tile = fault.tile;
  out->peer = fault.peer;
  out->waited_ns = fault.waited_ns;
  out->word = fault.word;
  if (!kCase.state_first) st_relaxed_sys(&record->state, 2);
}

template <Recording kCase>
MK_DEVICE void write_records(const Params& p, u32 state, u32 first_turn) {
  LaunchHeader header = p.header;
  header.fault = p.tensors[1] + blockIdx.x * sizeof(FaultRecord);
  const u32* record_state = &reinterpret_cast<const FaultRecord*>(header.fault)->state;
  Rng rng = Rng::seeded(Context{p.header, state, first_turn - 1, 0});
#pragma unroll 1
  for (u32 i = 0; i < kRecords; ++i) {
    const u64 begin = globaltimer_ns();
    while (ld_acquire<Scope::Sys>(record_state) != 0) {
      if (globaltimer_ns() - begin > p.header.wait_limit_ns) return;  // the host counts what it has seen
    }
    delay(rng);
    const u32 turn = first_turn + i;
    u32 x[10];
#pragma unroll
    for (u32 j = 0; j < 10; ++j) x[j] = pattern(blockIdx.x, turn, j);
    header.rank = x[0];
    const Context ctx{header, state, x[1] - 1, 0};
    const Fault fault{static_cast<FaultKind>(x[2]), x[3], x[4], x[5], x[6], x[7], x[8] | static_cast<u64>(x[8]) << 32,
                      x[9]};
    if constexpr (kCase.state_first || kCase.relaxed_state) {
      record_broken<kCase>(ctx, fault, rng);
    } else {
      record_fault(ctx, fault);
    }
  }
}

template <Recording kCase>
MK_DEVICE void fault_records(const Params& p) {
  __shared__ CtaState state;
  Context ctx{p.header, smem_address(&state), 0, kEnteredWord};
  launch_begin(ctx);
  launch_begin_sync();
  ctx.past = ctx.read_past();
  if (threadIdx.x == 32) launch_count_in(ctx);
  if (threadIdx.x == 0) write_records<kCase>(p, ctx.state, (ctx.epoch() - 1) * kRecords);
  launch_end(ctx);
}
