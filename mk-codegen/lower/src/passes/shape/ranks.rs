//! Groups of ranks, ranks relative to this one, and blocks of rows.

use mk_plan::{Axis, Each, Expr, Var};

/// This rank.
pub(in crate::passes) fn own_rank() -> Expr {
    Var::RANK.into()
}

/// Rows of block `i` of height `block` among `rows`; 0 or less past the end.
pub(in crate::passes) fn block_rows(rows: Expr, i: Expr, block: i32) -> Expr {
    Expr::Const(block).min(rows - i * block)
}

/// This rank and those that it shares something with, in order: `size` ranks, `stride` apart. Each rank of the world
/// has such a group, so that `stride` groups lie in each `size * stride` ranks that follow each other.
///
/// A *place* is a number in the group, a *rank* one in the world. In a group of all ranks they are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) struct RankGroup {
    /// Ranks of the world.
    world: i32,
    stride: i32,
    pub size: i32,
}

impl RankGroup {
    /// The ranks along an axis of a world's mesh.
    pub fn of(axis: Axis, world: u32) -> RankGroup {
        RankGroup { world: world as i32, stride: axis.stride as i32, size: axis.size as i32 }
    }

    /// The ranks of a node, of so many each.
    pub fn of_node(world: u32, local: u32) -> RankGroup {
        RankGroup::of(Axis { stride: 1, size: local }, world)
    }

    /// As an axis of the mesh; `None` of all ranks.
    pub fn axis(self) -> Option<Axis> {
        (!self.is_world()).then_some(self.over())
    }

    /// How far its ranks are apart, and how many there are.
    pub fn over(self) -> Axis {
        Axis { stride: self.stride as u32, size: self.size as u32 }
    }

    /// This rank alone.
    pub fn alone(self) -> RankGroup {
        RankGroup { size: 1, ..self }
    }

    /// Whether all ranks are in it.
    pub fn is_world(self) -> bool {
        self.size == self.world
    }

    /// Ranks from the first one of a group to the first one behind the groups that lie between each other's ranks.
    fn span(self) -> i32 {
        self.stride * self.size
    }

    /// A rank that is as far from the first one of its span as `place` says.
    fn in_span(self, place: Expr) -> Expr {
        match self.span() == self.world {
            true => place,
            false => own_rank() / self.span() * self.span() + place,
        }
    }

    /// The place of a rank in its group.
    pub fn place_of(self, rank: Expr) -> Expr {
        let at = rank / self.stride;
        if self.span() == self.world { at } else { at % self.size }
    }

    /// The own place.
    pub fn place(self) -> Expr {
        self.place_of(own_rank())
    }

    /// The place so many after the own one.
    pub fn place_after(self, places: Expr) -> Expr {
        (own_rank() / self.stride + places) % self.size
    }

    /// The rank so many places after this one.
    pub fn rank_after(self, places: Expr) -> Expr {
        self.in_span((own_rank() + places * self.stride) % self.span())
    }

    /// The rank of a place.
    pub fn rank_of(self, place: Expr) -> Expr {
        match (self.world, self.stride) {
            (1, _) => own_rank(),
            (_, 1) => self.in_span(place),
            _ if self.size == 1 => own_rank(),
            (_, stride) => self.in_span(own_rank() % stride + place * stride),
        }
    }

    /// Every place, in order, and how many.
    pub fn places(self) -> Each {
        Each { var: "p".into(), extent: self.size.into() }
    }

    /// Every rank, in order: which, and how many.
    pub fn everyone(self) -> (Expr, Each) {
        (self.rank_of(Var::EACH.into()), self.places())
    }

    /// Every rank but this one: which, and how many.
    pub fn every_peer(self) -> (Expr, Each) {
        let each = Each { var: "p".into(), extent: (self.size - 1).into() };
        (self.rank_after(Expr::from(Var::EACH) + 1), each)
    }

    /// All of it in one node.
    pub fn in_one_node(self) -> Nodes {
        Nodes { group: self, near: self, far: RankGroup { stride: self.span(), size: 1, ..self } }
    }

    /// The group by nodes of so many ranks; `None` where its ranks are not as many in each.
    pub fn by_node(self, local: i32) -> Option<Nodes> {
        let (stride, span) = (self.stride, self.span());
        let near = match () {
            () if span == 0 => return None,
            () if local % span == 0 => self.size,
            () if stride % local == 0 => 1,
            () if local % stride == 0 && span % local == 0 => local / stride,
            () => return None,
        };
        Some(Nodes {
            group: self,
            near: RankGroup { size: near, ..self },
            far: RankGroup { stride: stride * near, size: self.size / near, ..self },
        })
    }
}

