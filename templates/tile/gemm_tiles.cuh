// Which tiles a CTA works on. With a static schedule every so many of the role's: each agent counts by itself. With a dynamic one the
// loader takes one to begin with, and then the next that nobody has taken, and tells the others.
//
// Where a launch decides how many blocks of rows there are (`with_rows`), those that are left over come last, and nobody takes their tasks: they
// have nothing but signals, which a warp of every CTA sees to (gemm_left_over). The one that takes the last task with rows counts them.

// As the loader walks them. `Smem` is that of the role's ring, with slots for tiles, and `Edges` names `tile_full` and `tile_empty`.
template <class Smem, class Edges, class Hooks, bool kDynamic = Hooks::kDynamic>
struct LoaderTiles {
  const Hooks& hooks;
  u32 t;
  MK_DEVICE LoaderTiles(const Context&, const Smem&, const Hooks& hooks, TileCursor&) : hooks(hooks), t(hooks.first()) {}
  MK_DEVICE bool more() const { return t < hooks.end(); }
  // The tile is nearly loaded.
  MK_DEVICE void ask() {}
  MK_DEVICE void advance() { t += hooks.stride(); }
};

template <class Smem, class Edges, class Hooks>
struct LoaderTiles<Smem, Edges, Hooks, true> {
  Context ctx;
  const Smem& smem;
  const Hooks& hooks;
  TileCursor& slot;
  u32 t, next = 0;
  MK_DEVICE LoaderTiles(const Context& ctx, const Smem& smem, const Hooks& hooks, TileCursor& slot)
      : ctx(ctx), smem(smem), hooks(hooks), slot(slot), t(hooks.first()) {
    // What tiles are looked up in is there before the others hear of one. If it does not come, they hear of none, and the counter goes on as
    // it does in every launch.
    if constexpr (requires { hooks.await_tables(ctx); }) {
      if (!hooks.await_tables(ctx)) {
        while (t < hooks.end()) t = take_task(ctx, hooks);
      }
    }
    if constexpr (requires { hooks.with_rows(); }) {
      if (t < hooks.end() && !hooks.has_rows(t)) {
        if (t == hooks.begin()) count_tasks(ctx, hooks, hooks.tasks());
        t = hooks.end();
      }
    }
    tell();
  }
  MK_DEVICE bool more() const { return t < hooks.end(); }
  // The answers have the time of some steps.
  MK_DEVICE void ask() {
    if (ctx.past == kNotRead) ctx.past = ctx.read_past();
    if constexpr (requires { hooks.with_rows(); }) {
      const u32 taken = count_tasks(ctx, hooks);
      next = hooks.begin() + hooks.workers() + min(taken, hooks.tasks());
      if (next < hooks.end() && hooks.has_rows(next)) return;
      const u32 with_rows = hooks.with_rows();
      if (taken + 1 == with_rows) count_tasks(ctx, hooks, hooks.tasks() - with_rows);
      next = hooks.end();
    } else {
      next = take_task(ctx, hooks);
    }
  }
  MK_DEVICE void advance() {
    t = next;
    tell();
  }
  // Also that there is none left.
  MK_DEVICE void tell() {
    mbarrier_wait<Edges::tile_empty>(smem.tile_empty(slot.stage), slot.phase ^ 1);
    st_shared(smem.tile_index(slot.stage), t);
    mbarrier_arrive<Edges::tile_full>(smem.tile_full(slot.stage));
    slot.advance();
  }
};

// As the others walk them: the threads of a consumer, or the storer's lane.
template <class Smem, class Edges, class Hooks, bool kWarps, bool kDynamic = Hooks::kDynamic>
struct ReaderTiles {
  const Hooks& hooks;
  u32 t;
  MK_DEVICE ReaderTiles(const Smem&, const Hooks& hooks, TileCursor&) : hooks(hooks), t(hooks.first()) {}
  MK_DEVICE bool more() const { return t < hooks.end(); }
  // Whether it is known that none follows.
  MK_DEVICE bool last() const { return t + hooks.stride() >= hooks.end(); }
  MK_DEVICE void advance() { t += hooks.stride(); }
};

template <class Smem, class Edges, class Hooks, bool kWarps>
struct ReaderTiles<Smem, Edges, Hooks, kWarps, true> {
  const Smem& smem;
  const Hooks& hooks;
  TileCursor& slot;
  u32 t;
  MK_DEVICE ReaderTiles(const Smem& smem, const Hooks& hooks, TileCursor& slot) : smem(smem), hooks(hooks), slot(slot) {
    advance();
  }
  MK_DEVICE bool more() const { return t < hooks.end(); }
  MK_DEVICE bool last() const {
    return mbarrier_test_wait(smem.tile_full(slot.stage), slot.phase) && ld_shared(smem.tile_index(slot.stage)) >= hooks.end();
  }
  MK_DEVICE void advance() {
    mbarrier_wait<Edges::tile_full>(smem.tile_full(slot.stage), slot.phase);
    t = ld_shared(smem.tile_index(slot.stage));
    if constexpr (kWarps) __syncwarp();
    if (!kWarps || lane_index() == 0) mbarrier_arrive<Edges::tile_empty>(smem.tile_empty(slot.stage));
    slot.advance();
  }
};
