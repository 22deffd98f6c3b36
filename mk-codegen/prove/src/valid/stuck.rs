//! The counterexample of rule 2: a chain of agents, each of which waits for the next.

use super::{
    deadlock::{Block, Run},
    report::Violation,
    site,
    within::{post_line, wait_line},
};
use mk_plan::Agent;
use std::collections::HashSet;

/// Lines of a counterexample.
const MAX_CHAIN: usize = 12;

impl Run<'_, '_> {
    /// A chain of agents that wait for each other, from the first one that is stuck.
    pub fn explain(&self) -> Vec<Violation> {
        let stuck = |l: usize| (0..self.lanes[l].cursors.len()).map(move |i| (l, i));
        let blocked = (0..self.lanes.len()).flat_map(stuck);
        let first =
            blocked.clone().find(|(l, i)| matches!(self.block(*l, *i), Some(Block::Wait(_))));
        let mut at = first;
        let mut chain = Vec::new();
        let mut seen = HashSet::new();
        while let Some((lane, i)) = at {
            if !seen.insert((lane, i)) {
                chain.push("and so on, in a circle".into());
                break;
            }
            if chain.len() >= MAX_CHAIN {
                chain.push("and so on".into());
                break;
            }
            at = self.follow(lane, i, &mut chain);
        }
        vec![Violation::Deadlock { stuck: chain }]
    }

    /// Says what one agent waits for, and finds who should bring it.
    fn follow(&self, lane: usize, i: usize, chain: &mut Vec<String>) -> Option<(usize, usize)> {
        let (rank, epoch) = (self.lanes[lane].rank as usize, self.lanes[lane].epoch);
        let agent = self.lanes[lane].cursors[i].0;
        let cta = lane - rank * self.per_rank;
        let (c, task) = self.current(lane, i);
        let who = |t: u32| site::task(self.world, self.class(epoch), epoch, t, agent, c.step);
        let of = |a: Agent| {
            (0..self.lanes[lane].cursors.len()).find(|j| self.lanes[lane].cursors[*j].0 == a)
        };
        match self.block(lane, i)? {
            Block::Wait(w) => {
                let class = self.class(epoch);
                let wait = &class.waits[w as usize];
                let line = wait_line(self.world.plan, class, wait);
                let needed = epoch.saturating_sub(line.lag);
                chain.push(format!(
                    "{} (CTA {cta}) waits for {} on {}",
                    who(wait.task),
                    line.edge,
                    site::word(self.world, wait.word)
                ));
                self.poster(wait.word, needed, chain)
            }
            Block::Agent(other) => {
                let (t, _) = task?;
                chain.push(format!("{} (CTA {cta}) waits for `{other}`", who(t)));
                Some((lane, of(other)?))
            }
            Block::Phase => {
                chain.push(format!(
                    "`{agent}` of CTA {cta} on rank {rank} waits for the other agents of the CTA"
                ));
                let behind =
                    |j: &usize| !matches!(self.block(lane, *j), Some(Block::Phase | Block::Done));
                Some((lane, (0..self.lanes[lane].cursors.len()).find(behind)?))
            }
            Block::Done => {
                let mates = (rank * self.per_rank..(rank + 1) * self.per_rank)
                    .filter(|l| self.lanes[*l].epoch == epoch);
                let mut all =
                    mates.flat_map(|l| (0..self.lanes[l].cursors.len()).map(move |j| (l, j)));
                all.find(|(l, j)| matches!(self.block(*l, *j), Some(Block::Wait(_))))
            }
        }
    }

    /// The agent that should make a missing post.
    fn poster(&self, word: u32, epoch: u32, chain: &mut Vec<String>) -> Option<(usize, usize)> {
        let class = self.class(epoch.max(1));
        let missing =
            class.posts_of(word).iter().find(|p| !self.posted[epoch as usize - 1][**p as usize])?;
        let post = &class.posts[*missing as usize];
        let task = &class.tasks[post.task as usize];
        let info = self.world.info(task.family);
        let agent = match info.agent(post.agent) {
            Agent::Sender | Agent::Receiver => Agent::Issuer,
            a => a,
        };
        let lane =
            self.lane_of[self.world.class_of[epoch as usize - 1]][post.task as usize] as usize;
        let by = site::task(self.world, class, epoch, post.task, info.agent(post.agent), post.step);
        chain.push(format!(
            "which {} of {by} should raise",
            post_line(self.world.plan, class, post).edge
        ));
        let i = self.lanes[lane].cursors.iter().position(|c| c.0 == agent)?;
        Some((lane, i))
    }
}
