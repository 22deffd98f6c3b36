extern "C" __global__ void stuck(const __grid_constant__ Params p) {
  if (threadIdx.x != 0) return;
  ControlBlock* control = (ControlBlock*)p.h.control;
  const u32 epoch = control->epoch[0] + 1;
  wait_signal(p.h, 256, *(const u32*)p.tensors[0], 7, epoch, 42);
  control->epoch[0] = epoch;
}
