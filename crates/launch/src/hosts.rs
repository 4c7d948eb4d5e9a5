//! Hosts and their devices: deepspeed's hostfile, `--include` and `--exclude`.

use std::collections::BTreeSet;

use ferrotron_config::{Severity, Violation};

/// A hostfile longer than this is something else.
pub const MAX_HOSTFILE: u64 = 1 << 20;
/// Ranks that one node may have.
pub const MAX_SLOTS: usize = 1024;

/// One host with the devices used there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSlots {
    /// Name or address.
    pub name: String,
    /// Device numbers, ascending.
    pub devices: Vec<usize>,
}

/// Reads a hostfile: lines `name slots=N`, `#` comments. The order of lines is the order of node ranks.
///
/// # Errors
/// Every line that is wrong, with its number; hosts named twice; no host at all.
pub fn parse_hostfile(path: &str, text: &str) -> Result<Vec<HostSlots>, Vec<Violation>> {
    let mut hosts: Vec<HostSlots> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(i, l)| (i + 1, l)) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let mut fault = |what: String| {
            let violation = Violation::new(Severity::Invalid, &["--hostfile"], format!("{path}:{number}: {what}"));
            faults.push(violation.legal("one line a host: name slots=N"));
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        let slots = match words.as_slice() {
            [_, slots] => slots.strip_prefix("slots=").and_then(|n| n.parse::<usize>().ok()),
            _ => None,
        };
        match (is_host(words[0]), slots) {
            (true, Some(n)) if (1..=MAX_SLOTS).contains(&n) => {
                if seen.insert(words[0].to_string()) {
                    hosts.push(HostSlots { name: words[0].to_string(), devices: (0..n).collect() });
                } else {
                    fault(format!("the host {} stands there twice", words[0]));
                }
            }
            (true, Some(n)) => fault(format!("slots={n} is not between 1 and {MAX_SLOTS}")),
            (false, _) => fault(format!("'{}' is no name of a host", words[0])),
            (true, None) => fault(format!("'{line}' is not understood")),
        }
    }
    if hosts.is_empty() && faults.is_empty() {
        let what = format!("the hostfile {path} names no host");
        faults.push(Violation::new(Severity::Missing, &["--hostfile"], what).legal("one line a host: name slots=N"));
    }
    if faults.is_empty() { Ok(hosts) } else { Err(faults) }
}

/// Whether the text can be a host's name or address and nothing that ssh would take for an option.
pub fn is_host(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-._:@[]".contains(c);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(legal)
}

/// A filter as typed: hosts, each with the devices named or none for all.
type Filter = Vec<(String, Option<Vec<usize>>)>;

/// Applies `--include` (`host1:0,1@host2`) or `--exclude`. Hosts keep the order of the hostfile.
///
/// # Errors
/// Both given, filters that cannot be read, hosts or devices that the hostfile does not have, nothing left.
pub fn filter(
    hosts: Vec<HostSlots>,
    include: Option<&str>,
    exclude: Option<&str>,
) -> Result<Vec<HostSlots>, Vec<Violation>> {
    let (flag, text, keep) = match (include, exclude) {
        (None, None) => return Ok(hosts),
        (Some(text), None) => ("--include", text, true),
        (None, Some(text)) => ("--exclude", text, false),
        (Some(_), Some(_)) => {
            let what = "--include and --exclude are given together".to_string();
            let violation = Violation::new(Severity::Invalid, &["--include", "--exclude"], what);
            return Err(vec![violation.legal("one of them")]);
        }
    };
    let wanted = parse_filter(flag, text)?;
    let mut faults = Vec::new();
    for (name, devices) in &wanted {
        let Some(host) = hosts.iter().find(|h| h.name == *name) else {
            let names: Vec<&str> = hosts.iter().map(|h| h.name.as_str()).collect();
            let what = format!("{flag} names the host {name}, which is not among the hosts");
            faults.push(Violation::new(Severity::Invalid, &[flag], what).legal(shorten(&names)));
            continue;
        };
        for device in devices.iter().flatten().filter(|d| !host.devices.contains(d)) {
            let what = format!("{flag} names device {device} of {name}, which has {}", host.devices.len());
            let legal = format!("0 to {}", host.devices.len() - 1);
            faults.push(Violation::new(Severity::Invalid, &[flag], what).legal(legal));
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let named = |host: &str, device: usize| {
        wanted.iter().any(|(n, d)| n == host && d.as_ref().is_none_or(|list| list.contains(&device)))
    };
    let mut left = hosts;
    for host in &mut left {
        host.devices.retain(|d| named(&host.name, *d) == keep);
    }
    left.retain(|h| !h.devices.is_empty());
    if left.is_empty() {
        let what = format!("{flag} {text} leaves no device");
        return Err(vec![Violation::new(Severity::Invalid, &[flag], what)]);
    }
    Ok(left)
}

fn parse_filter(flag: &str, text: &str) -> Result<Filter, Vec<Violation>> {
    let mut filter = Filter::new();
    let mut faults = Vec::new();
    for part in text.split('@') {
        let (name, list) = match part.rsplit_once(':') {
            Some((name, list)) => (name.trim(), Some(list)),
            None => (part.trim(), None),
        };
        let devices = match list.map(device_list) {
            Some(None) => None,
            Some(Some(devices)) => Some(Some(devices)),
            None => Some(None),
        };
        match devices {
            Some(devices) if is_host(name) => filter.push((name.to_string(), devices)),
            _ => {
                let violation =
                    Violation::new(Severity::Syntax, &[flag], format!("{flag}: '{part}' is not understood"));
                faults.push(violation.legal("host1@host2:0,2 (hosts joined by @, devices after a colon)"));
            }
        }
    }
    if faults.is_empty() { Ok(filter) } else { Err(faults) }
}

/// `0,2,4-7` as numbers, ascending, each once; `None` if it is not such a list.
pub fn device_list(text: &str) -> Option<Vec<usize>> {
    let number = |t: &str| t.trim().parse::<usize>().ok().filter(|n| *n < MAX_SLOTS);
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => all.extend(number(first)?..=number(last)?),
            None => {
                all.insert(number(part)?);
            }
        }
    }
    (!all.is_empty()).then(|| all.into_iter().collect())
}

