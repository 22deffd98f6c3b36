//! Deliveries happen: what is loaded, what is stored, and where.

use crate::{
    Result, SimError,
    context::{Phase, Piece},
    delivery::{Delivery, inner_of},
    error::place_of,
    machine::Machine,
    math::Tile,
    memory::rows,
    program::repeat,
    schedule::Due,
};
use mk_plan::{Access, Entity, Mode, Operand, Points, Region, TableSet, Task};

impl Machine<'_> {
    /// Puts something under way.
    pub fn issue(&mut self, rank: usize, delivery: Delivery) -> u64 {
        let id = self.deliveries.next;
        self.deliveries.next += 1;
        let network = matches!(delivery, Delivery::Network { .. });
        self.deliveries.due.insert(id, delivery);
        self.chooser.due(Due { id, rank, network, held: self.acting_held });
        id
    }

    /// Lets a delivery happen, if it has not been forced before.
    pub fn deliver(&mut self, id: u64) -> Result<()> {
        match self.deliveries.due.remove(&id) {
            None => Ok(()),
            Some(Delivery::Load { rank, unit, task, agent, line, phase }) => {
                self.load(rank, unit, task, line, phase)?;
                if let Some(c) = &mut self.ranks[rank].program.units[unit].tasks[task].context {
                    c.end_load(agent, phase);
                }
                self.wake_unit(rank, unit);
                Ok(())
            }
            Some(Delivery::Store { region, values, mode, epoch }) => {
                self.release(values.len() as u64);
                self.store(&region, &values, mode, epoch)
            }
            Some(Delivery::Network { op, step }) => self.network(op, step),
        }
    }

    /// Reads what an access names now, into its task's context.
    pub fn load(
        &mut self,
        rank: usize,
        unit: usize,
        task: usize,
        line: usize,
        phase: Phase,
    ) -> Result<()> {
        let tables = self.ranks[rank].tables.clone();
        let points = Points::new(self.plan, &tables);
        let at = &self.ranks[rank].program.units[unit].tasks[task].task;
        let access = &self.plan.families[at.family].accesses[line];
        let (epoch, family) = (at.epoch(), at.family.index());
        let mut pieces = Vec::new();
        for (each, region) in self.regions(&points, at, access, phase)? {
            self.check_read(&region, epoch)?;
            if region.rank != rank && access.operand != Operand::Tab {
                let size = self.plan.buffers[region.buffer].dtype.size_bytes();
                self.report.pulled_bytes[family] += region.len().max(0) as u64 * size;
            }
            if access.operand == Operand::Tab {
                let at = &self.ranks[rank].program.units[unit].tasks[task].task;
                self.check_entries(&tables, &region, place_of(self.plan, at))?;
            }
            pieces.push(Piece {
                operand: access.operand,
                phase,
                each,
                line,
                row: region.dims.first().map_or(0, |d| d.0),
                tile: self.read(&region),
            });
        }
        self.hold(pieces.iter().map(|p| p.tile.data.len() as u64).sum())?;
        self.ranks[rank].program.units[unit].tasks[task]
            .context
            .get_or_insert_default()
            .pieces
            .extend(pieces);
        Ok(())
    }

    /// The memory of an access in a phase of a task, with the value of `each`.
    pub fn regions(
        &self,
        points: &Points<'_>,
        task: &Task,
        access: &Access,
        phase: Phase,
    ) -> Result<Vec<(Option<i64>, Region)>> {
        let mut list = Vec::new();
        let (each, when) = (access.each.as_ref(), access.when.as_ref());
        repeat(points, task, inner_of(phase), each, when, |at| {
            let Some(region) = points.region(at, access)? else {
                return Ok(());
            };
            if !self.memory.contains(&region) {
                let buffer = &self.plan.buffers[region.buffer];
                return Err(SimError::OutOfBounds {
                    place: place_of(self.plan, task),
                    buffer: format!(
                        "{} {:?} {:?}",
                        region.buffer,
                        buffer.name,
                        self.memory.shape(region.rank, region.buffer)
                    ),
                    region: format!("(base, length) {:?} on rank {}", region.dims, region.rank),
                });
            }
            let value = at.vars[mk_plan::Var::EACH.0 as usize];
            list.push((each.map(|_| value), region));
            Ok(())
        })?;
        Ok(list)
    }

    /// Memory has the entries of a table that are about to be looked up there: what the plan says of its contents.
    fn check_entries(&self, tables: &TableSet, region: &Region, place: String) -> Result<()> {
        let shape = self.memory.shape(region.rank, region.buffer);
        let found = self.memory.read(region).data;
        for (id, table) in self.plan.tables.iter().filter(|t| t.1.stored == Some(region.buffer)) {
            let want = tables.values(region.rank, id);
            let (mut from, cols) = (0, region.dims.last().map_or(0, |d| d.1 as usize));
            let mut other = None;
            rows(shape, region, |at| {
                // A rank with fewer tokens than there is room for has no more entries.
                let want = (at..).map(|i| want.get(i));
                let pairs = want.zip(&found[from..from + cols]).zip(at..);
                from += cols;
                let unlike = |want: Option<&i32>, found| want.is_none_or(|w| *w as f32 != found);
                let mut pairs = pairs.filter(|((want, found), _)| unlike(*want, **found));
                other = other.or_else(|| pairs.next());
            });
            if let Some(((want, found), at)) = other {
                return Err(SimError::Violated {
                    access: format!("{place}: `tab` of {} rank {}", region.buffer, region.rank),
                    found: format!(
                        "entry {at} of {id} {:?} is {found}, and in this launch {}",
                        table.name,
                        want.map_or("there is none".into(), |want| format!("it is {want}"))
                    ),
                });
            }
        }
        Ok(())
    }

    /// What a region holds now.
    fn read(&self, region: &Region) -> Tile {
        let joined = self.joined.as_ref().filter(|j| j.plan.buffers[region.buffer].is_some());
        let Some(joined) = joined else { return self.memory.read(region) };
        let cols = region.dims.last().map_or(0, |d| d.1 as usize);
        let mut tile = Tile { rows: region.len() as usize / cols.max(1), cols, data: Vec::new() };
        let shape = self.memory.shape(region.rank, region.buffer);
        joined.read(region, shape, self.plan.buffers[region.buffer].dtype, &mut tile.data);
        tile
    }

    /// Stores values now.
    pub fn store(&mut self, region: &Region, values: &[f32], mode: Mode, epoch: i64) -> Result<()> {
        match &self.joined {
            Some(joined) if joined.plan.buffers[region.buffer].is_some() => {
                if mode == Mode::Accumulate {
                    let place = format!("{} of rank {}", region.buffer, region.rank);
                    let message = "adds to net memory, which a network writes, too".into();
                    return Err(SimError::Unsupported { place, message });
                }
                let shape = self.memory.shape(region.rank, region.buffer);
                joined.write(region, shape, self.plan.buffers[region.buffer].dtype, values);
            }
            _ => self.memory.write(region, values, mode == Mode::Accumulate),
        }
        self.check_write(region, epoch, mode)
    }
}
