// 40 live floats, each used many times, in 32 registers.
extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* out, const float* in) {
  float v[40];
#pragma unroll
  for (int i = 0; i < 40; ++i) v[i] = in[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 40; ++i) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 40; ++j) sum += v[j] * v[(i * j + 1) % 40];
    out[i * 1024 + threadIdx.x] = sum;
  }
}
