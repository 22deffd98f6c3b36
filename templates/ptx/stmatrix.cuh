// Four 8x8 blocks of 16-bit elements between a warp's registers and shared memory (PTX ISA, "stmatrix", "ldmatrix").
// Lane l gives the address of row l % 8 of block l / 8; r[i] holds this lane's pair of block i.
MK_DEVICE void stmatrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
// Each block transposed.
MK_DEVICE void stmatrix_x4_trans(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
MK_DEVICE void ldmatrix_x4(u32 address, u32 (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
