// A dynamic schedule: tasks are for whoever is free, in their order.
//
// A worker has one task to begin with, which nobody else takes, and asks for another while it is at one. So the counter goes up by one
// for each task, the same in every launch, and nobody resets it; what it is given may lie past the end, and then it has ended.
template <class Hooks>
MK_DEVICE u32 take_task(const Context& ctx, const Hooks& hooks) {
  const u32 taken = atom_add_gpu(ctx.signal(ctx.header.rank, hooks.taken()), 1) - ctx.past * hooks.tasks();
  // After launches that ran side by side against the rules it may be behind; no task is taken then.
  return hooks.begin() + hooks.workers() + min(taken, hooks.tasks());
}
