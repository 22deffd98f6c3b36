// Barriers in shared memory (PTX ISA, "mbarrier"). Each use names the plan's edge it implements.
//
// A primitive's `kEdge` changes no instruction: it is there so that a generated file can be matched against the
// plan, edge by edge.
constexpr u32 kMbarrierBytes = 8;

MK_DEVICE void mbarrier_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

template <u32 kEdge>
MK_DEVICE void mbarrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives `arrivals` times.
template <u32 kEdge>
MK_DEVICE void mbarrier_arrive_many(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Arrives, and holds the phase open until `bytes` more have been delivered by TMA.
template <u32 kEdge>
MK_DEVICE void mbarrier_arrive_expect_tx(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

MK_DEVICE bool mbarrier_try_wait(u32 bar, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  return done != 0;
}
// The same without waiting at all.
MK_DEVICE bool mbarrier_test_wait(u32 bar, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  return done != 0;
}
// Waits for the phase of this parity to complete. Unbounded: every arrival it needs comes from this CTA, whose
// agents finish their loops even after an abort.
template <u32 kEdge>
MK_DEVICE void mbarrier_wait(u32 bar, u32 parity) {
  while (!mbarrier_try_wait(bar, parity)) {
  }
}

// An agent's place in a ring of `kStages` slots: which slot, and the parity of its current use.
template <u32 kStages>
struct RingCursor {
  u32 stage = 0;
  u32 phase = 0;

  MK_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  // Past what others hand over.
  MK_DEVICE void skip(u32 steps) {
    const u32 to = stage + steps;
    phase ^= to / kStages & 1;
    stage = to % kStages;
  }
  // The slot handed over one step ago.
  MK_DEVICE u32 previous_stage() const { return stage == 0 ? kStages - 1 : stage - 1; }
};
