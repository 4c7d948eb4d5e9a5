//! The port that rank 0 listens on: a free one, or a given one that nobody holds.

use std::io;
use std::net::TcpListener;
use std::path::Path;

use ferrotron_config::{Severity, Violation};

/// A port that the system says is free now. Linux hands such ports out at random, so two jobs rarely meet.
///
/// # Errors
/// The system has none, or no network at all.
pub fn free() -> io::Result<u16> {
    Ok(TcpListener::bind(("0.0.0.0", 0))?.local_addr()?.port())
}

/// Checks that rank 0 will be able to listen on `port` of this machine, on IPv4 and, where there is any, on IPv6.
///
/// # Errors
/// Somebody holds the port (named, if the system tells), or it may not be used.
pub fn check(port: u16, host: &str) -> Result<(), Box<Violation>> {
    for address in ["0.0.0.0", "::"] {
        let Err(e) = TcpListener::bind((address, port)) else { continue };
        let what = match e.kind() {
            io::ErrorKind::AddrInUse => {
                let holder = holder(port).unwrap_or_else(|| "another process".to_string());
                format!("port {port} on {host} is used by {holder}")
            }
            io::ErrorKind::PermissionDenied => format!("port {port} on {host} may not be used: {e}"),
            _ if address == "::" => continue, // no IPv6 here
            _ => format!("cannot listen on port {port} of {host}: {e}"),
        };
        let legal = match e.kind() {
            io::ErrorKind::PermissionDenied => "a port from 1024 up",
            _ => {
                "omit the port (--master-port, MASTER_PORT) on a single node to have a free one picked, or give another"
            }
        };
        return Err(Box::new(Violation::new(Severity::Invalid, &["--master-port"], what).legal(legal)));
    }
    Ok(())
}

/// Who listens on the port, as far as /proc tells: `pid 12 (nc -l 29500)`.
fn holder(port: u16) -> Option<String> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .find_map(|table| listening_inode(&std::fs::read_to_string(table).ok()?, port).map(String::from))?;
    let wanted = format!("socket:[{inode}]");
    let processes = Path::new("/proc").read_dir().ok()?.flatten();
    let numbered = |name: &str| name.chars().all(|c| c.is_ascii_digit());
    for process in processes.filter(|p| numbered(&p.file_name().to_string_lossy())) {
        let Ok(files) = process.path().join("fd").read_dir() else { continue };
        if files.flatten().any(|f| f.path().read_link().is_ok_and(|to| to.as_os_str() == wanted.as_str())) {
            let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let command: String = command.trim().chars().take(120).collect();
            return Some(format!("pid {} ({command})", process.file_name().to_string_lossy()));
        }
    }
    None
}

/// The inode of the socket that listens on `port`, from the text of /proc/net/tcp.
fn listening_inode(table: &str, port: u16) -> Option<&str> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let local = columns.get(1)?.rsplit(':').next()?;
        let is_it = u16::from_str_radix(local, 16).ok()? == port && *columns.get(3)? == LISTEN;
        is_it.then_some(*columns.get(9)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_port_names_its_holder() {
        let held = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let refused = check(port, "here").unwrap_err().to_string();
        assert!(refused.contains(&format!("port {port} on here is used by pid {} (", std::process::id())), "{refused}");
        assert!(refused.contains("omit the port"), "{refused}");
        drop(held);
        // A test that starts a process at this moment may hold a copy of the socket until its exec.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while check(port, "here").is_err() {
            assert!(std::time::Instant::now() < until, "port {port} stays held");
            std::thread::yield_now();
        }
    }

    #[test]
    fn free_ports_differ() {
        let ports: std::collections::BTreeSet<u16> = (0..20).map(|_| free().unwrap()).collect();
        assert!(ports.len() > 10 && ports.iter().all(|p| *p >= 1024), "{ports:?}");
    }

    #[test]
    fn only_listening_sockets_hold_a_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:733C 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 11 1 0\n\
            1: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 22 1 0\n\
            broken line\n";
        assert_eq!(listening_inode(table, 0x733C), Some("22"));
        assert_eq!(listening_inode(table, 0x733D), None);
    }
}
