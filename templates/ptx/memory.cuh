// Global memory with a stated order and scope (PTX ISA, "Memory Consistency Model"), and the clock.
// How far a release or an acquire reaches: this GPU, or every GPU and the host.
enum class Scope : u32 { Gpu, Sys };

template <Scope kScope>
MK_DEVICE u32 ld_acquire(const u32* p) {
  u32 v;
  if constexpr (kScope == Scope::Sys) {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  } else {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  }
  return v;
}

// Coherent but unordered: for words polled only to give up early.
MK_DEVICE u32 ld_relaxed_sys(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
MK_DEVICE void st_relaxed_sys(u32* p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
MK_DEVICE void st_release_sys(u32* p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

template <Scope kScope>
MK_DEVICE void red_release_add(u32* p, u32 v) {
  if constexpr (kScope == Scope::Sys) {
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  } else {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  }
}

template <Scope kScope>
MK_DEVICE void red_relaxed_add(u32* p, u32 v) {
  if constexpr (kScope == Scope::Sys) {
    asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  } else {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  }
}

MK_DEVICE u32 atom_add_gpu(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
MK_DEVICE u32 atom_or_gpu(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.or.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
MK_DEVICE u32 atom_cas_gpu(u32* p, u32 compare, u32 value) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(p), "r"(compare), "r"(value) : "memory");
  return old;
}
MK_DEVICE void red_add_gpu(u32* p, u32 v) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
MK_DEVICE u32 atom_cas_sys(u32* p, u32 compare, u32 value) {
  u32 old;
  asm volatile("atom.acquire.sys.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old) : "l"(p), "r"(compare), "r"(value) : "memory");
  return old;
}

// Plain (weak) vector accesses. Volatile asm, so that the compiler never turns a load of memory that a peer
// writes into a read-only-path load.
struct alignas(16) Vec16 {
  u32 x[4];
};
MK_DEVICE Vec16 ld_vec16(const void* p) {
  Vec16 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3]) : "l"(p) : "memory");
  return v;
}
MK_DEVICE void st_vec16(void* p, Vec16 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               ::"l"(p), "r"(v.x[0]), "r"(v.x[1]), "r"(v.x[2]), "r"(v.x[3]) : "memory");
}
MK_DEVICE u32 ld_u32(const void* p) {
  u32 v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
MK_DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
MK_DEVICE void st_u32(void* p, u32 v) { asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
MK_DEVICE void st_u32x2(void* p, u32 x, u32 y) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(x), "r"(y) : "memory");
}
MK_DEVICE void ld_f32x2(const void* p, float& x, float& y) {
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "l"(p) : "memory");
}
MK_DEVICE u16 ld_u16(const void* p) {
  u16 v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
  return v;
}
MK_DEVICE u16 ld_u8(const void* p) {
  u16 v;
  asm volatile("ld.global.u8 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
  return v;
}
MK_DEVICE void st_u8(void* p, u16 v) { asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "h"(v) : "memory"); }
MK_DEVICE void st_u16(void* p, u16 v) { asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"(v) : "memory"); }

// Copies of one word each; a thread waits for its groups of them (PTX ISA, "cp.async").
MK_DEVICE void cp_async_word(u32 dst, u64 src) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}
MK_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
MK_DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Shared-memory words that agents of one CTA exchange; an mbarrier or a named barrier orders them.
MK_DEVICE u32 ld_shared(u32 address) {
  u32 v;
  asm volatile("ld.volatile.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
MK_DEVICE void st_shared(u32 address, u32 v) {
  asm volatile("st.volatile.shared::cta.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

// What TMA has brought: an mbarrier came before.
MK_DEVICE u32 atom_exch_shared(u32 address, u32 v) {
  u32 old;
  asm volatile("atom.relaxed.cta.shared::cta.exch.b32 %0, [%1], %2;" : "=r"(old) : "r"(address), "r"(v) : "memory");
  return old;
}
MK_DEVICE void ld_shared_f32x2(u32 address, float& x, float& y) {
  asm volatile("ld.shared::cta.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
MK_DEVICE u32 ld_shared_u16(u32 address) {
  u16 v;
  asm volatile("ld.shared::cta.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}
// What this warp has put there.
MK_DEVICE Vec16 ld_shared_vec16(u32 address) {
  Vec16 v;
  asm volatile("ld.shared::cta.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3]) : "r"(address) : "memory");
  return v;
}
// For the async proxy to read: a proxy fence and a named barrier follow.
MK_DEVICE void st_shared_vec16(u32 address, const Vec16& v) {
  asm volatile("st.shared::cta.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "r"(address), "r"(v.x[0]), "r"(v.x[1]), "r"(v.x[2]), "r"(v.x[3]) : "memory");
}
MK_DEVICE void st_shared_zeros(u32 address) {
  asm volatile("st.shared::cta.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}
// For the async proxy to read: not volatile, a proxy fence and an mbarrier follow.
MK_DEVICE void st_shared_f32x2(u32 address, float x, float y) {
  asm volatile("st.shared::cta.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

// Nanoseconds on a clock that all SMs of this GPU share. It ticks coarsely (about a microsecond).
MK_DEVICE u64 globaltimer_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
MK_DEVICE void nanosleep(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }
