// Tasks of blocks that a launch leaves without rows: their waits and posts, and nothing else. Run by a warp of every CTA, each lane for tasks of
// its own, beside the agents that multiply.
template <class Hooks>
MK_DEVICE void gemm_left_over(const Context& ctx, const Hooks& hooks) {
  if (!hooks.await_tables(ctx)) return;
#pragma unroll 1
  for (u32 t = hooks.begin() + hooks.with_rows() + (hooks.first() - hooks.begin()) * 32 + lane_index(); t < hooks.end(); t += hooks.workers() * 32) {
    const GemmTile work = hooks.decode(t);
    hooks.before_load(ctx, work);
    hooks.before_store(ctx, work);
    hooks.after_store(ctx, work);
  }
}
