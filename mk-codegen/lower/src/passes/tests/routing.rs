//! Routings of tokens to experts, and the tables that a launch of packed blocks has for them.

use super::packed::{BLOCK, Packed, tiles};

/// How tokens choose experts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Routing {
    Random,
    /// The first expert of every rank gets nothing, where there are others.
    Empty,
    /// Every token goes to the experts of the last rank, as long as it has more.
    LastRank,
    /// Another of these in each epoch.
    Mixed,
}

impl Packed {
    /// The experts of a token, by number in the world.
    pub fn route(&self, routing: Routing, epoch: i64, rank: usize, token: i32) -> Vec<i32> {
        let routing = match (routing, epoch % 3) {
            (Routing::Mixed, 0) => Routing::Random,
            (Routing::Mixed, 1) => Routing::LastRank,
            (Routing::Mixed, _) => Routing::Empty,
            (other, _) => other,
        };
        let all = self.world * self.experts;
        let open = |e: &i32| match routing {
            Routing::Empty => self.experts == 1 || e % self.experts != 0,
            Routing::LastRank | Routing::Random | Routing::Mixed => true,
        };
        let mut open: Vec<i32> = (0..all).filter(open).collect();
        let mut chosen = Vec::new();
        let mut state = (epoch as u64) << 40 | (rank as u64) << 20 | token as u64;
        while chosen.len() < self.slots as usize && !open.is_empty() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let last = |e: &i32| e / self.experts == self.world - 1;
            let choices = match routing {
                Routing::LastRank => open.iter().filter(|e| last(e)).count(),
                _ => open.len(),
            };
            let of = if choices == 0 { open.len() } else { choices };
            let from = if choices == 0 { 0 } else { open.len() - of };
            chosen.push(open.remove(from + (state >> 33) as usize % of));
        }
        chosen
    }

    /// Rank and token of the rows of each expert of the world, by rank and token.
    pub fn rows(&self, routing: Routing, epoch: i64) -> Vec<Vec<(i32, i32)>> {
        let mut rows = vec![Vec::new(); (self.world * self.experts) as usize];
        for (rank, token) in (0..self.world).flat_map(|r| (0..self.tokens).map(move |t| (r, t))) {
            for expert in self.route(routing, epoch, rank as usize, token) {
                rows[expert as usize].push((rank, token));
            }
        }
        rows
    }

    /// The first packed row of an expert on its rank.
    pub fn first(&self, rows: &[Vec<(i32, i32)>], expert: i32) -> i32 {
        let before = expert / self.experts * self.experts..expert;
        before.map(|e| tiles(rows[e as usize].len() as i32, BLOCK) * BLOCK).sum()
    }

    pub fn table(&self, routing: Routing, epoch: i64, rank: usize, name: &str) -> Vec<i32> {
        let rows = self.rows(routing, epoch);
        let mine = rank as i32 * self.experts..(rank as i32 + 1) * self.experts;
        match name {
            "counts" => mine.map(|e| rows[e as usize].len() as i32).collect(),
            "place" => {
                let slot = |expert: i32, token: i32| {
                    let row = rows[expert as usize].iter().position(|r| *r == (rank as i32, token));
                    let row = row.expect("a token is among its expert's rows") as i32;
                    [expert / self.experts, self.first(&rows, expert) + row]
                };
                let token = |t: i32| {
                    let experts = self.route(routing, epoch, rank, t);
                    experts.into_iter().flat_map(|e| slot(e, t)).collect::<Vec<_>>()
                };
                (0..self.tokens).flat_map(token).collect()
            }
            _ => {
                // What pads a block must not matter.
                let mut values = vec![self.world - 1; (self.blocks() * BLOCK) as usize];
                for e in mine {
                    for (i, (rank, token)) in rows[e as usize].iter().enumerate() {
                        let at = self.first(&rows, e) as usize + i;
                        values[at] = if name == "source_rank" { *rank } else { *token };
                    }
                }
                values
            }
        }
    }
}
