//! Plans of attention as text: on one rank, and over keys and values that other ranks push.

/// Sizes of a plan.
#[derive(Clone, Copy)]
pub struct Attention {
    pub dtype: &'static str,
    pub batch: u32,
    /// Queries, and keys, of a rank.
    pub seq: u32,
    pub heads: u32,
    pub groups: u32,
    pub dim: u32,
    /// Queries of a tile.
    pub queries: u32,
    /// Keys of a block.
    pub keys: u32,
    pub causal: bool,
    /// Positions by which keys are ahead of where they would be: the first queries see none.
    pub ahead: u32,
    pub ranks: u32,
    pub dynamic: bool,
    /// CTAs of a rank. Of several ranks, 8 of them push.
    pub ctas: u32,
}

/// Where tests begin from.
pub const BASE: Attention = Attention {
    dtype: "bf16",
    batch: 2,
    seq: 1000,
    heads: 8,
    groups: 8,
    dim: 128,
    queries: 128,
    keys: 128,
    causal: false,
    ahead: 0,
    ranks: 1,
    dynamic: false,
    ctas: 132,
};

/// What is compiled, and how the emitter prints it.
#[allow(dead_code)]
pub const ATTENTION: &[(&str, Attention)] = &[
    ("full_128", BASE),
    ("full_176", Attention { keys: 176, dynamic: true, ..BASE }),
    ("causal", Attention { causal: true, dynamic: true, groups: 2, ..BASE }),
    ("causal_f16", Attention { causal: true, dtype: "f16", groups: 1, ..BASE }),
    ("head_64", Attention { dim: 64, keys: 176, dynamic: true, ..BASE }),
    ("head_64_causal", Attention { dim: 64, causal: true, dynamic: true, ..BASE }),
    ("head_64_wide", Attention { dim: 64, queries: 192, dynamic: true, ..BASE }),
    ("ring_64", Attention { dim: 64, keys: 176, causal: true, ranks: 4, ..BASE }),
    ("ring_full", Attention { ranks: 4, groups: 2, ..BASE }),
    ("ring_causal", Attention { ranks: 4, groups: 2, causal: true, dynamic: true, ..BASE }),
    ("ring_176", Attention { ranks: 4, groups: 2, keys: 176, dynamic: true, ..BASE }),
    ("ring_176_causal", Attention { ranks: 4, keys: 176, causal: true, dynamic: true, ..BASE }),
];

impl Attention {
    /// The plan's text.
    pub fn text(&self) -> String {
        let Attention { dtype, batch, seq, heads, groups, dim, .. } = *self;
        let mut out = format!("plan \"attention\"\nmesh world={}\ntarget sm_90a\n", self.ranks);
        for (i, (name, kind, heads)) in
            [("q", "in", heads), ("k", "in", groups), ("v", "in", groups), ("o", "out", heads)]
                .into_iter()
                .enumerate()
        {
            out += &format!(
                "buffer buf{i} \"{name}\" {kind} {dtype}[{batch}, {seq}, {heads}, {dim}]\n"
            );
        }
        out += &format!("buffer buf4 \"lse\" out f32[{batch}, {heads}, {seq}]\n");
        if self.ranks == 1 {
            out += &format!("role role0 compute ctas {}\n\n", self.ctas);
            return out + &self.attend("role0", 0, 0);
        }
        out += &format!(
            "buffer buf5 \"kv_all\" workspace {dtype}[{ranks}, {batch}, {groups}, 2, {seq}, {dim}]
signal sig0 \"entered\" [{ranks}]
signal sig1 \"arrived\" [{ranks}, {batch}, {groups}]
role role0 prologue ctas 0
role role1 compute ctas {ctas}
role role2 intra_comm ctas 8

",
            ranks = self.ranks,
            ctas = self.ctas - 8,
        );
        for (c, name) in ["k", "v"].into_iter().enumerate() {
            out += &self.push(c, name);
        }
        out += &self.attend("role1", 2, 10);
        out += &format!(
            "\nfamily fam3 \"enter\" role0 {{\n  leaf enter\n  post e8 sig0[rank] @ p += 1 by lead after program_order scope sys at start each p in {}\n}}\n",
            self.ranks
        );
        out
    }

