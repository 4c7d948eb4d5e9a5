//! Scopes reach every sink well nested, whatever the order of starts, stops, and sinks that come and go.
#![allow(clippy::unwrap_used)] // a test

use std::io;
use std::sync::{Arc, Mutex};

use ferrotron_telemetry::{MetricsFileError, ScopeSink, Timers};

/// What a sink was told, and the scope whose end it fails to record.
#[derive(Clone, Debug, Default)]
struct Recorder {
    told: Arc<Mutex<Vec<String>>>,
    open: Vec<&'static str>,
    fails_at: &'static str,
}

impl Recorder {
    fn told(&self) -> String {
        self.told.lock().unwrap().join(" ")
    }

    fn tell(&self, what: String) {
        self.told.lock().unwrap().push(what);
    }
}

impl ScopeSink for Recorder {
    fn begin(&mut self, name: &'static str) {
        self.open.push(name);
        self.tell(format!("+{name}"));
    }

    fn end(&mut self) -> Result<(), MetricsFileError> {
        let name = self.open.pop().expect("a scope that this sink was told of is open");
        self.tell(format!("-{name}"));
        let error = || MetricsFileError { action: "write", path: name.into(), source: io::Error::other("a test") };
        if name == self.fails_at { Err(error()) } else { Ok(()) }
    }

    fn finish(self: Box<Self>) -> Result<(), MetricsFileError> {
        assert!(self.open.is_empty(), "{:?} are open at the end", self.open);
        self.tell("end".into());
        Ok(())
    }
}

#[test]
fn two_sinks_hear_the_same_while_both_are_there() {
    let (first, second) = (Recorder::default(), Recorder::default());
    let mut timers = Timers::new(0);
    timers.start("before", 2);
    let one = timers.attach(Box::new(first.clone()));
    timers.stop("before"); // opened before anybody heard
    timers.start("a", 0);
    let two = timers.attach(Box::new(second.clone()));
    timers.time("b", 2, || ());
    timers.stop("a");
    timers.start("c", 1);
    timers.detach(one).unwrap();
    timers.detach(one).unwrap(); // it is gone
    timers.time("d", 1, || ());
    timers.stop("c");
    timers.detach(two).unwrap();
    timers.time("e", 1, || ());
    assert_eq!(first.told(), "+a +b -b -a +c -c end");
    assert_eq!(second.told(), "+b -b +c +d -d -c end");
    assert!(
        timers.elapsed("a", false).is_some() && timers.elapsed("b", false).is_none(),
        "levels are those of the log"
    );
}

#[test]
fn scopes_that_do_not_nest_are_made_to() {
    let sink = Recorder::default();
    let mut timers = Timers::new(0);
    timers.attach(Box::new(sink.clone()));
    timers.start("outer", 0);
    timers.start("inner", 0);
    timers.stop("outer");
    timers.stop("inner"); // ended with the outer one
    timers.stop("never");
    timers.start("outer", 0);
    timers.start("left open", 0);
    timers.detach_all().unwrap();
    assert_eq!(sink.told(), "+outer +inner -inner -outer +outer +left open -left open -outer end");
}

#[test]
fn a_scope_that_cannot_be_recorded_is_told_when_its_sink_ends() {
    let mut timers = Timers::new(0);
    timers.attach(Box::new(Recorder { fails_at: "bad", ..Recorder::default() }));
    timers.time("bad", 0, || ());
    timers.time("good", 0, || ());
    let e = timers.detach_all().unwrap_err().to_string();
    assert!(e.contains("cannot write the metrics file bad: a test"), "{e}");
    timers.detach_all().unwrap(); // told once
}
