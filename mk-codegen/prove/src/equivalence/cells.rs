//! Cells: parts of a dimension of which all elements are treated alike, so that one or two stand for all.
//!
//! A *line* is a dimension of a buffer on a rank, or a dimension of the pipeline. A *link* says that two stretches of
//! two lines are the same index: rows of a tile and of what it is made of, a shard and its part of the whole. Every
//! region and every link begins and ends between cells, and what cuts one side of a link cuts the other. So a task maps
//! cells to cells, in order, and a launch in which each cell has fewer elements goes through the same steps.

use super::{FieldError, Result};
use crate::hash::FastSet;
use std::collections::BTreeSet;

/// Most cells that lines are cut into, all together.
const MAX_CELLS: usize = 1 << 22;
/// Lines of at most so many cells keep two elements of each.
const FEW: usize = 4;

/// A stretch of a line: the line, its beginning and its length.
pub(super) type Stretch = (u32, i32, i32);

/// Lines and links, as they are found.
#[derive(Default)]
pub(super) struct Lines {
    cuts: Vec<BTreeSet<i32>>,
    links: FastSet<(u32, i32, u32, i32, i32)>,
    seen: FastSet<Stretch>,
    /// Lines on which a window compares places, and its length.
    windows: Vec<(u32, i32)>,
    /// Lines of which all cells keep two elements.
    ends: BTreeSet<u32>,
}

impl Lines {
    /// A new line of so many elements.
    pub fn line(&mut self, extent: i64) -> u32 {
        self.cuts.push(BTreeSet::from([0, extent.max(0) as i32]));
        self.cuts.len() as u32 - 1
    }

    pub fn cut(&mut self, line: u32, at: i32) {
        self.cuts[line as usize].insert(at);
    }

    /// A region has this stretch.
    pub fn stretch(&mut self, (line, base, len): Stretch) {
        if self.seen.insert((line, base, len)) {
            self.cuts[line as usize].extend([base, base + len]);
        }
    }

    /// A window compares places of a line with those so far before. Cells of it keep their first and their last
    /// element, and one begins with the last place that a cell's first one sees: whoever takes a window to begin
    /// elsewhere, or skips what is in one, differs in one of these.
    pub fn apart(&mut self, line: u32, distance: u32) {
        if let Ok(distance) = i32::try_from(distance)
            && !self.windows.contains(&(line, distance))
        {
            self.windows.push((line, distance));
        }
    }

    /// Documents begin at these places of a line. Cells of it keep their first and their last element, so that whoever
    /// takes one to begin elsewhere differs in one of these.
    pub fn documents(&mut self, line: u32, begins: &[i32]) {
        let end = self.cuts[line as usize].last().copied().unwrap_or(0);
        let within = begins.iter().filter(|at| (0..=end).contains(*at));
        self.cuts[line as usize].extend(within);
        self.ends.insert(line);
    }

    /// Two stretches of one length are the same index.
    pub fn link(&mut self, (a, at, len): Stretch, (b, other, _): Stretch) {
        self.stretch((a, at, len));
        self.stretch((b, other, len));
        if len > 1 && (a, at) != (b, other) {
            let (x, y) =
                if (a, at) < (b, other) { ((a, at), (b, other)) } else { ((b, other), (a, at)) };
            self.links.insert((x.0, x.1, y.0, y.1, len));
        }
    }

    /// Cuts lines until links join cells to cells, and decides how many elements each cell has; at most so many looks
    /// at links and cuts.
    pub fn cells(mut self, most: u64) -> Result<Cells> {
        let links: Vec<_> = std::mem::take(&mut self.links).into_iter().collect();
        let mut left = most;
        self.join(&links, self.cuts.clone(), &mut left)?;
        let mut news = vec![BTreeSet::new(); self.cuts.len()];
        for &(line, distance) in &self.windows {
            let (cuts, news) = (&self.cuts[line as usize], &mut news[line as usize]);
            let begins = cuts.iter().map(|cut| cut - distance + 1);
            news.extend(begins.filter(|at| *at > 0 && !cuts.contains(at)));
        }
        for (cuts, news) in self.cuts.iter_mut().zip(&news) {
            cuts.extend(news);
        }
        self.join(&links, news, &mut left)?;
        let mut ends: BTreeSet<u32> = self.windows.iter().map(|(line, _)| *line).collect();
        ends.append(&mut self.ends);
        Ok(Cells::new(self.cuts, &links, &ends))
    }

