// Nonlinear functions of one element, and gradients times their slopes.
// Not fmaxf, which would make 0 of a NaN.
MK_DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }
MK_DEVICE float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
// The exact form, which frameworks use by default: x * Phi(x) = max(x, 0) - |x| / 2 * erfc(|x| / sqrt 2), where nothing
// cancels. erfc by Abramowitz and Stegun 7.1.26 (absolute error 1.5e-7): half the instructions of erff, and the
// epilogue is bound by them.
MK_DEVICE float gelu_erf(float x) {
  const float z = fabsf(x) * 0.70710678118654752f;
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
  const float p =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  // Finite where x is not: infinity times nothing is nothing here.
  return fmaxf(x, 0.0f) - 0.5f * fminf(fabsf(x), 3e38f) * p * __expf(-z * z);
}
// The tanh form, as x * sigmoid(2u): one exponential.
MK_DEVICE float gelu_tanh(float x) {
  const float u = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.0f + __expf(-2.0f * u));
}

// Slopes of these are what they are at 100 further out, where products of infinity and nothing would make NaNs of them.
MK_DEVICE float within_100(float x) { return x > 100.0f ? 100.0f : x < -100.0f ? -100.0f : x; }
// Gradients times the slope at x: Phi(x) + x * phi(x), with erfc as above.
MK_DEVICE float gelu_grad(float d, float x) {
  const float y = within_100(x), z = fabsf(y) * 0.70710678118654752f;
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
  const float p =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float e = __expf(-z * z), upper = 0.5f * p * e;
  return d * ((y < 0.0f ? upper : 1.0f - upper) + y * 0.39894228040143268f * e);
}
// Gradients of ups, whose gate is x.
MK_DEVICE float mul_silu(float d, float x) { return d * silu(x); }
// s(x) + x * s'(x), s the sigmoid.
MK_DEVICE float silu_grad(float d, float x) {
  const float y = within_100(x), s = __fdividef(1.0f, 1.0f + __expf(-y));
  return d * (s * (1.0f + y * (1.0f - s)));
}
MK_DEVICE float gelu_tanh_grad(float d, float x) {
  const float y = within_100(x), u = 1.59576912160573071f * (y + 0.044715f * y * y * y);
  const float s = __fdividef(1.0f, 1.0f + __expf(-u));
  return d * (s + y * s * (1.0f - s) * (1.59576912160573071f + 0.21406444881780076f * y * y));
}
// 0 at 0. A NaN lets the gradient pass, as in frameworks.
MK_DEVICE float relu_grad(float d, float x) { return x <= 0.0f ? 0.0f : d; }
