//! What devices there are.

use super::choice::{Gid, GidKind, Port};
use super::objects::{Context, failed};
use super::unavailable;
use crate::error::TransportError;
use crate::transport::place::{Place, SYS};
use ibverbs_sys as ffi;
use std::path::Path;

unsafe extern "C" {
    /// `shim/ibverbs.c`.
    fn mk_ibverbs_available() -> std::ffi::c_int;
}

/// All ports of all devices that this process may open.
///
/// # Errors
/// [`TransportError::Unavailable`] without the library, and without a device.
pub(super) fn ports() -> Result<Vec<Port>, TransportError> {
    // SAFETY: takes nothing.
    if unsafe { mk_ibverbs_available() } == 0 {
        let help = "install it (Debian: libibverbs1 and ibverbs-providers), or use transport ofi";
        return Err(unavailable("libibverbs.so.1 is not on this machine", help));
    }
    let help = "`ibv_devices` lists them; a container needs /dev/infiniband; `rdma link add rxe0 type rxe netdev eth0` \
                makes one of a network interface";
    let devices = ibverbs::devices().map_err(|e| unavailable(format!("no devices: {e}"), help))?;
    let (mut ports, mut refusals) = (Vec::new(), Vec::new());
    for device in &devices {
        let Some(name) = device.name() else { continue };
        let name = name.to_string_lossy();
        match Context::open(&name).and_then(|context| of_device(&name, &context)) {
            Ok(found) => ports.extend(found),
            Err(error) => refusals.push(format!("{name}: {error}")),
        }
    }
    match ports.is_empty() {
        false => Ok(ports),
        true if refusals.is_empty() => Err(unavailable("there is no RDMA device", help)),
        true => Err(unavailable(format!("no device can be opened: {}", refusals.join("; ")), help)),
    }
}

fn of_device(name: &str, context: &Context) -> Result<Vec<Port>, TransportError> {
    let class = Path::new(SYS).join("class/infiniband").join(name);
    let place = Place::at(&class.join("device"));
    let count = context.attributes()?.phys_port_cnt;
    let attributes: Vec<_> = (1..=count).map(|n| context.port(n)).collect::<Result<_, _>>()?;
    let most = attributes.iter().map(|a| a.gid_tbl_len.max(0) as usize).sum();
    let gids = context.gids(most)?;
    let port = |(number, a): (u8, &ffi::ibv_port_attr)| Port {
        device: name.into(),
        number,
        active: a.state == ffi::ibv_port_state::IBV_PORT_ACTIVE,
        ethernet: a.link_layer == ffi::IBV_LINK_LAYER_ETHERNET as u8,
        lid: a.lid,
        mtu: 128 << a.active_mtu.clamp(1, 5),
        max_bytes: a.max_msg_sz.into(),
        rate: rate(&class.join(format!("ports/{number}/rate"))),
        place: place.clone(),
        gids: gids.iter().filter(|g| g.port_num == u32::from(number)).filter_map(gid).collect(),
    };
    Ok((1..).zip(&attributes).map(port).collect())
}

fn gid(entry: &ibverbs::GidEntry) -> Option<Gid> {
    let kind = match entry.gid_type {
        ffi::IBV_GID_TYPE_IB => GidKind::InfiniBand,
        ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => return None,
    };
    let halves = [entry.gid.subnet_prefix(), entry.gid.interface_id()];
    let mut raw = [0; 16];
    raw[..8].copy_from_slice(&halves[0].to_be_bytes());
    raw[8..].copy_from_slice(&halves[1].to_be_bytes());
    Some(Gid { index: entry.gid_index, kind, raw })
}

/// `400 Gb/sec (4X NDR)`.
fn rate(file: &Path) -> u32 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let number = text.split_whitespace().next().and_then(|n| n.parse::<f64>().ok());
    number.unwrap_or(0.0) as u32
}

/// Where the GPU is that the device is to be near to.
pub(super) fn place(near: Option<&str>) -> Place {
    near.map_or_else(Place::default, |pci| Place::of(Path::new(SYS), pci))
}

/// Whether NVIDIA's peer-memory module is loaded.
pub(super) fn has_peermem() -> bool {
    super::gpu::has_peermem(Path::new(SYS))
}

/// The next event of a device that nobody asked for, if there is one: its kind, and the queue pair that it is of.
pub(super) fn event(context: &Context) -> Option<(ffi::ibv_event_type, usize)> {
    let mut event = std::mem::MaybeUninit::<ffi::ibv_async_event>::zeroed();
    // SAFETY: open, its descriptor does not block; an event that was given is acknowledged, once.
    unsafe {
        if ffi::ibv_get_async_event(context.raw(), event.as_mut_ptr()) != 0 {
            return None;
        }
        let event = event.assume_init_mut();
        // For events of other objects it is another pointer, which nobody has.
        let of = event.element.qp as usize;
        ffi::ibv_ack_async_event(event);
        Some((event.event_type, of))
    }
}

/// Lets [`event`] not block.
pub(super) fn do_not_block(context: &Context) -> Result<(), TransportError> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    // SAFETY: open, and its descriptor lives as long.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw((*context.raw()).async_fd) };
    let flags = fcntl(fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    let set = flags.and_then(|f| fcntl(fd, FcntlArg::F_SETFL(f | OFlag::O_NONBLOCK)));
    set.map_err(|e| failed("fcntl", Some(e as i32)))?;
    Ok(())
}
