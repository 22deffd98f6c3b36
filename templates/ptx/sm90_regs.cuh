// Moving registers between warpgroups (PTX ISA, "setmaxnreg"). Every warp of a warpgroup, in one branch of one if.
// What each of so many threads begins with: the file of 65,536, in units of 8. Registers only change hands: what some warpgroups
// claim, others have released, or the claim waits for ever.
template <u32 kThreads>
constexpr u32 kRegsAtEntryOf = 65536 / kThreads / 8 * 8;
constexpr u32 kRegsAtEntry = kRegsAtEntryOf<384>;

template <u32 kRegs>
MK_DEVICE void sm90_regs_release() {
  static_assert(kRegs % 8 == 0 && kRegs >= 24 && kRegs <= 256, "what setmaxnreg takes");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegs));
}
template <u32 kRegs>
MK_DEVICE void sm90_regs_claim() {
  static_assert(kRegs % 8 == 0 && kRegs >= 24 && kRegs <= 256, "what setmaxnreg takes");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegs));
}
