// Signal word 256 + s of a rank counts what rank s sent; data slots alternate by the epoch's parity, so that a peer
// one launch ahead does not overwrite what is still read.
extern "C" __global__ void exchange(const __grid_constant__ Params p) {
  const LaunchHeader& h = p.h;
  ControlBlock* control = (ControlBlock*)h.control;
  const u32 epoch = control->epoch[0] + 1, parity = epoch % 2, t = threadIdx.x;
  if (t < h.world) {
    u32* slot = (u32*)(symmetric(h, t) + 2048) + parity * MAX_RANKS + h.rank;
    *slot = 1000 * epoch + 10 * h.rank + t;
    add_release((u32*)symmetric(h, t) + 256 + h.rank, 1);
    if (wait_signal(h, 256 + t, epoch, 1, epoch, 0))
      ((u32*)p.tensors[0])[t] = ((volatile u32*)(symmetric(h, h.rank) + 2048))[parity * MAX_RANKS + t];
  }
  __syncthreads();
  if (t == 0) control->epoch[0] = epoch;
}
