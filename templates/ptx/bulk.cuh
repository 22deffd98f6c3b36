// Contiguous bulk copies, and bulk groups (PTX ISA, "cp.async.bulk"). Addresses and sizes: multiples of 16 bytes.
MK_DEVICE void bulk_load(u32 dst, const void* src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}

MK_DEVICE void bulk_store(void* dst, u32 src, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes)
               : "memory");
}

MK_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// At most `kPending` groups of this thread still read their source: older staging memory may be overwritten.
// It says nothing about the destination.
template <u32 kPending>
MK_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// At most `kPending` groups of this thread are unfinished: older writes are made, and a release may follow.
template <u32 kPending>
MK_DEVICE void bulk_wait_written() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
