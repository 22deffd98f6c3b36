// Raising a signal word.
// Releases what this thread wrote, and what it observed of others' writes, then adds to the word. The caller has
// waited for the completion that the reader needs. Nothing is posted once the CTA is aborted: a reader must time
// out, or see the abort word, rather than go on with data that was not written.
template <u32 kEdge, Scope kScope>
MK_DEVICE void post_signal(const Context& ctx, u32* word, u32 add) {
  if (!ctx.aborted()) red_release_add<kScope>(word, add);
}

// One of several posts behind one `fence_acq_rel<kScope>()` of this thread, which is most of what a post costs.
template <u32 kEdge, Scope kScope>
MK_DEVICE void post_fenced(const Context& ctx, u32* word, u32 add) {
  if (!ctx.aborted()) red_relaxed_add<kScope>(word, add);
}
