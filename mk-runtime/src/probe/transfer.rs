//! Copies between ranks: what can be asked for, how it is launched, and whether it was right.

use super::kernels::{LDST_BYTES, Shape, enqueue};
use super::machine::{MAX_BYTES, Probe, unmeasured};
use super::piece::Piece;
use crate::driver::cu;
use crate::{Error, Result};
use std::fmt;

/// How bytes get from one memory to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Bulk copies through shared memory, inside a GPU.
    BulkLocal(Piece),
    /// Bulk copies through shared memory, to a peer (`cp.async.bulk`).
    BulkPush(Piece),
    /// The same from a peer.
    BulkPull(Piece),
    /// Bulk loads, and sums in a peer's memory (`cp.reduce.async.bulk`, bf16).
    BulkReduce(Piece),
    /// Loads and stores of 16 bytes, inside a GPU.
    LdstLocal,
    /// Loads, and stores to a peer.
    LdstPush,
    /// Loads from a peer, and stores.
    LdstPull,
    /// The driver's copy to a peer (`cuMemcpyDtoDAsync`), which no SM takes part in.
    CopyEngine,
}

/// Copies that are made at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// How.
    pub method: Method,
    /// Ranks `0..senders` each send to, or read from, the rank after them; the last begins again at rank 0.
    pub senders: u32,
    /// SMs of each that do so; 0 for the copy engine.
    pub sms: u32,
    /// What each moves, in bytes: a multiple of the piece, and of 128 KiB for loads and stores.
    pub bytes: u64,
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Transfer { method, senders, sms, bytes } = self;
        write!(f, "{method:?}, {bytes} bytes, {sms} SMs, {senders} ranks at once")
    }
}

/// One rank's copy.
struct Leg {
    /// Who makes it.
    rank: u32,
    from: u64,
    to: u64,
    /// Whose pattern is copied, and whose memory it gets to.
    of: u32,
    at: u32,
}

impl Probe {
    /// Seconds until the slowest rank has made its copy, from the release of all.
    ///
    /// # Errors
    /// [`Error::Shape`] for a transfer that cannot be; [`Error::Unmeasured`] when something else than the bytes that
    /// were sent has arrived; [`Error::Cuda`].
    pub fn transfer_s(&self, transfer: &Transfer) -> Result<f64> {
        self.check_shape(transfer)?;
        let what = transfer.to_string();
        let legs = (0..transfer.senders).map(|rank| self.leg(transfer, rank));
        let legs = legs.collect::<Result<Vec<Leg>>>()?;
        let adds = matches!(transfer.method, Method::BulkReduce(_));
        // Nothing of the pattern is 0xffff.
        let before = if adds { 0 } else { 0xff };
        self.memory.fill(MAX_BYTES, MAX_BYTES + transfer.bytes, before)?;
        self.clear_reports()?;
        let seconds =
            self.time_s(|| legs.iter().try_for_each(|leg| self.enqueue_leg(transfer, leg)))?;
        let times = if adds { self.rounds + 1 } else { 1 };
        self.check_arrived(&what, &legs, transfer.bytes, times)?;
        Ok(seconds)
    }

    fn leg(&self, transfer: &Transfer, rank: u32) -> Result<Leg> {
        let next = (rank + 1) % self.world.size();
        let (of, at) = match transfer.method {
            Method::BulkLocal(_) | Method::LdstLocal => (rank, rank),
            Method::BulkPull(_) | Method::LdstPull => (next, rank),
            Method::BulkPush(_) | Method::BulkReduce(_) | Method::LdstPush | Method::CopyEngine => {
                (rank, next)
            }
        };
        Ok(Leg { rank, from: self.source(of)?, to: self.inbox(at)?, of, at })
    }

    /// Enqueues the copy on the rank's stream. The transfer is in shape.
    fn enqueue_leg(&self, transfer: &Transfer, leg: &Leg) -> Result<()> {
        let (own, stream) = self.on(leg.rank)?;
        let args = [leg.to, leg.from, transfer.bytes, own.report.ptr()];
        let bulk = |piece, add| {
            let kernel = own.kernels.bulk(piece, add).ok_or_else(|| Error::BadSource {
                kernel: "probe".into(),
                what: format!("there is none for pieces of {} bytes", piece.bytes()),
            })?;
            // SAFETY: probe_bulk_*; both ranges are in symmetric memory and `bytes` long, which is a multiple of the
            // piece.
            unsafe { enqueue(kernel, Shape::bulk(transfer.sms), stream, &args) }
        };
        match transfer.method {
            Method::BulkLocal(piece) | Method::BulkPush(piece) | Method::BulkPull(piece) => {
                bulk(piece, false)
            }
            Method::BulkReduce(piece) => bulk(piece, true),
            Method::LdstLocal | Method::LdstPush | Method::LdstPull => {
                let shape = Shape::ldst(transfer.sms);
                // SAFETY: probe_ldst_copy; as above, in multiples of `LDST_BYTES`.
                unsafe { enqueue(&own.kernels.ldst_copy, shape, stream, &args[..3]) }
            }
            Method::CopyEngine => {
                let context = stream.context();
                let _in = context.enter()?;
                let (device, bytes) = (Some(context.ordinal()), transfer.bytes as usize);
                let raw = stream.as_ref().raw();
                // SAFETY: both ranges are in symmetric memory, which every GPU has mapped, and `bytes` long.
                unsafe { cu!(device, cuMemcpyDtoDAsync_v2(leg.to, leg.from, bytes, raw)) }
            }
        }
    }

    fn check_shape(&self, transfer: &Transfer) -> Result<()> {
        let Transfer { method, senders, sms, bytes } = *transfer;
        let (unit, fits) = match method {
            Method::CopyEngine => (4, sms == 0),
            Method::LdstLocal | Method::LdstPush | Method::LdstPull => {
                (LDST_BYTES, (1..=self.sms()?).contains(&sms))
            }
            Method::BulkLocal(piece)
            | Method::BulkPush(piece)
            | Method::BulkPull(piece)
            | Method::BulkReduce(piece) => (piece.bytes().into(), (1..=self.sms()?).contains(&sms)),
        };
        let sized = bytes > 0 && bytes <= MAX_BYTES && bytes.is_multiple_of(unit);
        if fits && sized && (1..=self.world.size()).contains(&senders) {
            return Ok(());
        }
        Err(Error::Shape { what: format!("a transfer cannot be: {transfer}") })
    }

    /// Compares every word that should have arrived.
    fn check_arrived(&self, what: &str, legs: &[Leg], bytes: u64, times: u32) -> Result<()> {
        let words = (bytes / 4) as u32;
        for leg in legs {
            let (own, stream) = self.on(leg.at)?;
            let (of, times) = (u64::from(leg.of), u64::from(times));
            let args = [leg.to, u64::from(words), of, times, own.report.ptr()];
            // SAFETY: probe_check; the range is in the rank's memory and `bytes` long.
            unsafe { enqueue(&own.kernels.check, Shape::flat(words), stream, &args) }?;
        }
        let reports = self.reports(what)?;
        match reports.iter().position(|r| r.wrong > 0) {
            None => Ok(()),
            Some(rank) => {
                let wrong = reports[rank].wrong;
                Err(unmeasured(what, format!("{wrong} of {words} words are wrong on rank {rank}")))
            }
        }
    }
}
