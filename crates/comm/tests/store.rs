//! The store: its own client against its own server, the recorded behaviour of torch's, garbage, and the rendezvous.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::on_threads;
use ferrotron_base::philox::mix;
use ferrotron_comm::store::wire::{MAGIC, MAX_KEY, MAX_VALUE, Request};
use ferrotron_comm::store::{Rendezvous, RendezvousOptions, Store, StoreError, StoreLimits, StoreServer};

fn server() -> StoreServer {
    StoreServer::start(0, StoreLimits::default()).unwrap()
}

fn client(s: &StoreServer) -> Store {
    Store::connect("localhost", s.port(), Duration::from_secs(5), &|_| {}).unwrap()
}

/// What every store answers alike, under a prefix that it has not seen.
fn commands(c: &Store, prefix: &str) {
    let before = c.num_keys().unwrap();
    let c = &c.under(prefix);
    c.set("k", b"a\0b").unwrap();
    assert_eq!(c.get("k").unwrap(), b"a\0b");
    assert_eq!((c.add("n", 5).unwrap(), c.add("n", -2).unwrap()), (5, 3));
    assert_eq!(c.get("n").unwrap(), b"3", "counters are decimal text");
    assert!(c.check(&["k", "n"]).unwrap() && !c.check(&["k", "none"]).unwrap() && c.check(&[]).unwrap());
    assert_eq!(c.num_keys().unwrap(), before + 2);
    assert_eq!(c.compare_set("cas", b"", b"v1").unwrap(), b"v1");
    assert_eq!(c.compare_set("cas", b"zz", b"v2").unwrap(), b"v1");
    assert_eq!(c.compare_set("cas", b"v1", b"v3").unwrap(), b"v3");
    assert_eq!(c.compare_set("cas2", b"x", b"y").unwrap(), b"x", "missing key: what was expected comes back");
    assert!(!c.check(&["cas2"]).unwrap(), "and nothing is stored");
    assert_eq!((c.delete("cas").unwrap(), c.delete("cas").unwrap()), (true, false));
    c.multi_set(&[("m1", b"1"), ("m2", b"")]).unwrap();
    assert_eq!(c.multi_get(&["m1", "m2"]).unwrap(), [&b"1"[..], b""]);
    assert!(!c.try_wait(&["k", "never"], Duration::from_millis(50)).unwrap());
    assert!(c.try_wait(&["k", "n"], Duration::from_millis(50)).unwrap());
}

/// Opt-in: FERROTRON_TEST_STORE=host:port names a running store of another make (torch's).
#[test]
fn a_foreign_store_answers_alike() {
    let Ok(address) = std::env::var("FERROTRON_TEST_STORE") else { return };
    let (host, port) = address.rsplit_once(':').unwrap();
    let c = Store::connect(host, port.parse().unwrap(), Duration::from_secs(5), &|_| {}).unwrap();
    commands(&c, &format!("test/{}", std::process::id()));
}

#[test]
fn commands_do_what_torchs_do() {
    let s = server();
    let c = client(&s);
    commands(&c, "mine");
    // A prefix is part of the key, behind the slash that torch's clients put first.
    c.under("run").under("0").set("k", b"x").unwrap();
    assert_eq!(c.get("run/0/k").unwrap(), b"x");
    c.set("k", b"no number").unwrap();
    let big = vec![7; MAX_VALUE];
    c.set("big", &big).unwrap();
    assert_eq!(c.get("big").unwrap(), big);
    assert!(matches!(c.set("big", &vec![7; MAX_VALUE + 1]), Err(StoreError::TooLarge { limit: MAX_VALUE, .. })));
    assert!(matches!(c.set(&"k".repeat(MAX_KEY), b""), Err(StoreError::TooLarge { what: "key", .. })));
    assert!(c.add("k", 1).is_err(), "no number: the server hangs up, as torch's");
    let text = c.set("k", b"").unwrap_err().to_string();
    assert!(text.contains("went away"), "{text}");
}

#[test]
fn waits_end_when_the_last_key_comes_or_in_time() {
    let s = server();
    let (c, d) = (client(&s), client(&s));
    assert!(!c.try_wait(&["a", "b", "a"], Duration::from_millis(50)).unwrap());
    d.set("a", b"").unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            d.add("b", 1).unwrap();
        });
        assert!(c.try_wait(&["a", "b", "a"], Duration::from_secs(5)).unwrap());
    });
    assert!(began.elapsed() < Duration::from_secs(1));
    let e = c.wait(&["never"], Duration::from_millis(30)).unwrap_err();
    assert!(matches!(&e, StoreError::Timeout { what, .. } if what == "key never"), "{e}");
    assert_eq!(c.get("b").unwrap(), b"1", "in step after a cancelled wait");
}

