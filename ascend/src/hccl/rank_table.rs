//! Rank tables: JSON files that say which device of which host each rank has.
//!
//! | form | written by | told by |
//! |---|---|---|
//! | 1.0 | Volcano's hccl-controller, hand, for A2 (910B) | `server_list`, version `1.0` |
//! | 1.2 | the same, for A3 superpods (910C) | `server_list` and `super_pod_list`, version `1.2` |
//! | ModelArts | ModelArts (`jobstart_hccl.json`) | `group_list`; ranks count through instances and devices |
//!
//! Controllers write the file while the job starts: until its `status` is `completed` it is waited for. HCCL reads the
//! first two; the third is rewritten as 1.0.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

/// The largest file that is read.
const MOST_BYTES: u64 = 64 << 20;
/// HCCL's limit for a server's name.
const NAME_BYTES: usize = 64;
/// How often a file that is being written is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// A generation of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A2.
    V1_0,
    /// A3 superpods.
    V1_2,
}

/// A rank's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `server_id`.
    pub server: String,
    /// Physical number of the device on its host.
    pub device: u32,
}

/// A table that was found complete and sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankTable {
    /// Generation.
    pub version: Version,
    /// Places by rank.
    pub ranks: Vec<Place>,
    /// The table as HCCL reads it, when the file has another form.
    pub rewritten: Option<String>,
}

/// Why a text is no table to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its writer is not done.
    NotYet(String),
    /// It is wrong: where, and what.
    Wrong(String),
}

type Found<T> = Result<T, Fault>;

fn wrong<T>(at: impl std::fmt::Display, what: impl std::fmt::Display) -> Found<T> {
    Err(Fault::Wrong(format!("{at}: {what}")))
}

fn text<'a>(v: &'a Value, at: &str, key: &str) -> Found<&'a str> {
    match v.get(key) {
        Some(Value::String(s)) => Ok(s.trim()),
        Some(other) => wrong(at, format!("{key} is {other}, but values of a rank table are strings: \"{key}\": \"…\"")),
        None => wrong(at, format!("there is no {key}")),
    }
}

fn number(v: &Value, at: &str, key: &str) -> Found<u32> {
    let t = text(v, at, key)?;
    t.parse().or_else(|_| wrong(at, format!("{key} \"{t}\" is not a whole number")))
}

fn list<'a>(v: &'a Value, at: &str, key: &str) -> Found<&'a [Value]> {
    match v.get(key) {
        Some(Value::Array(a)) if !a.is_empty() => Ok(a),
        Some(Value::Array(_)) => wrong(at, format!("{key} is empty")),
        _ => wrong(at, format!("there is no list {key}")),
    }
}

/// The count that stands beside a list, if it is there, is the list's.
fn counted(v: &Value, at: &str, key: &str, n: usize) -> Found<()> {
    match v.get(key) {
        None => Ok(()),
        Some(_) if number(v, at, key)? as usize == n => Ok(()),
        Some(said) => wrong(at, format!("{key} is {said}, but there are {n}")),
    }
}

impl RankTable {
    /// Reads a table from a text.
    pub fn parse(json: &str) -> Found<RankTable> {
        // A file that is being written may end anywhere.
        let v: Value = match serde_json::from_str(json) {
            Ok(v) => v,
            Err(e) if e.is_eof() => return Err(Fault::NotYet("it ends in the middle".into())),
            Err(e) => return wrong("the file", format!("not JSON: {e} (comments are not allowed)")),
        };
        let status = text(&v, "the table", "status")?;
        if status != "completed" {
            return Err(Fault::NotYet(format!("its status is \"{status}\"")));
        }
        if v.get("group_list").is_some() {
            let rewritten = from_model_arts(&v)?;
            let table = RankTable::of_servers(&rewritten)?;
            return Ok(RankTable { rewritten: Some(rewritten.to_string()), ..table });
        }
        RankTable::of_servers(&v)
    }

