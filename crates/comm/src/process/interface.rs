//! Which address of this host the peers connect to.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use super::ProcessError;

/// An address of a network interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// `eth0`, `lo`.
    pub name: String,
    /// One of its addresses.
    pub ip: IpAddr,
}

/// The addresses of this host.
pub fn interfaces() -> Vec<Interface> {
    let mut out = vec![];
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is where the list goes; it is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return out;
    }
    let mut at = first;
    while !at.is_null() {
        // SAFETY: an entry of the list, which lives until it is freed.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the address is there, and its family says which type it is.
        let ip = unsafe {
            match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let a = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    IpAddr::V4(Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr)))
                }
                libc::AF_INET6 => {
                    let a = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    IpAddr::V6(Ipv6Addr::from(a.sin6_addr.s6_addr))
                }
                _ => continue,
            }
        };
        // SAFETY: a C string of the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        out.push(Interface { name, ip });
    }
    // SAFETY: the list that getifaddrs made, once.
    unsafe { libc::freeifaddrs(first) };
    out
}

/// The address of the first interface (or address) of a comma-separated list that this host has; IPv4 first, and no
/// link-local IPv6, which needs a scope.
pub(crate) fn select(wanted: &str, have: &[Interface]) -> Result<IpAddr, ProcessError> {
    let usable = |ip: &IpAddr| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    for want in wanted.split(',').map(str::trim).filter(|w| !w.is_empty()) {
        let of_it = || have.iter().filter(|i| i.name == want || i.ip.to_string() == want).map(|i| i.ip);
        if let Some(ip) = of_it().find(IpAddr::is_ipv4).or_else(|| of_it().find(usable)) {
            return Ok(ip);
        }
        // An address that no interface lists may be this host's all the same: 127.0.0.2.
        if let Some(ip) = want.parse().ok().filter(|ip: &IpAddr| TcpListener::bind((*ip, 0)).is_ok()) {
            return Ok(ip);
        }
    }
    let have: Vec<String> = have.iter().map(|i| format!("{} {}", i.name, i.ip)).collect();
    Err(ProcessError::Interface { wanted: wanted.into(), have: have.join(", ") })
}

/// The address that packets to other hosts leave from. Nothing is sent.
pub(crate) fn routed() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_unspecified())
}

/// A listener on a free port of the first address that this host has.
pub(crate) fn listen(candidates: &[IpAddr]) -> std::io::Result<TcpListener> {
    let addresses: Vec<SocketAddr> = candidates.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
    TcpListener::bind(&addresses[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_and_selected() {
        let have = interfaces();
        assert!(have.iter().any(|i| i.ip.is_loopback()), "{have:?}");
    }

    #[test]
    fn selection_takes_the_first_that_exists() {
        let i = |name: &str, ip: &str| Interface { name: name.into(), ip: ip.parse().unwrap() };
        let have = [
            i("lo", "127.0.0.1"),
            i("eth0", "fe80::1"),
            i("eth0", "fd00::2"),
            i("ib0", "fd00::9"),
            i("ib0", "10.0.0.9"),
        ];
        assert_eq!(select("nope, ib0,lo", &have).unwrap().to_string(), "10.0.0.9");
        assert_eq!(select("eth0", &have).unwrap().to_string(), "fd00::2");
        assert_eq!(select("127.0.0.1", &have).unwrap().to_string(), "127.0.0.1");
        assert_eq!(select("127.0.0.2", &have).unwrap().to_string(), "127.0.0.2");
        let e = select("eth7,192.0.2.1", &have).unwrap_err().to_string();
        assert!(e.contains("eth7") && e.contains("ib0 10.0.0.9"), "{e}");
    }
}
