//! Raw figures to read.

use mk::cost::{RawCopy, RawFigures};
use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

/// Shows raw figures as tables.
pub struct Tables<'a>(pub &'a RawFigures);

impl Display for Tables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = self.0;
        let (tb, us) =
            (|v: f64| format!("{:.2} TB/s", v / 1e12), |v: f64| format!("{:.2} us", v * 1e6));
        let (read, copied) = (tb(raw.hbm_read_bytes_per_s), tb(raw.hbm_copy_bytes_per_s));
        let (local, peer) = (us(raw.flag_local_s), us(raw.flag_peer_s));
        let (host, device) = (us(raw.launch_host_s), us(raw.launch_device_s));
        writeln!(f, "{}: {}\n", raw.gpu, raw.measured)?;
        writeln!(f, "memory   {read} read; {copied} read and written in a copy")?;
        writeln!(f, "flag     {local} inside a GPU; {peer} to a peer")?;
        writeln!(f, "launch   {host} of the host; {device} from one empty kernel to the next")?;
        for (i, m) in raw.mma.iter().enumerate() {
            let name = if i == 0 { "mma" } else { "" };
            let (rate, ms) = (m.flop_per_s() / 1e12, m.seconds * 1e3);
            let sms = if m.sms == 1 { "one SM".into() } else { format!("{} SMs", m.sms) };
            writeln!(f, "{name:<9}{rate:.1} TFLOP/s by {sms} for {ms:.2} ms")?;
        }
        let pieces = |c: &RawCopy| match c.piece_bytes {
            0 => c.method.words().to_string(),
            bytes => format!("{:<12}{:>4}", c.method.words(), size(bytes.into())),
        };
        let sms = |c: &RawCopy| match c.sms {
            0 => c.method.words().to_string(),
            sms => format!("{}, {sms} SMs", c.method.words()),
        };
        writeln!(f, "\nGB/s of each rank, by SMs; bulk copies by size of a piece")?;
        grid(f, &raw.by_sms, pieces, |c| c.sms.into(), |sms| sms.to_string())?;
        writeln!(f, "\nGB/s of each rank, launch included, by size of a message")?;
        grid(f, &raw.by_size, sms, |c| c.bytes, size)
    }
}

/// Rates in rows and columns, in a part for each number of senders. Rows and parts are in the order in which they were
/// measured.
fn grid(
    f: &mut fmt::Formatter<'_>,
    copies: &[RawCopy],
    row: impl Fn(&RawCopy) -> String,
    column: impl Fn(&RawCopy) -> u64,
    head: impl Fn(u64) -> String,
) -> fmt::Result {
    let columns: BTreeSet<u64> = copies.iter().map(&column).collect();
    let names: String = columns.iter().fold(String::new(), |mut line, c| {
        let _ = write!(line, "{:>7}", head(*c));
        line
    });
    writeln!(f, "{:20}{names}", "")?;
    let mut parts: Vec<String> = copies.iter().map(part).collect();
    parts.dedup();
    for name in parts {
        writeln!(f, "{name}")?;
        let members: Vec<&RawCopy> = copies.iter().filter(|c| part(c) == name).collect();
        let mut rows: Vec<String> = members.iter().map(|c| row(c)).collect();
        rows.dedup();
        for name in rows {
            write!(f, "  {name:<18}")?;
            for at in &columns {
                match members.iter().find(|c| row(c) == name && column(c) == *at) {
                    Some(copy) => write!(f, "{:>7.1}", copy.bytes_per_s() / 1e9)?,
                    None => write!(f, "{:>7}", "-")?,
                }
            }
            writeln!(f)?;
        }
    }
    Ok(())
}

fn part(copy: &RawCopy) -> String {
    match (copy.method.is_local(), copy.senders) {
        (true, _) => "inside a GPU".into(),
        (false, 1) => "to the next rank, one alone".into(),
        (false, n) => format!("to the next rank, {n} at once"),
    }
}

/// `16K`, `256M`.
fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{}M", b >> 20),
        b => format!("{}K", b >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk::cost::{CopyMethod, RawMma};

    #[test]
    fn figures_are_shown_as_tables() {
        let copy = |method, senders, sms, piece_bytes, bytes, gb_per_s: f64| RawCopy {
            method,
            senders,
            sms,
            piece_bytes,
            bytes,
            seconds: bytes as f64 / (gb_per_s * 1e9),
        };
        let (k64, m1, m256) = (64 << 10, 1 << 20, 256 << 20);
        let raw = RawFigures {
            gpu: "NVIDIA H200".into(),
            measured: "a test".into(),
            ranks: 4,
            hbm_read_bytes_per_s: 4.1e12,
            hbm_copy_bytes_per_s: 3.9e12,
            flag_local_s: 6.2e-7,
            flag_peer_s: 1.52e-6,
            launch_host_s: 2.1e-6,
            launch_device_s: 1.31e-6,
            by_sms: vec![
                copy(CopyMethod::LdstLocal, 1, 1, 0, m256, 41.7),
                copy(CopyMethod::LdstLocal, 1, 132, 0, m256, 1950.0),
                copy(CopyMethod::BulkPush, 1, 1, 2048, m256, 21.0),
                copy(CopyMethod::BulkPush, 1, 1, 16384, m256, 54.6),
                copy(CopyMethod::BulkPush, 1, 132, 16384, m256, 380.04),
                copy(CopyMethod::BulkReduce, 4, 132, 16384, m256, 299.0),
            ],
            by_size: vec![
                copy(CopyMethod::CopyEngine, 4, 0, 0, k64, 9.0),
                copy(CopyMethod::CopyEngine, 4, 0, 0, m1, 95.5),
                copy(CopyMethod::BulkPush, 4, 32, 16384, m1, 120.0),
            ],
            mma: [(1, 1.5e9, 2e-4), (132, 1.95e11, 2.5e-4), (132, 1.95e13, 3e-2)]
                .map(|(sms, flop, seconds)| RawMma { sms, flop, seconds })
                .to_vec(),
        };
        let want = "\
NVIDIA H200: a test

memory   4.10 TB/s read; 3.90 TB/s read and written in a copy
flag     0.62 us inside a GPU; 1.52 us to a peer
launch   2.10 us of the host; 1.31 us from one empty kernel to the next
mma      7.5 TFLOP/s by one SM for 0.20 ms
         780.0 TFLOP/s by 132 SMs for 0.25 ms
         650.0 TFLOP/s by 132 SMs for 30.00 ms

GB/s of each rank, by SMs; bulk copies by size of a piece
                          1    132
inside a GPU
  ld/st local          41.7 1950.0
to the next rank, one alone
  bulk push     2K     21.0      -
  bulk push    16K     54.6  380.0
to the next rank, 4 at once
  bulk reduce  16K        -  299.0

GB/s of each rank, launch included, by size of a message
                        64K     1M
to the next rank, 4 at once
  copy engine           9.0   95.5
  bulk push, 32 SMs       -  120.0
";
        assert_eq!(Tables(&raw).to_string(), want);
    }
}