    fn of_servers(v: &Value) -> Found<RankTable> {
        let version = match text(v, "the table", "version")? {
            "1.0" => Version::V1_0,
            "1.2" => Version::V1_2,
            other => {
                let known = "1.0 (910B) and 1.2 (910C superpods) are known here";
                return wrong("the table", format!("version \"{other}\": {known}"));
            }
        };
        let servers = list(v, "the table", "server_list")?;
        counted(v, "the table", "server_count", servers.len())?;
        let (mut names, mut places) = (BTreeSet::new(), vec![]);
        for (i, server) in servers.iter().enumerate() {
            let at = format!("server_list[{i}]");
            let name = text(server, &at, "server_id")?;
            if name.is_empty() || name.len() > NAME_BYTES {
                return wrong(&at, format!("server_id has {} bytes, at least 1 and at most {NAME_BYTES}", name.len()));
            }
            if !names.insert(name) {
                return wrong(&at, format!("server_id \"{name}\" is there twice"));
            }
            let mut seen = BTreeSet::new();
            for (j, device) in list(server, &at, "device")?.iter().enumerate() {
                let at = format!("{at}.device[{j}]");
                let id = number(device, &at, "device_id")?;
                if !seen.insert(id) {
                    return wrong(&at, format!("device_id {id} is there twice on server \"{name}\""));
                }
                address(device, &at, servers.len() > 1)?;
                if version == Version::V1_2 {
                    number(device, &at, "super_device_id")?;
                }
                places.push((number(device, &at, "rank_id")? as usize, Place { server: name.into(), device: id }));
            }
        }
        if version == Version::V1_2 {
            super_pods(v, &names)?;
        }
        places.sort_by_key(|(rank, _)| *rank);
        let n = places.len();
        if let Some((i, (rank, _))) = places.iter().enumerate().find(|(i, (rank, _))| i != rank) {
            let what =
                if *rank < i { format!("rank_id {rank} is there twice") } else { format!("rank_id {i} is missing") };
            return wrong("the table", format!("{what}: {n} devices have the ranks 0 to {}", n - 1));
        }
        Ok(RankTable { version, ranks: places.into_iter().map(|(_, p)| p).collect(), rewritten: None })
    }

    /// Reads a file, waiting until it is complete.
    pub fn wait(path: &Path, patience: Duration) -> Result<RankTable, String> {
        let began = Instant::now();
        loop {
            let found = match std::fs::metadata(path) {
                Ok(m) if m.len() > MOST_BYTES => wrong("the file", format!("{} bytes are too many", m.len())),
                // A controller may make the file after it starts the job.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    Err(Fault::NotYet("there is no such file".into()))
                }
                _ => match std::fs::read_to_string(path) {
                    Ok(json) => RankTable::parse(&json),
                    Err(e) => wrong("the file", e),
                },
            };
            let file = path.display();
            match found {
                Ok(table) => return Ok(table),
                Err(Fault::Wrong(what)) => return Err(format!("rank table {file} (RANK_TABLE_FILE): {what}")),
                Err(Fault::NotYet(what)) if began.elapsed() >= patience => {
                    return Err(format!(
                        "rank table {file} (RANK_TABLE_FILE) is not complete after {:.0} s: {what}; is the controller that \
                         writes it at work?",
                        began.elapsed().as_secs_f64()
                    ));
                }
                Err(Fault::NotYet(_)) => std::thread::sleep(LOOK.min(patience)),
            }
        }
    }

    /// The file for HCCL: `path`, or a rewritten copy beside the system's temporary files.
    pub fn file(&self, path: &Path) -> std::io::Result<PathBuf> {
        let Some(json) = &self.rewritten else { return Ok(path.to_path_buf()) };
        let copy = std::env::temp_dir().join(format!("ferrotron-rank-table-{}.json", std::process::id()));
        std::fs::write(&copy, json)?;
        Ok(copy)
    }
}

fn address(device: &Value, at: &str, needed: bool) -> Found<()> {
    match device.get("device_ip") {
        None if !needed => Ok(()),
        None => wrong(at, "there is no device_ip, which several servers need: see /etc/hccn.conf of the host"),
        Some(_) => {
            let ip = text(device, at, "device_ip")?;
            // an empty one is as none
            if (ip.is_empty() && !needed) || ip.parse::<IpAddr>().is_ok() {
                return Ok(());
            }
            wrong(at, format!("device_ip \"{ip}\" is no address: see /etc/hccn.conf of the host"))
        }
    }
}

