// Scalar names, element types, tensor maps, which thread this is. First file of the library: everything else uses it.
// The generated head declares the same names for the host/device structs; C++ allows the repetition.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#define MK_DEVICE __device__ __forceinline__

// An encoded tensor map (PTX ISA, "Tensor-map"). 64 bytes is what the instructions ask of its address.
struct alignas(64) TensorMap {
  u64 opaque[16];
};
static_assert(sizeof(TensorMap) == 128, "host and device disagree on TensorMap");

// Operands of tensor cores have 16 bits, or of GEMMs eight; results may also be F32.
enum class Dtype : u32 { Bf16, F16, F32, E4m3, E5m2 };

// Bytes of one element of either 16-bit type.
constexpr u32 kElemBytes = 2;
constexpr u32 element_bytes(Dtype dtype) {
  return dtype == Dtype::F32 ? 4 : dtype == Dtype::E4m3 || dtype == Dtype::E5m2 ? 1 : 2;
}

// A value known when the kernel is compiled, as a type: tells agents apart in overloads at no cost.
template <u32 kValue>
struct Const {
  static constexpr u32 value = kValue;
};

constexpr u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
constexpr u32 round_up(u32 a, u32 b) { return ceil_div(a, b) * b; }

// Shared-window address of a generic pointer into shared memory.
MK_DEVICE u32 smem_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Volatile reads where `kIndicesAnew` says so: a compiler that is short of registers holds these in some, and spills others.
MK_DEVICE u32 thread_index() {
  if constexpr (!kIndicesAnew) return threadIdx.x;
  u32 thread;
  asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
  return thread;
}
MK_DEVICE u32 cta_index() {
  if constexpr (!kIndicesAnew) return blockIdx.x;
  u32 cta;
  asm volatile("mov.u32 %0, %ctaid.x;" : "=r"(cta));
  return cta;
}
MK_DEVICE u32 lane_index() { return thread_index() % 32; }
MK_DEVICE u32 warp_index() { return thread_index() / 32; }
// This thread, of which the compiler keeps nothing: there are no registers for what it would know before the first tile.
MK_DEVICE u32 thread_anew() {
  u32 thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread;
}
// Whether this lane is the one that acts for its warp; by a whole warp, always the same lane (PTX ISA, "elect.sync"). Unlike after a
// comparison of lanes, the compiler knows that one thread is left, and puts no loop over lanes around each TMA instruction.
MK_DEVICE bool elect_one() {
  u32 chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
  return chosen != 0;
}