    /// Cuts what links join to `news`, the cuts that lines have got.
    fn join(
        &mut self,
        links: &[(u32, i32, u32, i32, i32)],
        mut news: Vec<BTreeSet<i32>>,
        left: &mut u64,
    ) -> Result<()> {
        let too_many = || FieldError::TooLarge { what: "parts of dimensions".into() };
        let mut total = self.cuts.iter().map(BTreeSet::len).sum::<usize>();
        while news.iter().any(|cuts| !cuts.is_empty()) {
            let before = std::mem::replace(&mut news, vec![BTreeSet::new(); self.cuts.len()]);
            *left = left.checked_sub((links.len() + news.len()) as u64).ok_or_else(too_many)?;
            for &(a, at, b, other, len) in links {
                for (from, base, to, onto) in [(a, at, b, other), (b, other, a, at)] {
                    if before[from as usize].is_empty() {
                        continue;
                    }
                    for cut in before[from as usize].range(base + 1..base + len) {
                        *left = left.checked_sub(1).ok_or_else(too_many)?;
                        let there = cut - base + onto;
                        if self.cuts[to as usize].insert(there) {
                            news[to as usize].insert(there);
                            total += 1;
                        }
                    }
                }
            }
            if total > MAX_CELLS {
                return Err(too_many());
            }
        }
        Ok(())
    }
}

/// Lines in cells.
pub(super) struct Cells {
    /// Of each line, where cells begin, and its end.
    cuts: Vec<Vec<i32>>,
    /// Of each line, the same in the scaled line.
    scaled: Vec<Vec<i32>>,
}

impl Cells {
    /// Of the lines `ends` all cells keep two elements.
    fn new(
        cuts: Vec<BTreeSet<i32>>,
        links: &[(u32, i32, u32, i32, i32)],
        ends: &BTreeSet<u32>,
    ) -> Cells {
        let cuts: Vec<Vec<i32>> = cuts.into_iter().map(|c| c.into_iter().collect()).collect();
        let mut first = Vec::with_capacity(cuts.len());
        let mut total = 0;
        for line in &cuts {
            first.push(total);
            total += line.len().saturating_sub(1);
        }
        // Cells that links join have equally many elements.
        let mut joined = Joined::new(total);
        for &(a, at, b, other, len) in links {
            let index = |line: u32, x: i32| {
                let (Ok(i) | Err(i)) = cuts[line as usize].binary_search(&x);
                i
            };
            let (i, j, end) = (index(a, at), index(b, other), index(a, at + len));
            for k in 0..end - i {
                joined.join(first[a as usize] + i + k, first[b as usize] + j + k);
            }
        }
        let mut two = vec![false; total];
        for (number, (line, first)) in cuts.iter().zip(&first).enumerate() {
            let n = line.len().saturating_sub(1);
            let all = n <= FEW || ends.contains(&(number as u32));
            for i in (0..n).filter(|i| all || *i == 0 || *i + 1 == n) {
                two[joined.root(first + i)] = true;
            }
        }
        let scaled = cuts.iter().zip(&first).map(|(line, first)| {
            let mut at = 0;
            let mut ends = vec![0];
            for (i, w) in line.windows(2).enumerate() {
                let most = if two[joined.root(first + i)] { 2 } else { 1 };
                at += (w[1] - w[0]).min(most);
                ends.push(at);
            }
            ends
        });
        let scaled = scaled.collect();
        Cells { cuts, scaled }
    }

    /// Elements of a scaled line.
    pub fn extent(&self, line: u32) -> usize {
        self.scaled[line as usize].last().map_or(0, |n| *n as usize)
    }

    /// Where a cut is in the scaled line.
    pub fn at(&self, line: u32, cut: i32) -> usize {
        let (Ok(i) | Err(i)) = self.cuts[line as usize].binary_search(&cut);
        self.scaled[line as usize].get(i).map_or(0, |n| *n as usize)
    }

