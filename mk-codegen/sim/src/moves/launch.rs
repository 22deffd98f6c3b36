//! Kernel boundaries: stream order on each rank, nothing between ranks.

use crate::{Result, SimError, machine::Machine, program::Program, schedule::Actor};
use mk_plan::{Points, Space, TabId, TableSet};
use std::rc::Rc;

impl Machine<'_> {
    /// The caller's turn before the next launch: new inputs, in place of the old ones.
    pub fn between_launches(&mut self, rank: usize) -> Result<()> {
        let epoch = self.ranks[rank].epoch + 1;
        self.ranks[rank].own_rows = None;
        for (id, buffer) in self.plan.buffers.iter() {
            if buffer.space != Space::In {
                continue;
            }
            let shape = self.memory.shape(rank, id).to_vec();
            let mut values = self.caller.input(epoch, rank, id, &shape);
            let want = self.memory.values(rank, id).len();
            if buffer.own_rows {
                let row: usize = shape.iter().skip(1).product();
                let rows = values.len() / row.max(1);
                let own = self.ranks[rank].own_rows.get_or_insert(rows);
                if values.len() > want || *own * row != values.len() {
                    let message = format!(
                        "{id} {:?} has {} elements, and the rank has {own} rows of {row}",
                        buffer.name,
                        values.len()
                    );
                    return Err(SimError::Caller { epoch, rank, message });
                }
                values.resize(want, if buffer.dtype.is_integer() { -1.0 } else { 0.0 });
            }
            if values.len() != want {
                return Err(SimError::Caller {
                    epoch,
                    rank,
                    message: format!(
                        "{id} {:?} has {want} elements, the caller gave {}",
                        buffer.name,
                        values.len()
                    ),
                });
            }
            self.memory.fill(rank, id, &values);
            if let Some(stamps) = &mut self.stamps {
                stamps.fill(rank, id, epoch);
            }
        }
        self.chooser.ready(Actor::Launch { rank });
        Ok(())
    }

    /// Begins a rank's next epoch.
    pub fn launch(&mut self, rank: usize) -> Result<()> {
        let epoch = self.ranks[rank].epoch + 1;
        let tables = self.tables_of(epoch)?;
        for (id, buffer) in self.plan.buffers.iter() {
            if buffer.space == Space::Out {
                self.memory.poison(rank, id);
                if let Some(stamps) = &mut self.stamps {
                    stamps.fill(rank, id, 0);
                }
            }
        }
        let points = Points::new(self.plan, &tables);
        let program = {
            let taker = |ctas| self.chooser.taker(ctas);
            Program::new(self.plan, &self.contracts, &points, rank, epoch, taker)?
        };
        let r = &mut self.ranks[rank];
        r.epoch = epoch;
        r.tables = tables.clone();
        // One more, so that units without agents cannot end the launch while it begins.
        r.running = program.units.len() + 1;
        r.program = program;
        self.note_crossings(rank)?;
        let epochs = self.ranks.iter().map(|r| r.epoch);
        let behind = epochs.min().unwrap_or(epoch);
        self.report.max_drift = self.report.max_drift.max(epoch - behind);
        self.tables.retain(|e, _| *e >= behind);
        for unit in 0..self.ranks[rank].program.units.len() {
            if !self.ranks[rank].program.units[unit].gated {
                self.begin_unit(rank, unit)?;
            }
        }
        self.one_less(rank)
    }

    fn tables_of(&mut self, epoch: i64) -> Result<Rc<TableSet>> {
        if let Some(tables) = self.tables.get(&epoch) {
            return Ok(tables.clone());
        }
        let (caller, plan, memory) = (&mut *self.caller, self.plan, &self.memory);
        let inputs = |id: TabId| {
            let buffer = plan.tables[id].stored?;
            (plan.buffers[buffer].space == Space::In).then_some(buffer)
        };
        let set = TableSet::routed(plan, |rank, id| match inputs(id) {
            Some(buffer) => {
                let values = caller.input(epoch, rank, buffer, memory.shape(rank, buffer));
                values.into_iter().map(|x| x as i32).collect()
            }
            None => caller.table(epoch, rank, id),
        });
        let set = set.map_err(|(rank, message)| SimError::Caller { epoch, rank, message })?;
        if let Some((rank, message)) = set.refused(self.plan) {
            return Err(SimError::Caller { epoch, rank, message });
        }
        let set = Rc::new(set);
        self.tables.insert(epoch, set.clone());
        Ok(set)
    }

    /// Lets a unit's agents go. One without agents has ended.
    pub fn begin_unit(&mut self, rank: usize, unit: usize) -> Result<()> {
        let u = &self.ranks[rank].program.units[unit];
        if u.agents.is_empty() {
            return self.end_unit(rank, unit);
        }
        for agent in &u.agents {
            self.chooser.ready(Actor::Agent { rank, agent: *agent });
        }
        Ok(())
    }

    /// What follows when the last agent of a unit has come to its end.
    pub fn end_unit(&mut self, rank: usize, unit: usize) -> Result<()> {
        if let Some(next) = self.ranks[rank].program.units[unit].next {
            self.begin_unit(rank, next)?;
        }
        self.one_less(rank)
    }

    fn one_less(&mut self, rank: usize) -> Result<()> {
        let r = &mut self.ranks[rank];
        r.running -= 1;
        if r.running == 0 { self.end_launch(rank) } else { Ok(()) }
    }

    /// The kernel has ended: its stores to the rank's own memory are there (those to peers may still be on their way),
    /// and the caller reads the outputs and writes the next inputs.
    fn end_launch(&mut self, rank: usize) -> Result<()> {
        let program = std::mem::take(&mut self.ranks[rank].program);
        let stores = program.agents.iter().flat_map(|a| a.stores.iter().copied());
        for id in stores {
            if self.deliveries.stays_on(id, rank) {
                self.deliver(id)?;
            }
        }
        let epoch = self.ranks[rank].epoch;
        self.check_outputs(rank, epoch)?;
        for (id, buffer) in self.plan.buffers.iter() {
            if buffer.space == Space::Out {
                let mut shape = self.memory.shape(rank, id).to_vec();
                if let (true, Some(rows)) = (buffer.own_rows, self.ranks[rank].own_rows) {
                    shape[0] = rows;
                }
                let n: usize = shape.iter().product();
                let values = self.memory.values(rank, id).get(..n).unwrap_or_default();
                self.caller.output(epoch, rank, id, &shape, values);
            }
        }
        if epoch < i64::from(self.options.launches) {
            return self.between_launches(rank);
        }
        self.ranks[rank].finished = true;
        for (id, buffer) in self.plan.buffers.iter() {
            if buffer.space == Space::In {
                self.memory.poison(rank, id);
                if let Some(stamps) = &mut self.stamps {
                    stamps.fill(rank, id, 0);
                }
            }
        }
        Ok(())
    }
}
