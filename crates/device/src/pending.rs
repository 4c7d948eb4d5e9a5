//! Work in flight on another stream.

use crate::{Event, Stream, Tensor};

/// An operation in flight on a stream other than the home stream. It owns every buffer that the operation touches,
/// and the only way back is through an event wait on the home stream: what PyTorch's `record_stream` asks of
/// callers, done by the type system, with reuse in host order.
#[must_use = "dropping a Pending at once makes the home stream wait: no overlap"]
pub struct Pending {
    out: Option<Tensor>,
    keep: Option<Tensor>,
    done: Event,
    home: Stream,
}

impl Pending {
    /// `out` is what the operation gives, `keep` an input that must live until then.
    pub fn new(out: Tensor, keep: Option<Tensor>, done: Event, home: &Stream) -> Pending {
        Pending { out: Some(out), keep, done, home: home.clone() }
    }

    /// Nothing to wait for.
    pub fn ready(out: Tensor, home: &Stream) -> Pending {
        Pending::new(out, None, Event::done(), home)
    }

    /// The same work, which `home` waits for instead: for work that a stream of its own has fed.
    pub fn awaited_by(mut self, home: &Stream) -> Pending {
        self.home = home.clone();
        self
    }

    /// Makes the home stream wait, then hands out the result. Does not block the host.
    pub fn wait(mut self) -> Tensor {
        self.home.wait(&self.done);
        self.done = Event::done();
        self.keep = None;
        self.out.take().expect("a Pending gives its tensor once: wait consumes it")
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.home.wait(&self.done);
    }
}