#[test]
fn a_cancel_that_crosses_the_reply_keeps_the_stream_in_step() {
    let s = server();
    for i in 0..40 {
        let (c, d) = (client(&s), client(&s));
        let key = format!("k{i}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(500 + 50 * i));
                d.set(&key, b"v").unwrap();
            });
            let _ = c.try_wait(&[&key], Duration::from_millis(1)).unwrap();
        });
        assert_eq!(c.get(&key).unwrap(), b"v");
    }
}

/// A client that writes bytes of its own.
fn raw(s: &StoreServer) -> TcpStream {
    let mut t = TcpStream::connect(("127.0.0.1", s.port())).unwrap();
    t.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    t.write_all(&Request::Validate(MAGIC).encode()).unwrap();
    t
}

#[test]
fn the_bytes_of_a_torch_client_are_answered() {
    let s = server();
    // What torch's client sends: PING, ADD init/ 1, then WAIT and GET; here in one-byte segments.
    let mut t = raw(&s);
    t.set_nodelay(true).unwrap();
    let bytes = [
        &[13, 0x78, 0x56, 0x34, 0x12][..],
        &[4, 5, 0, 0, 0, 0, 0, 0, 0],
        b"init/",
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[6, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0],
        b"init/",
        &[3, 5, 0, 0, 0, 0, 0, 0, 0],
        b"init/",
    ]
    .concat();
    for b in bytes {
        t.write_all(&[b]).unwrap();
    }
    let mut reply = [0; 4 + 8 + 1 + 9];
    t.read_exact(&mut reply).unwrap();
    assert_eq!(&reply[..4], [0x78, 0x56, 0x34, 0x12]);
    assert_eq!(&reply[4..12], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&reply[12..], [0, 1, 0, 0, 0, 0, 0, 0, 0, b'1']);
}

#[test]
fn queues_and_barriers() {
    let s = server();
    let (mut a, mut b) = (raw(&s), raw(&s));
    let ask = |t: &mut TcpStream, r: Request, n: usize| {
        t.write_all(&r.encode()).unwrap();
        let mut out = vec![0; n];
        t.read_exact(&mut out).unwrap();
        out
    };
    let q = b"/q".to_vec();
    // A waiter of the queue wakes, one a push.
    a.write_all(&Request::Wait(vec![q.clone()]).encode()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    b.write_all(&Request::QueuePush(q.clone(), b"one".to_vec()).encode()).unwrap();
    let mut zero = [9];
    a.read_exact(&mut zero).unwrap();
    assert_eq!(zero, [0]);
    assert_eq!(ask(&mut a, Request::QueueLen(q.clone()), 8)[0], 1);
    let popped = ask(&mut a, Request::QueuePop(q.clone()), 8 + 8 + 3);
    assert_eq!((popped[0], &popped[16..]), (1, &b"one"[..]));
    assert_eq!(ask(&mut a, Request::QueuePop(q), 8), [0; 8]);
    b.write_all(&Request::Barrier(b"/b".to_vec(), 2).encode()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(ask(&mut a, Request::Barrier(b"/b".to_vec(), 2), 1), [0]);
    b.read_exact(&mut zero).unwrap();
    assert_eq!(ask(&mut a, Request::Append(b"/x".to_vec(), b"ab".to_vec()), 0), b"");
    assert_eq!(ask(&mut a, Request::ListKeys, 8 + 8 + 2)[16..], *b"/x");
}

#[test]
fn garbage_neither_stops_nor_fills_the_server() {
    let s = StoreServer::start(0, StoreLimits { connections: 64, stored: 1 << 20, buffered: 16 << 20 }).unwrap();
    let c = client(&s);
    for seed in 0..60u64 {
        let mut t = TcpStream::connect(("127.0.0.1", s.port())).unwrap();
        if seed % 3 > 0 {
            t.write_all(&Request::Validate(MAGIC).encode()).unwrap();
        }
        // Random bytes, or a request with one byte changed. The server may hang up while we write.
        let mut bytes = match seed % 2 {
            0 => (0..400).map(|i| mix(seed, i) as u8 & if seed % 4 == 0 { 0x0f } else { 0xff }).collect(),
            _ => Request::MultiSet(vec![(vec![b'k'; 30], vec![b'v'; 30]); 5]).encode(),
        };
        let at = mix(seed, 1000) as usize % bytes.len();
        bytes[at] ^= 1 << (seed % 8);
        let _ = t.write_all(&bytes);
        // A few stay connected, in the middle of a request.
        if seed % 5 == 0 {
            std::mem::forget(t);
        }
    }
    c.set("still", b"there").unwrap();
    assert_eq!(c.get("still").unwrap(), b"there");
    // More than it may hold: that client is disconnected.
    let greedy = client(&s);
    let failed =
        (0..40).find(|i| greedy.set(&format!("g{i}"), &[0; 64 << 10]).and_then(|()| greedy.num_keys()).is_err());
    assert!(failed.is_some());
    assert_eq!(c.get("still").unwrap(), b"there");
    // Replies that nobody reads are bounded.
    let mut deaf = raw(&s);
    c.set("long", &vec![1; 500_000]).unwrap_or_default();
    let ask = Request::Get(b"/still".to_vec()).encode().repeat(1000);
    deaf.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    for _ in 0..200 {
        if deaf.write_all(&ask).is_err() {
            break;
        }
    }
}

#[test]
fn a_wrong_address_is_reported() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let e = Store::connect("127.0.0.1", free, Duration::from_millis(100), &|_| {}).err().unwrap().to_string();
    assert!(e.contains(&format!("no store at 127.0.0.1:{free}")) && e.contains("refused"), "{e}");
    let e = Store::connect("nosuch.invalid", 1, Duration::from_millis(50), &|_| {}).err().unwrap().to_string();
    assert!(e.contains("nosuch.invalid"), "{e}");
    // Something else on the port.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut t, _)) = other.accept() {
            let _ = t.write_all(b"SSH-2.0-Other\r\n");
            let _ = t.read(&mut [0; 64]);
        }
    });
    let e = Store::connect("127.0.0.1", port, Duration::from_secs(5), &|_| {}).err().unwrap().to_string();
    assert!(e.contains("is no TCPStore"), "{e}");
    // A port in use.
    let s = server();
    let e = StoreServer::start(s.port(), StoreLimits::default()).err().unwrap().to_string();
    assert!(e.contains("MASTER_PORT"), "{e}");
}