/// The ranks along two axes of a mesh.
#[derive(Clone, Copy)]
pub(in crate::passes) struct RankGrid {
    pub outer: RankGroup,
    pub inner: RankGroup,
}

impl RankGrid {
    /// How many ranks there are.
    pub fn size(self) -> i32 {
        self.outer.size * self.inner.size
    }

    /// The number of a place along each axis.
    pub fn number(self, outer: Expr, inner: Expr) -> Expr {
        outer * self.inner.size + inner
    }

    /// The own number.
    pub fn own(self) -> Expr {
        self.number(self.outer.place(), self.inner.place())
    }

    /// The rank of a number.
    fn numbered(self, number: Expr) -> Expr {
        self.rank_of(number.clone() / self.inner.size, number % self.inner.size)
    }

    /// Every rank, in order: which, and how many.
    pub fn everyone(self) -> (Expr, Each) {
        (self.numbered(Var::EACH.into()), Each { var: "p".into(), extent: self.size().into() })
    }

    /// Every rank but this one: which, and how many.
    pub fn every_peer(self) -> (Expr, Each) {
        let each = Each { var: "p".into(), extent: (self.size() - 1).into() };
        (self.numbered((self.own() + Var::EACH + 1) % self.size()), each)
    }

    /// The rank of a place along either.
    pub fn rank_of(self, outer: Expr, inner: Expr) -> Expr {
        let RankGrid { outer: o, inner: i } = self;
        if o.size == 1 {
            return i.rank_of(inner);
        }
        let at = |o_at: Expr, i_at: Expr| o_at * o.stride + i_at * i.stride;
        match o.size * i.size == o.world {
            true => at(outer, inner),
            false => own_rank() - at(o.place(), i.place()) + at(outer, inner),
        }
    }
}

/// How the ranks of a group lie in nodes: place `p` is number `p % local` of node `p / local`.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Nodes {
    pub group: RankGroup,
    /// Those of this node.
    pub near: RankGroup,
    /// Those of the same local index in every node: the *rail*.
    pub far: RankGroup,
}

impl Nodes {
    pub fn count(self) -> i32 {
        self.far.size
    }

    /// Ranks of a node.
    pub fn local(self) -> i32 {
        self.near.size
    }

    /// The own node's part of memory that has one for each.
    pub fn own_part(self) -> (Expr, Expr) {
        (self.far.place(), 1.into())
    }

    /// The node `m + 1` after the own one.
    pub fn other(self, m: Expr) -> Expr {
        self.far.place_after(m + 1)
    }

    /// The rank there that has this rank's local index, and its place in the group.
    pub fn rail(self, m: Expr) -> [Expr; 2] {
        let rank = self.far.rank_after(m.clone() + 1);
        [rank, self.group.place_after((m + 1) * self.local())]
    }

    /// The node `m + 1` before the own one, whose messages of the same number come to this one; and the place of the
    /// own rail there.
    pub fn source(self, m: Expr) -> [Expr; 2] {
        let node = self.far.place_after(Expr::Const(self.count() - 1) - m.clone());
        let back = Expr::Const(self.group.size - self.local()) - m * self.local();
        [node, self.group.place_after(back)]
    }

    /// The node of a place of the group.
    pub fn node_of(self, place: Expr) -> Expr {
        place / self.local()
    }

    /// The node so many before the own one.
    pub fn node_before(self, nodes: Expr) -> Expr {
        self.far.place_after(Expr::Const(self.count()) - nodes)
    }

    /// The first place of a node, and the last.
    pub fn ends(self, node: &Expr) -> [Expr; 2] {
        let first = node.clone() * self.local();
        [first.clone(), first + (self.local() - 1)]
    }

    /// The own node's place that is so many after the own one.
    pub fn near_after(self, places: Expr) -> Expr {
        match self.count() {
            1 => self.group.place_after(places),
            _ => self.far.place() * self.local() + self.near.place_after(places),
        }
    }

    /// The place that is number `n` by distance before the own one, which is number 0: those of this node, then node
    /// by node.
    pub fn before(self, n: Expr) -> Expr {
        let (count, local) = (self.count(), self.local());
        if count == 1 || local == 1 {
            return self.group.place_after(Expr::Const(self.group.size) - n);
        }
        let node = self.node_before(n.clone() / local);
        node * local + self.near.place_after(Expr::Const(local) - n % local)
    }

    /// The rank of this node that has the place that `place` of the group has in its node.
    pub fn same_place(self, place: Expr) -> Expr {
        self.near.rank_of(place % self.local())
    }
}
