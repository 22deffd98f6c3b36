//! Which raw figures of a machine are measured: each method by SMs, pieces and ranks that send at once, messages by
//! size, and GEMMs.

use mk_codegen::cost::{CopyMethod, RawCopy, RawFigures, RawMma};
use mk_runtime::jit::JitOptions;
use mk_runtime::probe::{Burst, MAX_BYTES, Method, Piece, Probe, Transfer};
use mk_runtime::{Error, World};

/// Numbers of SMs, as far as the GPU has them; all of them come last.
const SMS: [u32; 9] = [1, 2, 4, 8, 12, 16, 24, 32, 64];
/// Who moves messages by bulk copies, SMs and pieces. Pieces are smaller where the message would not give each SM one.
const MESSAGE_SMS: u32 = 32;
/// From the smallest message to the largest, each four times the one before.
const LEAST_MESSAGE: u64 = 64 << 10;
/// Steps of a burst of GEMMs that takes some 0.2 ms, and of one that takes some 20: long ones make a GPU lower its
/// clock.
const BURST_STEPS: [u32; 2] = [352, 35_200];

/// Measures a machine with no plan in between; each figure is the median of `rounds` launches. A world in one process.
/// Takes seconds.
///
/// # Errors
/// [`Error::Shape`] for a world of one rank or of several processes, and `rounds` outside
/// [`mk_runtime::probe::ROUNDS`]; [`Error::Unmeasured`] when a copy or a GEMM is wrong or a wait does not end; what
/// else [`Probe`] says.
pub fn measure_raw(world: &World, options: &JitOptions, rounds: u32) -> Result<RawFigures, Error> {
    let probe = Probe::new(world, options, rounds)?;
    let measure = |transfer: Transfer| Ok(row(transfer, probe.transfer_s(&transfer)?));
    let transfers = by_sms(world.size(), probe.sms()?);
    let by_sms = transfers.into_iter().map(measure).collect::<Result<Vec<_>, Error>>()?;
    let by_size =
        by_size(world.size()).into_iter().map(measure).collect::<Result<Vec<_>, Error>>()?;
    let products = |burst: Burst| {
        let seconds = tidy(probe.mma_s(&burst)?);
        Ok(RawMma { sms: burst.sms, flop: burst.flop(), seconds })
    };
    let mma = bursts(probe.sms()?).into_iter().map(products).collect::<Result<Vec<_>, Error>>()?;
    let local = by_sms.iter().filter(|c| c.method.is_local()).map(RawCopy::bytes_per_s);
    Ok(RawFigures {
        gpu: world.gpu_name(0)?,
        measured: format!(
            "mk {} probe, {} ranks, median of {rounds}",
            env!("CARGO_PKG_VERSION"),
            world.size()
        ),
        ranks: world.size(),
        hbm_read_bytes_per_s: tidy(probe.hbm_read_bytes_per_s()?),
        // Each byte is read and written.
        hbm_copy_bytes_per_s: tidy(2.0 * local.fold(0.0, f64::max)),
        flag_local_s: tidy(probe.flag_s(0, 0)?),
        flag_peer_s: tidy(probe.flag_s(0, 1)?),
        launch_host_s: tidy(probe.launch_host_s()?),
        launch_device_s: tidy(probe.launch_device_s()?),
        by_sms,
        by_size,
        mma,
    })
}

/// One SM, which lowers no clock, and all of them, shortly and for long.
fn bursts(all_sms: u32) -> Vec<Burst> {
    let [short, long] = BURST_STEPS;
    let all = [(1, short), (all_sms, short), (all_sms, long)];
    all.map(|(sms, steps)| Burst { sms, steps }).to_vec()
}

/// Every method with every number of SMs, by one rank alone and by all.
fn by_sms(ranks: u32, all_sms: u32) -> Vec<Transfer> {
    let bulk = [Method::BulkPush, Method::BulkPull, Method::BulkReduce];
    let bulk = bulk.into_iter().flat_map(|method| Piece::ALL.map(method));
    let peers: Vec<Method> = bulk.chain([Method::LdstPush, Method::LdstPull]).collect();
    let local = [Method::BulkLocal(Piece::K16), Method::LdstLocal];
    let sms: Vec<u32> = SMS.into_iter().filter(|n| *n < all_sms).chain([all_sms]).collect();
    let mut list = Vec::new();
    let mut add = |methods: &[Method], senders| {
        for method in methods {
            list.extend(sms.iter().map(|sms| Transfer {
                method: *method,
                senders,
                sms: *sms,
                bytes: long(*sms),
            }));
        }
    };
    add(&local, 1);
    add(&peers, 1);
    add(&peers, ranks);
    list
}