    /// The cell of a place in the scaled line.
    pub fn cell(&self, line: u32, at: usize) -> usize {
        self.scaled[line as usize].partition_point(|n| *n as usize <= at).saturating_sub(1)
    }

    /// Beginning and end of a cell.
    pub fn bounds(&self, line: u32, cell: usize) -> (i32, i32) {
        let cuts = &self.cuts[line as usize];
        (cuts[cell], cuts[cell + 1])
    }

    /// How many places of the scaled line are so many elements of the unscaled one, or more, before another.
    pub fn before(&self, line: u32, at: usize, distance: u32) -> usize {
        let last = self.original(line, at) - i64::from(distance);
        let Ok(there) = i32::try_from(last) else { return 0 };
        let (cuts, scaled) = (&self.cuts[line as usize], &self.scaled[line as usize]);
        let cell = cuts.partition_point(|cut| *cut <= there);
        let Some(cell) = cell.checked_sub(1) else { return 0 };
        let first = scaled[cell] as usize;
        let end = scaled.get(cell + 1).map_or(first, |n| *n as usize);
        // Of the cell there, the first element, and the last where it is that one.
        first + (first..end).filter(|at| self.original(line, *at) <= last).count()
    }

    /// An element that a place in the scaled line stands for.
    pub fn original(&self, line: u32, at: usize) -> i64 {
        let cell = self.cell(line, at);
        let within = at as i32 - self.scaled[line as usize][cell];
        let (begin, end) = self.bounds(line, cell);
        // The second element stands for the last.
        i64::from(if within > 0 { end - 1 } else { begin })
    }
}

/// Sets of cells.
struct Joined {
    parent: Vec<u32>,
}

impl Joined {
    fn new(n: usize) -> Joined {
        Joined { parent: (0..n as u32).collect() }
    }

    fn root(&mut self, mut i: usize) -> usize {
        while self.parent[i] as usize != i {
            self.parent[i] = self.parent[self.parent[i] as usize];
            i = self.parent[i] as usize;
        }
        i
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[a.max(b)] = a.min(b) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_with_cells() {
        let mut lines = Lines::default();
        let line = lines.line(400);
        lines.cut(line, 128);
        lines.cut(line, 256);
        lines.apart(line, 100);
        let cells = lines.cells(1 << 10).expect("few");
        assert_eq!(cells.cuts[line as usize], [0, 29, 128, 157, 256, 301, 400]);
        assert_eq!(cells.extent(line), 12);
        // The place 128 sees 29 to 128, and 255 sees 156 to 255.
        let (of_128, of_255) = (cells.at(line, 128), cells.at(line, 256) - 1);
        assert_eq!(cells.before(line, of_128, 100), cells.at(line, 29));
        assert_eq!(cells.before(line, of_128, 99), cells.at(line, 29) + 1);
        assert_eq!(cells.before(line, of_255, 100), cells.at(line, 157) - 1);
        assert_eq!(cells.before(line, 0, 1), 0);
        assert_eq!(cells.before(line, 1, 28), 1);
    }

    #[test]
    fn what_cuts_one_side_of_a_link_cuts_the_other() {
        let mut lines = Lines::default();
        let (a, b, c) = (lines.line(256), lines.line(512), lines.line(100));
        lines.link((a, 0, 128), (b, 256, 128));
        lines.link((b, 300, 50), (c, 10, 50));
        lines.stretch((c, 20, 5));
        let cells = lines.cells(1 << 10).expect("few");
        // 10 and 15 behind the link's beginning in `b`, and so 44 + 10 and 44 + 15 in `a`.
        assert_eq!(cells.cuts[b as usize], [0, 256, 300, 310, 315, 350, 384, 512]);
        assert_eq!(cells.cuts[a as usize], [0, 44, 54, 59, 94, 128, 256]);
        assert_eq!(cells.cuts[c as usize], [0, 10, 20, 25, 60, 100]);
        // The first and the last cell of a line have two elements, and so has what is linked to them.
        let count = |line: u32, cut| cells.at(line, cut);
        assert_eq!(count(a, 44), 2);
        assert_eq!(count(b, 300) - count(b, 256), 2);
        assert_eq!(count(b, 315) - count(b, 310), 1);
        assert_eq!(cells.original(b, count(b, 256) + 1), 299);
    }
}