fn shorten(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let mut text = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<HostSlots> {
        parse_hostfile("hosts", "# cluster\nworker-0 slots=4\n\nworker-1 slots=4 # second\nworker-2 slots=2\n").unwrap()
    }

    fn show(hosts: &[HostSlots]) -> String {
        let one = |h: &HostSlots| format!("{}:{}", h.name, h.devices.iter().map(|d| d.to_string()).collect::<String>());
        hosts.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn hostfile_lines() {
        assert_eq!(show(&hosts()), "worker-0:0123 worker-1:0123 worker-2:01");
        let faults = parse_hostfile("h", "a slots=0\nb\n-oProxyCommand=x slots=1\nc slots=2\nc slots=2\nd slots=x y\n");
        let said: Vec<String> = faults.unwrap_err().iter().map(|f| f.what.clone()).collect();
        assert_eq!(
            said,
            [
                "h:1: slots=0 is not between 1 and 1024",
                "h:2: 'b' is not understood",
                "h:3: '-oProxyCommand=x' is no name of a host",
                "h:5: the host c stands there twice",
                "h:6: 'd slots=x y' is not understood",
            ]
        );
        assert_eq!(parse_hostfile("h", "# nothing\n").unwrap_err()[0].what, "the hostfile h names no host");
    }

    #[test]
    fn include_and_exclude_as_in_deepspeed() {
        for (include, exclude, left) in [
            (Some("worker-1"), None, "worker-1:0123"),
            (Some("worker-2:1@worker-0:0,2"), None, "worker-0:02 worker-2:1"),
            (Some("worker-0:1-3"), None, "worker-0:123"),
            (None, Some("worker-1"), "worker-0:0123 worker-2:01"),
            (None, Some("worker-1:0@worker-2:0,1"), "worker-0:0123 worker-1:123"),
        ] {
            assert_eq!(show(&filter(hosts(), include, exclude).unwrap()), left);
        }
    }

    #[test]
    fn filters_that_name_what_is_not_there() {
        for (include, exclude, what) in [
            (Some("worker-9"), None, "--include names the host worker-9, which is not among the hosts"),
            (None, Some("worker-2:2"), "--exclude names device 2 of worker-2, which has 2"),
            (Some("worker-0:a"), None, "--include: 'worker-0:a' is not understood"),
            (Some("worker-0"), Some("worker-1"), "--include and --exclude are given together"),
            (None, Some("worker-0@worker-1@worker-2"), "--exclude worker-0@worker-1@worker-2 leaves no device"),
            (Some("worker-0:0-99999999999"), None, "--include: 'worker-0:0-99999999999' is not understood"),
        ] {
            assert_eq!(filter(hosts(), include, exclude).unwrap_err()[0].what, what);
        }
    }
}