    /// Pushes keys, or values, to every other rank.
    fn push(&self, c: usize, name: &str) -> String {
        let Attention { batch, seq, groups, dim, ranks, .. } = *self;
        let (pieces, others, edge) = (seq.div_ceil(128), ranks - 1, 4 * c);
        format!(
            "family fam{c} \"push.{name}\" role2 {{
  leaf copy_tile via=bulk stages=12
  for b in {batch}
  for g in {groups}
  for s in {others}
  for p in {pieces}
  edge e0 full
  edge e1 empty
  access src: read buf{} @ rank [b : 1, p * 128 : min(128, {seq} - p * 128), g : 1, 0 : {dim}] at start
  access dst: write buf5 @ (rank + (s + 1)) % {ranks} [rank : 1, b : 1, g : 1, {c} : 1, p * 128 : min(128, {seq} - p * 128), 0 : {dim}] at end
  wait e{} sig0[(rank + (s + 1)) % {ranks}] >= 1 by storer for async scope sys at start
  post e{} sig1[rank, b, g] @ (rank + (s + 1)) % {ranks} += 1 by storer after global_write_done scope sys at end
}}

",
            c + 1,
            edge + 2,
            edge + 3,
        )
    }

    fn attend(&self, role: &str, family: u32, edge: u32) -> String {
        let Attention { batch, seq, heads, groups, dim, keys, ranks, .. } = *self;
        let rows = self.queries;
        let (tiles, each) = (seq.div_ceil(rows), heads / groups);
        let mask = if self.causal { "causal" } else { "full" };
        let mut out = format!("family fam{family} \"attend\" {role} {{\n");
        out += &format!(
            "  leaf attend_tile block={rows}x{keys}x{dim} carry=registers scale=0x{:08x} stages=2 mask={mask} store=direct\n",
            (1.0 / (dim as f32).sqrt()).to_bits()
        );
        out += &format!("  for b in {batch}\n  for h in {heads}\n  for i in {tiles}\n");
        if self.dynamic {
            out += "  schedule dynamic\n";
        }
        if ranks > 1 {
            out += &format!("  inner s in {ranks}\n");
        }
        let source = format!("(rank + ({ranks} - s)) % {ranks}");
        if self.causal {
            let (q, k) = match (ranks, self.ahead) {
                (1, ahead) => (format!("i * {rows}"), ahead.to_string()),
                (_, 0) => (format!("rank * {seq} + i * {rows}"), format!("{source} * {seq}")),
                (_, ahead) => panic!("keys {ahead} ahead on several ranks"),
            };
            out += &format!("  position q {q}\n  position k {k}\n");
        }
        for (i, name) in
            ["q_full", "q_empty", "kv_full", "kv_empty", "staged", "drained"].iter().enumerate()
        {
            out += &format!("  edge e{} {name}\n", edge as usize + i);
        }
        let rows = format!("i * {rows} : min({rows}, {seq} - i * {rows})");
        out +=
            &format!("  access q: read buf0 @ rank [b : 1, {rows}, h : 1, 0 : {dim}] at start\n");
        for (operand, buffer, c) in [("k", 1, 0), ("v", 2, 1)] {
            let own = format!(
                "  access {operand}: read buf{buffer} @ rank [b : 1, 0 : {seq}, h / {each} : 1, 0 : {dim}]"
            );
            out += &match ranks {
                1 => format!("{own} at start\n"),
                _ => format!(
                    "{own} at inner when s == 0\n  access {operand}: read buf5 @ rank [{source} : 1, b : 1, h / {each} : 1, {c} : 1, 0 : {seq}, 0 : {dim}] at inner when 0 < s\n"
                ),
            };
        }
        out += &format!("  access o: write buf3 @ rank [b : 1, {rows}, h : 1, 0 : {dim}] at end\n");
        out += &format!("  access lse: write buf4 @ rank [b : 1, h : 1, {rows}] at end\n");
        if ranks > 1 {
            out += &format!(
                "  wait e{} sig1[{source}, b, h / {each}] >= {} by loader for async scope sys at inner when 0 < s\n",
                edge + 6,
                2 * seq.div_ceil(128)
            );
        }
        out + "}\n"
    }
}