fn options(rank: usize, world: usize, port: u16, heard: &Arc<Mutex<Vec<String>>>) -> RendezvousOptions {
    let heard = heard.clone();
    RendezvousOptions {
        rank,
        world,
        host: "127.0.0.1".into(),
        port,
        served: true,
        run: "job/0".into(),
        timeout: Duration::from_secs(5),
        tell_every: Duration::from_millis(60),
        notify: Arc::new(move |s| heard.lock().unwrap().push(s.into())),
    }
}

#[test]
fn ranks_meet_and_say_for_whom_they_wait() {
    let s = server();
    let heard = Arc::default();
    on_threads(3, |r| {
        if r == 2 {
            std::thread::sleep(Duration::from_millis(200));
        }
        let met = Rendezvous::join(options(r, 3, s.port(), &heard)).unwrap();
        assert_eq!(met.whereabouts().len(), 3);
        assert!(met.whereabouts()[2].contains(&format!("pid {}", std::process::id())));
        if r == 0 {
            std::thread::sleep(Duration::from_millis(150));
            met.store().set("index", b"done").unwrap();
        }
        assert_eq!(met.wait_for("index", "rank 0 to build the index").unwrap(), b"done");
        met.barrier("end").unwrap();
        met.leave().unwrap();
    });
    let heard = heard.lock().unwrap();
    assert!(heard.iter().any(|h| h.contains("waiting for 1 of 3 ranks to start: missing 2")), "{heard:?}");
    assert!(heard.iter().any(|h| h.contains("waiting for rank 0 to build the index")), "{heard:?}");
}

#[test]
fn rank_zero_serves_until_all_have_left() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    on_threads(2, |r| {
        let o = RendezvousOptions { served: false, ..options(r, 2, port, &Arc::default()) };
        let met = Rendezvous::join(o).unwrap();
        assert_eq!(met.served_port(), (r == 0).then_some(port));
        if r == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
        met.barrier("last").unwrap();
        met.leave().unwrap();
    });
}

#[test]
fn ranks_alone_do_not_collide() {
    let alone =
        || Rendezvous::join(RendezvousOptions { served: false, ..options(0, 1, 29500, &Arc::default()) }).unwrap();
    let (a, b) = (alone(), alone());
    assert_ne!(a.served_port(), b.served_port());
}

#[test]
fn contradictions_of_ranks_are_errors() {
    let s = server();
    let heard = Arc::default();
    let short = |rank, world| RendezvousOptions {
        timeout: Duration::from_millis(150),
        ..options(rank, world, s.port(), &heard)
    };
    let e = Rendezvous::join(short(0, 2)).err().unwrap().to_string();
    assert!(e.contains("1 of 2 ranks to start: missing 1"), "{e}");
    let e = Rendezvous::join(short(0, 2)).err().unwrap().to_string();
    assert!(e.contains("two processes are rank 0"), "{e}");
    let e = Rendezvous::join(short(1, 3)).err().unwrap().to_string();
    assert!(e.contains("rank 1 has WORLD_SIZE 3, another rank has 2"), "{e}");
    assert!(Rendezvous::join(short(2, 2)).err().unwrap().to_string().contains("ranks are 0 to 1"));
}
