// A dynamic schedule: tasks are for whoever is free, in their order.
//
// A worker has one task to begin with, which nobody else takes, and asks for another while it is at one. So the counter goes up by one
// for each task, the same in every launch, and nobody resets it; what it is given may lie past the end, and then it has ended.

// Counts one more, or several; how many were before in this launch.
template <class Hooks>
MK_DEVICE u32 count_tasks(const Context& ctx, const Hooks& hooks, u32 tasks = 1) {
  return atom_add_gpu(ctx.signal(ctx.header.rank, hooks.taken()), tasks) - ctx.past * hooks.tasks();
}

template <class Hooks>
MK_DEVICE u32 take_task(const Context& ctx, const Hooks& hooks) {
  // After launches that ran side by side against the rules it may be behind; no task is taken then.
  return hooks.begin() + hooks.workers() + min(count_tasks(ctx, hooks), hooks.tasks());
}
