// Message passing: CTA `pair` of a rank writes a payload into a slot of the next rank's memory and raises a signal; the
// reading CTA there waits for it, reads the payload, and hands the slot back through a signal of its own. In a world
// of one rank both are on one GPU. Further CTAs make noise. The pattern is that of the PTX ISA, "Memory Consistency
// Model", "Release and Acquire Patterns" and "Causality Order"; where a side is TMA, "Proxies" and "Asynchronous
// operations" too.

// Who writes the payload.
enum class Writer : u32 {
  Rows,     // many threads, ordinary stores (comm/copy_rows.cuh)
  Bulk,     // a bulk copy from shared memory that threads have filled
  Tensor,   // the same through a tensor map (tile/gemm_storer.cuh)
  Panel,    // the same, filled by stmatrix in the 128-byte swizzle (tile/epilogue.cuh)
  Forward,  // a bulk load from this GPU's memory, then a bulk store (comm/copy_bulk.cuh)
};
enum class Reading : u32 { Generic, Bulk, Tensor };
// What the storing lane has waited for when it raises the signal.
enum class Done : u32 { Written, Read, Issued };

// As default-initialised, and with any writer and reading: what the emitter prints. Everything below `scope` breaks it.
struct Case {
  Writer writer = Writer::Tensor;
  Reading reading = Reading::Tensor;
  Scope scope = Scope::Sys;
  Done done = Done::Written;
  bool post_first = false;         // signal before data
  bool fenced_post = false;        // as several posts of one agent: a fence, then red.relaxed
  bool relaxed_post = false;       // red.relaxed for red.release
  bool relaxed_wait = false;       // ld.relaxed for ld.acquire
  bool no_proxy_fence = false;     // no fence.proxy.async after the acquire
  bool no_shared_fence = false;    // no fence.proxy.async between filling and the copy engine
  bool no_barrier = false;         // Rows: the posting thread does not wait for the others
  bool early_drained = false;      // staging is filled again before its store has read it
  bool no_hand_back = false;       // the writer does not wait for the slot
  bool early_hand_back = false;    // the slot is handed back before it has been read
  bool relaxed_hand_back = false;  // red.relaxed for the hand-back
};

struct Pair {
  u32 index, target, who, size_class, bytes;
  u32 first_turn;  // turns count on across launches
  u64 slots;       // address of slot 0
  u32* full_word;  // counts turns written; at the reader
  u32* free_word;  // counts turns handed back; at the writer

  MK_DEVICE u64 slot(u32 turn) const { return slots + turn % kSlots * kSlotBytes; }
  MK_DEVICE i32 row(u32 turn) const { return (index * kSlots + turn % kSlots) * kSlotRows; }
};

template <Case kCase>
MK_DEVICE Pair pair_of(const Context& ctx, u32 index, bool writer) {
  const u32 rank = ctx.header.rank, world = ctx.header.world, next = (rank + 1) % world;
  const u32 from = writer ? rank : (rank + world - 1) % world, to = writer ? next : rank;
  const u32 size_class = kCase.writer == Writer::Panel ? kPanelClass : index % kClasses;
  return Pair{index, to, from * kPairs + index, size_class, class_bytes(size_class), (ctx.epoch() - 1) * kTurns,
              ctx.sym(to) + kPayloadAt + static_cast<u64>(index) * kSlots * kSlotBytes,
              ctx.signal(to, kFullWord + index * kWordStride), ctx.signal(from, kFreeWord + index * kWordStride)};
}

template <bool kRelaxed, u32 kEdge, Scope kScope>
MK_DEVICE void post(const Context& ctx, u32* word) {
  if constexpr (kRelaxed) {
    if (!ctx.aborted()) red_relaxed_add<Scope::Sys>(word, 1);
  } else {
    post_signal<kEdge, kScope>(ctx, word, 1);
  }
}

template <Case kCase>
MK_DEVICE void post_message(const Context& ctx, const Pair& pair) {
  if constexpr (kCase.fenced_post) {
    fence_acq_rel<kCase.scope>();
    post_fenced<kFullEdge, kCase.scope>(ctx, pair.full_word, 1);
    return;
  }
  post<kCase.relaxed_post, kFullEdge, kCase.scope>(ctx, pair.full_word);
}
template <Case kCase>
MK_DEVICE void post_hand_back(const Context& ctx, const Pair& pair) {
  post<kCase.relaxed_hand_back, kFreeEdge, kCase.scope>(ctx, pair.free_word);
}

// The reader's wait.
template <Case kCase>
MK_DEVICE void wait_message(const Context& ctx, const Pair& pair, u32 turn) {
  constexpr bool kFence = kCase.reading != Reading::Generic && !kCase.no_proxy_fence;
  if constexpr (kCase.relaxed_wait) {
    wait_relaxed(ctx, pair.full_word, turn + 1, turn, ctx.header.wait_limit_ns);
    if constexpr (kFence) fence_proxy_async_global();
  } else {
    wait_signal<kFullEdge, kCase.scope, kFence ? Reader::Async : Reader::Generic>(ctx, pair.full_word, turn + 1,
                                                                                  WaitSite{turn});
  }
}
// The writer's wait for the slot to be free.
template <Case kCase>
MK_DEVICE void wait_slot(const Context& ctx, const Pair& pair, u32 turn) {
  if constexpr (kCase.no_hand_back) return;
  constexpr Reader kBy = kCase.writer == Writer::Rows ? Reader::Generic : Reader::Async;
  wait_signal<kFreeEdge, kCase.scope, kBy>(ctx, pair.free_word, turn + 1 - kSlots, WaitSite{turn});
}