/// Every server is in one superpod.
fn super_pods(v: &Value, servers: &BTreeSet<&str>) -> Found<()> {
    let (mut left, mut pods) = (servers.clone(), BTreeSet::new());
    for (i, pod) in list(v, "the table", "super_pod_list")?.iter().enumerate() {
        let at = format!("super_pod_list[{i}]");
        let id = text(pod, &at, "super_pod_id")?;
        if !pods.insert(id) {
            return wrong(&at, format!("super_pod_id \"{id}\" is there twice"));
        }
        for server in list(pod, &at, "server_list")? {
            let name = text(server, &at, "server_id")?;
            if !left.remove(name) {
                return wrong(&at, format!("server \"{name}\" is in no server_list, or in two superpods"));
            }
        }
    }
    match left.first() {
        None => Ok(()),
        Some(name) => wrong("super_pod_list", format!("server \"{name}\" is in no superpod")),
    }
}

/// ModelArts' table as one of servers.
fn from_model_arts(v: &Value) -> Found<Value> {
    let groups = list(v, "the table", "group_list")?;
    counted(v, "the table", "group_count", groups.len())?;
    let (mut servers, mut rank): (Map<String, Value>, usize) = (Map::new(), 0);
    for (g, group) in groups.iter().enumerate() {
        let at = format!("group_list[{g}]");
        let instances = list(group, &at, "instance_list")?;
        counted(group, &at, "instance_count", instances.len())?;
        let before = rank;
        for (i, instance) in instances.iter().enumerate() {
            let at = format!("{at}.instance_list[{i}]");
            let name = text(instance, &at, "server_id")?;
            let mut devices = vec![];
            for (d, device) in list(instance, &at, "devices")?.iter().enumerate() {
                let at = format!("{at}.devices[{d}]");
                let mut one = json!({"device_id": text(device, &at, "device_id")?, "rank_id": rank.to_string()});
                if device.get("device_ip").is_some() {
                    one["device_ip"] = text(device, &at, "device_ip")?.into();
                }
                devices.push(one);
                rank += 1;
            }
            match servers.get_mut(name).and_then(Value::as_array_mut) {
                Some(more) => more.extend(devices),
                None => drop(servers.insert(name.into(), devices.into())),
            }
        }
        counted(group, &at, "device_count", rank - before)?;
    }
    let n = servers.len().to_string();
    let list: Vec<Value> =
        servers.into_iter().map(|(name, devices)| json!({"server_id": name, "device": devices})).collect();
    Ok(json!({"status": "completed", "version": "1.0", "server_count": n, "server_list": list}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"{"status":"completed","version":"1.0","server_count":"2","server_list":[
        {"server_id":"node_0","device":[{"device_id":"4","device_ip":"192.168.1.8","device_port":"16667","rank_id":"1"},
                                        {"device_id":"0","device_ip":"192.168.1.9","rank_id":"0"}]},
        {"server_id":"node_1","device":[{"device_id":"0","device_ip":"fe80::1","rank_id":"2"}]}]}"#;
    const POD: &str = r#"{"status":"completed","version":"1.2","server_count":"1","server_list":[
        {"server_id":"a","host_ip":"10.0.0.1","device":[{"device_id":"0","super_device_id":"0","rank_id":"0"},
                                                        {"device_id":"1","super_device_id":"1","rank_id":"1"}]}],
        "super_pod_list":[{"super_pod_id":"0","server_list":[{"server_id":"a"}]}]}"#;
    const MODEL_ARTS: &str = r#"{"status":"completed","group_count":"1","group_list":[{"group_name":"job",
        "device_count":"3","instance_count":"2","instance_list":[
          {"pod_name":"job/0","server_id":"10.0.0.1","devices":[{"device_id":"0","device_ip":"192.1.1.1"},
                                                                {"device_id":"1","device_ip":"192.1.1.2"}]},
          {"pod_name":"job/1","server_id":"10.0.0.2","devices":[{"device_id":"5","device_ip":"192.1.2.1"}]}]}]}"#;

    fn places(t: &RankTable) -> Vec<(&str, u32)> {
        t.ranks.iter().map(|p| (p.server.as_str(), p.device)).collect()
    }

    #[test]
    fn the_three_forms_are_read() {
        let two = RankTable::parse(TWO).unwrap();
        assert_eq!((two.version, places(&two)), (Version::V1_0, vec![("node_0", 0), ("node_0", 4), ("node_1", 0)]));
        let pod = RankTable::parse(POD).unwrap();
        assert_eq!((pod.version, places(&pod)), (Version::V1_2, vec![("a", 0), ("a", 1)]));
        let arts = RankTable::parse(MODEL_ARTS).unwrap();
        assert_eq!(places(&arts), [("10.0.0.1", 0), ("10.0.0.1", 1), ("10.0.0.2", 5)]);
        // what HCCL gets is a table of servers with the same places
        let again = RankTable::parse(arts.rewritten.as_deref().unwrap()).unwrap();
        assert_eq!((again.version, again.rewritten, again.ranks), (Version::V1_0, None, arts.ranks));
    }

    #[test]
    fn a_table_that_is_wrong_says_where() {
        for (from, to, words) in [
            (r#""completed""#, "3", r#"the table: status is 3, but values of a rank table are strings"#),
            (r#""1.0""#, r#""2.0""#, r#"version "2.0": 1.0 (910B) and 1.2"#),
            (r#""server_count":"2""#, r#""server_count":"3""#, r#"server_count is "3", but there are 2"#),
            (r#""node_1""#, r#""node_0""#, r#"server_list[1]: server_id "node_0" is there twice"#),
            (r#""device_id":"4""#, r#""device_id":"x""#, r#"server_list[0].device[0]: device_id "x" is not a whole"#),
            (r#""device_id":"4""#, r#""device_id":"0""#, "device_id 0 is there twice"),
            (r#""192.168.1.8""#, r#""-.-.-.-""#, r#"device_ip "-.-.-.-" is no address: see /etc/hccn.conf"#),
            (r#""device_ip":"fe80::1","#, "", "there is no device_ip, which several servers need"),
            (r#""rank_id":"2""#, r#""rank_id":"1""#, "rank_id 1 is there twice: 3 devices have the ranks 0 to 2"),
            (r#""rank_id":"2""#, r#""rank_id":"7""#, "rank_id 2 is missing"),
            (r#","rank_id":"2""#, "", "server_list[1].device[0]: there is no rank_id"),
            (r#"{"status""#, r#"// x {"status""#, "not JSON"),
        ] {
            let Err(Fault::Wrong(what)) = RankTable::parse(&TWO.replacen(from, to, 1)) else { panic!("{from} {to}") };
            assert!(what.contains(words), "{what} does not say {words}");
        }
        for (from, to, words) in [
            (r#"[{"server_id":"a"}]"#, r#"[{"server_id":"b"}]"#, r#"server "b" is in no server_list"#),
            (r#""super_device_id":"1","#, "", "there is no super_device_id"),
            (r#""super_pod_list""#, r#""super_pods""#, "there is no list super_pod_list"),
        ] {
            let Err(Fault::Wrong(what)) = RankTable::parse(&POD.replacen(from, to, 1)) else { panic!("{from}") };
            assert!(what.contains(words), "{what} does not say {words}");
        }
        let Err(Fault::Wrong(what)) = RankTable::parse(&MODEL_ARTS.replacen(r#""3""#, r#""4""#, 1)) else { panic!() };
        assert!(what.contains(r#"group_list[0]: device_count is "4", but there are 3"#), "{what}");
    }

    /// Whatever a file holds, an error comes back: every prefix, and every byte changed.
    #[test]
    fn damaged_tables_never_panic() {
        for table in [TWO, POD, MODEL_ARTS] {
            for end in 0..table.len() {
                assert!(RankTable::parse(&table[..end]).is_err());
            }
            for i in 0..table.len() {
                let mut bytes = table.as_bytes().to_vec();
                bytes[i] ^= 0x11;
                let _ = RankTable::parse(&String::from_utf8_lossy(&bytes));
            }
        }
    }

    #[test]
    fn a_table_that_is_being_written_is_waited_for() {
        let path = std::env::temp_dir().join(format!("ferrotron-table-test-{}.json", std::process::id()));
        let short = Duration::from_millis(50);
        let e = RankTable::wait(&path, short).unwrap_err();
        assert!(e.contains("RANK_TABLE_FILE") && e.contains("there is no such file"), "{e}");
        std::fs::write(&path, TWO.replace("completed", "initializing")).unwrap();
        let e = RankTable::wait(&path, short).unwrap_err();
        assert!(e.contains("its status is \"initializing\"; is the controller that writes it at work?"), "{e}");
        std::thread::scope(|s| {
            let waiting = s.spawn(|| RankTable::wait(&path, Duration::from_secs(20)));
            std::thread::sleep(short);
            std::fs::write(&path, &TWO[..200]).unwrap();
            std::thread::sleep(short);
            std::fs::write(&path, TWO).unwrap();
            assert_eq!(waiting.join().unwrap().unwrap().ranks.len(), 3);
        });
        std::fs::remove_file(&path).unwrap();
    }
}
