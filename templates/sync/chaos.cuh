// Test hook: a pseudo-random sleep before a task, so that tests see orders that a quiet machine never shows.
// Which agent sleeps; part of the hash.
enum class Agent : u32 { Loader, Consumer, Storer, Copier };

// Off (the usual case), this is one predictable branch on a kernel parameter.
MK_DEVICE void chaos_delay(const Context& ctx, Agent agent, u32 task) {
  if (ctx.header.chaos_max_ns == 0) return;
  // Read anew: a loader that only loads does not know the epoch.
  u32 h = ctx.header.chaos_seed ^ (ctx.header.rank * 0x9e3779b9u) ^ (cta_index() * 0x85ebca6bu) ^
          (static_cast<u32>(agent) * 0xc2b2ae35u) ^ (task * 0x27d4eb2fu) ^ ((ctx.read_past() + 1) * 0x165667b1u);
  h = (h ^ (h >> 15)) * 0x2c1b3c6du;
  h = (h ^ (h >> 12)) * 0x297a2d39u;
  nanosleep((h ^ (h >> 15)) % ctx.header.chaos_max_ns);
}