/// Long enough that a launch is a small part of it, and no longer: few SMs are slow.
fn long(sms: u32) -> u64 {
    (u64::from(sms) << 24).clamp(MAX_BYTES / 4, MAX_BYTES)
}

/// Messages of every size by copy engine and bulk copies, by one rank alone and by all.
fn by_size(ranks: u32) -> Vec<Transfer> {
    let sizes = std::iter::successors(Some(LEAST_MESSAGE), |bytes| Some(bytes * 4));
    let sizes: Vec<u64> = sizes.take_while(|bytes| *bytes <= MAX_BYTES).collect();
    let mut list = Vec::new();
    for senders in [1, ranks] {
        list.extend(sizes.iter().map(|bytes| Transfer {
            method: Method::CopyEngine,
            senders,
            sms: 0,
            bytes: *bytes,
        }));
        list.extend(sizes.iter().map(|bytes| {
            let share = bytes / u64::from(MESSAGE_SMS);
            let fits = Piece::ALL.into_iter().rev().find(|p| u64::from(p.bytes()) <= share);
            let method = Method::BulkPush(fits.unwrap_or(Piece::K2));
            Transfer { method, senders, sms: MESSAGE_SMS, bytes: *bytes }
        }));
    }
    list
}

fn row(transfer: Transfer, seconds: f64) -> RawCopy {
    let (method, piece) = match transfer.method {
        Method::BulkLocal(piece) => (CopyMethod::BulkLocal, Some(piece)),
        Method::BulkPush(piece) => (CopyMethod::BulkPush, Some(piece)),
        Method::BulkPull(piece) => (CopyMethod::BulkPull, Some(piece)),
        Method::BulkReduce(piece) => (CopyMethod::BulkReduce, Some(piece)),
        Method::LdstLocal => (CopyMethod::LdstLocal, None),
        Method::LdstPush => (CopyMethod::LdstPush, None),
        Method::LdstPull => (CopyMethod::LdstPull, None),
        Method::CopyEngine => (CopyMethod::CopyEngine, None),
    };
    RawCopy {
        method,
        senders: transfer.senders,
        sms: transfer.sms,
        piece_bytes: piece.map_or(0, Piece::bytes),
        bytes: transfer.bytes,
        seconds: tidy(seconds),
    }
}

/// Four digits: more than a measurement has.
fn tidy(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transfer_is_measured_once() {
        let (by_sms_list, by_size_list) = (by_sms(4, 132), by_size(4));
        // Ten numbers of SMs: 2 methods inside a GPU, 14 across links alone and together; 7 sizes in 4 ways.
        assert_eq!((by_sms_list.len(), by_size_list.len()), (10 * (2 + 2 * 14), 4 * 7));
        for list in [&by_sms_list, &by_size_list] {
            for (i, transfer) in list.iter().enumerate() {
                assert!(!list[..i].contains(transfer), "twice: {transfer}");
                assert!(transfer.bytes <= MAX_BYTES, "{transfer}");
            }
        }
        assert!(by_sms_list.iter().any(|t| t.sms == 132));
        assert!(by_sms(4, 24).iter().all(|t| t.sms <= 24));
        assert_eq!(by_size_list.last().map(|t| t.bytes), Some(MAX_BYTES));
    }

    #[test]
    fn bursts_can_be() {
        for burst in bursts(132) {
            assert!(Burst::RANGE.contains(&burst.steps) && burst.steps % Burst::STEPS == 0);
        }
        let flop: Vec<f64> = bursts(132).iter().map(Burst::flop).collect();
        assert_eq!(flop, [1.476395008e9, 1.948841410560e11, 1.948841410560e13]);
    }

    #[test]
    fn figures_have_four_digits() {
        assert_eq!(tidy(123_456.0), 123_500.0);
        assert_eq!(tidy(1.234_567e-6), 1.235e-6);
    }
}
